// The memory of each device that every process holds. The table is in shared memory, because all processes that use a
// GPU share its memory. If a process has died, the next process that reads the table removes the entry of the dead
// process.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "settings.h"

namespace simulated {

struct Tenant {
  std::atomic<int32_t> pid;
  std::atomic<int64_t> bytes;
};

class Occupancy {
 public:
  static Occupancy& of(int device) {
    static std::mutex mutex;
    static std::map<int, Occupancy*> all;
    std::lock_guard<std::mutex> lock(mutex);
    auto& found = all[device];
    if (!found) found = new Occupancy(device);
    return *found;
  }
  void add(int64_t bytes) { seat_->bytes += bytes; }
  int64_t used_bytes() {
    int64_t sum = 0;
    for (int at = 0; at < kTenants; ++at) {
      int32_t pid = tenants_[at].pid;
      if (pid && !remove_if_dead(tenants_[at], pid)) sum += tenants_[at].bytes;
    }
    return sum;
  }
  int64_t free_bytes() { return std::max<int64_t>(0, kTotalBytes - used_bytes()); }

 private:
  static constexpr int kTenants = 64;

  explicit Occupancy(int device) {
    const char* name = std::getenv("SIMULATED_CUDA_MACHINE");
    std::string path = "/dev/shm/simulated-cuda-" + (name && *name ? std::string(name) : std::to_string(getuid())) +
        "-" + std::to_string(kVisibleDevices.at(static_cast<size_t>(device)));
    size_t size = sizeof(Tenant) * kTenants;
    int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    TORCH_CHECK(file >= 0 && ftruncate(file, size) == 0, "the simulated device cannot open ", path);
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    TORCH_CHECK(memory != MAP_FAILED, "the simulated device cannot map ", path);
    tenants_ = static_cast<Tenant*>(memory);
    for (int at = 0; at < kTenants && !seat_; ++at) {
      int32_t pid = tenants_[at].pid;
      if (pid) remove_if_dead(tenants_[at], pid);
      int32_t nobody = 0;
      if (tenants_[at].pid.compare_exchange_strong(nobody, getpid())) seat_ = &tenants_[at];
    }
    TORCH_CHECK(seat_, "more than ", kTenants, " processes use the simulated device");
    seat_->bytes = kContextBytes;
    static std::vector<Tenant*> seats;
    if (seats.empty()) std::atexit([] { leave(seats); });
    seats.push_back(seat_);
  }
  static void leave(std::vector<Tenant*>& seats) {
    for (auto* seat : seats)
      if (seat->pid == getpid()) seat->pid = 0;  // A forked child has no entry of its own.
  }
  static bool remove_if_dead(Tenant& tenant, int32_t pid) {
    if (pid == getpid() || kill(pid, 0) == 0 || errno != ESRCH) return false;
    tenant.pid.compare_exchange_strong(pid, 0);
    return true;
  }

  Tenant* tenants_ = nullptr;
  Tenant* seat_ = nullptr;
};

}  // namespace simulated
