// The connection manager's channels, identifiers, addresses and events.
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "tests/verbs/fake_fabric.h"

namespace sluice::verbs::fake {

rdma_event_channel* Fabric::create_event_channel() {
  auto channel = std::make_unique<EventChannel>();
  channel->base.fd = channel->signal.fd();
  return &event_channels_.add(std::move(channel))->base;
}

void Fabric::destroy_event_channel(rdma_event_channel* channel) {
  EventChannel* found = event_channels_.find(channel);
  if (found == nullptr)
    return misuse("destroy_event_channel: no such channel, or destroyed before");
  if (ids_.count([&](const Id& id) { return id.channel == found && id.listener == nullptr; }) > 0) {
    return misuse("destroy_event_channel: identifiers still use it");
  }
  event_channels_.remove(channel);
}

Id* Fabric::id_of(const rdma_cm_id* id, const char* call) {
  Id* found = ids_.find(id);
  if (found == nullptr) misuse(std::string(call) + ": no such id, or destroyed before");
  return found;
}

int Fabric::create_id(rdma_event_channel* channel, rdma_cm_id** out, void* context) {
  EventChannel* found = event_channels_.find(channel);
  if (found == nullptr) return misuse("create_id: no such channel"), EINVAL;
  auto id = std::make_unique<Id>();
  id->channel = found;
  id->base.channel = channel;
  id->base.context = context;
  id->base.ps = RDMA_PS_TCP;
  id->base.qp_type = IBV_QPT_RC;
  *out = &ids_.add(std::move(id))->base;
  return 0;
}

int Fabric::destroy_id(rdma_cm_id* id) {
  Id* found = id_of(id, "destroy_id");
  if (found == nullptr) return EINVAL;
  if (found->unacknowledged > 0)
    return misuse("destroy_id: would hang, an event is not acknowledged"), EBUSY;
  std::vector<Id*> waiting;  // requests that the listener never fetched
  ids_.each([&](Id& other) {
    if (other.listener == found) waiting.push_back(&other);
  });
  for (Id* request : waiting) {
    drop_events(*request);
    leave_peer(*request);
    ids_.remove(&request->base);
  }
  drop_events(*found);
  leave_peer(*found);
  ids_.remove(id);
  return 0;
}

void Fabric::drop_events(Id& id) {
  std::erase_if(id.channel->events, [&](const auto& event) { return event->about == &id; });
  for (auto& event : id.channel->events) {
    if (event->counted_on == &id) event->counted_on = nullptr;
  }
  show_events(*id.channel);
}

bool Fabric::port_taken(uint16_t port) const {
  return ids_.count([&](const Id& id) { return id.port == port && id.listener == nullptr; }) > 0;
}

uint16_t Fabric::free_port() {
  while (port_taken(next_port_))
    next_port_ = next_port_ == 60999 ? 40000 : static_cast<uint16_t>(next_port_ + 1);
  return next_port_++;
}

int Fabric::bind_addr(rdma_cm_id* id, sockaddr* address) {
  Id* found = id_of(id, "bind_addr");
  if (found == nullptr || found->state != CmState::kIdle) return EINVAL;
  if (address->sa_family != AF_INET) return EAFNOSUPPORT;
  sockaddr_in in{};
  ::memcpy(&in, address, sizeof(in));
  uint16_t port = ntohs(in.sin_port);
  if (port != 0 && port_taken(port)) return EADDRINUSE;
  if (in.sin_addr.s_addr != INADDR_ANY) {
    Device* device = device_for(address);
    if (device == nullptr) return ENODEV;
    take_device(*found, *device, in);
  }
  found->port = port != 0 ? port : free_port();
  in.sin_port = htons(found->port);
  id->route.addr.src_sin = in;
  found->state = CmState::kBound;
  return 0;
}

void Fabric::take_device(Id& id, Device& device, const sockaddr_in& local) {
  id.device = &device;
  id.base.verbs = &cm_context(device)->base;
  id.base.port_num = 1;
  id.base.route.addr.src_sin = local;
  FakeGid gid = fake_ipv4_gid(device.options.ipv4, IBV_GID_TYPE_ROCE_V2);
  ::memcpy(id.base.route.addr.addr.ibaddr.sgid.raw, gid.value.data(), gid.value.size());
  id.base.route.addr.addr.ibaddr.pkey = 0xffff;
}

uint16_t Fabric::source_port(rdma_cm_id* id) {
  Id* found = id_of(id, "source_port");
  return found == nullptr ? 0 : found->port;
}

int Fabric::resolve_addr(rdma_cm_id* id, sockaddr* address, int) {
  Id* found = id_of(id, "resolve_addr");
  if (found == nullptr || (found->state != CmState::kIdle && found->state != CmState::kBound))
    return EINVAL;
  Device* target = device_for(address);
  if (target == nullptr) {
    post_event(*found, RDMA_CM_EVENT_ADDR_ERROR, -ENODEV);
    return 0;
  }
  sockaddr_in to{};
  ::memcpy(&to, address, sizeof(to));
  if (found->device == nullptr) {
    sockaddr_in from = to;
    if (found->port == 0) found->port = free_port();
    from.sin_port = htons(found->port);
    take_device(*found, *target, from);
  }
  id->route.addr.dst_sin = to;
  FakeGid gid = fake_ipv4_gid(target->options.ipv4, IBV_GID_TYPE_ROCE_V2);
  ::memcpy(id->route.addr.addr.ibaddr.dgid.raw, gid.value.data(), gid.value.size());
  found->state = CmState::kAddressResolved;
  post_event(*found, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
  return 0;
}

int Fabric::resolve_route(rdma_cm_id* id, int) {
  Id* found = id_of(id, "resolve_route");
  if (found == nullptr || found->state != CmState::kAddressResolved) return EINVAL;
  if (found->device->removed) return ENODEV;
  found->state = CmState::kRouteResolved;
  post_event(*found, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
  return 0;
}

CmEvent& Fabric::new_event(Id& about, rdma_cm_event_type type, int status) {
  auto event = std::make_unique<CmEvent>();
  event->base.id = &about.base;
  event->base.event = type;
  event->base.status = status;
  event->about = event->counted_on = &about;
  about.channel->events.push_back(std::move(event));
  show_events(*about.channel);
  return *about.channel->events.back();
}

void Fabric::post_event(Id& about, rdma_cm_event_type type, int status) {
  new_event(about, type, status);
}

void Fabric::put_private_data(CmEvent& event, const void* data, size_t length, size_t field) {
  if (length > 0) ::memcpy(event.data.data(), data, length);
  size_t shown = options.pads_private_data ? field : length;
  event.base.param.conn.private_data = shown > 0 ? event.data.data() : nullptr;
  event.base.param.conn.private_data_len = static_cast<uint8_t>(shown);
}

void Fabric::show_events(EventChannel& channel) { channel.signal.show(!channel.events.empty()); }

int Fabric::cm_event(rdma_event_channel* channel, rdma_cm_event** out) {
  EventChannel* found = event_channels_.find(channel);
  if (found == nullptr) return misuse("cm_event: no such channel"), EINVAL;
  tick();
  if (found->events.empty()) {
    if (found->signal.blocking())
      misuse("cm_event: would block, the channel's fd is not O_NONBLOCK");
    return EAGAIN;
  }
  std::unique_ptr<CmEvent> event = std::move(found->events.front());
  found->events.pop_front();
  show_events(*found);
  if (event->counted_on != nullptr) ++event->counted_on->unacknowledged;
  if (event->base.event == RDMA_CM_EVENT_CONNECT_REQUEST)
    event->about->listener = nullptr;  // now the program's
  faults.change_event(event->base);
  *out = &taken_events_.add(std::move(event))->base;
  return 0;
}

int Fabric::ack_cm_event(rdma_cm_event* event) {
  CmEvent* found = taken_events_.find(event);
  if (found == nullptr) return misuse("ack_cm_event: not an event, or acknowledged before"), EINVAL;
  if (found->counted_on != nullptr) --found->counted_on->unacknowledged;
  taken_events_.remove(event);
  return 0;
}

size_t Fabric::raise_cm(rdma_cm_event_type type, int status) {
  size_t told = 0;
  ids_.each([&](Id& id) {
    if (id.listener != nullptr) return;
    post_event(id, type, status);
    ++told;
  });
  return told;
}

}  // namespace sluice::verbs::fake
