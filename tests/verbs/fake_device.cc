// Devices, their ports and GIDs, asynchronous events, and the end of a device.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "tests/verbs/fake_fabric.h"

namespace sluice::verbs {

FakeGid fake_ipv4_gid(const std::string& address, uint32_t type) {
  FakeGid gid{.type = type};
  gid.value[10] = gid.value[11] = 0xff;
  ::inet_pton(AF_INET, address.c_str(), &gid.value[12]);
  return gid;
}

FakeGid fake_link_local_gid(uint8_t last, uint32_t type) {
  FakeGid gid{.type = type};
  gid.value = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0xff, 0xfe, 0, 0, last};
  return gid;
}

}  // namespace sluice::verbs

namespace sluice::verbs::fake {

Signal::Signal(bool open) : fd_(open ? ::eventfd(0, EFD_CLOEXEC) : -1) {}
Signal::~Signal() {
  if (fd_ >= 0) ::close(fd_);
}
void Signal::show(bool readable) {
  if (readable == readable_ || fd_ < 0) return;
  readable_ = readable;
  uint64_t value = 1;
  ssize_t done =
      readable ? ::write(fd_, &value, sizeof(value)) : ::read(fd_, &value, sizeof(value));
  (void)done;
}
bool Signal::blocking() const { return (::fcntl(fd_, F_GETFL) & O_NONBLOCK) == 0; }

namespace {

std::vector<FakeGid> gids_of(const FakeDeviceOptions& options, size_t index) {
  if (!options.gids.empty()) return options.gids;
  auto last = static_cast<uint8_t>(index + 1);
  return {fake_link_local_gid(last, IBV_GID_TYPE_ROCE_V1),
          fake_link_local_gid(last, IBV_GID_TYPE_ROCE_V2),
          fake_ipv4_gid(options.ipv4, IBV_GID_TYPE_ROCE_V1),
          fake_ipv4_gid(options.ipv4, IBV_GID_TYPE_ROCE_V2)};
}

bool names_qp(ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED: return true;
    default: return false;
  }
}

}  // namespace

Fabric::Fabric(FakeOptions given) : options(std::move(given)), random_(options.policy.seed) {
  for (const FakeDeviceOptions& device : options.devices) add_device(device);
}

void Fabric::add_device(const FakeDeviceOptions& like) {
  size_t i = devices_.size();
  auto device = std::make_unique<Device>();
  device->options = like;
  device->options.gids = gids_of(like, i);
  device->base.node_type = IBV_NODE_CA;
  device->base.transport_type = IBV_TRANSPORT_IB;
  ::strncpy(device->base.name, device->options.name.c_str(), IBV_SYSFS_NAME_MAX - 1);
  ::strncpy(device->base.dev_name, ("uverbs" + std::to_string(i)).c_str(), IBV_SYSFS_NAME_MAX - 1);
  devices_.push_back(std::move(device));
}

Fabric::~Fabric() {
  for (auto& [list, devices] : lists_) delete[] list;
}

ibv_device** Fabric::device_list(int* count) {
  std::vector<ibv_device*> present;
  for (auto& device : devices_) {
    if (!device->removed) present.push_back(&device->base);
  }
  auto** list = new ibv_device*[present.size() + 1];
  std::copy(present.begin(), present.end(), list);
  list[present.size()] = nullptr;
  if (count != nullptr) *count = static_cast<int>(present.size());
  lists_.emplace(list, std::move(present));
  return list;
}

void Fabric::free_device_list(ibv_device** list) {
  if (lists_.erase(list) == 0) return misuse("free_device_list: not a list, or freed before");
  delete[] list;
}

ibv_context* Fabric::open_device(ibv_device* device) {
  for (auto& known : devices_) {
    if (&known->base != device) continue;
    bool held =
        contexts_.count([&](const Context& c) { return c.device == known.get() && !c.of_cm; }) > 0;
    for (auto& [list, devices] : lists_)
      held |= std::find(devices.begin(), devices.end(), device) != devices.end();
    if (!held) misuse("open_device: the device's list was freed");
    if (known->removed) break;
    auto context = std::make_unique<Context>();
    context->device = known.get();
    context->base.device = device;
    context->base.cmd_fd = -1;
    context->base.async_fd = context->signal.fd();
    context->base.num_comp_vectors = 1;
    return &contexts_.add(std::move(context))->base;
  }
  errno = EIO;
  return nullptr;
}

int Fabric::close_device(ibv_context* context) {
  Context* found = context_of(context, "close_device");
  if (found == nullptr) return EINVAL;
  auto ours = [&](const auto& object) { return object.base.context == context; };
  size_t children = pds_.count(ours) + mrs_.count(ours) + mws_.count(ours) + cqs_.count(ours) +
                    qps_.count(ours) + channels_.count(ours);
  bool removed = found->device->removed;
  if (children > 0)
    return misuse("close_device: it has objects; in the fabric are " + census().text()), EBUSY;
  contexts_.remove(context);
  return removed ? EIO : 0;
}

Context* Fabric::context_of(const ibv_context* context, const char* call) {
  Context* found = contexts_.find(context);
  if (found == nullptr) misuse(std::string(call) + ": no such context, or closed before");
  return found;
}

bool Fabric::gone(const ibv_context* context) const {
  Context* found = contexts_.find(context);
  return found == nullptr || found->device->removed;
}

int Fabric::query_device(ibv_context* context, ibv_device_attr* out) {
  Context* found = context_of(context, "query_device");
  if (found == nullptr) return EINVAL;
  if (gone(context)) return EIO;
  const FakeDeviceOptions& o = found->device->options;
  *out = {};
  ::strncpy(out->fw_ver, "fake 1", sizeof(out->fw_ver) - 1);
  out->max_mr_size = o.max_mr_size;
  out->page_size_cap = 0xfffff000;
  out->vendor_id = o.vendor_id;
  out->vendor_part_id = o.vendor_part_id;
  out->max_qp = o.max_qp;
  out->max_qp_wr = o.max_qp_wr;
  out->device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN;
  if (o.windows) out->device_cap_flags |= IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
  out->max_sge = out->max_sge_rd = o.max_sge;
  out->max_cq = o.max_cq;
  out->max_cqe = o.max_cqe;
  out->max_mr = o.max_mr;
  out->max_pd = o.max_pd;
  out->max_qp_rd_atom = o.max_qp_rd_atom;
  out->max_res_rd_atom = o.max_qp_rd_atom * o.max_qp;
  out->max_qp_init_rd_atom = o.max_qp_init_rd_atom;
  out->atomic_cap = o.atomic_cap;
  out->max_mw = o.windows ? o.max_mw : 0;
  out->max_pkeys = 1;
  out->phys_port_cnt = 1;
  return 0;
}

bool Fabric::pages_on_demand(ibv_context* context) {
  Context* found = context_of(context, "pages_on_demand");
  return found != nullptr && !found->device->removed && found->device->options.on_demand_paging;
}

int Fabric::query_port(ibv_context* context, uint8_t port, ibv_port_attr* out) {
  Context* found = context_of(context, "query_port");
  if (found == nullptr || port != 1) return EINVAL;
  if (gone(context)) return EIO;
  const FakeDeviceOptions& o = found->device->options;
  *out = {};
  out->state = o.port_state;
  out->max_mtu = o.max_mtu;
  out->active_mtu = o.active_mtu;
  out->gid_tbl_len = static_cast<int>(o.gids.size());
  out->max_msg_sz = o.max_msg_sz;
  out->pkey_tbl_len = 1;
  out->active_width = 2;  // 4x
  out->active_speed = 4;  // 10 Gb/s
  out->phys_state = o.port_state == IBV_PORT_ACTIVE ? 5 : 3;
  out->link_layer = o.link_layer;
  return 0;
}

int Fabric::query_gid(ibv_context* context, uint8_t port, int index, ibv_gid_entry* out) {
  Context* found = context_of(context, "query_gid");
  if (found == nullptr || port != 1) return EINVAL;
  if (gone(context)) return EIO;
  const auto& gids = found->device->options.gids;
  if (index < 0 || static_cast<size_t>(index) >= gids.size()) return EINVAL;
  const FakeGid& gid = gids[static_cast<size_t>(index)];
  if (gid.value == decltype(gid.value){}) return ENODATA;
  *out = {};
  ::memcpy(out->gid.raw, gid.value.data(), gid.value.size());
  out->gid_index = static_cast<uint32_t>(index);
  out->port_num = port;
  out->gid_type = gid.type;
  out->ndev_ifindex = ::if_nametoindex("lo");
  return 0;
}

int Fabric::async_event(ibv_context* context, ibv_async_event* event) {
  Context* found = context_of(context, "async_event");
  if (found == nullptr) return EINVAL;
  if (found->events.empty()) {
    if (found->device->removed) return EIO;
    if (found->signal.blocking()) misuse("async_event: would block, async_fd is not O_NONBLOCK");
    return EAGAIN;
  }
  *event = found->events.front();
  found->events.pop_front();
  Qp* qp = names_qp(event->event_type) ? qps_.find(event->element.qp) : nullptr;
  Cq* cq = event->event_type == IBV_EVENT_CQ_ERR ? cqs_.find(event->element.cq) : nullptr;
  if (qp != nullptr)
    ++qp->async_unacknowledged;
  else if (cq != nullptr)
    ++cq->async_unacknowledged;
  else
    ++found->unacknowledged;
  show_events(*found);
  return 0;
}

void Fabric::ack_async_event(ibv_async_event* event) {
  auto take = [this](uint64_t& count) {
    if (count == 0) return misuse("ack_async_event: more often than events were taken");
    --count;
  };
  if (names_qp(event->event_type)) {
    Qp* qp = qps_.find(event->element.qp);
    return qp != nullptr ? take(qp->async_unacknowledged)
                         : misuse("ack_async_event: its QP is destroyed");
  }
  if (event->event_type == IBV_EVENT_CQ_ERR) {
    Cq* cq = cqs_.find(event->element.cq);
    return cq != nullptr ? take(cq->async_unacknowledged)
                         : misuse("ack_async_event: its CQ is destroyed");
  }
  bool taken = false;  // the event names no context: any of them may have given it
  contexts_.each([&](Context& context) {
    if (taken || context.unacknowledged == 0) return;
    --context.unacknowledged;
    taken = true;
  });
  if (!taken && contexts_.size() > 0) misuse("ack_async_event: more often than events were taken");
}

// A removed device's descriptor stays readable: whoever goes on reading it spins.
void Fabric::show_events(Context& context) {
  context.signal.show(!context.events.empty() || context.device->removed);
}

void Fabric::raise(Context& context, const ibv_async_event& event) {
  context.events.push_back(event);
  show_events(context);
}

void Fabric::raise_device(size_t device, ibv_event_type type) {
  ibv_async_event event{};
  event.event_type = type;
  event.element.port_num = 1;
  contexts_.each([&](Context& context) {
    if (context.device == devices_.at(device).get() && !context.of_cm) raise(context, event);
  });
}

bool Fabric::raise_qp(uint32_t number, ibv_event_type type) {
  auto found = by_number_.find(number);
  if (found == by_number_.end()) return false;
  ibv_async_event event{};
  event.event_type = type;
  event.element.qp = &found->second->base;
  raise(*contexts_.find(found->second->base.context), event);
  return true;
}

bool Fabric::raise_cq(ibv_cq* cq, ibv_event_type type) {
  if (cqs_.find(cq) == nullptr) return false;
  ibv_async_event event{};
  event.event_type = type;
  event.element.cq = cq;
  raise(*contexts_.find(cq->context), event);
  return true;
}

void Fabric::remove_device(size_t index) {
  Device& device = *devices_.at(index);
  device.removed = true;
  raise_device(index, IBV_EVENT_DEVICE_FATAL);
  ids_.each([&](Id& id) {
    if (id.device == &device && id.listener == nullptr)
      post_event(id, RDMA_CM_EVENT_DEVICE_REMOVAL, 0);
  });
}

// The same hardware, a new device: what was opened before stays dead.
void Fabric::restore_device(size_t index) {
  add_device(FakeDeviceOptions(devices_.at(index)->options));
}

bool Fabric::raise_cq_of(uint32_t number, ibv_event_type type) {
  auto found = by_number_.find(number);
  return found != by_number_.end() && raise_cq(found->second->base.send_cq, type);
}

Device* Fabric::device_of(const ibv_gid& gid) const {
  for (const auto& device : devices_) {
    for (const FakeGid& own : device->options.gids) {
      if (::memcmp(own.value.data(), gid.raw, sizeof(gid.raw)) == 0 && !device->removed)
        return device.get();
    }
  }
  return nullptr;
}

Device* Fabric::device_for(const sockaddr* address) const {
  if (address->sa_family != AF_INET) return nullptr;
  const auto* in = reinterpret_cast<const sockaddr_in*>(address);
  for (const auto& device : devices_) {
    in_addr own{};
    ::inet_pton(AF_INET, device->options.ipv4.c_str(), &own);
    if (own.s_addr == in->sin_addr.s_addr && !device->removed) return device.get();
  }
  bool loopback = (ntohl(in->sin_addr.s_addr) >> 24) == 127;
  for (const auto& device : devices_) {
    if (loopback && !device->removed) return device.get();
  }
  return nullptr;
}

Context* Fabric::cm_context(Device& device) {
  Context* found = nullptr;
  contexts_.each([&](Context& context) {
    if (context.of_cm && context.device == &device) found = &context;
  });
  if (found != nullptr) return found;
  auto context = std::make_unique<Context>(true);
  context->device = &device;
  context->base.device = &device.base;
  context->base.cmd_fd = context->base.async_fd = -1;
  return contexts_.add(std::move(context));
}

}  // namespace sluice::verbs::fake
