// Pinned host memory. The host does not wait for copies to and from pinned memory, so blocks are kept until the streams
// that use them have passed the copies.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

#include "streams.h"

namespace simulated {

class Pinned final : public at::HostAllocator {
 public:
  static Pinned& instance() {
    static auto* allocator = new Pinned();
    return *allocator;
  }
  c10::DataPtr allocate(size_t num_bytes) override {
    initialise();
    std::lock_guard<std::mutex> lock(mutex_);
    reclaim();
    size_t size = 512;
    while (size < num_bytes) size *= 2;
    void* address = nullptr;
    auto found = free_.find(size);
    if (found != free_.end()) {
      address = found->second;
      free_.erase(found);
    } else {
      TORCH_CHECK(posix_memalign(&address, 4096, size) == 0, "the host has no memory left to pin");
    }
    used_[reinterpret_cast<uintptr_t>(address)] = {size, {}};
    return {address, address, &give_back_address, c10::Device(c10::kCPU)};
  }
  bool holds(const void* data) {
    std::lock_guard<std::mutex> lock(mutex_);
    return find(data) != nullptr;
  }
  void keep_until(const void* data, Stream* stream, uint64_t ticket) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (auto* block = find(data)) block->until.emplace_back(stream, ticket);
  }
  bool record_event(void* data, void*, c10::Stream stream) override {
    auto* user = find_stream(stream.device_index(), stream.id());
    keep_until(data, user, user->last_ticket());
    return true;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back_address; }
  void copy_data(void* to, const void* from, size_t n) const override { std::memcpy(to, from, n); }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}

 private:
  struct HostBlock {
    size_t size;
    std::vector<std::pair<Stream*, uint64_t>> until;
  };
  static void give_back_address(void* address) {
    auto& self = instance();
    if (is_forked) return;
    std::lock_guard<std::mutex> lock(self.mutex_);
    auto found = self.used_.find(reinterpret_cast<uintptr_t>(address));
    if (found == self.used_.end()) return;
    self.waiting_.emplace_back(address, found->second);
    self.used_.erase(found);
  }
  HostBlock* find(const void* data) {
    auto address = reinterpret_cast<uintptr_t>(data);
    auto next = used_.upper_bound(address);
    if (next == used_.begin()) return nullptr;
    auto& [start, block] = *std::prev(next);
    return address < start + block.size ? &block : nullptr;
  }
  void reclaim() {
    for (size_t at = 0; at < waiting_.size();) {
      auto& [address, block] = waiting_[at];
      auto& until = block.until;
      if (std::all_of(until.begin(), until.end(), [](auto& one) { return one.first->has_passed(one.second); })) {
        free_.emplace(block.size, address);
        waiting_.erase(waiting_.begin() + static_cast<int64_t>(at));
      } else {
        ++at;
      }
    }
  }

  std::mutex mutex_;
  std::map<uintptr_t, HostBlock> used_;
  std::multimap<size_t, void*> free_;
  std::vector<std::pair<void*, HostBlock>> waiting_;
};

}  // namespace simulated
