// Two ends with a QP each, connected by hand, for tests of the fake itself. Everything is
// taken down and counted at the end.
#ifndef SLUICE_TESTS_VERBS_FAKE_PAIR_H_
#define SLUICE_TESTS_VERBS_FAKE_PAIR_H_

#include <fcntl.h>
#include <poll.h>
#include <string.h>

#include <catch2/catch.hpp>

#include "tests/verbs/fake_provider.h"

namespace sluice::verbs {

constexpr int kEverything = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
                            IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

inline bool readable(int fd) {
  pollfd p{fd, POLLIN, 0};
  return ::poll(&p, 1, 0) == 1;
}
inline void make_nonblocking(int fd) { ::fcntl(fd, F_SETFL, O_NONBLOCK); }

struct PairShape {
  int access = kEverything | IBV_ACCESS_MW_BIND;
  unsigned qp_access = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  int cq_entries = 256;
  uint32_t send_wr = 16, receive_wr = 16, sges = 4, inline_bytes = 64;
  uint8_t retry_cnt = 3, rnr_retry = 3, reads = 4;
  size_t device[2] = {0, 0};
};

struct End {
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq* cq = nullptr;
  ibv_qp* qp = nullptr;
  ibv_mr* mr = nullptr;
  alignas(8) uint8_t memory[16384] = {};

  uint64_t address(size_t offset = 0) const { return reinterpret_cast<uint64_t>(memory + offset); }
};

class FakePair {
 public:
  explicit FakePair(FakeOptions options = {}, PairShape given = {})
      : shape(given), fake(std::move(options)) {
    open(a, shape.device[0]);
    open(b, shape.device[1]);
    connect(a, b, shape.device[1]);
    connect(b, a, shape.device[0]);
  }
  ~FakePair() {
    close(a);
    close(b);
    CHECK(fake.census().text() == "nothing");
    if (!misuse_expected) CHECK(fake.misuses() == std::vector<std::string>{});
    if (!misuse_expected && fake.rnr_events() == 0) CHECK(fake.complaints() == "");
  }

  ibv_sge sge(const End& end, size_t offset, uint32_t length) const {
    return {end.address(offset), length, end.mr->lkey};
  }

  int post(End& end, ibv_send_wr wr) {
    ibv_send_wr* bad = nullptr;
    return fake.post_send(end.qp, &wr, &bad);
  }
  // One signaled request over one sge.
  int post(End& end, ibv_wr_opcode opcode, uint64_t id, size_t offset, uint32_t length,
           const End* target = nullptr, size_t target_offset = 0,
           unsigned flags = IBV_SEND_SIGNALED) {
    ibv_sge one = sge(end, offset, length);
    ibv_send_wr wr{};
    wr.wr_id = id;
    wr.sg_list = &one;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = flags;
    wr.imm_data = 0x01020304;
    if (target != nullptr) {
      wr.wr.rdma.remote_addr = target->address(target_offset);
      wr.wr.rdma.rkey = target->mr->rkey;
    }
    return post(end, wr);
  }
  int post_atomic(End& end, ibv_wr_opcode opcode, uint64_t id, const End& target,
                  size_t target_offset, uint64_t add, uint64_t swap) {
    ibv_sge one = sge(end, 0, 8);
    ibv_send_wr wr{};
    wr.wr_id = id;
    wr.sg_list = &one;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.atomic.remote_addr = target.address(target_offset);
    wr.wr.atomic.compare_add = add;
    wr.wr.atomic.swap = swap;
    wr.wr.atomic.rkey = target.mr->rkey;
    return post(end, wr);
  }
  int receive(End& end, uint64_t id, size_t offset, uint32_t length) {
    ibv_sge one = sge(end, offset, length);
    ibv_recv_wr wr{};
    wr.wr_id = id;
    wr.sg_list = &one;
    wr.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    return fake.post_recv(end.qp, &wr, &bad);
  }
  std::vector<ibv_wc> poll(End& end, int most = 64) {
    std::vector<ibv_wc> all(static_cast<size_t>(most));
    int n = fake.poll_cq(end.cq, most, all.data());
    REQUIRE(n >= 0);
    all.resize(static_cast<size_t>(n));
    return all;
  }
  // Exactly one completion, of that status.
  ibv_wc one(End& end, ibv_wc_status status = IBV_WC_SUCCESS) {
    std::vector<ibv_wc> all = poll(end);
    REQUIRE(all.size() == 1);
    CHECK(std::string(fake.status_text(all[0].status)) == fake.status_text(status));
    return all[0];
  }
  void fill(End& end, size_t offset, size_t length, uint8_t first) {
    for (size_t i = 0; i < length; ++i)
      end.memory[offset + i] = static_cast<uint8_t>(first + i * 7);
  }
  bool same(const End& x, size_t x_offset, const End& y, size_t y_offset, size_t length) const {
    return ::memcmp(x.memory + x_offset, y.memory + y_offset, length) == 0;
  }
  int to(End& end, ibv_qp_state state) {
    ibv_qp_attr attributes{};
    attributes.qp_state = state;
    return fake.modify_qp(end.qp, &attributes, IBV_QP_STATE);
  }

  void open(End& end, size_t device) {
    int count = 0;
    ibv_device** list = fake.device_list(&count);
    REQUIRE(static_cast<size_t>(count) > device);
    end.context = fake.open_device(list[device]);
    fake.free_device_list(list);
    REQUIRE(end.context != nullptr);
    make_nonblocking(end.context->async_fd);
    end.pd = fake.alloc_pd(end.context);
    end.channel = fake.create_comp_channel(end.context);
    make_nonblocking(end.channel->fd);
    end.cq = fake.create_cq(end.context, shape.cq_entries, &end, end.channel);
    end.mr = fake.reg_mr(end.pd, end.memory, sizeof(end.memory), shape.access);
    REQUIRE(end.mr != nullptr);
    make_qp(end);
  }
  void make_qp(End& end) {
    ibv_qp_init_attr initial{};
    initial.send_cq = initial.recv_cq = end.cq;
    initial.qp_type = IBV_QPT_RC;
    initial.cap = {shape.send_wr, shape.receive_wr, shape.sges, shape.sges, shape.inline_bytes};
    end.qp = fake.create_qp(end.pd, &initial);
    REQUIRE(end.qp != nullptr);
  }
  int to_init(End& end) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = 1;
    attributes.qp_access_flags = shape.qp_access;
    return fake.modify_qp(end.qp, &attributes,
                          IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  }
  ibv_qp_attr receive_attributes(const End& peer, size_t peer_device) {
    ibv_gid_entry gid{};
    (void)peer_device;
    REQUIRE(fake.query_gid(peer.context, 1, 3, &gid) == 0);
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = IBV_MTU_1024;
    attributes.dest_qp_num = peer.qp->qp_num;
    attributes.rq_psn = 77;
    attributes.max_dest_rd_atomic = shape.reads;
    attributes.min_rnr_timer = 12;
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.port_num = 1;
    attributes.ah_attr.grh.dgid = gid.gid;
    attributes.ah_attr.grh.sgid_index = 3;
    return attributes;
  }
  static constexpr int kReceiveMask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                      IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                                      IBV_QP_MIN_RNR_TIMER;
  static constexpr int kSendMask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                   IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
  int to_send(End& end) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RTS;
    attributes.timeout = 14;
    attributes.retry_cnt = shape.retry_cnt;
    attributes.rnr_retry = shape.rnr_retry;
    attributes.sq_psn = 77;
    attributes.max_rd_atomic = shape.reads;
    return fake.modify_qp(end.qp, &attributes, kSendMask);
  }
  void connect(End& end, const End& peer, size_t peer_device) {
    REQUIRE(to_init(end) == 0);
    ibv_qp_attr attributes = receive_attributes(peer, peer_device);
    REQUIRE(fake.modify_qp(end.qp, &attributes, kReceiveMask) == 0);
    REQUIRE(to_send(end) == 0);
  }
  void drop_async_events(End& end) {
    ibv_async_event event{};
    while (fake.async_event(end.context, &event) == 0) fake.ack_async_event(&event);
  }
  void close(End& end) {
    if (end.context == nullptr) return;
    drop_async_events(end);
    if (end.qp != nullptr) CHECK(fake.destroy_qp(end.qp) == 0);
    if (end.mr != nullptr) CHECK(fake.dereg_mr(end.mr) == 0);
    CHECK(fake.destroy_cq(end.cq) == 0);
    CHECK(fake.destroy_comp_channel(end.channel) == 0);
    CHECK(fake.dealloc_pd(end.pd) == 0);
    CHECK(fake.close_device(end.context) == 0);
    end.context = nullptr;
  }
  // The next asynchronous event, acknowledged.
  ibv_async_event async(End& end) {
    ibv_async_event event{};
    REQUIRE(fake.async_event(end.context, &event) == 0);
    fake.ack_async_event(&event);
    return event;
  }
  bool misused(const std::string& part) {
    misuse_expected = true;
    for (const std::string& text : fake.misuses()) {
      if (text.find(part) != std::string::npos) return true;
    }
    return false;
  }

  PairShape shape;
  FakeVerbs fake;
  End a, b;
  bool misuse_expected = false;
};

}  // namespace sluice::verbs

#endif  // SLUICE_TESTS_VERBS_FAKE_PAIR_H_
