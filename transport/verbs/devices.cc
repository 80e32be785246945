#include <sluice/verbs/devices.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>

#include <sluice/allocator/arena.h>
#include <sluice/verbs/connection.h>

namespace sluice::verbs {
namespace {

// Entries of one GID table that are looked at; soft-RoCE has 1024.
constexpr int kMostGids = 4096;
// Long enough for a neighbour's answer, short enough for a waiting user.
constexpr int kResolveMs = 2000;
constexpr const char* kHowToGetOne =
    "; a card needs its driver; `modprobe rdma_rxe && rdma link add rxe0 type rxe netdev DEV` "
    "makes a soft-RoCE device of "
    "network device DEV; `sluice lab run` boots a guest that has one";

std::string words(const std::string& what, int error) { return what + ": " + std::strerror(error); }

std::string state_name(ibv_port_state state) {
  switch (state) {
    case IBV_PORT_NOP: return "no state";
    case IBV_PORT_DOWN: return "DOWN";
    case IBV_PORT_INIT: return "INIT";
    case IBV_PORT_ARMED: return "ARMED";
    case IBV_PORT_ACTIVE: return "ACTIVE";
    case IBV_PORT_ACTIVE_DEFER: return "ACTIVE_DEFER";
  }
  return "state " + std::to_string(static_cast<int>(state));
}

std::string node_name(ibv_node_type type) {
  switch (type) {
    case IBV_NODE_CA: return "channel adapter";
    case IBV_NODE_SWITCH: return "switch";
    case IBV_NODE_ROUTER: return "router";
    case IBV_NODE_RNIC: return "iWARP NIC";
    case IBV_NODE_USNIC:
    case IBV_NODE_USNIC_UDP: return "usNIC";
    default: return "node of another type";
  }
}

std::string gid_type_name(uint32_t type, bool iwarp) {
  if (iwarp) return "iWARP";
  switch (type) {
    case IBV_GID_TYPE_IB: return "IB";
    case IBV_GID_TYPE_ROCE_V1: return "RoCE v1";
    case IBV_GID_TYPE_ROCE_V2: return "RoCE v2";
    default: return "type " + std::to_string(type);
  }
}

// Gb/s of a lane by the bits of ibv_port_attr::active_speed, and lanes by active_width.
// InfiniBand Architecture Specification 1.5, PortInfo; libibverbs/examples/devinfo.c.
double port_gigabits(const ibv_port_attr& port) {
  double lane = 0;
  switch (port.active_speed) {
    case 1: lane = 2.5; break;
    case 2: lane = 5; break;
    case 4: lane = 10; break;
    case 8: lane = 10.3125; break;
    case 16: lane = 14.0625; break;
    case 32: lane = 25.78125; break;
    case 64: lane = 50; break;
    case 128: lane = 100; break;
    default: break;
  }
  switch (port.active_width) {
    case 1: return lane;
    case 2: return lane * 4;
    case 4: return lane * 8;
    case 8: return lane * 12;
    case 16: return lane * 2;
    default: return 0;
  }
}

uint32_t mtu_bytes(ibv_mtu mtu) {
  return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128u << mtu : 0;
}

std::string gid_text(const ibv_gid& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  (void)::inet_ntop(AF_INET6, gid.raw, text, sizeof(text));
  return text;
}

GidFacts facts_of(const ibv_gid_entry& entry, bool iwarp) {
  GidFacts facts{.index = static_cast<int>(entry.gid_index),
                 .value = gid_text(entry.gid),
                 .type = gid_type_name(entry.gid_type, iwarp)};
  char name[IF_NAMESIZE] = "";
  if (entry.ndev_ifindex != 0 && ::if_indextoname(entry.ndev_ifindex, name) != nullptr)
    facts.netdev = name;
  return facts;
}

PortFacts survey_port(VerbsApi& api, ibv_context* context, uint8_t number, bool iwarp) {
  PortFacts facts{.number = number};
  ibv_port_attr port{};
  if (int error = api.query_port(context, number, &port); error != 0) {
    facts.state = words("cannot be asked", error);
    return facts;
  }
  facts.active = port.state == IBV_PORT_ACTIVE;
  facts.state = state_name(port.state);
  facts.link_layer = port.link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "InfiniBand";
  facts.mtu_bytes = mtu_bytes(port.active_mtu);
  facts.largest_mtu_bytes = mtu_bytes(port.max_mtu);
  facts.message_bytes = port.max_msg_sz;
  facts.gigabits = port_gigabits(port);
  for (int index = 0; index < std::min(port.gid_tbl_len, kMostGids); ++index) {
    ibv_gid_entry entry{};
    if (api.query_gid(context, number, index, &entry) == 0)
      facts.gids.push_back(facts_of(entry, iwarp));
  }
  return facts;
}

std::string open_trouble(const std::string& name, int error) {
  std::string what = words("RDMA device " + name + " cannot be opened", error);
  if (error == EACCES || error == EPERM)
    return what + "; /dev/infiniband/uverbs* must be readable and writable";
  if (error == ENOENT)
    return what +
           "; /dev/infiniband/uverbs* is missing: `modprobe ib_uverbs`, in a container pass "
           "/dev/infiniband on";
  return what;
}

// No device says so: it is asked of a queue that nobody uses.
bool moderates_events(VerbsApi& api, ibv_context* context) {
  ibv_cq* cq = api.create_cq(context, 1, nullptr, nullptr);
  if (cq == nullptr) return false;
  const Moderation& none = EventModerator::kProfiles[0];
  const bool done = api.modify_cq(cq, none.count, none.period_us) == 0;
  (void)api.destroy_cq(cq);
  return done;
}

DeviceFacts survey_device(VerbsApi& api, ibv_device* device) {
  DeviceFacts facts{.name = device->name, .node_type = node_name(device->node_type)};
  errno = 0;
  ibv_context* context = api.open_device(device);
  if (context == nullptr) {
    facts.kind = "unknown";
    facts.trouble = open_trouble(facts.name, errno);
    return facts;
  }
  ibv_device_attr attributes{};
  if (int error = api.query_device(context, &attributes); error != 0) {
    facts.kind = "unknown";
    facts.trouble = words("RDMA device " + facts.name + " does not say what it can do", error);
  } else {
    facts.limits = limits_of(api, context, attributes);
    facts.kind = !facts.limits.software ? "hardware"
                 : facts.limits.iwarp   ? "soft-iWARP"
                                        : "soft-RoCE";
    facts.firmware = attributes.fw_ver;
    facts.vendor_id = attributes.vendor_id;
    facts.part_id = attributes.vendor_part_id;
    facts.moderates = moderates_events(api, context);
    for (int port = 1; port <= attributes.phys_port_cnt; ++port) {
      facts.ports.push_back(
          survey_port(api, context, static_cast<uint8_t>(port), facts.limits.iwarp));
    }
  }
  (void)api.close_device(context);
  return facts;
}

std::string survey_all(VerbsApi& api, std::vector<DeviceFacts>& out) {
  errno = 0;
  int count = 0;
  ibv_device** list = api.device_list(&count);
  if (list == nullptr) {
    int error = errno;
    if (error == ENOSYS || error == ENOENT)
      return std::string("this kernel has no RDMA verbs; `modprobe ib_uverbs`") + kHowToGetOne;
    return words("the RDMA devices cannot be listed", error);
  }
  for (int i = 0; i < count; ++i) {
    if (list[i] != nullptr) out.push_back(survey_device(api, list[i]));
  }
  api.free_device_list(list);
  return out.empty() ? std::string("no RDMA device") + kHowToGetOne : "";
}

// An identifier and its event channel, for one question.
class Enquiry {
 public:
  explicit Enquiry(VerbsApi& api) : api_(api) {
    errno = 0;
    channel_ = api_.create_event_channel();
    error_ =
        channel_ == nullptr ? (errno != 0 ? errno : EIO) : api_.create_id(channel_, &id_, nullptr);
  }
  ~Enquiry() {
    if (id_ != nullptr) (void)api_.destroy_id(id_);
    if (channel_ != nullptr) api_.destroy_event_channel(channel_);
  }
  Enquiry(const Enquiry&) = delete;
  Enquiry& operator=(const Enquiry&) = delete;

  // Errno of the opening; 0: it is open.
  int error() const { return error_; }
  rdma_cm_id* id() const { return id_; }
  rdma_event_channel* channel() const { return channel_; }

 private:
  VerbsApi& api_;
  rdma_event_channel* channel_ = nullptr;
  rdma_cm_id* id_ = nullptr;
  int error_ = 0;
};

std::string cm_trouble(int error) {
  if (error == ENODEV || error == ENOENT) {
    return "this machine has no RDMA connection manager (/dev/infiniband/rdma_cm); load it with "
           "`modprobe rdma_ucm`";
  }
  return std::string(cm_error("the RDMA connection manager cannot be used", error).detail());
}

std::string ip_text(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    (void)::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text,
                      sizeof(text));
  } else {
    (void)::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text,
                      sizeof(text));
  }
  return text;
}

// Which device and port an address of this machine belongs to.
void bind_address(VerbsApi& api, const sockaddr* address, std::vector<DeviceFacts>& devices) {
  Enquiry enquiry(api);
  sockaddr_storage copy{};
  std::memcpy(&copy, address,
              address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
  if (enquiry.error() != 0 || api.bind_addr(enquiry.id(), reinterpret_cast<sockaddr*>(&copy)) != 0)
    return;
  const rdma_cm_id* id = enquiry.id();
  if (id->verbs == nullptr) return;
  for (DeviceFacts& device : devices) {
    if (device.name != id->verbs->device->name) continue;
    for (PortFacts& port : device.ports) {
      if (port.number == id->port_num) port.addresses.push_back(ip_text(address));
    }
  }
}

// IPv4 first; link-local IPv6 addresses mean nothing without their interface.
void bind_addresses(VerbsApi& api, std::vector<DeviceFacts>& devices) {
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) return;
  std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(found, &::freeifaddrs);
  for (int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
      if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != family ||
          (entry->ifa_flags & IFF_UP) == 0)
        continue;
      bool link_local =
          family == AF_INET6 &&
          IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<sockaddr_in6*>(entry->ifa_addr)->sin6_addr);
      if (!link_local) bind_address(api, entry->ifa_addr, devices);
    }
  }
}

// CAP_IPC_LOCK is bit 14 (capabilities(7)); only the first user namespace's counts.
bool may_lock_all_memory() {
  std::ifstream map("/proc/self/uid_map");
  uint64_t inside = 1, outside = 1, length = 0;
  if (!(map >> inside >> outside >> length) || inside != 0 || outside != 0 || length != 0xffffffff)
    return false;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("CapEff:"))
      return (std::strtoull(line.c_str() + 7, nullptr, 16) >> 14 & 1) != 0;
  }
  return false;
}

std::string memlock_trouble(const DeviceLimits& limits) {
  rlimit limit{};
  if (limits.on_demand || ::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 ||
      limit.rlim_cur == RLIM_INFINITY)
    return "";
  // With the second extent, which is twice as long, and for queues.
  const uint64_t needed = 4 * ArenaOptions{}.first_extent_bytes;
  return memlock_obstacle(limit.rlim_cur, may_lock_all_memory(), needed);
}

// What keeps us from using any of them, the first thing to mend first.
std::string obstacle_of(const Survey& survey, int cm_error_number) {
  const PortFacts* down = nullptr;
  const DeviceFacts* owner = nullptr;
  bool any_active = false;
  std::string trouble;
  for (const DeviceFacts& device : survey.devices) {
    if (trouble.empty()) trouble = device.trouble;
    for (const PortFacts& port : device.ports) {
      any_active = any_active || port.active;
      if (down == nullptr && !port.active) down = &port, owner = &device;
    }
  }
  if (down == nullptr && !any_active)
    return trouble.empty() ? "no RDMA device has a port" : trouble;
  if (!any_active) {
    return "no port of an RDMA device is ACTIVE (" + owner->name + " port " +
           std::to_string(down->number) + ": " + down->state +
           "); bring its network device up: `ip link set DEV up`";
  }
  if (cm_error_number != 0) return cm_trouble(cm_error_number);
  if (survey.best_device() == nullptr) {
    return "no IP address belongs to an ACTIVE port of an RDMA device; give its network device "
           "one: `ip addr add ADDRESS/24 dev DEV`";
  }
  return memlock_trouble(survey.best_device()->limits);
}

// The entry that the kernel's connection manager takes: RoCE v2 where the device has it
// (CMA_PREFERRED_ROCE_GID_TYPE in drivers/infiniband/core/cma.c).
GidFacts chosen_gid(const Survey& survey, const RouteFacts& route, const std::string& value) {
  GidFacts chosen{.index = -1, .value = value};
  for (const DeviceFacts& device : survey.devices) {
    if (device.name != route.device) continue;
    for (const PortFacts& port : device.ports) {
      if (port.number != route.port) continue;
      for (const GidFacts& gid : port.gids) {
        bool better = chosen.index < 0 || (gid.type == "RoCE v2" && chosen.type != "RoCE v2");
        if (gid.value == value && better) chosen = gid;
      }
    }
  }
  return chosen;
}

void read_route(const rdma_cm_id& id, const Survey& survey, RouteFacts& route) {
  route.found = true;
  route.device = id.verbs->device->name;
  route.port = id.port_num;
  route.local = ip_text(&id.route.addr.src_addr);
  route.gid = chosen_gid(survey, route, gid_text(id.route.addr.addr.ibaddr.sgid));
  route.why = "the way to " + route.host + " starts at " + route.local;
  if (!route.gid.netdev.empty()) route.why += " on " + route.gid.netdev;
  route.why += ", which belongs to " + route.device + " port " + std::to_string(route.port);
  if (route.gid.index >= 0)
    route.why +=
        "; GID " + std::to_string(route.gid.index) + " (" + route.gid.type + ") is that address";
}

// Errno of the answer, 0 where the address was resolved.
int await_answer(VerbsApi& api, const Enquiry& enquiry) {
  // The connection manager's own time, and some to spare.
  constexpr int kLimitMs = kResolveMs + 1000;
  int fd = enquiry.channel()->fd;
  int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) return errno;
  rdma_cm_event* event = nullptr;
  int error = api.cm_event(enquiry.channel(), &event);
  if (error == EAGAIN) {
    pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
    if (::poll(&entry, 1, kLimitMs) <= 0) return ETIMEDOUT;
    error = api.cm_event(enquiry.channel(), &event);
  }
  if (error != 0) return error;
  bool resolved = event->event == RDMA_CM_EVENT_ADDR_RESOLVED;
  int status = std::abs(event->status);
  (void)api.ack_cm_event(event);
  return resolved ? 0 : (status != 0 ? status : EHOSTUNREACH);
}

}  // namespace

const DeviceFacts* Survey::best_device() const {
  for (const DeviceFacts& device : devices) {
    for (const PortFacts& port : device.ports) {
      if (port.active && !port.addresses.empty()) return &device;
    }
  }
  return nullptr;
}

const PortFacts* Survey::best_port() const {
  const DeviceFacts* device = best_device();
  if (device == nullptr) return nullptr;
  for (const PortFacts& port : device->ports) {
    if (port.active && !port.addresses.empty()) return &port;
  }
  return nullptr;
}

std::string Survey::first_address() const {
  const PortFacts* port = best_port();
  return port == nullptr ? "" : port->addresses.front();
}

Survey survey_devices(const Result<VerbsApi*>& api) {
  Survey survey;
  if (!api.ok()) {
    survey.obstacle = api.status().detail();
    return survey;
  }
  survey.obstacle = survey_all(**api, survey.devices);
  if (!survey.obstacle.empty()) return survey;
  int cm = Enquiry(**api).error();
  if (cm == 0) bind_addresses(**api, survey.devices);
  survey.obstacle = obstacle_of(survey, cm);
  return survey;
}

RouteFacts route_to(const std::string& host, const Result<VerbsApi*>& api) {
  RouteFacts route{.host = host};
  Survey survey = survey_devices(api);
  if (survey.devices.empty()) {
    route.why = survey.obstacle;
    return route;
  }
  // Any port: only the address matters.
  Result<SocketAddress> address = resolve(host, 1, false);
  if (!address.ok()) {
    route.why = address.status().detail();
    return route;
  }
  Enquiry enquiry(**api);
  if (enquiry.error() != 0) {
    route.why = cm_trouble(enquiry.error());
    return route;
  }
  int error = (*api)->resolve_addr(enquiry.id(), address->get(), kResolveMs);
  if (error == 0) error = await_answer(**api, enquiry);
  if (error == 0 && enquiry.id()->verbs == nullptr) error = ENODEV;
  if (error != 0) {
    route.why = cm_error("no RDMA path to " + host, error).detail();
  } else {
    read_route(*enquiry.id(), survey, route);
  }
  return route;
}

std::string memlock_obstacle(uint64_t limit_bytes, bool exempt, uint64_t needed_bytes) {
  if (exempt || limit_bytes >= needed_bytes) return "";
  return "this process may lock " + std::to_string(limit_bytes >> 10) +
         " KiB (RLIMIT_MEMLOCK), and an RDMA device has to lock " +
         std::to_string(needed_bytes >> 20) +
         " MiB for the first two extents of an arena and for queues; raise it with `ulimit -l "
         "unlimited`, in "
         "containers with `--ulimit memlock=-1`, in "
         "services with LimitMEMLOCK=infinity";
}

}  // namespace sluice::verbs
