// The functions that torch needs of a device: the guard (current device and stream, events) and the hooks (generators,
// pinned memory).
#pragma once

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <typeinfo>

#include "allocator.h"
#include "pinned.h"
#include "random.h"

namespace simulated {

struct Guard final : c10::impl::DeviceGuardImplInterface {
  Guard() = default;
  explicit Guard(c10::DeviceType) {}
  c10::DeviceType type() const override { return kType; }
  c10::Device getDevice() const override { return device_at(current_device); }
  void setDevice(c10::Device d) const override {
    check_ordinal(d.index());
    uncheckedSetDevice(d);
  }
  void uncheckedSetDevice(c10::Device d) const noexcept override {
    if (d.index() >= 0) current_device = d.index();
  }
  c10::Device exchangeDevice(c10::Device d) const override {
    auto before = getDevice();
    setDevice(d);
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return is_forked ? 0 : static_cast<c10::DeviceIndex>(kDevices);
  }
  void synchronizeDevice(c10::DeviceIndex device) const override { synchronize_device(resolve(device)); }

  c10::Stream getStream(c10::Device d) const override {
    int device = resolve(d.index());
    return as_torch_stream(device, current_stream_id(device));
  }
  c10::Stream getDefaultStream(c10::Device d) const override { return as_torch_stream(resolve(d.index()), 0); }
  c10::Stream getNewStream(c10::Device d, int) const override {
    static std::atomic<int64_t> num_made{0};
    return as_torch_stream(resolve(d.index()), 1 + num_made++ % kStreamsInPool);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool) const override { return getNewStream(d, 0); }
  c10::Stream exchangeStream(c10::Stream s) const override {
    auto before = as_torch_stream(s.device_index(), current_stream_id(s.device_index()));
    current_stream_ids[s.device_index()] = s.id();
    return before;
  }
  bool queryStream(const c10::Stream& s) const override {
    forbid_during_capture();
    return stream_of(s)->num_pending() == 0;
  }
  void synchronizeStream(const c10::Stream& s) const override { synchronize(stream_of(s)); }
  bool isStreamCapturing(const c10::Stream&) const override { return capture != Capture::kNone; }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& s) const override {
    Allocator::instance().recordStream(data, s);
  }

  void record(void** event, const c10::Stream& s, c10::DeviceIndex index, c10::EventFlag) const override {
    TORCH_CHECK(index == -1 || index == s.device_index(), "Event device index ", static_cast<int>(index),
                " does not match recording stream's device index ", static_cast<int>(s.device_index()), ".");
    if (!*event) *event = new Event();
    *static_cast<Event*>(*event) = {record_on(stream_of(s)), s.device_index()};
  }
  void block(void* event, const c10::Stream& s) const override {
    if (event) wait_for_recording(stream_of(s), static_cast<Event*>(event)->recording);
  }
  bool queryEvent(void* event) const override {
    forbid_during_capture();
    return !event || static_cast<Event*>(event)->recording->is_passed();
  }
  void synchronizeEvent(void* event) const override {
    forbid_during_capture();
    if (event) static_cast<Event*>(event)->recording->wait();
    raise_failure();
  }
  double elapsedTime(void* first, void* second, c10::DeviceIndex) const override {
    auto *from = static_cast<Event*>(first), *to = static_cast<Event*>(second);
    TORCH_CHECK(from->device == to->device, "CUDA error: invalid resource handle");
    // CUDA returns a float, which loses microseconds after some seconds.
    return static_cast<float>(static_cast<double>(to->recording->at_ns() - from->recording->at_ns()) / 1e6);
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }

 private:
  static Stream* stream_of(const c10::Stream& s) { return find_stream(s.device_index(), s.id()); }
};

// If true, Python gets the default generator when it asks for a new one. torch has no other way to wrap the default
// generator.
inline std::atomic<bool> hands_out_default_generator{false};

struct Hooks final : at::CUDAHooksInterface {
  bool hasCUDA() const override { return isAvailable(); }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return !is_forked && kDevices > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return is_initialised; }
  void init() const override { initialise(); }
  int getNumGPUs() const override { return kDevices; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(kDevices); }
  c10::DeviceIndex current_device() const override { return getCurrentDevice(); }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(simulated::current_device);
  }
  void setCurrentDevice(c10::DeviceIndex device) const override { Guard().setDevice({kType, device}); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return Guard().exchangeDevice({kType, device}).index();
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  void deviceSynchronize(c10::DeviceIndex device) const override { synchronize_device(resolve(device)); }
  at::Allocator* getCUDADeviceAllocator() const override { return &Allocator::instance(); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &Pinned::instance(); }
  bool isPinnedPtr(const void* data) const override { return is_initialised && Pinned::instance().holds(data); }
  at::Device getDeviceFromPtr(void*) const override { return device_at(simulated::current_device); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    if (hands_out_default_generator) return default_generator(device);
    check_ordinal(resolve(device));
    return at::make_generator<Generator>(resolve(device));
  }
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

// When this library is loaded, torch has already looked for its hooks. It keeps the object that it found, which is an
// instance of the interface itself, without members. A new object replaces this object in its memory.
inline const bool hooks_are_set = [] {
  static_assert(sizeof(Hooks) == sizeof(at::CUDAHooksInterface), "the hooks have members: the object cannot be replaced");
  auto& found = const_cast<at::CUDAHooksInterface&>(at::detail::getCUDAHooks());
  TORCH_CHECK(typeid(found) == typeid(at::CUDAHooksInterface), "this torch has CUDA, so it cannot be simulated");
  at::setHostAllocator(kType, &Pinned::instance(), 100);
  new (&found) Hooks();
  return true;
}();

}  // namespace simulated
