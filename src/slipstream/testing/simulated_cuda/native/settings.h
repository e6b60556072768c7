// The settings that a test can configure, and functions that all parts of the simulated device use. `settings.py` sets
// the environment variables and documents them.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace simulated {

constexpr auto kType = c10::DeviceType::CUDA;
constexpr auto kKeys = c10::DispatchKeySet(c10::DispatchKey::CUDA);

inline double setting(const char* name, double fallback) {
  const char* text = std::getenv((std::string("SIMULATED_CUDA_") + name).c_str());
  return text && *text ? std::atof(text) : fallback;
}

// The numbers of the machine's devices that CUDA_VISIBLE_DEVICES makes visible. As in CUDA, the list ends at the first
// entry that is not a device.
inline std::vector<int> read_visible_devices() {
  int num_devices = static_cast<int>(setting("DEVICES", 2));
  std::vector<int> visible;
  const char* text = std::getenv("CUDA_VISIBLE_DEVICES");
  if (!text) {
    for (int at = 0; at < num_devices; ++at) visible.push_back(at);
    return visible;
  }
  while (*text) {
    char* end = nullptr;
    long index = std::strtol(text, &end, 10);
    if (end == text || index < 0 || index >= num_devices) break;
    visible.push_back(static_cast<int>(index));
    if (*end != ',') break;
    text = end + 1;
  }
  return visible;
}

const std::vector<int> kVisibleDevices = read_visible_devices();
const int kDevices = static_cast<int>(kVisibleDevices.size());
const int64_t kTotalBytes = static_cast<int64_t>(setting("MEMORY_MB", 4096)) << 20;
const int64_t kContextBytes = static_cast<int64_t>(setting("CONTEXT_MB", 300)) << 20;
const size_t kQueueDepth = static_cast<size_t>(setting("QUEUE_DEPTH", 1024));
const double kKernelUs = setting("KERNEL_US", 0);
const double kSlowdown = setting("SLOWDOWN", 1);
const double kCopyGbPerS = setting("COPY_GB_PER_S", 0);
const bool kPoisons = setting("POISON", 1) > 0;
const bool kComputes = setting("COMPUTE", 1) > 0;

inline int64_t now_ns() {
  auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// A device that is slower than the CPU sleeps for the remaining time, so the host's cores stay free.
inline void sleep_until_ns(int64_t end_ns) {
  int64_t left_ns = end_ns - now_ns();
  if (left_ns > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(left_ns));
}

inline c10::Device device_at(int index) { return {kType, static_cast<c10::DeviceIndex>(index)}; }

inline thread_local int current_device = 0;
inline int resolve(int index) { return index < 0 ? current_device : index; }

inline void check_ordinal(int index) {
  TORCH_CHECK(index < kDevices, "CUDA error: invalid device ordinal");
}

}  // namespace simulated
