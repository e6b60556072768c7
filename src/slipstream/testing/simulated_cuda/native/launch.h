// Launching work on the current stream, and the host's view of a tensor on the device.
#pragma once

#include "streams.h"

extern "C" {
// profiler.cpp sets these pointers while torch's profiler records kernels.
extern uint64_t (*simulated_cuda_correlation)();
extern void (*simulated_cuda_kernel)(
    const char* name, int64_t start_ns, int64_t end_ns, uint64_t correlation, int device, int64_t stream);
}

namespace simulated {

using at::Tensor;

inline std::atomic<int64_t> num_launches{0};

inline bool is_on_device(const Tensor& tensor) { return tensor.defined() && tensor.device().type() == kType; }

// Returns a CPU tensor with the same memory. The tensor does not keep the memory alive. A kernel does not do so either.
inline Tensor host_view(const Tensor& tensor) {
  auto options = at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU);
  if (!tensor.numel()) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  auto* start = static_cast<char*>(tensor.storage().unsafeGetStorageImpl()->data_ptr().get());
  auto* data = start + tensor.storage_offset() * static_cast<int64_t>(tensor.element_size());
  Tensor host = at::from_blob(data, tensor.sizes(), tensor.strides(), options);
  if (tensor.is_conj()) host = host.conj();
  if (tensor.is_neg()) host = at::_neg_view(host);
  return host;
}

// `minimal_ns` is the least time of the work on the device, in addition to the time that the CPU needs for it.
inline void launch(const char* name, Task task, int64_t minimal_ns) {
  ++num_launches;
  auto* stream = current_stream();
  uint64_t correlation = simulated_cuda_correlation ? simulated_cuda_correlation() : 0;
  stream->push([=, task = std::move(task)] {
    auto start = now_ns();
    task();
    auto slowed_ns = static_cast<int64_t>(static_cast<double>(now_ns() - start) * kSlowdown);
    sleep_until_ns(start + std::max(minimal_ns, slowed_ns));
    if (correlation && simulated_cuda_kernel)
      simulated_cuda_kernel(name, start, now_ns(), correlation, stream->device, stream->id);
  });
}
inline void launch_kernel(const char* name, Task task) {
  launch(name, std::move(task), static_cast<int64_t>(kKernelUs * 1e3));
}
inline void launch_transfer(const char* name, Task task, size_t bytes) {
  launch(name, std::move(task), kCopyGbPerS > 0 ? static_cast<int64_t>(static_cast<double>(bytes) / kCopyGbPerS) : 0);
}

}  // namespace simulated
