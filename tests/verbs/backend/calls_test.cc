// The N-th call of the libraries fails, for every N of a whole scenario, and the first and
// the last use of each call by its name: nothing hangs, leaks or lies, and what could not be
// done says why.
#include "tests/verbs/backend/scene.h"

#include <errno.h>

#include <sluice/api/connecting.h>

#include "tests/support/name_server.h"

namespace sluice::verbs {
namespace {

constexpr int kErrors[] = {ENOMEM, EIO, EINVAL};

// Listens, connects, moves everything, ends. Returns how connecting went.
Status scenario(Duo& duo) {
  Status opened = duo.open();
  if (opened.ok()) {
    Traffic traffic(duo, duo.client, duo.server, 1s);
    traffic.post(20'000);
    traffic.finish();
    INFO(traffic.text());
    for (const Tally* tally : {&traffic.client_tally, &traffic.server_tally}) {
      for (const Status& status : tally->refused) CHECK_FALSE(status.detail().empty());
    }
  }
  duo.close();
  return opened;
}

DuoOptions impatient() {
  DuoOptions options;
  options.connect.timeout = 1s;
  return options;
}

void check_typed(const Status& opened) {
  if (opened.ok()) return;
  INFO(opened.to_string());
  CHECK_FALSE(opened.detail().empty());
  bool typed = opened.code() == Code::kUnreachable || opened.code() == Code::kNoMemory ||
               opened.code() == Code::kInternal || opened.code() == Code::kUnsupported ||
               opened.code() == Code::kTimedOut || opened.code() == Code::kInvalidArgument;
  CHECK(typed);
}

uint64_t calls_of_scenario() {
  Fabric fabric;
  Duo duo;
  REQUIRE(scenario(duo).ok());
  return fabric->calls_in_all();
}

TEST_CASE("the N-th call fails, for every N of a whole scenario", "[verbs][calls]") {
  uint64_t calls = calls_of_scenario();
  CHECK(calls > 150);
  Gain overdue("verbs.flushes_overdue");
  for (uint64_t n = 1; n <= calls; ++n) {
    int error = kErrors[n % std::size(kErrors)];
    INFO("call " << n << " of " << calls << " gives " << error);
    Fabric fabric;
    fabric.with_faults([&](FakeFaults& faults) { faults.fail_any(n, error); });
    Duo duo(impatient());
    check_typed(scenario(duo));
  }
  // A queue is flushed at once, whatever was wrong; but for the call that would say so.
  CHECK(overdue() == 0);
}

// Neither destroying nor acknowledging: what it holds is asked for elsewhere.
TEST_CASE("the first and the last use of each call fails", "[verbs][calls]") {
  std::vector<std::pair<std::string, uint64_t>> uses;
  {
    Fabric fabric;
    Duo duo;
    REQUIRE(scenario(duo).ok());
    for (std::string_view name : FakeFaults::calls_that_may_fail()) {
      if (fabric->calls(name) > 0) uses.emplace_back(std::string(name), fabric->calls(name));
    }
  }
  CHECK(uses.size() >= 25);
  for (const auto& [name, count] : uses) {
    for (uint64_t nth : {uint64_t{1}, (count + 1) / 2, count}) {
      for (int error : kErrors) {
        INFO(name << " " << nth << " of " << count << " gives " << error);
        Fabric fabric;
        fabric.with_faults([&](FakeFaults& faults) { faults.fail(name, nth, error); });
        Duo duo(impatient());
        check_typed(scenario(duo));
      }
    }
  }
}

TEST_CASE("a call that fails for good leaves nothing and says what it is", "[verbs][calls]") {
  struct Case {
    const char* call;
    int error;
    Code code;
    const char* text;
  };
  for (const Case& c : std::vector<Case>{
           {"create_event_channel", ENODEV, Code::kUnsupported, "modprobe rdma_ucm"},
           {"create_event_channel", EMFILE, Code::kNoMemory, "ulimit -n"},
           {"create_id", ENOMEM, Code::kNoMemory, "ulimit"},
           {"bind_addr", EADDRNOTAVAIL, Code::kUnreachable, "sluice info"},
           {"bind_addr", EADDRINUSE, Code::kInvalidArgument, "taken"},
           {"listen", EACCES, Code::kAccessDenied, "/dev/infiniband/rdma_cm"},
           {"resolve_addr", ENODEV, Code::kUnreachable, "no RDMA device"},
           {"resolve_route", ETIMEDOUT, Code::kUnreachable, "nobody answered"},
           {"device_list", ENOMEM, Code::kNoMemory, "listed"},
           {"open_device", EACCES, Code::kUnreachable, "/dev/infiniband/uverbs"},
           {"query_device", EIO, Code::kInternal, "what it can do"},
           {"alloc_pd", ENOMEM, Code::kNoMemory, "protection domain"},
           {"create_comp_channel", EMFILE, Code::kNoMemory, "completion channel"},
           {"reg_mr", ENOMEM, Code::kNoMemory, "cannot register"},
           {"create_cq", ENOMEM, Code::kNoMemory, "ulimit -l"},
           {"create_qp", ENOMEM, Code::kNoMemory, "ulimit -l"},
           {"init_qp_attr", EINVAL, Code::kInternal, "path"},
           {"modify_qp", EINVAL, Code::kInternal, "queue pair"},
           {"post_recv", ENOMEM, Code::kInternal, "receive"},
           {"connect", EINVAL, Code::kUnreachable, "asked for"},
           {"accept", EINVAL, Code::kUnreachable, "refuses the connection"},
           {"establish", EINVAL, Code::kUnreachable, "finished"},
           {"post_send", EINVAL, Code::kInternal, "refuses a request"},
           {"poll_cq", EIO, Code::kInternal, "completion queue"},
       }) {
    INFO(c.call << " gives " << c.error);
    Fabric fabric;
    fabric.with_faults([&](FakeFaults& faults) { faults.fail(c.call, 1, c.error, 1'000'000); });
    Duo duo(impatient());
    Status opened = scenario(duo);
    INFO(opened.to_string());
    CHECK(opened.code() == c.code);
    CHECK(std::string(opened.to_string()).find(c.text) != std::string::npos);
    // And again when it works.
    fabric.with_faults([&](FakeFaults& faults) { faults.forget_plans(); });
    Duo again;
    CHECK(scenario(again).ok());
  }
}

TEST_CASE("a connection is refused clearly where nobody listens or the host is unknown",
          "[verbs][calls]") {
  Fabric fabric;
  Duo duo;
  REQUIRE(duo.open().ok());
  auto nobody = duo.near->connect("rdma://127.0.0.1:1");
  CHECK(nobody.code() == Code::kUnreachable);
  CHECK(nobody.status().to_string().find("start the listener first") != std::string::npos);
  {
    test::NameServer names(ContextCore::of(*duo.near), test::NameServer::Answers::kUnknown);
    auto unknown = duo.near->connect("rdma://no-such-host.example:7000");
    CHECK(unknown.code() == Code::kUnreachable);
    CHECK(unknown.status().to_string().find("no-such-host.example") != std::string::npos);
  }
  auto elsewhere = duo.near->connect("rdma://192.0.2.1:7000");
  CHECK(elsewhere.code() == Code::kUnreachable);
  CHECK(elsewhere.status().to_string().find("no RDMA device") != std::string::npos);
  expect_traffic(duo, duo.client, duo.server);
}

TEST_CASE("a host's name is resolved while other operations go on, and within the deadline",
          "[verbs][calls]") {
  Fabric fabric;
  Duo duo;
  REQUIRE(duo.open().ok());
  const std::string port = duo.listener.address().substr(duo.listener.address().rfind(':'));
  {
    test::NameServer names(ContextCore::of(*duo.near), test::NameServer::Answers::kNothing);
    auto silent = duo.near->connect("rdma://far.example" + port, {.timeout = 200ms});
    CHECK(silent.code() == Code::kTimedOut);
    CHECK(silent.status().to_string().find("far.example") != std::string::npos);
    CHECK(names.questions > 0);
  }
  {
    test::NameServer names(ContextCore::of(*duo.near));
    auto soon = start_connect(*duo.near, "rdma://far.example" + port);
    CHECK_FALSE(soon.ready());
    expect_traffic(duo, duo.client, duo.server);
    REQUIRE(duo.until([&] { return soon.ready(); }));
    auto met = soon.take();
    INFO(met.status().to_string());
    CHECK(met.ok());
    CHECK(names.questions > 0);
  }
}

}  // namespace
}  // namespace sluice::verbs
