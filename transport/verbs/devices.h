// What RDMA devices this machine has, and which of them a connection would use: facts for
// people, and the reason with its remedy where there is nothing. Makes no connection and
// keeps nothing open.
#ifndef SLUICE_VERBS_DEVICES_H_
#define SLUICE_VERBS_DEVICES_H_

#include <cstdint>
#include <string>
#include <vector>

#include <sluice/base/result.h>
#include <sluice/verbs/device.h>
#include <sluice/verbs/verbs_api.h>

namespace sluice::verbs {

// An entry of a port's GID table; holes are left out.
struct GidFacts {
  int index = 0;
  std::string value;   // as an IPv6 address; RoCE's of an IPv4 address is ::ffff:a.b.c.d
  std::string type;    // "IB", "RoCE v1", "RoCE v2", "iWARP"
  std::string netdev;  // empty: none in this network namespace
};

struct PortFacts {
  uint8_t number = 0;
  bool active = false;
  std::string state;       // "ACTIVE", "DOWN", ... (ibv_query_port(3))
  std::string link_layer;  // "Ethernet", "InfiniBand"
  uint32_t mtu_bytes = 0, largest_mtu_bytes = 0;
  uint64_t message_bytes = 0;  // the largest message
  double gigabits = 0;         // per second, as the port says; 0: it says nothing known
  std::vector<GidFacts> gids;
  std::vector<std::string> addresses;  // IP addresses that the connection manager binds to it
};

struct DeviceFacts {
  std::string name;
  std::string kind;       // "soft-RoCE", "soft-iWARP", "hardware"
  std::string node_type;  // "channel adapter", "iWARP NIC", ...
  std::string firmware;
  uint32_t vendor_id = 0, part_id = 0;
  DeviceLimits limits;
  bool moderates = false;  // completion events, as SLUICE_RDMA_MODERATION asks: it was tried
  std::vector<PortFacts> ports;
  std::string trouble;  // why it cannot be used or asked; empty: it can
};

struct Survey {
  std::vector<DeviceFacts> devices;
  // What keeps this process from RDMA, with the remedy; empty: nothing does.
  std::string obstacle;

  bool usable() const { return obstacle.empty(); }
  // The first device with an ACTIVE port that has an address; null: none.
  const DeviceFacts* best_device() const;
  const PortFacts* best_port() const;
  // Where others reach it: of that port, IPv4 before IPv6. Empty: none.
  std::string first_address() const;
};
// Errors are in the facts: a machine without RDMA is a machine, not a failure.
// Blocks: some milliseconds. `api`: what the backend uses, or why there is none.
Survey survey_devices(const Result<VerbsApi*>& api = verbs_api());

// What a connection to a host would use, asked of the connection manager.
struct RouteFacts {
  bool found = false;
  std::string host;
  std::string device;
  uint8_t port = 0;
  GidFacts gid;       // index -1: the port's table has none such
  std::string local;  // the source address
  std::string why;    // why this one, or why none
};
// Blocks: until the connection manager has resolved the address, at most 3 s.
RouteFacts route_to(const std::string& host, const Result<VerbsApi*>& api = verbs_api());

// Why pinned memory would be refused, with the remedy; empty: it would not. `exempt`: the
// process has CAP_IPC_LOCK in the first user namespace.
std::string memlock_obstacle(uint64_t limit_bytes, bool exempt, uint64_t needed_bytes);

}  // namespace sluice::verbs

#endif  // SLUICE_VERBS_DEVICES_H_
