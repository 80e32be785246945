#include <sluice/verbs/device.h>

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/base/log.h>
#include <sluice/base/settings.h>

namespace sluice::verbs {
namespace {

constexpr const char* kOrigin = "verbs/device";
// Vendor ids of the kernel's software devices: drivers/infiniband/sw/rxe/rxe_param.h,
// sw/siw/siw.h.
constexpr uint32_t kSoftRoce = 0xFFFFFF;
constexpr uint32_t kSoftIwarp = 0x626D74;
constexpr int kEventsPerTurn = 64;

Counter device_events("verbs.device_events");
Counter queue_pairs_buried("verbs.queue_pairs_buried");
Counter memory_quarantined("verbs.memory_quarantined");  // bytes
Counter regions_kept("verbs.regions_kept");
Counter completion_events("verbs.completion_events");
Counter moderation_refused("verbs.moderation_refused");

uint8_t small(int value) { return static_cast<uint8_t>(std::clamp(value, 1, 255)); }

Status failed(const std::string& what, int error) {
  Code code =
      error == ENOMEM || error == EMFILE || error == ENFILE ? Code::kNoMemory : Code::kInternal;
  return Status(code, Scope::kOperation, kOrigin, what, error);
}

Status set_nonblocking(int fd) {
  int flags = ::fcntl(fd, F_GETFL);
  if (flags >= 0 && ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0) return Status();
  return failed("a device's descriptor cannot be made non-blocking", errno);
}

}  // namespace

DeviceLimits limits_of(VerbsApi& api, ibv_context* context, const ibv_device_attr& a) {
  DeviceLimits limits;
  limits.queue_depth = static_cast<uint32_t>(std::max(a.max_qp_wr, 0));
  limits.completion_depth = static_cast<uint32_t>(std::max(a.max_cqe, 0));
  limits.pieces = static_cast<uint32_t>(std::max(a.max_sge, 1));
  limits.read_pieces = a.max_sge_rd > 0
                           ? std::min(limits.pieces, static_cast<uint32_t>(a.max_sge_rd))
                           : limits.pieces;
  limits.reads_out = small(a.max_qp_init_rd_atom);
  limits.reads_in = small(a.max_qp_rd_atom);
  limits.windows = (a.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B) != 0 && a.max_mw > 0;
  limits.atomics = a.atomic_cap != IBV_ATOMIC_NONE;
  limits.on_demand = api.pages_on_demand(context);
  limits.software = a.vendor_id == kSoftRoce || a.vendor_id == kSoftIwarp;
  limits.iwarp =
      context->device != nullptr && context->device->transport_type == IBV_TRANSPORT_IWARP;
  return limits;
}

Result<std::unique_ptr<Device>> Device::open(ContextCore& context, VerbsApi& api,
                                             const std::string& name) {
  std::unique_ptr<Device> device(new Device(context, api, name));
  SLUICE_RETURN_IF_ERROR(device->initialise());
  return device;
}

Status Device::initialise() {
  int count = 0;
  errno = 0;
  ibv_device** list = api_.device_list(&count);
  if (list == nullptr) return failed("the RDMA devices cannot be listed", errno);
  for (int i = 0; i < count && handle_ == nullptr; ++i) {
    if (list[i] == nullptr || name_ != list[i]->name) continue;
    errno = 0;
    handle_ = api_.open_device(list[i]);
  }
  int error = errno;
  api_.free_device_list(list);
  if (handle_ == nullptr) {
    std::string remedy = error == EACCES || error == EPERM
                             ? "; /dev/infiniband/uverbs* must be readable and writable"
                             : "";
    return Status(Code::kUnreachable, Scope::kOperation, kOrigin,
                  "RDMA device " + name_ + " cannot be opened" + remedy, error);
  }
  ibv_device_attr attributes{};
  if (int e = api_.query_device(handle_, &attributes); e != 0)
    return failed("RDMA device " + name_ + " does not say what it can do", e);
  limits_ = limits_of(api_, handle_, attributes);
  if (!limits_.checks_reads()) {
    log(LogLevel::kWarning, "RDMA device " + name_ +
                                " is soft-iWARP, which checks no right to read: use it among "
                                "trusted peers, or a RoCE device or tcp://");
  }
  if (const auto text = setting_text("SLUICE_RDMA_MODERATION")) {
    std::optional<ModerationWish> wish = moderation_wish(*text);
    if (!wish)
      log(LogLevel::kWarning,
          "SLUICE_RDMA_MODERATION is ignored: '" + *text +
              "' is neither auto nor like 16/8 (completions/microseconds up to 1000)");
    moderation_ = wish.value_or(ModerationWish{});
  }
  errno = 0;
  pd_ = api_.alloc_pd(handle_);
  if (pd_ == nullptr) return failed("no protection domain on RDMA device " + name_, errno);
  channel_ = api_.create_comp_channel(handle_);
  if (channel_ == nullptr) return failed("no completion channel on RDMA device " + name_, errno);
  SLUICE_RETURN_IF_ERROR(set_nonblocking(channel_->fd));
  SLUICE_RETURN_IF_ERROR(set_nonblocking(handle_->async_fd));
  SLUICE_RETURN_IF_ERROR(context_.watch(channel_->fd, EPOLLIN, this));
  SLUICE_RETURN_IF_ERROR(context_.watch(handle_->async_fd, EPOLLIN, this));
  RegistrarOptions options{.windows = limits_.windows, .on_demand = limits_.on_demand};
  SLUICE_TRY(registrar_, Registrar::attach(api_, pd_, context_.shared_arena(), options));
  return Status();
}

Device::~Device() {
  for (const auto* left : {&buried_, &refused_}) {
    for (const Buried& each : *left) {
      (void)api_.destroy_qp(each.qp);
      (void)api_.destroy_cq(each.cq);
    }
  }
  for (ibv_mr* region : refused_regions_) (void)api_.dereg_mr(region);
  if (registrar_ != nullptr) registrar_->close();
  if (channel_ != nullptr) {
    context_.unwatch(channel_->fd, this);
    (void)api_.destroy_comp_channel(channel_);
  }
  if (handle_ == nullptr) return;
  context_.unwatch(handle_->async_fd, this);
  if (pd_ != nullptr) {
    if (int e = api_.dealloc_pd(pd_); e != 0 && !dead_) {
      log(LogLevel::kError, "the protection domain of RDMA device " + name_ +
                                " is still in use (errno " + std::to_string(e) + ")");
    }
  }
  (void)api_.close_device(handle_);
}

uint64_t Device::message_limit(uint8_t port) const {
  ibv_port_attr attributes{};
  if (api_.query_port(handle_, port, &attributes) != 0 || attributes.max_msg_sz == 0)
    return 1u << 20;
  return attributes.max_msg_sz;
}

bool Device::port_active(uint8_t port) const {
  ibv_port_attr attributes{};
  return api_.query_port(handle_, port, &attributes) == 0 && attributes.state == IBV_PORT_ACTIVE;
}

bool Device::moderate(ibv_cq* cq, const Moderation& wanted) {
  if (dead_ || !moderation_.any()) return false;
  int error = api_.modify_cq(cq, wanted.count, wanted.period_us);
  if (error == 0) return true;
  moderation_refused.add();
  moderation_ = {};
  // Soft-RoCE and soft-iWARP: EOPNOTSUPP.
  log(LogLevel::kWarning, "RDMA device " + name_ + " does not moderate completion events (errno " +
                              std::to_string(error) +
                              "): SLUICE_RDMA_MODERATION has no effect on it");
  return false;
}

uintptr_t Device::add_user() {
  ++users_;
  if (free_numbers_.empty()) {
    announced_to_.push_back(0);
    free_numbers_.reserve(announced_to_.capacity());  // who goes allocates nothing
    return announced_to_.size() - 1;
  }
  const uintptr_t user = free_numbers_.back();
  free_numbers_.pop_back();
  return user;
}

void Device::remove_user(uintptr_t user) {
  --users_;
  free_numbers_.push_back(user);
}

void Device::keep_refused(ibv_mr* region) {
  regions_kept.add();
  refused_regions_.push_back(region);
}

void Device::hold(StorageRef memory) {
  memory_quarantined.add(memory->size());
  held_.push_back(std::move(memory));
}

void Device::bury(ibv_qp* qp, ibv_cq* cq, uint8_t port) {
  queue_pairs_buried.add();
  buried_.push_back({qp, cq, port});
}

size_t Device::dig() {
  return std::erase_if(buried_, [&](const Buried& buried) {
    if (!dead_ && !port_active(buried.port)) return false;
    (void)api_.destroy_qp(buried.qp);
    (void)api_.destroy_cq(buried.cq);
    return true;
  });
}

void Device::on_event(uint32_t) noexcept {
  if (channel_ != nullptr) read_completion_events();
  if (!dead_) read_device_events();
}

// They only say that somebody is to poll, and every turn polls all.
void Device::read_completion_events() {
  for (int i = 0; i < kEventsPerTurn; ++i) {
    ibv_cq* cq = nullptr;
    void* user = nullptr;
    if (api_.cq_event(channel_, &cq, &user) != 0) return;
    completion_events.add();
    ++announcements_;
    // The number of a destroyed queue may belong to another by now: that costs one extra event.
    const auto number = reinterpret_cast<uintptr_t>(user);
    if (number < announced_to_.size()) ++announced_to_[number];
    api_.ack_cq_events(cq, 1);
  }
}

void Device::read_device_events() {
  for (int i = 0; i < kEventsPerTurn && !dead_; ++i) {
    ibv_async_event event{};
    int error = api_.async_event(handle_, &event);
    if (error == EAGAIN || error == EWOULDBLOCK) return;
    if (error != 0) {
      // The device went away under us.
      dead_ = true;
      if (watcher_ != nullptr)
        watcher_->on_device_event({.device = *this, .type = IBV_EVENT_DEVICE_FATAL, .fatal = true});
      return;
    }
    device_events.add();
    DeviceEvent told{.device = *this, .type = event.event_type};
    switch (event.event_type) {
      case IBV_EVENT_QP_FATAL:
      case IBV_EVENT_QP_REQ_ERR:
      case IBV_EVENT_QP_ACCESS_ERR:
      case IBV_EVENT_COMM_EST:
      case IBV_EVENT_SQ_DRAINED:
      case IBV_EVENT_PATH_MIG:
      case IBV_EVENT_PATH_MIG_ERR:
      case IBV_EVENT_QP_LAST_WQE_REACHED: told.queue_pair = event.element.qp->qp_num; break;
      case IBV_EVENT_CQ_ERR: told.cq = event.element.cq; break;
      case IBV_EVENT_DEVICE_FATAL: dead_ = true; break;
      default: break;
    }
    told.fatal = dead_;
    api_.ack_async_event(&event);
    if (watcher_ != nullptr) watcher_->on_device_event(told);
  }
}

}  // namespace sluice::verbs
