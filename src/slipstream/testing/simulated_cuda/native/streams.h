// Streams and events. Each stream has a thread that executes its queue in order, so the host returns before the work
// is done and two streams run side by side.
#pragma once

#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <sys/prctl.h>

#include "process_state.h"

namespace simulated {

using Task = std::function<void()>;

inline std::atomic<int64_t> num_waits{0};

class Stream {
 public:
  Stream(int device, int64_t id) : device(device), id(id) {
    std::thread([this] { execute(); }).detach();
  }

  // Returns a ticket. The stream has passed the ticket when the task is done. Blocks while the queue is full.
  uint64_t push(Task task) {
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [&] { return queue_.size() < kQueueDepth; });
    queue_.push_back(std::move(task));
    work_.notify_one();
    return ++num_submitted_;
  }
  void wait_for(uint64_t ticket) {
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [&] { return num_completed_ >= ticket; });
  }
  bool has_passed(uint64_t ticket) {
    std::lock_guard<std::mutex> lock(mutex_);
    return num_completed_ >= ticket;
  }
  uint64_t last_ticket() {
    std::lock_guard<std::mutex> lock(mutex_);
    return num_submitted_;
  }
  int64_t num_pending() {
    std::lock_guard<std::mutex> lock(mutex_);
    return static_cast<int64_t>(num_submitted_ - num_completed_);
  }

  const int device;
  const int64_t id;

 private:
  void execute() {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);  // Sleeps end within 1 microsecond and not 50.
    at::get_num_threads();                    // Only the first call sets the number of threads.
    // With one thread per kernel, sums have the same order on every machine.
    if (auto* set = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"))) set(1);
    while (true) {
      Task task;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        work_.wait(lock, [&] { return !queue_.empty(); });
        task = std::move(queue_.front());
        queue_.pop_front();
      }
      try {
        task();
      } catch (const std::exception& error) {
        keep_failure(error.what());
      }
      task = nullptr;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        ++num_completed_;
      }
      done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable work_, done_;
  std::deque<Task> queue_;
  uint64_t num_submitted_ = 0, num_completed_ = 0;
};

// --- the streams of this process -------------------------------------------------------------------------------------

constexpr int64_t kStreamsInPool = 32;  // Streams of a device that are used in turn, as in torch

inline std::mutex streams_mutex;
inline std::map<std::pair<int, int64_t>, Stream*> streams;
inline thread_local std::map<int, int64_t> current_stream_ids;  // By device. No entry: the default stream

inline Stream* find_stream(int device, int64_t id) {
  initialise();
  check_ordinal(device);
  std::lock_guard<std::mutex> lock(streams_mutex);
  auto& found = streams[{device, id}];
  if (!found) found = new Stream(device, id);
  return found;
}
inline int64_t current_stream_id(int device) {
  auto found = current_stream_ids.find(device);
  return found == current_stream_ids.end() ? 0 : found->second;
}
inline Stream* current_stream_of(int device) { return find_stream(device, current_stream_id(device)); }
inline Stream* current_stream() { return current_stream_of(current_device); }
inline c10::Stream as_torch_stream(int device, int64_t id) {
  return c10::Stream(c10::Stream::UNSAFE, device_at(device), id);
}
inline std::vector<Stream*> streams_of(int device) {
  std::lock_guard<std::mutex> lock(streams_mutex);
  std::vector<Stream*> found;
  for (auto& [key, stream] : streams)
    if (key.first == device) found.push_back(stream);
  return found;
}

inline void synchronize(Stream* stream) {
  forbid_during_capture();
  ++num_waits;
  stream->wait_for(stream->last_ticket());
  raise_failure();
}
inline void synchronize_device(int device) {
  forbid_during_capture();
  ++num_waits;
  for (auto* stream : streams_of(device)) stream->wait_for(stream->last_ticket());
  raise_failure();
}

// --- events ----------------------------------------------------------------------------------------------------------

// One recording of an event. An event that is recorded again gets a new recording. A stream that waits for the
// old recording continues to wait for it.
class Recording {
 public:
  void pass() {
    std::lock_guard<std::mutex> lock(mutex_);
    at_ns_ = now_ns();
    passed_.notify_all();
  }
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    passed_.wait(lock, [&] { return at_ns_ != 0; });
  }
  bool is_passed() { return at_ns() != 0; }
  int64_t at_ns() {
    std::lock_guard<std::mutex> lock(mutex_);
    return at_ns_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable passed_;
  int64_t at_ns_ = 0;
};

struct Event {
  std::shared_ptr<Recording> recording;
  int device;
};

inline void wait_for_recording(Stream* stream, std::shared_ptr<Recording> recording) {
  stream->push([recording = std::move(recording)] { recording->wait(); });
}
inline std::shared_ptr<Recording> record_on(Stream* stream) {
  auto recording = std::make_shared<Recording>();
  stream->push([recording] { recording->pass(); });
  return recording;
}

}  // namespace simulated
