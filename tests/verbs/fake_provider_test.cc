// The fake fabric moves bytes as RC verbs do: each opcode, queue and event rule.
#include <errno.h>

#include "tests/verbs/fake_pair.h"

namespace sluice::verbs {
namespace {

TEST_CASE("a SEND fills the oldest receive and completes at both ends", "[verbs][fake]") {
  FakePair p;
  p.fill(p.a, 0, 100, 5);
  REQUIRE(p.receive(p.b, 70, 1000, 200) == 0);
  REQUIRE(p.receive(p.b, 71, 2000, 200) == 0);
  REQUIRE(p.post(p.a, IBV_WR_SEND, 1, 0, 100) == 0);
  ibv_wc got = p.one(p.b);
  CHECK(got.wr_id == 70);
  CHECK(got.opcode == IBV_WC_RECV);
  CHECK(got.byte_len == 100);
  CHECK(got.wc_flags == 0);
  CHECK(got.src_qp == p.a.qp->qp_num);
  CHECK(got.qp_num == p.b.qp->qp_num);
  CHECK(p.same(p.a, 0, p.b, 1000, 100));
  CHECK(p.b.memory[1100] == 0);
  ibv_wc sent = p.one(p.a);
  CHECK(sent.wr_id == 1);
  CHECK(sent.opcode == IBV_WC_SEND);
  CHECK(p.fake.bytes_carried() == 100);
}

TEST_CASE("an immediate arrives with SEND and with WRITE", "[verbs][fake]") {
  FakePair p;
  p.fill(p.a, 0, 64, 9);
  REQUIRE(p.receive(p.b, 1, 100, 64) == 0);
  REQUIRE(p.receive(p.b, 2, 200, 4) == 0);
  REQUIRE(p.post(p.a, IBV_WR_SEND_WITH_IMM, 1, 0, 8) == 0);
  REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE_WITH_IMM, 2, 0, 64, &p.b, 4096) == 0);
  auto got = p.poll(p.b);
  REQUIRE(got.size() == 2);
  CHECK(got[0].opcode == IBV_WC_RECV);
  CHECK(got[0].imm_data == 0x01020304);
  CHECK(got[0].wc_flags == IBV_WC_WITH_IMM);
  CHECK(got[1].opcode == IBV_WC_RECV_RDMA_WITH_IMM);
  CHECK(got[1].wr_id == 2);
  CHECK(got[1].byte_len == 64);  // what was written, not the receive's room
  CHECK(got[1].imm_data == 0x01020304);
  CHECK(p.same(p.a, 0, p.b, 4096, 64));
  auto sent = p.poll(p.a);
  REQUIRE(sent.size() == 2);
  CHECK(sent[1].opcode == IBV_WC_RDMA_WRITE);
}

TEST_CASE("WRITE and READ move bytes without a word at the target", "[verbs][fake]") {
  FakePair p;
  p.fill(p.a, 0, 5000, 3);
  REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE, 1, 0, 5000, &p.b, 100) == 0);
  REQUIRE(p.post(p.a, IBV_WR_RDMA_READ, 2, 8000, 4000, &p.b, 600) == 0);
  auto done = p.poll(p.a);
  REQUIRE(done.size() == 2);
  CHECK(done[0].opcode == IBV_WC_RDMA_WRITE);
  CHECK(done[1].opcode == IBV_WC_RDMA_READ);
  CHECK(done[1].byte_len == 4000);
  CHECK(p.same(p.a, 0, p.b, 100, 5000));
  CHECK(p.same(p.a, 8000, p.a, 500, 4000));
  CHECK(p.poll(p.b).empty());
}

TEST_CASE("lists of sges are gathered and scattered; zero length is a message", "[verbs][fake]") {
  FakePair p;
  p.fill(p.a, 0, 300, 1);
  ibv_sge from[3] = {p.sge(p.a, 0, 10), p.sge(p.a, 100, 0), p.sge(p.a, 200, 30)};
  ibv_sge to[2] = {p.sge(p.b, 0, 25), p.sge(p.b, 500, 100)};
  ibv_recv_wr receive{};
  receive.sg_list = to;
  receive.num_sge = 2;
  ibv_recv_wr* bad_receive = nullptr;
  REQUIRE(p.fake.post_recv(p.b.qp, &receive, &bad_receive) == 0);
  ibv_send_wr wr{};
  wr.sg_list = from;
  wr.num_sge = 3;
  wr.opcode = IBV_WR_SEND;
  REQUIRE(p.post(p.a, wr) == 0);
  CHECK(p.one(p.b).byte_len == 40);
  CHECK(p.same(p.a, 0, p.b, 0, 10));
  CHECK(p.same(p.a, 200, p.b, 10, 15));
  CHECK(p.same(p.a, 215, p.b, 500, 15));

  ibv_recv_wr empty{};
  REQUIRE(p.fake.post_recv(p.b.qp, &empty, &bad_receive) == 0);
  ibv_send_wr nothing{};
  nothing.opcode = IBV_WR_SEND;
  REQUIRE(p.post(p.a, nothing) == 0);
  CHECK(p.one(p.b).byte_len == 0);
  // A WRITE of nothing needs no key.
  ibv_send_wr write{};
  write.opcode = IBV_WR_RDMA_WRITE;
  write.wr.rdma.rkey = 12345;
  write.send_flags = IBV_SEND_SIGNALED;
  REQUIRE(p.post(p.a, write) == 0);
  p.one(p.a);
}

TEST_CASE("atomics give the old value and change the word once", "[verbs][fake]") {
  FakePair p;
  auto* word = reinterpret_cast<uint64_t*>(p.b.memory + 64);
  auto* result = reinterpret_cast<uint64_t*>(p.a.memory);
  *word = 40;
  REQUIRE(p.post_atomic(p.a, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, p.b, 64, 2, 0) == 0);
  CHECK(p.one(p.a).opcode == IBV_WC_FETCH_ADD);
  CHECK(*result == 40);
  CHECK(*word == 42);
  REQUIRE(p.post_atomic(p.a, IBV_WR_ATOMIC_CMP_AND_SWP, 2, p.b, 64, 41, 7) == 0);
  CHECK(p.one(p.a).opcode == IBV_WC_COMP_SWAP);
  CHECK(*result == 42);
  CHECK(*word == 42);
  REQUIRE(p.post_atomic(p.a, IBV_WR_ATOMIC_CMP_AND_SWP, 3, p.b, 64, 42, 7) == 0);
  p.one(p.a);
  CHECK(*result == 42);
  CHECK(*word == 7);
}

TEST_CASE("inline data is taken at the post, other data when it is sent", "[verbs][fake]") {
  FakePair p({.policy = {.order = FakePolicy::Order::kSlow, .ticks = 3}});
  p.a.memory[0] = 1;
  p.a.memory[1] = 1;
  REQUIRE(p.receive(p.b, 1, 0, 8) == 0);
  REQUIRE(p.receive(p.b, 2, 8, 8) == 0);
  REQUIRE(p.post(p.a, IBV_WR_SEND, 1, 0, 1, nullptr, 0, IBV_SEND_INLINE) == 0);
  REQUIRE(p.post(p.a, IBV_WR_SEND, 2, 1, 1, nullptr, 0, IBV_SEND_SIGNALED) == 0);
  p.a.memory[0] = 2;
  p.a.memory[1] = 2;
  p.fake.advance(10);
  CHECK(p.poll(p.b).size() == 2);
  CHECK(p.b.memory[0] == 1);
  CHECK(p.b.memory[8] == 2);
  p.one(p.a);
}

TEST_CASE(
    "an unsignaled request completes in silence, and frees its slot with the next signaled one",
    "[verbs][fake]") {
  FakePair p({}, {.send_wr = 4});
  for (int i = 0; i < 3; ++i) REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE, 1, 0, 8, &p.b, 0, 0) == 0);
  CHECK(p.poll(p.a).empty());
  REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE, 9, 0, 8, &p.b) == 0);
  CHECK(p.post(p.a, IBV_WR_RDMA_WRITE, 10, 0, 8, &p.b) == ENOMEM);
  CHECK(p.misused("send queue is full"));
  CHECK(p.one(p.a).wr_id == 9);
  for (int i = 0; i < 4; ++i) REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE, 1, 0, 8, &p.b) == 0);
  CHECK(p.poll(p.a).size() == 4);
}

TEST_CASE("each completion that is polled frees the slots up to its own", "[verbs][fake]") {
  FakePair p({.poll_limit = 1}, {.send_wr = 4});
  for (uint64_t i = 0; i < 4; ++i) {
    unsigned flags = i % 2 == 1 ? IBV_SEND_SIGNALED : 0;
    REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE, i, 0, 8, &p.b, 0, flags) == 0);
  }
  CHECK(p.one(p.a).wr_id == 1);
  REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE, 4, 0, 8, &p.b) == 0);
  REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE, 5, 0, 8, &p.b) == 0);
  CHECK(p.post(p.a, IBV_WR_RDMA_WRITE, 6, 0, 8, &p.b) == ENOMEM);
  CHECK(p.misused("send queue is full"));
}

TEST_CASE("a post list stops at the first request that is refused and names it", "[verbs][fake]") {
  FakePair p;
  ibv_sge one = p.sge(p.a, 0, 8);
  ibv_send_wr list[3] = {};
  for (int i = 0; i < 3; ++i) {
    list[i].wr_id = static_cast<uint64_t>(i);
    list[i].sg_list = &one;
    list[i].num_sge = i == 1 ? 5 : 1;
    list[i].opcode = IBV_WR_RDMA_WRITE;
    list[i].send_flags = IBV_SEND_SIGNALED;
    list[i].wr.rdma.remote_addr = p.b.address();
    list[i].wr.rdma.rkey = p.b.mr->rkey;
    list[i].next = i < 2 ? &list[i + 1] : nullptr;
  }
  ibv_send_wr* bad = nullptr;
  CHECK(p.fake.post_send(p.a.qp, list, &bad) == EINVAL);
  CHECK(bad == &list[1]);
  CHECK(p.one(p.a).wr_id == 0);
  CHECK(p.misused("more sges"));
}

TEST_CASE("arming raises one event, and only for what arrives after it", "[verbs][fake]") {
  FakePair p;
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE, 1, 0, 8, &p.b) == 0);
  REQUIRE(p.fake.req_notify_cq(p.a.cq) == 0);
  CHECK_FALSE(readable(p.a.channel->fd));  // what is there already raises nothing
  CHECK(p.fake.cq_event(p.a.channel, &cq, &context) == EAGAIN);
  REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE, 2, 0, 8, &p.b) == 0);
  CHECK(readable(p.a.channel->fd));
  REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE, 3, 0, 8, &p.b) == 0);
  REQUIRE(p.fake.cq_event(p.a.channel, &cq, &context) == 0);
  CHECK(cq == p.a.cq);
  CHECK(context == &p.a);
  CHECK_FALSE(readable(p.a.channel->fd));  // once
  CHECK(p.fake.cq_event(p.a.channel, &cq, &context) == EAGAIN);
  CHECK(p.fake.census().cq_events == 1);
  p.fake.ack_cq_events(p.a.cq, 1);
  CHECK(p.poll(p.a).size() == 3);
}

TEST_CASE("a channel that would block is a misuse, not a hang", "[verbs][fake]") {
  FakePair p;
  ::fcntl(p.a.channel->fd, F_SETFL, 0);
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  CHECK(p.fake.cq_event(p.a.channel, &cq, &context) == EAGAIN);
  CHECK(p.misused("would block"));
}

TEST_CASE("what the manual forbids to destroy is refused and recorded", "[verbs][fake]") {
  FakePair p;
  CHECK(p.fake.dealloc_pd(p.a.pd) == EBUSY);
  CHECK(p.misused("dealloc_pd"));
  CHECK(p.fake.destroy_cq(p.a.cq) == EBUSY);
  CHECK(p.misused("destroy_cq"));
  CHECK(p.fake.destroy_comp_channel(p.a.channel) == EBUSY);
  CHECK(p.misused("destroy_comp_channel"));
  CHECK(p.fake.close_device(p.a.context) == EBUSY);
  CHECK(p.misused("close_device"));
  p.fake.forget_misuses();

  p.fake.req_notify_cq(p.a.cq);
  REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE, 2, 0, 8, &p.b) == 0);
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  REQUIRE(p.fake.cq_event(p.a.channel, &cq, &context) == 0);
  REQUIRE(p.fake.destroy_qp(p.a.qp) == 0);
  CHECK(p.fake.destroy_qp(p.a.qp) == EINVAL);
  CHECK(p.misused("destroy_qp: no such QP"));
  p.a.qp = nullptr;
  CHECK(p.poll(p.a).empty());  // its completions went with it
  CHECK(p.fake.destroy_cq(p.a.cq) == EBUSY);
  CHECK(p.misused("would hang"));
  p.fake.ack_cq_events(p.a.cq, 1);
}

TEST_CASE("a QP takes its states in order and each with its attributes", "[verbs][fake]") {
  FakePair p;
  REQUIRE(p.fake.destroy_qp(p.a.qp) == 0);
  p.make_qp(p.a);
  CHECK(p.receive(p.a, 1, 0, 8) == EINVAL);
  CHECK(p.to_send(p.a) == EINVAL);
  CHECK(p.misused("from RESET to RTS"));
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = 1;
  CHECK(p.fake.modify_qp(p.a.qp, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT) ==
        EINVAL);
  CHECK(p.misused("mandatory attributes"));
  REQUIRE(p.to_init(p.a) == 0);
  CHECK(p.receive(p.a, 1, 0, 8) == 0);
  CHECK(p.post(p.a, IBV_WR_RDMA_WRITE, 1, 0, 8, &p.b) == EINVAL);
  CHECK(p.misused("not ready to send"));
  attributes = p.receive_attributes(p.b, 0);
  CHECK(p.fake.modify_qp(p.a.qp, &attributes, FakePair::kReceiveMask | IBV_QP_TIMEOUT) == EINVAL);
  attributes.path_mtu = IBV_MTU_4096;  // above the port's
  CHECK(p.fake.modify_qp(p.a.qp, &attributes, FakePair::kReceiveMask) == EINVAL);
  attributes = p.receive_attributes(p.b, 0);
  attributes.ah_attr.is_global = 0;  // RoCE has no LIDs
  CHECK(p.fake.modify_qp(p.a.qp, &attributes, FakePair::kReceiveMask) == EINVAL);
  attributes = p.receive_attributes(p.b, 0);
  REQUIRE(p.fake.modify_qp(p.a.qp, &attributes, FakePair::kReceiveMask) == 0);
  REQUIRE(p.to_send(p.a) == 0);
  ibv_qp_init_attr initial{};
  REQUIRE(p.fake.query_qp(p.a.qp, &attributes, IBV_QP_STATE, &initial) == 0);
  CHECK(attributes.qp_state == IBV_QPS_RTS);
  CHECK(attributes.dest_qp_num == p.b.qp->qp_num);
  CHECK(initial.cap.max_send_wr == 16);
  REQUIRE(p.to(p.a, IBV_QPS_ERR) == 0);
  CHECK(p.one(p.a, IBV_WC_WR_FLUSH_ERR).wr_id == 1);
  REQUIRE(p.to(p.a, IBV_QPS_RESET) == 0);
  CHECK(p.fake.qp_state(p.a.qp->qp_num) == IBV_QPS_RESET);
}

TEST_CASE("an armed poll that finds nothing lets a slow fabric finish", "[verbs][fake]") {
  FakePair p({.policy = {.order = FakePolicy::Order::kSlow, .ticks = 50}});
  REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE, 1, 0, 8, &p.b) == 0);
  CHECK(p.poll(p.a).empty());
  REQUIRE(p.fake.req_notify_cq(p.a.cq) == 0);
  CHECK(p.poll(p.a).empty());
  CHECK(readable(p.a.channel->fd));
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  REQUIRE(p.fake.cq_event(p.a.channel, &cq, &context) == 0);
  p.fake.ack_cq_events(cq, 1);
  p.one(p.a);
}

}  // namespace
}  // namespace sluice::verbs
