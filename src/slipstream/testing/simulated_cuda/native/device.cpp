// A simulated CUDA on a CPU build of torch: work is queued on streams and executed later by one thread per stream.
// There is one translation unit, because torch's headers take most of the compile time.
#include "tensors.h"

extern "C" {
uint64_t (*simulated_cuda_correlation)() = nullptr;
void (*simulated_cuda_kernel)(const char*, int64_t, int64_t, uint64_t, int, int64_t) = nullptr;
}

namespace simulated {

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", as_strided);
  m.impl("resize_", resize);
  m.impl("set_.source_Storage", set_storage);
  m.impl("set_.source_Storage_storage_offset", set_storage_and_view);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("_local_scalar_dense", read_number);
  m.impl("copy_", copy);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);
  m.impl("native_dropout", native_dropout);
  m.impl("_fused_sdp_choice", choose_attention);
  m.impl("record_stream", record_stream);
  // torch composes these operators of kernels for each device. The CPU's own operators are used unchanged.
  for (auto* name : {"convolution", "convolution_backward", "_native_batch_norm_legit", "native_batch_norm"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_operator>());
}
TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_operator>()); }

}  // namespace simulated

// --- functions that Python calls with ctypes -------------------------------------------------------------------------

using namespace simulated;

namespace {
// ctypes cannot see C++ exceptions. Functions that may fail return false, and Python then reads the error's text.
thread_local std::string last_error;
template <typename F>
bool succeeds(const F& f) {
  try {
    f();
    return true;
  } catch (const c10::Error& error) {
    last_error = error.what_without_backtrace();
  } catch (const std::exception& error) {
    last_error = error.what();
  }
  return false;
}
}  // namespace

extern "C" {
const char* simulated_cuda_last_error() { return last_error.c_str(); }
bool simulated_cuda_initialise() { return succeeds([] { initialise(); }); }
bool simulated_cuda_is_initialised() { return is_initialised && !is_forked; }
int simulated_cuda_num_devices() { return is_forked ? 0 : kDevices; }
bool simulated_cuda_is_forked() { return is_forked; }
void simulated_cuda_hand_out_default_generators(bool does) { hands_out_default_generator = does; }
void simulated_cuda_set_fraction(int device, double fraction) { Allocator::instance().set_fraction(device, fraction); }
double simulated_cuda_fraction(int device) { return Allocator::instance().fraction(device); }
bool simulated_cuda_sleep(int64_t ns) {
  return succeeds([ns] { launch("spin_kernel", [] {}, ns); });
}
// torch compares only events of its own class, not of the subclass torch.cuda.Event. Returns NaN if an event has not
// passed.
double simulated_cuda_elapsed_ms(void* first, void* second) {
  for (auto* event : {first, second})
    if (!static_cast<Event*>(event)->recording->is_passed()) return std::nan("");
  return Guard().elapsedTime(first, second, -1);
}
int64_t simulated_cuda_num_launches() { return num_launches; }
int64_t simulated_cuda_num_waits() { return num_waits; }
int64_t simulated_cuda_num_pending(int device) {
  int64_t sum = 0;
  for (auto* stream : streams_of(device)) sum += stream->num_pending();
  return sum;
}

void simulated_cuda_record_history(int64_t max_entries, bool clears) {
  Allocator::instance().record_history(static_cast<size_t>(max_entries), clears);
}
// With a null pointer these functions return the number of entries.
int64_t simulated_cuda_history(HistoryEntry* entries, int64_t max_entries) {
  auto found = Allocator::instance().history();
  for (int64_t at = 0; entries && at < std::min<int64_t>(max_entries, static_cast<int64_t>(found.size())); ++at)
    entries[at] = found[static_cast<size_t>(at)];
  return static_cast<int64_t>(found.size());
}
struct BlockRow {
  int64_t segment, address, size, requested, stream;
  int32_t device, is_small, is_used, waits;
};
int64_t simulated_cuda_blocks(BlockRow* rows, int64_t max_rows) {
  int64_t n = 0;
  Allocator::instance().for_blocks([&](Block* segment, Block* block) {
    if (rows && n < max_rows)
      rows[n] = {reinterpret_cast<int64_t>(segment->address), reinterpret_cast<int64_t>(block->address),
                 static_cast<int64_t>(block->size), static_cast<int64_t>(block->requested), block->stream->id,
                 block->device, block->is_small, block->is_used, !block->users.empty()};
    ++n;
  });
  return n;
}

// A simulated graph capture. It has the state in which calls are forbidden, and records nothing.
void simulated_cuda_begin_capture() { capture = Capture::kActive; }
bool simulated_cuda_end_capture() { return capture.exchange(Capture::kNone) == Capture::kActive; }
bool simulated_cuda_is_capturing() { return capture != Capture::kNone; }
}
