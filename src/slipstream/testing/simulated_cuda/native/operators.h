// Every operator of torch on the simulated device. The host infers the shapes of the results with a meta kernel,
// allocates them and returns. The stream then runs torch's CPU kernel on the same memory. An operator whose result
// sizes depend on values (`nonzero`) or that returns numbers makes the host wait, as on CUDA.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <unordered_map>

#include "hooks.h"
#include "launch.h"

namespace simulated {

using c10::IValue;
using Values = torch::jit::Stack;

// The properties of an operator according to its schema. They are computed once.
struct Plan {
  explicit Plan(const c10::FunctionSchema& schema) : name(schema.name()) {
    for (auto& argument : schema.arguments()) {
      auto type = argument.type()->str();
      is_generator.push_back(type.find("Generator") != std::string::npos);
      may_be_indices.push_back(type.find("Tensor?[]") != std::string::npos);
      auto* alias = argument.alias_info();
      is_written.push_back(alias && alias->isWrite());
      is_out.push_back(is_written.back() && argument.kwarg_only());
    }
    for (auto& result : schema.returns()) {
      int argument = -1;
      auto* alias = result.alias_info();
      for (size_t at = 0; alias && alias->isWrite() && at < is_written.size(); ++at)
        if (is_written[at] && schema.arguments()[at].alias_info()->afterSets() == alias->afterSets())
          argument = static_cast<int>(at);
      returned_argument.push_back(argument);
      returns_new |= argument < 0;
      auto type = result.type()->str();
      returns_numbers |= type != "Tensor" && type != "Tensor[]";
    }
  }
  const std::string name;
  std::vector<bool> is_generator, may_be_indices, is_written, is_out;
  std::vector<int> returned_argument;  // The argument that each result is; -1 for a new tensor
  bool returns_new = false, returns_numbers = false;
};

inline const Plan& plan_of(const c10::OperatorHandle& op) {
  static std::mutex mutex;
  static std::unordered_map<const void*, Plan*> plans;
  std::lock_guard<std::mutex> lock(mutex);
  auto& found = plans[&op.schema()];
  if (!found) found = new Plan(op.schema());
  return *found;
}

// Applies f to the defined tensors of a value, also inside lists.
template <typename F>
IValue map_tensors(const IValue& value, const F& f) {
  if (value.isTensor()) return value.toTensor().defined() ? IValue(f(value.toTensor())) : value;
  if (value.isTensorList()) {
    c10::List<Tensor> mapped;
    for (const Tensor& tensor : value.toTensorVector()) mapped.push_back(tensor.defined() ? f(tensor) : tensor);
    return mapped;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> mapped;
    for (const auto& tensor : value.toOptionalTensorVector())
      mapped.push_back(tensor && tensor->defined() ? std::optional<Tensor>(f(*tensor)) : tensor);
    return mapped;
  }
  return value;
}

inline Tensor meta_like(const Tensor& tensor) {
  if (tensor.dim() == 0 && tensor.is_cpu()) return tensor;  // A number, whose value may decide the shape
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

class Call {
 public:
  Call(const c10::OperatorHandle& op, Values& stack)
      : op_(op), plan_(plan_of(op)), arguments_(stack.end() - static_cast<int64_t>(plan_.is_written.size()), stack.end()) {
    find_device();
  }
  int device() const { return device_; }

  std::vector<IValue> run() {
    make_host_arguments();
    if (plan_.returns_numbers || !infer_results()) return run_on_host();
    return enqueue();
  }

 private:
  void find_device() {
    device_ = -1;
    for (auto& argument : arguments_) {
      map_tensors(argument, [&](const Tensor& tensor) {
        if (!is_on_device(tensor)) return tensor;
        if (device_ >= 0 && device_ != tensor.device().index()) raise_two_devices(tensor.device(), device_at(device_));
        device_ = tensor.device().index();
        return tensor;
      });
    }
    for (auto& argument : arguments_)
      if (argument.isDevice() && argument.toDevice().type() == kType && device_ < 0)
        device_ = resolve(argument.toDevice().index());
    device_ = resolve(device_);
    check_ordinal(device_);
  }
  void raise_two_devices(c10::Device one, c10::Device other) const {
    TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", other, " and ",
                one, "! (when checking argument for ", plan_.name, ")");
  }

  void make_host_arguments() {
    for (size_t at = 0; at < arguments_.size(); ++at) {
      auto& argument = arguments_[at];
      if (plan_.is_generator[at]) {
        host_.emplace_back(next_launch(argument));
      } else if (argument.isDevice()) {
        host_.emplace_back(c10::Device(c10::kCPU));
      } else {
        host_.push_back(map_tensors(argument, [&](const Tensor& tensor) -> Tensor {
          if (is_on_device(tensor)) return host_view(tensor);
          if (tensor.dim() != 0 && !plan_.may_be_indices[at]) raise_two_devices(tensor.device(), device_at(device_));
          return tensor.clone();  // The kernel gets the value that the number has now.
        }));
      }
    }
  }
  at::Generator next_launch(const IValue& argument) const {
    auto generator = argument.isNone() ? default_generator(device_) : argument.toGenerator();
    TORCH_CHECK(generator.device().type() == kType, "Expected a 'cuda' device type for generator but found '",
                c10::DeviceTypeName(generator.device().type(), true), "'");
    TORCH_CHECK(generator.device().index() == device_, "Expected generator on ", device_at(device_), " but got ",
                generator.device());
    return static_cast<Generator*>(generator.unsafeGetGeneratorImpl())->next_launch();
  }

  // Finds the shapes of the results by a call with meta tensors. Returns false if the shapes depend on values.
  bool infer_results() {
    bool has_empty_out = false;  // `out` arguments without elements get the size of the result.
    for (size_t at = 0; at < arguments_.size(); ++at)
      has_empty_out |= plan_.is_out[at] && arguments_[at].isTensor() && arguments_[at].toTensor().numel() == 0;
    if (!plan_.returns_new && !has_empty_out) return true;
    Values meta;
    for (auto& argument : arguments_) {
      if (argument.isGenerator()) meta.emplace_back();
      else if (argument.isDevice()) meta.emplace_back(c10::Device(c10::kMeta));
      else meta.push_back(map_tensors(argument, meta_like));
    }
    Values before = meta;
    try {
      op_.callBoxed(&meta);
    } catch (const std::exception&) {
      return !plan_.returns_new;
    }
    inferred_ = std::move(meta);
    for (size_t at = 0; has_empty_out && at < arguments_.size(); ++at) {
      if (!plan_.is_out[at] || !arguments_[at].isTensor() || !before[at].toTensor().numel()) continue;
      auto out = arguments_[at].toTensor();
      if (!is_on_device(out) || out.numel()) continue;
      out.resize_(before[at].toTensor().sizes());
      host_[at] = host_view(out);
    }
    return true;
  }
  Tensor make_result(const Tensor& like) const {
    return at::empty_strided(like.sizes(), like.strides(), like.options().device(device_at(device_)));
  }

  std::vector<IValue> enqueue() {
    std::vector<IValue> results;
    std::vector<std::vector<Tensor>> outputs;  // The memory of new tensors, for each result
    for (size_t at = 0; at < plan_.returned_argument.size(); ++at) {
      outputs.emplace_back();
      if (plan_.returned_argument[at] >= 0) {
        results.push_back(arguments_[static_cast<size_t>(plan_.returned_argument[at])]);
        continue;
      }
      results.push_back(map_tensors(inferred_[at], [&](const Tensor& tensor) {
        Tensor made = make_result(tensor);
        outputs.back().push_back(host_view(made));
        return made;
      }));
    }
    if (!kComputes) {
      launch_kernel(plan_.name.c_str(), [] {});
      return results;
    }
    launch_kernel(plan_.name.c_str(), [op = op_, host = std::move(host_), outputs = std::move(outputs)] {
      Values values(host.begin(), host.end());
      op.callBoxed(&values);
      for (size_t at = 0; at < outputs.size(); ++at) {
        size_t place = 0;
        if (outputs[at].empty()) continue;
        map_tensors(values[at], [&](const Tensor& tensor) {
          auto& output = outputs[at].at(place++);
          if (!tensor.numel()) return tensor;  // Only CUDA returns these statistics if a batch norm evaluates.
          TORCH_CHECK(tensor.sizes() == output.sizes(), op.schema().name(), " has the shape ", tensor.sizes(),
                      " on the CPU and ", output.sizes(), " on meta tensors");
          const_cast<Tensor&>(output).copy_(tensor);
          return tensor;
        });
      }
    });
    return results;
  }

  std::vector<IValue> run_on_host() {
    synchronize(current_stream());
    Values values(host_.begin(), host_.end());
    {
      at::AutoDispatchBelowADInplaceOrView below_autograd;
      op_.callBoxed(&values);
    }
    std::vector<IValue> results;
    for (size_t at = 0; at < plan_.returned_argument.size(); ++at) {
      int argument = plan_.returned_argument[at];
      results.push_back(argument >= 0 ? arguments_[static_cast<size_t>(argument)] : map_tensors(values[at], [&](const Tensor& t) {
        Tensor made = make_result(t);
        host_view(made).copy_(t);
        return made;
      }));
    }
    return results;
  }

  const c10::OperatorHandle& op_;
  const Plan& plan_;
  std::vector<IValue> arguments_, host_;
  Values inferred_;
  int device_ = 0;
};

inline void run_operator(const c10::OperatorHandle& op, Values* stack) {
  Call call(op, *stack);
  c10::DeviceGuard guard(device_at(call.device()));
  auto results = call.run();
  torch::jit::drop(*stack, op.schema().arguments().size());
  for (auto& result : results) stack->push_back(std::move(result));
}

}  // namespace simulated
