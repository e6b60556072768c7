// The state of the device in this process: not initialised, ready, failed, or unusable after a fork. Also the state of
// a graph capture, during which CUDA forbids every call that waits for the device or queries its progress.
#pragma once

#include <pthread.h>

#include "settings.h"

namespace simulated {

inline std::atomic<bool> is_initialised{false};
inline std::atomic<bool> is_forked{false};

// As on CUDA, an error in a kernel is reported by the next call that waits for the device, and by every later one.
inline std::mutex failure_mutex;
inline std::string failure;

inline void keep_failure(const char* reason) {
  std::lock_guard<std::mutex> lock(failure_mutex);
  if (failure.empty()) failure = std::string(reason).substr(0, 400);
}
inline void raise_failure() {
  std::lock_guard<std::mutex> lock(failure_mutex);
  TORCH_CHECK(failure.empty(), "CUDA error: device-side failure: ", failure);
}

inline void initialise() {
  TORCH_CHECK(
      !is_forked,
      "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' "
      "start method");
  if (is_initialised) return;
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork(nullptr, nullptr, [] { is_forked = true; });
    is_initialised = true;
  });
}

// --- graph capture ---------------------------------------------------------------------------------------------------

enum class Capture { kNone, kActive, kInvalidated };
inline std::atomic<Capture> capture{Capture::kNone};

// A capture in the mode "global" forbids some functions. Each of them calls this function, which makes an active
// capture invalid and raises an error.
inline void forbid_during_capture() {
  if (capture == Capture::kNone) return;
  capture = Capture::kInvalidated;
  TORCH_CHECK(false, "CUDA error: operation not permitted when stream is capturing");
}

}  // namespace simulated
