// The faults that the fake is asked for, and the orders in which it may deliver.
#include <errno.h>

#include <atomic>
#include <thread>

#include "tests/verbs/fake_pair.h"

namespace sluice::verbs {
namespace {

TEST_CASE("every call can be made to fail by name, the nth and those after it",
          "[verbs][fake][faults]") {
  FakePair p;
  p.fake.with_faults([](FakeFaults& f) {
    f.fail("reg_mr", 2, ENOSPC);
    f.fail("post_send", 1, ENOMEM, 2);
    f.fail("poll_cq", 1, EIO);
    f.fail("alloc_pd", 1, EPERM);
  });
  ibv_mr* mr = p.fake.reg_mr(p.a.pd, p.a.memory, 8, IBV_ACCESS_LOCAL_WRITE);
  REQUIRE(mr != nullptr);
  CHECK(p.fake.dereg_mr(mr) == 0);
  CHECK(p.fake.reg_mr(p.a.pd, p.a.memory, 8, IBV_ACCESS_LOCAL_WRITE) == nullptr);
  CHECK(errno == ENOSPC);
  CHECK(p.post(p.a, IBV_WR_RDMA_WRITE, 1, 0, 8, &p.b) == ENOMEM);
  CHECK(p.post(p.a, IBV_WR_RDMA_WRITE, 1, 0, 8, &p.b) == ENOMEM);
  CHECK(p.post(p.a, IBV_WR_RDMA_WRITE, 1, 0, 8, &p.b) == 0);
  ibv_wc completion{};
  CHECK(p.fake.poll_cq(p.a.cq, 1, &completion) == -EIO);
  p.one(p.a);
  CHECK(p.fake.alloc_pd(p.a.context) == nullptr);
  CHECK(errno == EPERM);
  CHECK(p.fake.calls("post_send") == 3);
  CHECK(p.fake.calls("no such call") == 0);
}

TEST_CASE("the nth of all calls fails, whichever it is", "[verbs][fake][faults]") {
  FakePair p;
  uint64_t before = p.fake.calls_in_all();
  p.fake.with_faults([](FakeFaults& f) { f.fail_any(2, ENOMEM); });
  CHECK(p.post(p.a, IBV_WR_RDMA_WRITE, 1, 0, 8, &p.b) == 0);
  CHECK(p.fake.destroy_qp(nullptr) == EINVAL);  // not counted
  CHECK(p.receive(p.a, 1, 0, 8) == ENOMEM);
  CHECK(p.receive(p.a, 1, 0, 8) == 0);
  CHECK(p.fake.calls_in_all() == before + 3);
  CHECK(p.misused("destroy_qp"));
}

TEST_CASE(
    "a request is held back before it begins, or when it is done, and what follows waits behind it",
    "[verbs][fake][faults]") {
  for (bool undone : {true, false}) {
    INFO("undone " << undone);
    FakePair p;
    p.fill(p.a, 0, 8, 1);
    p.fake.with_faults([&](FakeFaults& f) {
      f.hold(1, undone ? FakeFaults::Held::kUndone : FakeFaults::Held::kUnsaid, 20,
             IBV_WR_RDMA_WRITE);
    });
    REQUIRE(p.post(p.a, IBV_WR_RDMA_READ, 1, 64, 8, &p.b) == 0);
    p.one(p.a);  // of another opcode: not held back
    REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE, 2, 0, 8, &p.b, 128) == 0);
    REQUIRE(p.post(p.a, IBV_WR_RDMA_READ, 3, 72, 8, &p.b) == 0);
    CHECK(p.same(p.a, 0, p.b, 128, 8) == !undone);
    for (int i = 0; i < 19; ++i) CHECK(p.poll(p.a).empty());
    CHECK(p.same(p.a, 0, p.b, 128, 8) == !undone);
    std::vector<ibv_wc> both = p.poll(p.a);
    REQUIRE(both.size() == 2);
    CHECK(both[0].wr_id == 2);
    CHECK(both[1].wr_id == 3);
    CHECK(p.same(p.a, 0, p.b, 128, 8));
  }
}

TEST_CASE("what is held back for ever comes back when its queue pair is in error",
          "[verbs][fake][faults]") {
  FakePair p;
  p.fake.with_faults(
      [](FakeFaults& f) { f.hold(1, FakeFaults::Held::kUndone, FakeFaults::kForEver); });
  REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE, 7, 0, 8, &p.b, 128) == 0);
  p.fake.advance(100'000);
  CHECK(p.poll(p.a).empty());
  REQUIRE(p.to(p.a, IBV_QPS_ERR) == 0);
  CHECK(p.one(p.a, IBV_WC_WR_FLUSH_ERR).wr_id == 7);
}

TEST_CASE("every name of a call is known", "[verbs][fake][faults]") {
  CHECK(FakeFaults::call_names().size() == 50);
  CHECK(FakeFaults::calls_that_may_fail().size() == 34);
}

TEST_CASE("a completion event is lost, the completion is not", "[verbs][fake][faults]") {
  FakePair p;
  p.fake.with_faults([](FakeFaults& f) { f.lose_cq_events = 1; });
  REQUIRE(p.fake.req_notify_cq(p.a.cq) == 0);
  REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE, 1, 0, 8, &p.b) == 0);
  CHECK_FALSE(readable(p.a.channel->fd));
  p.one(p.a);
  REQUIRE(p.fake.req_notify_cq(p.a.cq) == 0);
  REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE, 1, 0, 8, &p.b) == 0);
  CHECK(readable(p.a.channel->fd));
}

TEST_CASE("a completion event comes late", "[verbs][fake][faults]") {
  FakePair p;
  p.fake.with_faults([](FakeFaults& f) { f.late_cq_events = 5; });
  REQUIRE(p.fake.req_notify_cq(p.a.cq) == 0);
  REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE, 1, 0, 8, &p.b) == 0);
  p.fake.advance(4);
  CHECK_FALSE(readable(p.a.channel->fd));
  p.fake.advance(1);
  CHECK(readable(p.a.channel->fd));
}

TEST_CASE("a request completes with any status, done at the peer or not", "[verbs][fake][faults]") {
  int status = GENERATE(range(1, static_cast<int>(IBV_WC_GENERAL_ERR) + 1));
  bool executed = GENERATE(false, true);
  FakePair p;
  p.fill(p.a, 0, 8, 4);
  p.fake.with_faults([&](FakeFaults& f) {
    f.complete(2, static_cast<ibv_wc_status>(status), IBV_WR_RDMA_WRITE, executed);
  });
  REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE, 1, 0, 8, &p.b, 100) == 0);
  REQUIRE(p.post(p.a, IBV_WR_RDMA_READ, 2, 200, 8, &p.b, 100) == 0);
  REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE, 3, 0, 8, &p.b, 300) == 0);
  auto done = p.poll(p.a);
  REQUIRE(done.size() == 3);
  CHECK(done[1].status == IBV_WC_SUCCESS);
  CHECK(done[2].wr_id == 3);
  CHECK(done[2].status == status);
  CHECK(p.fake.qp_state(p.a.qp->qp_num) == IBV_QPS_ERR);
  CHECK(p.same(p.a, 0, p.b, 300, 8) == executed);
}

TEST_CASE("a receive completes with any status", "[verbs][fake][faults]") {
  FakePair p;
  p.fake.with_faults([](FakeFaults& f) { f.complete_receive(1, IBV_WC_LOC_PROT_ERR); });
  REQUIRE(p.receive(p.b, 1, 0, 8) == 0);
  REQUIRE(p.post(p.a, IBV_WR_SEND, 1, 0, 8) == 0);
  p.one(p.b, IBV_WC_LOC_PROT_ERR);
  p.one(p.a, IBV_WC_REM_OP_ERR);
}

TEST_CASE("a hung QP never gives its requests back", "[verbs][fake][faults]") {
  FakePair p({.policy = {.order = FakePolicy::Order::kSlow, .ticks = 5}});
  p.fake.with_faults([](FakeFaults& f) { f.never_flush = true; });
  REQUIRE(p.receive(p.a, 1, 0, 8) == 0);
  REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE, 2, 0, 8, &p.b) == 0);
  REQUIRE(p.to(p.a, IBV_QPS_ERR) == 0);
  p.fake.advance(100);
  CHECK(p.poll(p.a).empty());
}

TEST_CASE("a completion of a receive says what its adapter likes", "[verbs][fake][faults]") {
  FakePair p;
  p.fake.with_faults([](FakeFaults& f) {
    f.change_receive(2, [](ibv_wc& completion) {
      completion.byte_len = 1u << 30;
      completion.wr_id = 999;
      completion.opcode = IBV_WC_TM_ADD;
    });
    f.duplicate_receive(3);
    f.change_send(1, [](ibv_wc& completion) { completion.wr_id = 12; });
  });
  for (uint64_t i = 0; i < 3; ++i) REQUIRE(p.receive(p.b, i, 0, 8) == 0);
  for (uint64_t i = 0; i < 3; ++i) REQUIRE(p.post(p.a, IBV_WR_SEND, i, 0, 8) == 0);
  auto got = p.poll(p.b);
  REQUIRE(got.size() == 4);
  CHECK(got[0].byte_len == 8);
  CHECK(got[1].byte_len == 1u << 30);
  CHECK(got[1].wr_id == 999);
  CHECK(got[2].wr_id == 2);
  CHECK(got[3].wr_id == 2);
  CHECK(p.poll(p.a)[0].wr_id == 12);
}

TEST_CASE("a cut link is noticed after the retries, a mended one is not", "[verbs][fake][faults]") {
  FakePair p({.retry_ticks = 10}, {.retry_cnt = 2});
  bool one_qp = GENERATE(false, true);
  p.fake.with_faults([&](FakeFaults& f) {
    if (one_qp)
      f.cut_qps.insert(p.b.qp->qp_num);
    else
      f.link = FakeFaults::Link::kCut;
  });
  REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE, 1, 0, 8, &p.b) == 0);
  p.fake.advance(14);
  CHECK(p.poll(p.a).empty());
  SECTION("mended in time") {
    p.fake.with_faults([](FakeFaults& f) {
      f.link = FakeFaults::Link::kUp;
      f.cut_qps.clear();
    });
    p.fake.advance(10);
    p.one(p.a);
    CHECK(p.fake.retransmissions() == 2);
  }
  SECTION("for good") {
    p.fake.advance(13);
    CHECK(p.poll(p.a).empty());
    p.fake.advance(1);
    p.one(p.a, IBV_WC_RETRY_EXC_ERR);
    CHECK(p.fake.qp_state(p.b.qp->qp_num) == IBV_QPS_RTS);  // nobody told it
  }
}

TEST_CASE("when answers are lost the request was executed and its sender cannot know",
          "[verbs][fake][faults]") {
  FakePair p({.retry_ticks = 10}, {.retry_cnt = 1});
  p.fill(p.a, 0, 8, 3);
  REQUIRE(p.receive(p.b, 1, 100, 8) == 0);
  p.fake.with_faults([](FakeFaults& f) { f.link = FakeFaults::Link::kAnswersLost; });
  REQUIRE(p.post(p.a, IBV_WR_SEND, 1, 0, 8) == 0);
  CHECK(p.one(p.b).byte_len == 8);
  CHECK(p.same(p.a, 0, p.b, 100, 8));
  p.fake.advance(30);
  p.one(p.a, IBV_WC_RETRY_EXC_ERR);
  CHECK(p.poll(p.b).empty());  // once
}

TEST_CASE("a port that is down passes nothing", "[verbs][fake][faults]") {
  FakePair p;
  p.fake.set_port(IBV_PORT_DOWN);
  ibv_port_attr port{};
  REQUIRE(p.fake.query_port(p.a.context, 1, &port) == 0);
  CHECK(port.state == IBV_PORT_DOWN);
  CHECK(readable(p.a.context->async_fd));
  CHECK(p.async(p.a).event_type == IBV_EVENT_PORT_ERR);
  REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE, 1, 0, 8, &p.b) == 0);
  CHECK(p.poll(p.a).empty());
  p.fake.set_port(IBV_PORT_ACTIVE);
  CHECK(p.async(p.a).event_type == IBV_EVENT_PORT_ACTIVE);
  CHECK_FALSE(readable(p.a.context->async_fd));
  p.fake.advance(16);
  p.one(p.a);
}

TEST_CASE("every asynchronous event can be raised and must be acknowledged",
          "[verbs][fake][faults]") {
  FakePair p;
  for (int i = IBV_EVENT_CQ_ERR; i <= IBV_EVENT_WQ_FATAL; ++i) {
    auto type = static_cast<ibv_event_type>(i);
    ibv_async_event event{};
    if (type == IBV_EVENT_CQ_ERR) {
      REQUIRE(p.fake.raise_cq(type, p.a.cq));
    } else if ((type >= IBV_EVENT_QP_FATAL && type <= IBV_EVENT_PATH_MIG_ERR) ||
               type == IBV_EVENT_QP_LAST_WQE_REACHED) {
      REQUIRE(p.fake.raise_qp(type, p.a.qp->qp_num));
    } else {
      p.fake.raise_device(type);
    }
    REQUIRE(p.fake.async_event(p.a.context, &event) == 0);
    CHECK(event.event_type == type);
    CHECK(p.fake.census().async_events == 1);
    p.fake.ack_async_event(&event);
    CHECK(p.fake.census().async_events == 0);
    CHECK(p.fake.async_event(p.a.context, &event) == EAGAIN);
  }
  CHECK_FALSE(p.fake.raise_qp(IBV_EVENT_QP_FATAL, 0xffffff));
  REQUIRE(p.fake.raise_qp(IBV_EVENT_QP_FATAL, p.a.qp->qp_num));
  ibv_async_event event{};
  REQUIRE(p.fake.async_event(p.a.context, &event) == 0);
  CHECK(p.fake.destroy_qp(p.a.qp) == EBUSY);
  CHECK(p.misused("would hang"));
  p.fake.ack_async_event(&event);
}

TEST_CASE("a new GID table is announced", "[verbs][fake][faults]") {
  FakePair p;
  p.fake.set_gids({FakeGid{}, fake_ipv4_gid("127.0.0.1", IBV_GID_TYPE_ROCE_V2)});
  CHECK(p.async(p.a).event_type == IBV_EVENT_GID_CHANGE);
  ibv_gid_entry entry{};
  CHECK(p.fake.query_gid(p.a.context, 1, 0, &entry) == ENODATA);
  REQUIRE(p.fake.query_gid(p.a.context, 1, 1, &entry) == 0);
  CHECK(entry.gid_type == IBV_GID_TYPE_ROCE_V2);
  CHECK(entry.gid.raw[12] == 127);
}

TEST_CASE("a device that goes says so once and gives EIO for ever", "[verbs][fake][faults]") {
  FakeDeviceOptions second{.name = "fake1", .ipv4 = "127.0.0.2"};
  FakePair p({.devices = {{}, second}}, {.device = {0, 1}});
  REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE, 1, 0, 8, &p.b) == 0);
  p.one(p.a);
  p.fake.remove_device(0);
  CHECK(p.async(p.a).event_type == IBV_EVENT_DEVICE_FATAL);
  ibv_async_event event{};
  CHECK(p.fake.async_event(p.a.context, &event) == EIO);
  CHECK(p.post(p.a, IBV_WR_RDMA_WRITE, 1, 0, 8, &p.b) == EIO);
  ibv_wc completion{};
  CHECK(p.fake.poll_cq(p.a.cq, 1, &completion) == -EIO);
  CHECK(p.fake.alloc_pd(p.a.context) == nullptr);
  CHECK(errno == EIO);
  int count = 0;
  ibv_device** list = p.fake.device_list(&count);
  CHECK(count == 1);
  p.fake.free_device_list(list);
  // The other device lives; what it sends to the first gets no answer.
  REQUIRE(p.post(p.b, IBV_WR_RDMA_WRITE, 1, 0, 8, &p.a) == 0);
  p.fake.advance(100);
  p.one(p.b, IBV_WC_RETRY_EXC_ERR);
  // Destroying tells the error and lets go.
  CHECK(p.fake.destroy_qp(p.a.qp) == EIO);
  CHECK(p.fake.dereg_mr(p.a.mr) == EIO);
  CHECK(p.fake.destroy_cq(p.a.cq) == EIO);
  CHECK(p.fake.destroy_comp_channel(p.a.channel) == EIO);
  CHECK(p.fake.dealloc_pd(p.a.pd) == EIO);
  CHECK(p.fake.close_device(p.a.context) == EIO);
  p.a.context = nullptr;
}

TEST_CASE("in every order each QP's own work arrives in order, all of it",
          "[verbs][fake][faults]") {
  auto order = GENERATE(FakePolicy::Order::kHonest, FakePolicy::Order::kSlow,
                        FakePolicy::Order::kReordering, FakePolicy::Order::kLossy);
  uint64_t seed = GENERATE(1, 2, 3);
  FakePair p({.policy = {.order = order, .ticks = 7, .loss_per_mille = 200, .seed = seed},
              .poll_limit = 3},
             {.send_wr = 64, .receive_wr = 64, .retry_cnt = 6});
  constexpr uint64_t kMessages = 40;
  for (uint64_t i = 0; i < kMessages; ++i) REQUIRE(p.receive(p.b, i, 4096 + i * 8, 8) == 0);
  for (uint64_t i = 0; i < kMessages; ++i) {
    p.a.memory[i * 8] = static_cast<uint8_t>(i + 1);
    REQUIRE(p.post(p.a, IBV_WR_SEND, i, i * 8, 8) == 0);
  }
  uint64_t sent = 0, got = 0;
  for (int polls = 0; polls < 5000 && (sent < kMessages || got < kMessages); ++polls) {
    for (const ibv_wc& completion : p.poll(p.b)) {
      REQUIRE(completion.status == IBV_WC_SUCCESS);
      CHECK(completion.wr_id == got);
      CHECK(p.b.memory[4096 + got * 8] == got + 1);
      ++got;
    }
    for (const ibv_wc& completion : p.poll(p.a)) {
      REQUIRE(completion.status == IBV_WC_SUCCESS);
      CHECK(completion.wr_id == sent++);
    }
  }
  CHECK(sent == kMessages);
  CHECK(got == kMessages);
  if (order == FakePolicy::Order::kLossy) CHECK(p.fake.retransmissions() > 0);
}

TEST_CASE("one QP's work overtakes another's", "[verbs][fake][faults]") {
  FakePair p({.policy = {.order = FakePolicy::Order::kReordering, .ticks = 20, .seed = 5}});
  bool overtaken = false;
  for (uint64_t round = 0; round < 20; ++round) {
    REQUIRE(p.post(p.a, IBV_WR_RDMA_WRITE, round, 0, 8, &p.b) == 0);
    REQUIRE(p.post(p.b, IBV_WR_RDMA_WRITE, round, 0, 8, &p.a) == 0);
    bool first = false, second = false;
    while (!first || !second) {
      second |= !p.poll(p.b).empty();
      overtaken |= second && !first;
      first |= !p.poll(p.a).empty();
    }
  }
  CHECK(overtaken);
}

TEST_CASE("two threads, one for each end, through events", "[verbs][fake][faults][threads]") {
  FakePair p({.policy = {.order = FakePolicy::Order::kSlow, .ticks = 2}});
  constexpr uint8_t kRounds = 100;
  REQUIRE(p.receive(p.a, 0, 0, 8) == 0);
  REQUIRE(p.receive(p.b, 0, 0, 8) == 0);
  std::atomic<bool> failed{false};
  // Takes the peer's number, gives it back one higher.
  auto turn = [&](End& end, bool first) {
    uint8_t seen = 0;
    if (first)
      failed = failed || p.post(end, IBV_WR_SEND, 1, 100, 8, nullptr, 0, IBV_SEND_INLINE) != 0;
    while (seen < kRounds && !failed) {
      ibv_wc completions[4];
      int n = p.fake.poll_cq(end.cq, 4, completions);
      if (n == 0) {
        failed = failed || p.fake.req_notify_cq(end.cq) != 0;
        n = p.fake.poll_cq(end.cq, 4, completions);
      }
      if (n == 0) {
        pollfd wait{end.channel->fd, POLLIN, 0};
        if (::poll(&wait, 1, 5000) != 1) failed = true;
        ibv_cq* cq = nullptr;
        void* context = nullptr;
        if (p.fake.cq_event(end.channel, &cq, &context) == 0) p.fake.ack_cq_events(cq, 1);
        continue;
      }
      for (int i = 0; i < n; ++i) {
        if (completions[i].status != IBV_WC_SUCCESS) failed = true;
        if (completions[i].opcode != IBV_WC_RECV) continue;
        seen = static_cast<uint8_t>(end.memory[0] + 1);
        end.memory[100] = seen;
        failed = failed || p.receive(end, 0, 0, 8) != 0;
        failed = failed || p.post(end, IBV_WR_SEND, 1, 100, 8, nullptr, 0,
                                  IBV_SEND_INLINE | IBV_SEND_SIGNALED) != 0;
      }
    }
  };
  std::thread other([&] { turn(p.b, false); });
  turn(p.a, true);
  other.join();
  CHECK_FALSE(failed);
}

}  // namespace
}  // namespace sluice::verbs
