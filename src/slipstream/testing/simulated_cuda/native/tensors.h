// Operators that the CPU cannot run for the device. They make tensors and views, copy, and read a number.
#pragma once

#include <ATen/ExpandUtils.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>

#include "operators.h"

namespace simulated {

inline Tensor empty(
    at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool> pinned, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
  c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_generic(size, &Allocator::instance(), kKeys, c10::dtype_or_default(dtype), format);
}
inline Tensor empty_strided(
    at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>) {
  c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_strided_generic(size, stride, &Allocator::instance(), kKeys, c10::dtype_or_default(dtype));
}

inline const Tensor& resize(const Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat>) {
  if (self.sizes() == size) return self;
  auto storage = self.storage();
  auto needed = static_cast<size_t>(c10::multiply_integers(size) + self.storage_offset()) * self.element_size();
  if (storage.nbytes() < needed) {
    c10::DeviceGuard guard(self.device());
    auto data = Allocator::instance().allocate(needed);
    if (auto n = storage.nbytes())
      current_stream()->push([to = data.get(), from = storage.data(), n] { std::memcpy(to, from, n); });
    storage.set_data_ptr_noswap(std::move(data));
    storage.set_nbytes(needed);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return self;
}

inline Tensor& set_storage_and_view(
    Tensor& self, at::Storage storage, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_storage_offset(offset);
  if (stride.data()) impl->set_sizes_and_strides(size, stride);
  else impl->set_sizes_contiguous(size);
  return self;
}
inline Tensor& set_storage(Tensor& self, at::Storage storage) {
  auto length = static_cast<int64_t>(storage.nbytes() / self.element_size());
  return set_storage_and_view(self, std::move(storage), 0, {length}, {});
}
inline Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_storage_and_view(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

inline at::Scalar read_number(const Tensor& self) {
  c10::DeviceGuard guard(self.device());
  synchronize(current_stream());
  return host_view(self).item();
}

inline Tensor host_bytes(const Tensor& tensor) {
  // This tensor does not keep the memory alive. A copy reads the memory later.
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().pinned_memory(false));
}

inline void copy_to_device(const Tensor& self, const Tensor& source, bool non_blocking) {
  auto* stream = current_stream();
  bool is_pinned = Pinned::instance().holds(source.data_ptr());
  if (is_pinned && non_blocking && source.dtype() == self.dtype()) {
    launch_transfer("Memcpy HtoD (Pinned -> Device)",
                    [to = host_view(self), from = host_bytes(source)] { to.copy_(from); }, self.nbytes());
    Pinned::instance().keep_until(source.data_ptr(), stream, stream->last_ticket());
    return;
  }
  // Pageable memory is read before the call returns, even if the copy to the device is queued.
  launch_transfer("Memcpy HtoD (Pageable -> Device)",
                  [to = host_view(self), from = source.to(self.scalar_type(), false, true)] { to.copy_(from); }, self.nbytes());
  if (!non_blocking) synchronize(stream);
}
inline void copy_to_host(const Tensor& self, const Tensor& source, bool non_blocking) {
  auto* stream = current_stream();
  bool is_pinned = Pinned::instance().holds(self.data_ptr());
  launch_transfer(is_pinned ? "Memcpy DtoH (Device -> Pinned)" : "Memcpy DtoH (Device -> Pageable)",
                  [to = host_bytes(self), from = host_view(source)] { to.copy_(from); }, self.nbytes());
  if (is_pinned) Pinned::instance().keep_until(self.data_ptr(), stream, stream->last_ticket());
  if (!is_pinned || !non_blocking) synchronize(stream);
}
inline void copy_within_device(const Tensor& self, const Tensor& source) {
  auto* stream = current_stream();
  bool is_peer = self.device() != source.device();
  auto* target = current_stream_of(self.device().index());
  if (is_peer) wait_for_recording(stream, record_on(target));  // The copy runs on the stream of the source.
  launch_kernel(is_peer ? "Memcpy PtoP" : "Memcpy DtoD",
                [to = host_view(self), from = host_view(source)] { to.copy_(from); });
  if (is_peer) wait_for_recording(target, record_on(stream));
}
inline Tensor& copy(Tensor& self, const Tensor& source, bool non_blocking) {
  if (!self.numel() || self.is_meta() || source.is_meta()) return self;
  Tensor expanded = *at::expand_inplace(self, source, "copy_");
  c10::DeviceGuard guard((is_on_device(expanded) ? expanded : self).device());
  if (!is_on_device(expanded)) copy_to_device(self, expanded, non_blocking);
  else if (!is_on_device(self)) copy_to_host(self, expanded, non_blocking);
  else copy_within_device(self, expanded);
  return self;
}
inline Tensor copy_from_and_resize(const Tensor& self, const Tensor& target) {
  const_cast<Tensor&>(target).resize_(self.sizes());
  return const_cast<Tensor&>(target).copy_(self);
}

inline std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train) {
  if (!train.value_or(true)) return {input.clone(), at::ones_like(input, at::kBool)};
  Tensor mask = at::empty_like(input, at::kBool).bernoulli_(1 - p);
  return {input.mul(mask).mul_(p < 1 ? 1 / (1 - p) : 0), mask};
}
inline int64_t choose_attention(
    const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool, std::optional<double>, bool) {
  return 0;  // Plain operators are composed, because the device has no fused kernels.
}
inline void record_stream(Tensor& self, c10::Stream stream) {
  Allocator::instance().recordStream(self.storage().data_ptr(), stream);
}
inline Tensor view(const Tensor& self, at::IntArrayRef size) { return at::native::view(self, size); }
inline Tensor reshape_alias(const Tensor& self, at::IntArrayRef size, at::IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}
inline Tensor as_strided(
    const Tensor& self, at::IntArrayRef size, at::IntArrayRef stride, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

}  // namespace simulated
