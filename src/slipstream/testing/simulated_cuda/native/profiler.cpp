// Reports every kernel and copy to torch's profiler (kineto): its name, the time at which the device ran it, and the
// operator that launched it.
#include <libkineto.h>

#include <mutex>
#include <vector>

extern "C" {
extern uint64_t (*simulated_cuda_correlation)();
extern void (*simulated_cuda_kernel)(const char*, int64_t, int64_t, uint64_t, int, int64_t);
}

namespace {
using namespace libkineto;

struct Kernel {
  const char* name;
  int64_t start_ns, end_ns;
  uint64_t correlation;
  int device;
  int64_t stream;
};
std::mutex kernels_mutex;
std::vector<Kernel> kernels;
thread_local std::vector<uint64_t> correlations;

uint64_t current_correlation() { return correlations.empty() ? 0 : correlations.back(); }

void add_kernel(const char* name, int64_t start_ns, int64_t end_ns, uint64_t correlation, int device, int64_t stream) {
  std::lock_guard<std::mutex> lock(kernels_mutex);
  kernels.push_back({name, start_ns, end_ns, correlation, device, stream});
}

int64_t from_steady_to_trace_ns() {
  using namespace std::chrono;
  return duration_cast<nanoseconds>(system_clock::now().time_since_epoch()).count() -
      duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

class Session final : public IActivityProfilerSession {
 public:
  void start() override {
    std::lock_guard<std::mutex> lock(kernels_mutex);
    kernels.clear();
    simulated_cuda_correlation = &current_correlation;
    simulated_cuda_kernel = &add_kernel;
    status_ = TraceStatus::RECORDING;
  }
  void stop() override {  // Kernels that were launched before are still reported.
    simulated_cuda_correlation = nullptr;
    status_ = TraceStatus::PROCESSING;
  }
  std::vector<std::string> errors() override { return {}; }
  void processTrace(ActivityLogger& logger) override { write(logger, nullptr); }
  void processTrace(ActivityLogger& logger, getLinkedActivityCallback linked, int64_t, int64_t) override {
    write(logger, linked);
  }
  std::unique_ptr<DeviceInfo> getDeviceInfo() override { return nullptr; }
  std::vector<ResourceInfo> getResourceInfos() override { return {}; }
  std::unique_ptr<CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer_); }
  void pushCorrelationId(uint64_t id) override { correlations.push_back(id); }
  void popCorrelationId() override {
    if (!correlations.empty()) correlations.pop_back();
  }

 private:
  void write(ActivityLogger& logger, const getLinkedActivityCallback& linked) {
    std::lock_guard<std::mutex> lock(kernels_mutex);
    buffer_ = std::make_unique<CpuTraceBuffer>();
    buffer_->span = TraceSpan(0, 0, "simulated CUDA");
    auto shift_ns = from_steady_to_trace_ns();
    int64_t id = 1'000'000'000;  // The ids differ from those of the host's events.
    for (auto& kernel : kernels) {
      std::string name = kernel.name;
      auto type = name.rfind("Memcpy", 0) == 0 ? ActivityType::GPU_MEMCPY : ActivityType::CONCURRENT_KERNEL;
      buffer_->emplace_activity(buffer_->span, type, name);
      auto& activity = *buffer_->activities.back();
      activity.startTime = kernel.start_ns + shift_ns;
      activity.endTime = kernel.end_ns + shift_ns;
      activity.device = kernel.device;
      activity.resource = static_cast<int32_t>(kernel.stream);
      activity.id = static_cast<int32_t>(++id);
      activity.flow.id = static_cast<uint32_t>(kernel.correlation);
      activity.flow.type = kLinkAsyncCpuGpu;
      activity.linked = linked ? linked(static_cast<int32_t>(kernel.correlation)) : nullptr;
      activity.log(logger);
    }
    kernels.clear();
  }
  std::unique_ptr<CpuTraceBuffer> buffer_;
};

class Profiler final : public IActivityProfiler {
 public:
  const std::string& name() const override {
    static const std::string text = "simulated CUDA";
    return text;
  }
  const std::set<ActivityType>& availableActivities() const override {
    static const std::set<ActivityType> all{ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY};
    return all;
  }
  std::unique_ptr<IActivityProfilerSession> configure(const std::set<ActivityType>& types, const Config&) override {
    return types.count(ActivityType::CONCURRENT_KERNEL) ? std::make_unique<Session>() : nullptr;
  }
  std::unique_ptr<IActivityProfilerSession> configure(
      int64_t, int64_t, const std::set<ActivityType>& types, const Config& config) override {
    return configure(types, config);
  }
};
}  // namespace

extern "C" void simulated_cuda_register_profiler() {
  api().registerProfilerFactory([]() -> std::unique_ptr<IActivityProfiler> { return std::make_unique<Profiler>(); });
}
