// Random numbers with CUDA's kind of state: a seed, and an offset that each launch advances on the host. The numbers of
// a launch come from a CPU generator that is seeded with seed and offset.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>

#include "settings.h"

namespace simulated {

class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(int device) : GeneratorImpl(device_at(device), kKeys) {}

  void set_current_seed(uint64_t seed) override { seed_ = seed, offset_ = 0; }
  uint64_t current_seed() const override { return seed_; }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto state = at::detail::empty_cpu({16}, at::kByte, std::nullopt, std::nullopt, std::nullopt, std::nullopt);
    auto* bytes = static_cast<char*>(state.mutable_data_ptr());
    std::memcpy(bytes, &seed_, 8);
    std::memcpy(bytes + 8, &offset_, 8);
    return state.getIntrusivePtr();
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.device().is_cpu() && state.dtype() == at::kByte, "RNG state must be a torch.ByteTensor");
    TORCH_CHECK(state.numel() == 16, "RNG state is wrong size");
    std::memcpy(&seed_, state.data(), 8);
    std::memcpy(&offset_, static_cast<const char*>(state.data()) + 8, 8);
  }
  at::Generator next_launch() {
    std::lock_guard<std::mutex> lock(mutex_);
    offset_ += 4;
    return at::detail::createCPUGenerator(seed_ * 0x9E3779B97F4A7C15ull + 0xD1B54A32D192ED03ull * offset_);
  }

 private:
  Generator* clone_impl() const override {
    auto* other = new Generator(device().index());
    other->seed_ = seed_, other->offset_ = offset_;
    return other;
  }
  uint64_t seed_ = c10::default_rng_seed_val, offset_ = 0;
};

inline const at::Generator& default_generator(int device) {
  static auto* all = [] {
    auto* made = new std::vector<at::Generator>();
    for (int at = 0; at < kDevices; ++at) made->push_back(at::make_generator<Generator>(at));
    return made;
  }();
  check_ordinal(resolve(device));
  return (*all)[resolve(device)];
}

}  // namespace simulated
