// sluice:// chooses RDMA where it is asked for and works, says why not where it does not, and
// one listener serves peers of every path. Both ends are on this host: shared memory is what
// remains of the other paths.
#include "tests/verbs/backend/scene.h"

#include <errno.h>

#include <sluice/base/log.h>

namespace sluice::verbs {
namespace {

DuoOptions chosen_by_sluice(bool rdma_required) {
  DuoOptions options;
  options.address = "sluice://127.0.0.1:0";
  options.connect.require.rdma = rdma_required;
  options.connect.timeout = 1s;
  return options;
}

TEST_CASE("sluice:// goes by RDMA where it is required, and says why", "[verbs][select]") {
  Fabric fabric;
  Duo duo(chosen_by_sluice(true));
  Status opened = duo.open();
  INFO(opened.to_string());
  REQUIRE(opened.ok());
  CHECK(duo.client.info().path.path == Path::kVerbs);
  CHECK(duo.server.info().path.path == Path::kVerbs);
  CHECK(duo.client.info().reason.find("an RDMA device reaches the peer") != std::string::npos);
  CHECK(duo.client.info().reason.find("not shm") != std::string::npos);
  expect_traffic(duo, duo.client, duo.server);
}

TEST_CASE("without RDMA a connection that requires it says why not, and others go another way",
          "[verbs][select]") {
  struct Case {
    const char* name;
    std::function<void(FakeOptions&)> machine;
    std::function<void(FakeFaults&)> plan;
    const char* text;
  };
  auto same = [](FakeOptions&) {};
  for (const Case& c : std::vector<Case>{
           {"no device", [](FakeOptions& o) { o.devices.clear(); }, [](FakeFaults&) {}, "RDMA"},
           {"no address", same, [](FakeFaults& f) { f.fail("resolve_addr", 1, ENODEV, 100); },
            "no RDMA device has this address"},
           {"no route", same, [](FakeFaults& f) { f.fail("resolve_route", 1, EHOSTUNREACH, 100); },
            "no RDMA route"},
           {"little memory to lock", [](FakeOptions& o) { o.memlock_bytes = 64 << 10; },
            [](FakeFaults&) {}, "cannot register"},
           {"a dead wire", same, [](FakeFaults& f) { f.link = FakeFaults::Link::kCut; },
            "the probe failed"},
           {"a HELLO that is lost", same,
            [](FakeFaults& f) { f.rewrite_message(1, [](auto& bytes) { bytes.resize(8); }); },
            "the probe failed"},
       }) {
    INFO(c.name);
    FakeOptions options;
    c.machine(options);
    Fabric fabric(options);
    Duo duo(chosen_by_sluice(false));
    REQUIRE(duo.open().ok());
    CHECK(duo.client.info().path.path == Path::kShm);
    fabric.with_faults(c.plan);
    auto refused =
        duo.near->connect(duo.listener.address(), {.require = {.rdma = true}, .timeout = 600ms});
    INFO(refused.status().to_string());
    CHECK(refused.code() == Code::kUnsupported);
    CHECK(refused.status().to_string().find(c.text) != std::string::npos);
    CHECK(refused.status().to_string().find("not rdma: ") != std::string::npos);
    fabric.with_faults([](FakeFaults& f) { f.forget_plans(), f.link = FakeFaults::Link::kUp; });
    expect_reconnect(duo);
  }
}

// Of either end: what it requires of a path, the path must have.
TEST_CASE("an rdma:// listener refuses peers over a device that copies where it requires no copies",
          "[verbs][select]") {
  constexpr uint32_t kSoftRoce = 0xFFFFFF;  // drivers/infiniband/sw/rxe/rxe_param.h
  for (bool listener : {true, false}) {
    for (bool copies : {true, false}) {
      INFO("listener " << listener << ", device copies " << copies);
      FakeOptions machine;
      if (copies) machine.devices[0].vendor_id = kSoftRoce;
      Fabric fabric(machine);
      DuoOptions options;
      options.connect.timeout = 1s;
      if (listener) options.listen.require = zero_copy;
      if (!listener) options.connect.require = zero_copy;
      Duo duo(options);
      if (!copies) {
        REQUIRE(duo.open().ok());
        expect_traffic(duo, duo.client, duo.server);
        continue;
      }
      auto listening = duo.far->listen(options.address, options.listen);
      REQUIRE(listening.ok());
      auto near = test::connect_to(*duo.near, *duo.far, listening->address(), options.connect);
      if (!listener) CHECK(near.code() == Code::kUnsupported);
      if (!listener)
        CHECK(near.status().to_string().find("copies each byte 2 times") != std::string::npos);
      // The listener says nothing of why to a peer: its connection ends, and nobody is accepted.
      auto far = listening->accept(in(300ms));
      if (listener) CHECK_FALSE(far.ok());
      if (near.ok())
        CHECK(duo.until([&] { return near->state() == EndpointState::kClosed; }, in(5s)));
    }
  }
}

TEST_CASE("one listener serves a peer that has RDMA and one that has not", "[verbs][select]") {
  Fabric fabric;
  Duo duo(chosen_by_sluice(true));
  REQUIRE(duo.open().ok());
  auto other = test::open();
  for (Requirements require : {any_path, rdma}) {
    auto near = test::connect_to(*other, *duo.far, duo.listener.address(), {.require = require});
    INFO(near.status().to_string());
    REQUIRE(near.ok());
    auto far = duo.listener.accept(soon());
    REQUIRE(far.ok());
    CHECK(near->info().path.path == (require.rdma ? Path::kVerbs : Path::kShm));
    CHECK(far->info().path.path == near->info().path.path);
    REQUIRE(near->send(1, test::tensor(*other, 200'000, 3)).ok());
    Tally& tally = duo.tally();
    tally.expect(far->receive({.tag = 1}, test::room(*duo.far, 200'000), tally.options()),
                 OperationKind::kReceive, 1, 3);
    Instant limit = in(5s);
    while (!tally.ended() && now() < limit) (void)(other->progress() + duo.far->progress());
    tally.check();
    CHECK(tally.failures() == 0);
    CHECK(tally.all.size() == 1);
  }
  CHECK(other->close(soon()).ok());
  other.reset();
  expect_traffic(duo, duo.client, duo.server);
}

// Else each caller would wait for half of its time.
TEST_CASE("a listener whose RDMA device was removed says so to the log, and no more to callers",
          "[verbs][select]") {
  Fabric fabric;
  std::string logged;
  set_log_sink([](LogLevel, std::string_view line,
                  void* text) { static_cast<std::string*>(text)->append(line); },
               &logged);
  Duo duo(chosen_by_sluice(false));
  REQUIRE(duo.open().ok());
  fabric->remove_device();
  duo.settle();
  CHECK(logged.find("listen again when the device is back") != std::string::npos);
  fabric->restore_device();
  auto refused =
      duo.near->connect(duo.listener.address(), {.require = {.rdma = true}, .timeout = 600ms});
  CHECK(refused.code() == Code::kUnsupported);
  CHECK(refused.status().to_string().find("the peer has no RDMA device") != std::string::npos);
  set_log_sink([](LogLevel, std::string_view, void*) {}, nullptr);
  expect_reconnect(duo);
}

}  // namespace
}  // namespace sluice::verbs
