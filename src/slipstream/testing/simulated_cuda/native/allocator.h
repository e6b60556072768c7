// The caching allocator. Memory is ordered by streams, as on CUDA: a freed block can be allocated again on the same
// stream at once, although kernels that use the block are still queued. Blocks are cut from segments of the sizes that
// torch uses, so the numbers of reserved and fragmented bytes are comparable with those of a GPU.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include "occupancy.h"
#include "streams.h"

namespace simulated {

constexpr size_t kGranule = 512;             // The size of a block is a multiple of this.
constexpr size_t kSmallLimit = 1 << 20;      // Larger blocks come from the large pool.
constexpr size_t kSmallSegment = 2 << 20;
constexpr size_t kLargeSegment = 20 << 20;
constexpr size_t kMinimalLarge = 10 << 20;   // A block of at least this size has a segment of its own.
constexpr size_t kPoisonBytes = 256 << 10;   // Overwriting more bytes would take time and detect no more errors.

struct Block {
  char* address;
  size_t size, requested = 0;
  int device;
  Stream* stream;
  bool is_small, is_used = false;
  Block *previous = nullptr, *next = nullptr;  // Neighbours in the segment
  std::set<Stream*> users{};                   // Other streams that use the block, from record_stream
  bool is_whole() const { return !previous && !next; }
};

struct BySize {
  bool operator()(const Block* a, const Block* b) const {
    return a->size != b->size ? a->size < b->size : a->address < b->address;
  }
};

// One entry of the history that torch.cuda.memory._record_memory_history() switches on.
struct HistoryEntry {
  int32_t action, device;  // Actions as in c10::CachingDeviceAllocator::TraceEntry
  int64_t address, size, stream, time_us;
};

inline std::string format_bytes(int64_t bytes) {  // In the format of torch's messages
  char text[32];
  auto value = static_cast<double>(bytes);
  if (bytes >= 1 << 30) std::snprintf(text, sizeof text, "%.2f GiB", value / (1 << 30));
  else if (bytes >= 1 << 20) std::snprintf(text, sizeof text, "%.2f MiB", value / (1 << 20));
  else std::snprintf(text, sizeof text, "%.2f KiB", value / (1 << 10));
  return text;
}

class Allocator final : public c10::DeviceAllocator {
 public:
  static Allocator& instance() {
    static auto* allocator = new Allocator();
    return *allocator;
  }

  c10::DataPtr allocate(size_t num_bytes) override {
    int device = current_device;
    if (!num_bytes) return {nullptr, nullptr, &c10::detail::deleteNothing, device_at(device)};
    Stream* stream = current_stream();
    std::unique_lock<std::mutex> lock(mutex_);
    reclaim();
    Block* block = find(device, stream, (num_bytes + kGranule - 1) / kGranule * kGranule, lock);
    block->requested = num_bytes;
    block->is_used = true;
    auto& stats = stats_[device];
    for_pools(stats.allocation, block, [](auto& stat) { stat.increase(1); });
    for_pools(stats.active, block, [](auto& stat) { stat.increase(1); });
    for_pools(stats.allocated_bytes, block, [&](auto& stat) { stat.increase(block->size); });
    for_pools(stats.active_bytes, block, [&](auto& stat) { stat.increase(block->size); });
    for_pools(stats.requested_bytes, block, [&](auto& stat) { stat.increase(num_bytes); });
    note(Action::ALLOC, block);
    auto allocated = stats.allocated_bytes[0].current, reserved = stats.reserved_bytes[0].current;
    lock.unlock();
    c10::reportMemoryUsageToProfiler(block->address, block->size, allocated, reserved, device_at(device));
    return {block->address, block, &give_back_context, device_at(device)};
  }

  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    auto* block = static_cast<Block*>(data.get_context());
    if (!block) return;
    auto* user = find_stream(stream.device_index(), stream.id());
    std::lock_guard<std::mutex> lock(mutex_);
    if (user != block->stream) block->users.insert(user);
  }

  void emptyCache(c10::MempoolId_t = {0, 0}) override {
    for (int device = 0; device < kDevices && is_initialised; ++device) {
      synchronize_device(device);
      std::lock_guard<std::mutex> lock(mutex_);
      reclaim();
      release_segments(device);
    }
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return stats_[device];
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    for_stats(device, [](auto& stat) { stat.reset_accumulated(); });
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    for_stats(device, [](auto& stat) { stat.reset_peak(); });
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    initialise();
    return {Occupancy::of(device).free_bytes(), kTotalBytes};
  }
  bool initialized() override { return is_initialised; }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back_context; }
  void copy_data(void* to, const void* from, size_t n) const override {
    current_stream()->push([=] { std::memcpy(to, from, n); });
  }

  void set_fraction(int device, double fraction) {
    std::lock_guard<std::mutex> lock(mutex_);
    fractions_[device] = fraction;
  }
  double fraction(int device) { return fractions_.count(device) ? fractions_[device] : 1.0; }

  void record_history(size_t max_entries, bool clears) {
    std::lock_guard<std::mutex> lock(mutex_);
    max_history_ = max_entries;
    if (clears || !max_entries) history_.clear();
    while (history_.size() > max_history_) history_.pop_front();
  }
  std::vector<HistoryEntry> history() {
    std::lock_guard<std::mutex> lock(mutex_);
    return {history_.begin(), history_.end()};
  }
  template <typename F>
  void for_blocks(const F& f) {  // Calls f(segment, block) in the order of addresses.
    std::lock_guard<std::mutex> lock(mutex_);
    for (Block* first : segments_)
      for (Block* block = first; block; block = block->next) f(first, block);
  }

 private:
  using Action = c10::CachingDeviceAllocator::TraceEntry::Action;
  using Pool = std::set<Block*, BySize>;

  static void give_back_context(void* context) { instance().give_back(static_cast<Block*>(context)); }

  void give_back(Block* block) {
    if (is_forked) return;  // The memory belongs to the parent process.
    std::unique_lock<std::mutex> lock(mutex_);
    auto& stats = stats_[block->device];
    for_pools(stats.allocation, block, [](auto& stat) { stat.decrease(1); });
    for_pools(stats.allocated_bytes, block, [&](auto& stat) { stat.decrease(block->size); });
    for_pools(stats.requested_bytes, block, [&](auto& stat) { stat.decrease(block->requested); });
    note(Action::FREE_REQUESTED, block);
    auto allocated = stats.allocated_bytes[0].current, reserved = stats.reserved_bytes[0].current;
    auto* address = block->address;
    auto size = static_cast<int64_t>(block->size);
    auto device = block->device;
    if (block->users.empty()) {
      put_into_pool(block);
    } else {
      std::vector<std::pair<Stream*, uint64_t>> until;
      for (auto* user : block->users) until.emplace_back(user, user->last_ticket());
      block->users.clear();
      in_use_elsewhere_.emplace_back(block, std::move(until));
    }
    lock.unlock();
    c10::reportMemoryUsageToProfiler(address, -size, allocated, reserved, device_at(device));
  }

  // Returns a free block for the stream, cut to size. Cached memory is freed before "out of memory" is raised.
  Block* find(int device, Stream* stream, size_t size, std::unique_lock<std::mutex>& lock) {
    bool is_small = size <= kSmallLimit;
    Block* block = take_from_pool(device, stream, size, is_small);
    if (!block) {
      size_t segment = is_small ? kSmallSegment
          : size < kMinimalLarge ? kLargeSegment
                                 : (size + kSmallSegment - 1) / kSmallSegment * kSmallSegment;
      if (!has_room(device, segment)) {
        ++stats_[device].num_alloc_retries;
        lock.unlock();
        synchronize_device(device);
        lock.lock();
        reclaim();
        release_segments(device);
      }
      if (!has_room(device, segment)) raise_out_of_memory(device, size);
      block = make_segment(device, stream, segment, is_small);
    }
    size_t left = block->size - size;
    if (left >= (is_small ? kGranule : kSmallLimit + 1)) {
      auto* rest = new Block{block->address + size, left, 0, device, stream, is_small};
      rest->previous = block;
      rest->next = block->next;
      if (rest->next) rest->next->previous = rest;
      block->next = rest;
      block->size = size;
      pool_of(rest).insert(rest);
      count_split(rest, 1);
    }
    return block;
  }
  Block* take_from_pool(int device, Stream* stream, size_t size, bool is_small) {
    auto& pool = pools_[{device, stream, is_small}];
    Block wanted{nullptr, size, 0, device, stream, is_small};
    auto found = pool.lower_bound(&wanted);
    if (found == pool.end()) return nullptr;
    Block* block = *found;
    pool.erase(found);
    count_split(block, -1);
    return block;
  }
  Block* make_segment(int device, Stream* stream, size_t size, bool is_small) {
    void* address = nullptr;
    TORCH_CHECK(posix_memalign(&address, kGranule, size) == 0, "the host has no memory for the simulated device");
    auto* block = new Block{static_cast<char*>(address), size, 0, device, stream, is_small};
    segments_.insert(block);
    Occupancy::of(device).add(static_cast<int64_t>(size));
    auto& stats = stats_[device];
    for_pools(stats.reserved_bytes, block, [&](auto& stat) { stat.increase(size); });
    for_pools(stats.segment, block, [](auto& stat) { stat.increase(1); });
    ++stats.num_device_alloc;
    note(Action::SEGMENT_ALLOC, block);
    return block;
  }
  void release_segments(int device) {  // The caller has synchronised the device.
    for (auto& [key, pool] : pools_) {
      if (std::get<0>(key) != device) continue;
      std::get<1>(key)->wait_for(std::get<1>(key)->last_ticket());  // Freed blocks must be overwritten.
      for (auto at = pool.begin(); at != pool.end();) {
        Block* block = *at;
        if (!block->is_whole()) {
          ++at;
          continue;
        }
        auto& stats = stats_[device];
        for_pools(stats.reserved_bytes, block, [&](auto& stat) { stat.decrease(block->size); });
        for_pools(stats.segment, block, [](auto& stat) { stat.decrease(1); });
        ++stats.num_device_free;
        note(Action::SEGMENT_FREE, block);
        Occupancy::of(device).add(-static_cast<int64_t>(block->size));
        std::free(block->address);
        segments_.erase(block);
        at = pool.erase(at);
        delete block;
      }
    }
  }

  void put_into_pool(Block* block) {
    auto& stats = stats_[block->device];
    for_pools(stats.active, block, [](auto& stat) { stat.decrease(1); });
    for_pools(stats.active_bytes, block, [&](auto& stat) { stat.decrease(block->size); });
    note(Action::FREE_COMPLETED, block);
    if (kPoisons)
      block->stream->push([at = block->address, n = std::min(block->size, kPoisonBytes)] { std::memset(at, 0xff, n); });
    block->is_used = false;
    merge(block, block->next);
    if (block->previous && !block->previous->is_used) {
      Block* previous = block->previous;
      pool_of(previous).erase(previous);
      count_split(previous, -1);
      join(previous, block);
      block = previous;
    }
    pool_of(block).insert(block);
    count_split(block, 1);
  }
  void merge(Block* block, Block* next) {
    if (!next || next->is_used) return;
    pool_of(next).erase(next);
    count_split(next, -1);
    join(block, next);
  }
  void join(Block* block, Block* next) {
    block->size += next->size;
    block->next = next->next;
    if (block->next) block->next->previous = block;
    delete next;
  }
  // A block that other streams have used is free after these streams have passed the point at which it was freed.
  void reclaim() {
    for (size_t at = 0; at < in_use_elsewhere_.size();) {
      auto& until = in_use_elsewhere_[at].second;
      if (std::all_of(until.begin(), until.end(), [](auto& one) { return one.first->has_passed(one.second); })) {
        put_into_pool(in_use_elsewhere_[at].first);
        in_use_elsewhere_.erase(in_use_elsewhere_.begin() + static_cast<int64_t>(at));
      } else {
        ++at;
      }
    }
  }

  bool has_room(int device, size_t size) {
    auto bytes = static_cast<int64_t>(size);
    auto limit = static_cast<int64_t>(fraction(device) * static_cast<double>(kTotalBytes));
    return stats_[device].reserved_bytes[0].current + bytes <= limit && Occupancy::of(device).free_bytes() >= bytes;
  }
  void raise_out_of_memory(int device, size_t size) {
    auto& stats = stats_[device];
    ++stats.num_ooms;
    auto allocated = stats.allocated_bytes[0].current, reserved = stats.reserved_bytes[0].current;
    TORCH_CHECK_WITH(
        OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", format_bytes(static_cast<int64_t>(size)), ". GPU ", device,
        " has a total capacity of ", format_bytes(kTotalBytes), " of which ", format_bytes(Occupancy::of(device).free_bytes()),
        " is free. Of the allocated memory ", format_bytes(allocated), " is allocated by PyTorch, and ",
        format_bytes(reserved - allocated), " is reserved by PyTorch but unallocated.");
  }

  Pool& pool_of(Block* block) { return pools_[{block->device, block->stream, block->is_small}]; }
  void count_split(Block* block, int sign) {
    if (block->is_whole()) return;
    auto& stats = stats_[block->device];
    for_pools(stats.inactive_split, block, [&](auto& s) { sign > 0 ? s.increase(1) : s.decrease(1); });
    for_pools(stats.inactive_split_bytes, block, [&](auto& s) {
      sign > 0 ? s.increase(block->size) : s.decrease(block->size);
    });
  }
  template <typename F>
  static void for_pools(c10::CachingAllocator::StatArray& stat, const Block* block, const F& f) {
    f(stat[0]);
    f(stat[block->is_small ? 1 : 2]);
  }
  template <typename F>
  void for_stats(int device, const F& f) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& s = stats_[device];
    for (auto* array : {&s.allocation, &s.segment, &s.active, &s.inactive_split, &s.allocated_bytes, &s.reserved_bytes,
                        &s.active_bytes, &s.inactive_split_bytes, &s.requested_bytes})
      for (auto& stat : *array) f(stat);
  }
  void note(Action action, const Block* block) {
    if (!max_history_) return;
    bool is_segment = action == Action::SEGMENT_ALLOC || action == Action::SEGMENT_FREE;
    auto time_us = std::chrono::duration_cast<std::chrono::microseconds>(
                       std::chrono::system_clock::now().time_since_epoch()).count();
    history_.push_back({static_cast<int32_t>(action), block->device, reinterpret_cast<int64_t>(block->address),
                        static_cast<int64_t>(is_segment ? block->size : block->requested), block->stream->id, time_us});
    if (history_.size() > max_history_) history_.pop_front();
  }

  std::mutex mutex_;
  std::map<std::tuple<int, Stream*, bool>, Pool> pools_;
  std::set<Block*> segments_;  // The first block of each segment; it is the same block as long as the segment exists
  std::vector<std::pair<Block*, std::vector<std::pair<Stream*, uint64_t>>>> in_use_elsewhere_;
  std::map<int, c10::CachingDeviceAllocator::DeviceStats> stats_;
  std::map<int, double> fractions_;
  std::deque<HistoryEntry> history_;
  size_t max_history_ = 0;
};

inline const bool allocator_is_set = [] {
  c10::SetAllocator(kType, &Allocator::instance(), 100);
  return true;
}();

}  // namespace simulated
