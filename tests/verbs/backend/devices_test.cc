// What the survey says of a machine's RDMA devices, by a fake one: facts as they are, a
// reason with its remedy where there is nothing, and nothing left open.
#include <sluice/verbs/devices.h>

#include <catch2/catch.hpp>

#include <errno.h>

#include <sluice/select/open.h>

#include "tests/verbs/fake_provider.h"

namespace sluice::verbs {
namespace {

// Pages in what it needs: how much memory this test may lock does not matter.
FakeDeviceOptions a_device() {
  FakeDeviceOptions device;
  device.on_demand_paging = true;
  return device;
}

FakeOptions one(FakeDeviceOptions device) {
  FakeOptions options;
  options.devices = {std::move(device)};
  return options;
}

// The fake in the system's place, and an audit of what the question left behind.
class Machine {
 public:
  explicit Machine(FakeOptions options = one(a_device())) : fake(std::move(options)) {
    use_verbs_api(&fake);
  }
  ~Machine() {
    use_verbs_api(nullptr);
    CHECK(fake.complaints() == "");
  }
  FakeVerbs fake;
};

PathReport verbs_path() {
  for (const PathReport& report : explain_paths()) {
    if (report.path == Path::kVerbs) return report;
  }
  FAIL("no report of the verbs path");
  return {};
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("a device, its port and its GIDs are told as they are") {
  Machine machine;
  Survey survey = survey_devices();
  CHECK(survey.obstacle == "");
  REQUIRE(survey.devices.size() == 1);
  const DeviceFacts& device = survey.devices[0];
  CHECK(device.name == "fake0");
  CHECK(device.kind == "hardware");
  CHECK(device.node_type == "channel adapter");
  CHECK(device.firmware == "fake 1");
  CHECK(device.vendor_id == 0x5111ce);
  CHECK(device.trouble == "");
  CHECK(device.limits.queue_depth == 16384);
  CHECK(device.limits.windows);
  CHECK(device.limits.atomics);
  CHECK(device.moderates);
  REQUIRE(device.ports.size() == 1);
  const PortFacts& port = device.ports[0];
  CHECK(port.active);
  CHECK(port.state == "ACTIVE");
  CHECK(port.link_layer == "Ethernet");
  CHECK(port.mtu_bytes == 1024);
  CHECK(port.largest_mtu_bytes == 4096);
  CHECK(port.message_bytes == 8 << 20);
  CHECK(port.gigabits == 40);
  REQUIRE(port.gids.size() == 4);
  CHECK(port.gids[0].type == "RoCE v1");
  CHECK(port.gids[3].index == 3);
  CHECK(port.gids[3].type == "RoCE v2");
  CHECK(port.gids[3].value == "::ffff:127.0.0.1");
  CHECK(port.gids[3].netdev == "lo");
  CHECK(survey.first_address() == "127.0.0.1");
}

TEST_CASE("holes of the GID table are left out, and the others keep their numbers") {
  FakeDeviceOptions device = a_device();
  device.gids = {FakeGid{}, fake_ipv4_gid("127.0.0.1", IBV_GID_TYPE_ROCE_V2)};
  Machine machine(one(device));
  Survey survey = survey_devices();
  REQUIRE(survey.devices[0].ports[0].gids.size() == 1);
  CHECK(survey.devices[0].ports[0].gids[0].index == 1);
}

TEST_CASE("a device of the kernel's own is told from hardware, and its copies are counted") {
  FakeDeviceOptions device = a_device();
  device.vendor_id = 0xFFFFFF;
  device.atomic_cap = IBV_ATOMIC_NONE;
  Machine machine(one(device));
  CHECK(survey_devices().devices[0].kind == "soft-RoCE");
  PathReport report = verbs_path();
  CHECK(report.usable);
  CHECK(report.properties.copies_per_fetch == 2);
  CHECK_FALSE(report.properties.capabilities.has(Capability::kAtomics));
}

TEST_CASE("whether a device moderates events is tried, on a queue that nobody uses") {
  FakeDeviceOptions refusing = a_device();
  refusing.name = "fake1";
  refusing.ipv4 = "127.0.0.9";
  refusing.moderation = false;
  FakeOptions options = one(a_device());
  options.devices.push_back(refusing);
  Machine machine(options);
  Survey survey = survey_devices();
  REQUIRE(survey.devices.size() == 2);
  CHECK(survey.devices[0].moderates);
  CHECK_FALSE(survey.devices[1].moderates);
  CHECK(survey.devices[1].trouble == "");
  CHECK(machine.fake.moderations() == std::vector<std::pair<uint16_t, uint16_t>>{{1, 1}});
  machine.fake.with_faults([](FakeFaults& faults) { faults.fail("create_cq", 1, ENOMEM); });
  CHECK_FALSE(survey_devices().devices[0].moderates);
}

TEST_CASE("a usable path names the device, its port and its address") {
  Machine machine;
  PathReport report = verbs_path();
  CHECK(report.usable);
  CHECK(report.properties.copies_per_fetch == 0);
  for (const char* part : {"fake0", "port 1", "127.0.0.1"}) CHECK(has(report.why, part));
}

TEST_CASE("a missing library is a sentence with the package's name") {
  Status missing(Code::kUnsupported, Scope::kContext, "test",
                 "libibverbs.so.1 cannot be loaded; install the package libibverbs1");
  Survey survey = survey_devices(missing);
  CHECK(survey.devices.empty());
  CHECK_FALSE(survey.usable());
  CHECK(has(survey.obstacle, "libibverbs1"));
  RouteFacts route = route_to("127.0.0.1", missing);
  CHECK_FALSE(route.found);
  CHECK(has(route.why, "libibverbs1"));
}

TEST_CASE("no device is a sentence that says how to get one") {
  FakeOptions options;
  options.devices.clear();
  Machine machine(options);
  PathReport report = verbs_path();
  CHECK_FALSE(report.usable);
  for (const char* part : {"no RDMA device", "rdma_rxe", "sluice lab"})
    CHECK(has(report.why, part));
}

TEST_CASE("each thing that keeps us from a device is named with its remedy") {
  struct Case {
    std::string call;
    int error;
    std::vector<std::string> parts;
  };
  const Case c = GENERATE(
      Case{"device_list", ENOSYS, {"modprobe ib_uverbs"}},
      Case{"device_list", EMFILE, {"cannot be listed"}},
      Case{"open_device", EACCES, {"fake0", "/dev/infiniband/uverbs*", "readable"}},
      Case{"open_device", ENOENT, {"modprobe ib_uverbs"}}, Case{"query_device", EIO, {"fake0"}},
      Case{"create_event_channel", ENODEV, {"modprobe rdma_ucm"}},
      Case{"create_event_channel", EACCES, {"/dev/infiniband/rdma_cm", "readable"}},
      Case{"query_port", EIO, {"no port", "fake0 port 1"}});
  Machine machine;
  machine.fake.with_faults([&](FakeFaults& faults) { faults.fail(c.call, 1, c.error, 1000); });
  PathReport report = verbs_path();
  CHECK_FALSE(report.usable);
  INFO(report.why);
  for (const std::string& part : c.parts) CHECK(has(report.why, part));
  machine.fake.forget_misuses();
}

TEST_CASE("a port that is down and an address that nobody has are told") {
  FakeDeviceOptions device = a_device();
  SECTION("down") {
    device.port_state = IBV_PORT_DOWN;
    Machine machine(one(device));
    PathReport report = verbs_path();
    CHECK_FALSE(report.usable);
    for (const char* part : {"fake0 port 1", "DOWN", "ip link set"}) CHECK(has(report.why, part));
  }
  SECTION("no address of this machine") {
    // 192.0.2.0/24 is for documentation (RFC 5737): nobody's.
    device.ipv4 = "192.0.2.9";
    FakeDeviceOptions other = device;
    other.port_state = IBV_PORT_DOWN;
    other.name = "fake1";
    FakeOptions options;
    options.devices = {other, device};  // loopback leads to the first
    Machine machine(options);
    PathReport report = verbs_path();
    CHECK_FALSE(report.usable);
    CHECK(has(report.why, "ip addr add"));
  }
}

TEST_CASE("the way to a host names device, port and GID, RoCE v2 before v1") {
  Machine machine;
  RouteFacts route = route_to("127.0.0.1");
  INFO(route.why);
  CHECK(route.found);
  CHECK(route.device == "fake0");
  CHECK(route.port == 1);
  CHECK(route.gid.index == 3);
  CHECK(route.gid.type == "RoCE v2");
  CHECK(route.local == "127.0.0.1");
  for (const char* part : {"fake0 port 1", "GID 3", "lo"}) CHECK(has(route.why, part));
}

TEST_CASE("a host that no device reaches, and one that nobody knows, are told apart") {
  Machine machine;
  RouteFacts unreached = route_to("192.0.2.1");
  CHECK_FALSE(unreached.found);
  CHECK(has(unreached.why, "192.0.2.1"));
  CHECK(has(unreached.why, "no RDMA device"));
  RouteFacts unknown = route_to("no-such-host.invalid");
  CHECK_FALSE(unknown.found);
  CHECK(has(unknown.why, "no-such-host.invalid"));
  CHECK(has(unknown.why, "resolved"));
}

TEST_CASE("whichever call fails, the survey ends with a reason and keeps nothing") {
  const std::string call =
      GENERATE("device_list", "open_device", "query_device", "query_port", "query_gid", "create_cq",
               "modify_cq", "create_event_channel", "create_id", "bind_addr", "resolve_addr");
  const uint64_t nth = GENERATE(1u, 2u, 3u);
  Machine machine;
  machine.fake.with_faults([&](FakeFaults& faults) { faults.fail(call, nth, ENOMEM); });
  RouteFacts route = route_to("127.0.0.1");
  INFO(call << " " << nth << ": " << route.why);
  CHECK_FALSE(route.why.empty());
  CHECK(machine.fake.calls(call) > 0);
}

TEST_CASE("a small memlock limit is an obstacle to those whom it binds") {
  CHECK(memlock_obstacle(64 << 10, true, 64 << 20) == "");
  CHECK(memlock_obstacle(64 << 20, false, 64 << 20) == "");
  std::string told = memlock_obstacle(64 << 10, false, 64 << 20);
  for (const char* part : {"64 KiB", "64 MiB", "ulimit -l", "LimitMEMLOCK"}) CHECK(has(told, part));
}

}  // namespace
}  // namespace sluice::verbs
