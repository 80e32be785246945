// Every completion status at every kind of request, in the middle of traffic: the
// connection ends with the cause in its text, each operation ends once, others go on.
#include "tests/verbs/backend/scene.h"

namespace sluice::verbs {
namespace {

constexpr ibv_wc_status kStatuses[] = {
    IBV_WC_LOC_LEN_ERR,       IBV_WC_LOC_QP_OP_ERR,    IBV_WC_LOC_EEC_OP_ERR,
    IBV_WC_LOC_PROT_ERR,      IBV_WC_WR_FLUSH_ERR,     IBV_WC_MW_BIND_ERR,
    IBV_WC_BAD_RESP_ERR,      IBV_WC_LOC_ACCESS_ERR,   IBV_WC_REM_INV_REQ_ERR,
    IBV_WC_REM_ACCESS_ERR,    IBV_WC_REM_OP_ERR,       IBV_WC_RETRY_EXC_ERR,
    IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_LOC_RDD_VIOL_ERR, IBV_WC_REM_INV_RD_REQ_ERR,
    IBV_WC_REM_ABORT_ERR,     IBV_WC_INV_EECN_ERR,     IBV_WC_INV_EEC_STATE_ERR,
    IBV_WC_FATAL_ERR,         IBV_WC_RESP_TIMEOUT_ERR, IBV_WC_GENERAL_ERR};

// Traffic with the fault in it. False: the traffic had no such request.
bool break_by(Fabric& fabric, Duo& duo, const std::function<void(FakeFaults&)>& plan) {
  auto made = duo.connect();
  REQUIRE(made.ok());
  auto [client, server] = std::move(made).value();
  fabric.with_faults(plan);
  Gain overdue("verbs.flushes_overdue");
  {
    Traffic traffic(duo, client, server, 1s);
    traffic.post(20'000);
    traffic.finish();
    INFO(traffic.text());
    bool reached = fabric.with_faults([](FakeFaults& faults) { return faults.plans_left() == 0; });
    fabric.with_faults([](FakeFaults& faults) { faults.forget_plans(); });
    if (!reached) {
      CHECK(traffic.failures() == 0);
      return false;
    }
    CHECK(duo.until(
        [&] {
          return client.state() == EndpointState::kClosed &&
                 server.state() == EndpointState::kClosed;
        },
        in(10s)));
  }
  CHECK(overdue() == 0);
  for (Endpoint* end : {&client, &server}) {
    CHECK(end->counters().posted == end->counters().completed);
    auto refused = end->receive({.tag = 1}, test::room(*duo.near, 10));
    CHECK(refused.code() == Code::kWrongState);
    CHECK(std::string(refused.status().detail()).find("connect again") != std::string::npos);
  }
  return true;
}

void every_status(
    const std::function<void(FakeFaults&, uint64_t nth, ibv_wc_status status, bool executed)>& plan,
    size_t least) {
  Fabric fabric;
  Duo duo;
  REQUIRE(duo.open().ok());
  size_t reached = 0;
  for (uint64_t nth : {1, 2, 5}) {
    for (bool executed : {false, true}) {
      for (ibv_wc_status status : kStatuses) {
        INFO(fabric->status_text(status) << " at " << nth << (executed ? ", executed" : ""));
        reached +=
            break_by(fabric, duo, [&](FakeFaults& faults) { plan(faults, nth, status, executed); })
                ? 1
                : 0;
      }
    }
  }
  CHECK(reached >= least);
  expect_traffic(duo, duo.client, duo.server);
}

void every_status_of(ibv_wr_opcode opcode, size_t least) {
  every_status([=](FakeFaults& faults, uint64_t nth, ibv_wc_status status,
                   bool executed) { faults.complete(nth, status, opcode, executed); },
               least * std::size(kStatuses));
}

TEST_CASE("any status of a message ends its connection and no other", "[verbs][status]") {
  every_status_of(IBV_WR_SEND, 6);
}
TEST_CASE("any status of a READ ends its connection and no other", "[verbs][status]") {
  every_status_of(IBV_WR_RDMA_READ, 6);
}
TEST_CASE("any status of a WRITE ends its connection and no other", "[verbs][status]") {
  every_status_of(IBV_WR_RDMA_WRITE, 2);
}
TEST_CASE("any status of a WRITE with a notice ends its connection and no other",
          "[verbs][status]") {
  every_status_of(IBV_WR_RDMA_WRITE_WITH_IMM, 4);
}
TEST_CASE("any status of an atomic ends its connection and no other", "[verbs][status]") {
  every_status_of(IBV_WR_ATOMIC_FETCH_AND_ADD, 2);
  every_status_of(IBV_WR_ATOMIC_CMP_AND_SWP, 2);
}
TEST_CASE("any status of a window's opening ends its connection and no other", "[verbs][status]") {
  every_status_of(IBV_WR_BIND_MW, 6);
}
TEST_CASE("any status of a window's closing ends its connection and no other", "[verbs][status]") {
  every_status_of(IBV_WR_LOCAL_INV, 6);
}
TEST_CASE("any status of a receive ends its connection and no other", "[verbs][status]") {
  every_status([](FakeFaults& faults, uint64_t nth, ibv_wc_status status,
                  bool) { faults.complete_receive(nth, status); },
               6 * std::size(kStatuses));
}

// Seen on soft-RoCE when the peer's process was killed: its memory went before its queue pair.
TEST_CASE("a peer whose memory is gone before its connection is out of reach, and told no lie",
          "[verbs][status]") {
  Fabric fabric;
  Duo duo;
  REQUIRE(duo.open().ok());
  fabric.with_faults([](FakeFaults& f) { f.complete(1, IBV_WC_REM_OP_ERR, IBV_WR_SEND); });
  Tally& near = duo.tally();
  near.limit = 1s;
  near.expect(duo.client.send(1, test::tensor(*duo.near, 100, 1), near.options()),
              OperationKind::kSend);
  CHECK(duo.until([&] { return near.ended(); }, in(10s)));
  near.check();
  INFO(near.text());
  CHECK(near.count(Code::kUnreachable) + near.count(Code::kOutcomeUnknown) == 1);
  CHECK(near.text().find("cannot reach the peer's own memory") != std::string::npos);
  CHECK(duo.until([&] { return duo.both_closed(); }, in(10s)));
}

}  // namespace
}  // namespace sluice::verbs
