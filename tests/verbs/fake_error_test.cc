// How the fake's QPs fail: who is told what, and what becomes of the rest.
#include <errno.h>

#include "tests/verbs/fake_pair.h"

namespace sluice::verbs {
namespace {

void both_failed(FakePair& p) {
  CHECK(p.fake.qp_state(p.a.qp->qp_num) == IBV_QPS_ERR);
  CHECK(p.fake.qp_state(p.b.qp->qp_num) == IBV_QPS_ERR);
}

TEST_CASE("a refused WRITE ends both QPs, and everything queued is flushed in order",
          "[verbs][fake][error]") {
  FakePair p({.policy = {.order = FakePolicy::Order::kSlow, .ticks = 2}});
  REQUIRE(p.receive(p.b, 70, 0, 8) == 0);
  REQUIRE(p.receive(p.b, 71, 0, 8) == 0);
  REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE, 1, 0, 8, &p.b, 0, 0) == 0);
  REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE, 2, 0, 8, &p.b, sizeof(p.b.memory) - 4) == 0);
  REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE, 3, 0, 8, &p.b, 0, 0) == 0);
  REQUIRE(p.post(p.a, IBV_WR_SEND, 4, 0, 8) == 0);
  p.fake.advance(20);
  auto mine = p.poll(p.a);
  REQUIRE(mine.size() == 3);
  CHECK(mine[0].wr_id == 2);
  CHECK(mine[0].status == IBV_WC_REM_ACCESS_ERR);
  CHECK(mine[0].qp_num == p.a.qp->qp_num);
  CHECK(mine[0].byte_len == 0xdeadbeef);  // nothing else is told on an error
  CHECK(mine[1].wr_id == 3);              // unsignaled, and told all the same
  CHECK(mine[1].status == IBV_WC_WR_FLUSH_ERR);
  CHECK(mine[2].wr_id == 4);
  auto theirs = p.poll(p.b);
  REQUIRE(theirs.size() == 2);
  CHECK(theirs[0].wr_id == 70);
  CHECK(theirs[0].status == IBV_WC_WR_FLUSH_ERR);
  CHECK(p.async(p.b).event_type == IBV_EVENT_QP_ACCESS_ERR);
  both_failed(p);
  // Posting goes on and is flushed.
  REQUIRE(p.post(p.a, IBV_WR_SEND, 5, 0, 8) == 0);
  REQUIRE(p.receive(p.a, 6, 0, 8) == 0);
  CHECK(p.poll(p.a).size() == 2);
}

TEST_CASE("the responder refuses a key, a range, a right", "[verbs][fake][error]") {
  PairShape shape;
  ibv_wr_opcode opcode = IBV_WR_RDMA_READ;
  ibv_wc_status told = IBV_WC_REM_ACCESS_ERR;
  ibv_event_type event = IBV_EVENT_QP_ACCESS_ERR;
  size_t offset = 0;
  uint32_t twist = 0;
  SECTION("a wrong key") { twist = 1; }
  SECTION("outside the region") { offset = sizeof(End::memory); }
  SECTION("a region that is not readable from afar") {
    shape.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  }
  SECTION("a region that is not writable from afar") {
    shape.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
    opcode = IBV_WR_RDMA_WRITE;
  }
  SECTION("a QP that takes no reads") {
    shape.qp_access = IBV_ACCESS_REMOTE_WRITE;
    told = IBV_WC_REM_INV_REQ_ERR;
    event = IBV_EVENT_QP_REQ_ERR;
  }
  FakePair p({}, shape);
  p.b.mr->rkey += twist;
  REQUIRE(p.post(p.a, opcode, 1, 0, 8, &p.b, offset) == 0);
  p.one(p.a, told);
  CHECK(p.async(p.b).event_type == event);
  both_failed(p);
  p.b.mr->rkey -= twist;
}

TEST_CASE("atomics need the right, a device that has them and depth", "[verbs][fake][error]") {
  PairShape shape;
  FakeDeviceOptions device;
  ibv_wc_status told = IBV_WC_REM_INV_REQ_ERR;
  SECTION("the region's right") {
    shape.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    told = IBV_WC_REM_ACCESS_ERR;
  }
  SECTION("the QP's right") { shape.qp_access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ; }
  SECTION("the device") { device.atomic_cap = IBV_ATOMIC_NONE; }
  FakePair p({.devices = {device}}, shape);
  REQUIRE(p.post_atomic(p.a, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, p.b, 0, 1, 0) == 0);
  p.one(p.a, told);
  CHECK(p.post_atomic(p.a, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, p.b, 4, 1, 0) == EINVAL);
  CHECK(p.misused("multiple of 8"));
}

TEST_CASE("more reads than the responder serves are an invalid request", "[verbs][fake][error]") {
  FakePair p({.policy = {.order = FakePolicy::Order::kSlow, .ticks = 5}}, {.reads = 4});
  REQUIRE(p.fake.destroy_qp(p.b.qp) == 0);
  p.make_qp(p.b);
  p.shape.reads = 1;
  p.connect(p.b, p.a, 0);
  p.shape.reads = 4;
  REQUIRE(p.fake.destroy_qp(p.a.qp) == 0);
  p.make_qp(p.a);
  p.connect(p.a, p.b, 0);
  // b expects the QP that is gone: it is connected anew.
  REQUIRE(p.to(p.b, IBV_QPS_RESET) == 0);
  p.shape.reads = 1;
  p.connect(p.b, p.a, 0);
  for (uint64_t i = 0; i < 2; ++i) REQUIRE(p.post(p.a, IBV_WR_RDMA_READ, i, 0, 8, &p.b) == 0);
  p.fake.advance(30);
  auto done = p.poll(p.a);
  REQUIRE(done.size() == 2);
  CHECK(done[0].status == IBV_WC_SUCCESS);
  CHECK(done[1].status == IBV_WC_REM_INV_REQ_ERR);
}

TEST_CASE("reads wait for their depth, a fence for reads", "[verbs][fake][error]") {
  FakePair p({.policy = {.order = FakePolicy::Order::kSlow, .ticks = 10}}, {.reads = 2});
  p.fill(p.b, 0, 64, 1);
  for (uint64_t i = 0; i < 3; ++i)
    REQUIRE(p.post(p.a, IBV_WR_RDMA_READ, i, 0, 8, &p.b, i * 8) == 0);
  p.fake.advance(21);
  CHECK(p.poll(p.a).size() == 2);
  p.fake.advance(20);
  CHECK(p.poll(p.a).size() == 1);

  // Without a fence a WRITE of what a READ brings sends what was there before.
  unsigned flags = IBV_SEND_SIGNALED;
  bool fenced = GENERATE(false, true);
  if (fenced) flags |= IBV_SEND_FENCE;
  p.a.memory[100] = 0;
  REQUIRE(p.post(p.a, IBV_WR_RDMA_READ, 5, 100, 1, &p.b, 1) == 0);
  REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE, 6, 100, 1, &p.b, 500, flags) == 0);
  p.fake.advance(60);
  CHECK(p.poll(p.a).size() == 2);
  CHECK(p.b.memory[500] == (fenced ? p.b.memory[1] : 0));
}

TEST_CASE("a READ with no depth at all is an operation error", "[verbs][fake][error]") {
  FakePair p({}, {.reads = 0});
  REQUIRE(p.post(p.a, IBV_WR_RDMA_READ, 1, 0, 8, &p.b) == 0);
  p.one(p.a, IBV_WC_LOC_QP_OP_ERR);
  CHECK(p.misused("max_rd_atomic 0"));
}

TEST_CASE("a message without a receive waits, and is given up after rnr_retry",
          "[verbs][fake][error]") {
  FakePair p({.rnr_ticks = 5}, {.rnr_retry = 2});
  REQUIRE(p.post(p.a, IBV_WR_SEND, 1, 0, 8) == 0);
  CHECK(p.fake.rnr_events() == 1);
  CHECK(p.fake.complaints().find("1 messages met no receive") != std::string::npos);
  SECTION("a receive in time") {
    REQUIRE(p.receive(p.b, 1, 0, 8) == 0);
    CHECK(p.poll(p.b).empty());  // the sender waits its time out
    p.fake.advance(5);
    p.one(p.b);
    p.one(p.a);
    CHECK(p.fake.rnr_events() == 1);
  }
  SECTION("none") {
    p.fake.advance(30);
    p.one(p.a, IBV_WC_RNR_RETRY_EXC_ERR);
    CHECK(p.fake.rnr_events() == 3);
    CHECK(p.fake.qp_state(p.b.qp->qp_num) == IBV_QPS_RTS);
  }
  SECTION("an immediate needs one as well") {
    REQUIRE(p.receive(p.b, 1, 0, 8) == 0);
    REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE_WITH_IMM, 2, 0, 8, &p.b) == 0);
    p.fake.advance(6);
    CHECK(p.fake.rnr_events() == 2);
    p.fake.advance(30);
    CHECK(p.poll(p.a).size() == 2);
  }
}

TEST_CASE("a receive that is too small, or has no memory, fails both", "[verbs][fake][error]") {
  FakePair p;
  ibv_wc_status mine = IBV_WC_REM_INV_REQ_ERR, theirs = IBV_WC_LOC_LEN_ERR;
  SECTION("too small") { REQUIRE(p.receive(p.b, 1, 0, 7) == 0); }
  SECTION("outside its region") {
    REQUIRE(p.receive(p.b, 1, sizeof(p.b.memory) - 4, 8) == 0);
    CHECK(p.misused("post_recv: outside the region"));
    mine = IBV_WC_REM_OP_ERR;
    theirs = IBV_WC_LOC_PROT_ERR;
  }
  REQUIRE(p.post(p.a, IBV_WR_SEND, 1, 0, 8) == 0);
  p.one(p.a, mine);
  p.one(p.b, theirs);
  both_failed(p);
}

TEST_CASE("a wrong lkey is the sender's own error", "[verbs][fake][error]") {
  FakePair p;
  p.a.mr->lkey ^= 1;
  REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE, 1, 0, 8, &p.b) == 0);
  p.a.mr->lkey ^= 1;
  p.one(p.a, IBV_WC_LOC_PROT_ERR);
  CHECK(p.misused("lkey"));
  CHECK(p.fake.qp_state(p.b.qp->qp_num) == IBV_QPS_RTS);
}

TEST_CASE("a region that goes while a READ is under way is not written", "[verbs][fake][error]") {
  FakePair p({.policy = {.order = FakePolicy::Order::kSlow, .ticks = 5}});
  p.fill(p.b, 0, 8, 7);
  REQUIRE(p.post(p.a, IBV_WR_RDMA_READ, 1, 0, 8, &p.b) == 0);
  p.fake.advance(6);
  REQUIRE(p.fake.dereg_mr(p.a.mr) == 0);
  p.a.mr = nullptr;
  p.fake.advance(6);
  p.one(p.a, IBV_WC_LOC_PROT_ERR);
  CHECK(p.a.memory[0] == 0);
  CHECK(p.misused("lkey"));
}

TEST_CASE("nothing that follows a failed request reaches the peer", "[verbs][fake][error]") {
  FakePair p({.policy = {.order = FakePolicy::Order::kSlow, .ticks = 5}});
  p.fake.with_faults([](FakeFaults& f) { f.complete(1, IBV_WC_LOC_PROT_ERR); });
  p.fill(p.a, 0, 8, 1);
  REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE, 1, 0, 8, &p.b) == 0);
  REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE, 2, 0, 8, &p.b) == 0);
  p.fake.advance(20);
  CHECK(p.poll(p.a).size() == 2);
  CHECK(p.b.memory[0] == 0);
}

TEST_CASE("limits of a message: max_msg_sz, inline, inline without data", "[verbs][fake][error]") {
  FakeDeviceOptions device;
  device.max_msg_sz = 1000;
  FakePair p({.devices = {device}});
  CHECK(p.post(p.a, IBV_WR_SEND, 1, 0, 65, nullptr, 0, IBV_SEND_INLINE) == EINVAL);
  CHECK(p.misused("inline data"));
  CHECK(p.post(p.a, IBV_WR_RDMA_READ, 1, 0, 8, &p.b, 0, IBV_SEND_INLINE) == EINVAL);
  REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE, 1, 0, 1001, &p.b) == 0);
  p.one(p.a, IBV_WC_LOC_LEN_ERR);
  CHECK(p.misused("max_msg_sz"));
}

TEST_CASE("a CQ that overruns is lost, and its QPs with it", "[verbs][fake][error]") {
  FakePair p({}, {.cq_entries = 3});
  for (uint64_t i = 0; i < 4; ++i) REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE, i, 0, 8, &p.b) == 0);
  CHECK(p.misused("overrun"));
  CHECK(p.fake.qp_state(p.a.qp->qp_num) == IBV_QPS_ERR);
  ibv_async_event event = p.async(p.a);
  CHECK(event.event_type == IBV_EVENT_CQ_ERR);
  CHECK(event.element.cq == p.a.cq);
  CHECK(p.async(p.a).event_type == IBV_EVENT_QP_FATAL);
}

TEST_CASE("a QP expects its own peer and sequence numbers; others hear nothing",
          "[verbs][fake][error]") {
  FakePair p({.retry_ticks = 4});
  SECTION("an older QP's number") {
    REQUIRE(p.fake.destroy_qp(p.b.qp) == 0);
    p.make_qp(p.b);
    p.connect(p.b, p.a, 0);
  }
  SECTION("a QP that the other was not told of") {
    ibv_qp* known = p.a.qp;
    p.make_qp(p.a);
    p.connect(p.a, p.b, 0);
    CHECK(p.fake.destroy_qp(known) == 0);
  }
  SECTION("a peer that is not ready") { REQUIRE(p.to(p.b, IBV_QPS_RESET) == 0); }
  SECTION("a peer in the error state") { REQUIRE(p.to(p.b, IBV_QPS_ERR) == 0); }
  SECTION("another start") {
    REQUIRE(p.to(p.b, IBV_QPS_RESET) == 0);
    REQUIRE(p.to_init(p.b) == 0);
    ibv_qp_attr attributes = p.receive_attributes(p.a, 0);
    attributes.rq_psn = 78;
    REQUIRE(p.fake.modify_qp(p.b.qp, &attributes, FakePair::kReceiveMask) == 0);
  }
  REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE, 1, 0, 8, &p.b) == 0);
  p.fake.advance(14);
  CHECK(p.poll(p.a).empty());
  p.fake.advance(14);
  p.one(p.a, IBV_WC_RETRY_EXC_ERR);
}

TEST_CASE("both ends must agree on the MTU once a message is longer", "[verbs][fake][error]") {
  FakePair p;
  REQUIRE(p.to(p.b, IBV_QPS_RESET) == 0);
  REQUIRE(p.to_init(p.b) == 0);
  ibv_qp_attr attributes = p.receive_attributes(p.a, 0);
  attributes.path_mtu = IBV_MTU_512;
  REQUIRE(p.fake.modify_qp(p.b.qp, &attributes, FakePair::kReceiveMask) == 0);
  REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE, 1, 0, 512, &p.b) == 0);
  p.one(p.a);
  CHECK(p.async(p.b).event_type == IBV_EVENT_COMM_EST);  // it was not yet ready to send
  REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE, 1, 0, 513, &p.b) == 0);
  p.one(p.a, IBV_WC_REM_INV_REQ_ERR);
}

}  // namespace
}  // namespace sluice::verbs
