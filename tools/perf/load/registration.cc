#include "tools/perf/load/registration.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include <sluice/allocator/page_source.h>
#include <sluice/kmod/socket.h>
#include <sluice/shm/mapper.h>
#include <sluice/verbs/device.h>
#include <sluice/verbs/devices.h>

namespace sluice::tools {
namespace {

constexpr const char* kOrigin = "perf/registration";
constexpr uint64_t kPage = 4096;
// Extents are whole ones of these (allocator/page_source.h).
constexpr uint64_t kExtentBytes = uint64_t{2} << 20;

Status failed(const std::string& why, int error = 0) {
  return Status(Code::kNoMemory, Scope::kOperation, kOrigin, why, error);
}

// With a device: what it does for every extent of the arena (ibv_reg_mr(3), ibv_dereg_mr(3)), of a
// part of one.
class DeviceRegistration final : public Registration {
 public:
  DeviceRegistration(Context& context, std::unique_ptr<verbs::Device> device)
      : context_(context), device_(std::move(device)) {}

  Status prepare(uint64_t bytes) override {
    memory_ = Buffer();
    SLUICE_TRY(memory_, context_.arena().allocate(bytes));
    bytes_ = bytes;
    return Status();
  }
  Status enter() override {
    return device_->registrar().extent_added(kOurs, memory_.data(), bytes_);
  }
  void leave() override { device_->registrar().extent_removed(kOurs); }

 private:
  // An arena begins with 1.
  static constexpr ExtentId kOurs = ~ExtentId{0};

  Context& context_;
  std::unique_ptr<verbs::Device> device_;
  Buffer memory_;
  uint64_t bytes_ = 0;
};

// With the kernel module, which pins the pages: what it does for every transfer and window.
class ModuleRegistration final : public Registration {
 public:
  ModuleRegistration(Context& context, kmod::KmodSocket&& socket)
      : context_(context), socket_(std::move(socket)) {}

  Status prepare(uint64_t bytes) override {
    memory_ = Buffer();
    SLUICE_TRY(memory_, context_.arena().allocate(bytes));
    bytes_ = bytes;
    return Status();
  }
  Status enter() override {
    int error = socket_.register_memory(memory_.data(), bytes_, region_);
    if (error == 0) return Status();
    return failed(
        std::to_string(bytes_) +
            " bytes of memory could not be pinned; see `ulimit -l`, or take a smaller --size",
        error);
  }
  void leave() override { socket_.unregister_memory(region_); }

 private:
  Context& context_;
  kmod::KmodSocket socket_;
  Buffer memory_;
  uint64_t bytes_ = 0;
  uint32_t region_ = 0;
};

// By a peer over shared memory: it maps an extent that it was told of, and comes upon each page
// once.
class MappedRegistration final : public Registration {
 public:
  ~MappedRegistration() override { give_back(); }

  Status prepare(uint64_t bytes) override {
    give_back();
    bytes_ = bytes;
    length_ = (std::max<uint64_t>(bytes, 1) + kExtentBytes - 1) / kExtentBytes * kExtentBytes;
    SLUICE_TRY(base_, system_page_source().reserve(length_));
    SLUICE_TRY(run_, system_page_source().commit(base_, length_));
    SLUICE_RETURN_IF_ERROR(system_page_source().seal(run_));
    run_.sealed = true;
    return Status();
  }
  Status enter() override {
    int fd = ::fcntl(run_.fd, F_DUPFD_CLOEXEC, 0);  // the peer gets one of its own by the socket
    if (fd < 0) return failed("no descriptor for the extent; raise `ulimit -n`", errno);
    auto* arena = new shm::PeerArena(length_, nullptr, nullptr);
    Status added = arena->add_extent(1, 0, length_, fd);
    ::close(fd);
    Result<ImportedRun> view = added.ok()
                                   ? arena->import_run({.extent = 1, .offset = 0, .length = bytes_})
                                   : Result<ImportedRun>(added);
    if (!view.ok()) {
      arena->drop();
      return view.status();
    }
    for (uint64_t at = 0; at < bytes_; at += kPage)
      (void)*static_cast<const volatile std::byte*>(view->data + at);
    arena_ = arena;
    view_ = view->mapping;
    return Status();
  }
  void leave() override {
    view_->drop();
    arena_->drop();
    arena_ = nullptr;
  }

 private:
  void give_back() {
    if (run_.fd >= 0) system_page_source().decommit(run_);
    run_ = {};
    if (base_ != nullptr) system_page_source().unreserve(base_, length_);
    base_ = nullptr;
  }

  std::byte* base_ = nullptr;
  PageRun run_;
  uint64_t bytes_ = 0, length_ = 0;
  shm::PeerArena* arena_ = nullptr;
  PeerMapping* view_ = nullptr;
};

// The device that has the address, or the one that others would be met with.
Result<std::string> device_of(const verbs::Survey& survey, const std::string& address) {
  if (address == kAnyAddress) {
    const verbs::DeviceFacts* best = survey.best_device();
    if (best != nullptr) return best->name;
    return Status(Code::kUnreachable, Scope::kOperation, kOrigin,
                  "no RDMA device has an active port; see sluice info");
  }
  for (const verbs::DeviceFacts& device : survey.devices) {
    for (const verbs::PortFacts& port : device.ports) {
      if (std::find(port.addresses.begin(), port.addresses.end(), address) != port.addresses.end())
        return device.name;
    }
  }
  return Status(Code::kUnreachable, Scope::kOperation, kOrigin,
                "no RDMA device has the address " + address + "; see sluice info");
}

}  // namespace

bool registers_memory(std::string_view transport) {
  return transport == "auto" || transport == "rdma" || transport == "kmod" || transport == "shm";
}

Result<RegistrationWay> open_registration(Context& context, const PerfOptions& options) {
  if (options.transport == "kmod") {
    SLUICE_TRY(kmod::KmodSocket socket, kmod::KmodSocket::open(options.bind, 0));
    return RegistrationWay{Path::kModule, options.bind,
                           std::make_unique<ModuleRegistration>(context, std::move(socket))};
  }
  verbs::Survey survey;
  if (options.transport != "shm") survey = verbs::survey_devices();
  bool rdma = options.transport == "rdma" ||
              (options.transport == "auto" && survey.usable() && survey.best_device() != nullptr);
  if (!rdma) return RegistrationWay{Path::kShm, "", std::make_unique<MappedRegistration>()};
  SLUICE_TRY(std::string name, device_of(survey, options.bind));
  SLUICE_TRY(verbs::VerbsApi * api, verbs::verbs_api());
  SLUICE_TRY(std::unique_ptr<verbs::Device> device,
             verbs::Device::open(ContextCore::of(context), *api, name));
  return RegistrationWay{Path::kVerbs, name,
                         std::make_unique<DeviceRegistration>(context, std::move(device))};
}

}  // namespace sluice::tools
