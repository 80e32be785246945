// Two ends of a reliable connection between the soft-RoCE devices rxa and rxb. Each end opens its
// device in its own process; what one has to know of the other crosses by a socket pair.
#include <infiniband/verbs.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "tests/module/lines.h"
#include "tests/module/rxe_line.h"

namespace sluice::module_test {
namespace {

constexpr int kReceives = 16;
constexpr uint8_t kGid = 1;  // IPv4; 0 is that of the link-local address

struct Named {
  uint32_t qpn, rkey;
  uint64_t address;
  ibv_gid gid;
};

}  // namespace

struct Rxe::Verbs {
  ibv_context* device = nullptr;
  ibv_pd* domain = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq* queue = nullptr;
  ibv_qp* pair = nullptr;
  ibv_mr* region = nullptr;
  Named far{};
  int heard = 0;  // receives that are done and not yet taken
  uint64_t heard_at[kReceives] = {};
  bool read_done = false;

  ~Verbs() {
    if (pair) ibv_destroy_qp(pair);
    if (queue) ibv_destroy_cq(queue);
    if (channel) ibv_destroy_comp_channel(channel);
    if (region) ibv_dereg_mr(region);
    if (domain) ibv_dealloc_pd(domain);
    if (device) ibv_close_device(device);
  }
};

Rxe::Rxe(const char* device, int channel, bool spin, size_t room)
    : device_(device), channel_(channel), spin_(spin), room_(room) {}
Rxe::~Rxe() { ::close(channel_); }

void Rxe::open() {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  for (int i = 0; i < count; ++i)
    if (std::strcmp(ibv_get_device_name(list[i]), device_) == 0)
      verbs_->device = ibv_open_device(list[i]);
  ibv_free_device_list(list);
  if (!verbs_->device) die("no soft-RoCE device");
  verbs_->domain = ibv_alloc_pd(verbs_->device);
  verbs_->channel = ibv_create_comp_channel(verbs_->device);
  verbs_->queue = ibv_create_cq(verbs_->device, 4 * kReceives, nullptr, verbs_->channel, 0);
  // One place to send from, kReceives to receive into.
  if (!file_) own_.resize((kReceives + 1) * room_), file_ = own_.data();
  verbs_->region = ibv_reg_mr(verbs_->domain, file_, own_.empty() ? room_ : own_.size(),
                              IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = verbs_->queue;
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap = {.max_send_wr = kReceives,
                .max_recv_wr = kReceives,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = 0};
  verbs_->pair = verbs_->region ? ibv_create_qp(verbs_->domain, &wanted) : nullptr;
  if (!verbs_->pair) die("soft-RoCE: no queue pair");
}

void Rxe::connect() {
  ibv_port_attr port{};
  Named own{.qpn = verbs_->pair->qp_num,
            .rkey = verbs_->region->rkey,
            .address = reinterpret_cast<uintptr_t>(file_),
            .gid = {}};
  if (ibv_query_gid(verbs_->device, 1, kGid, &own.gid) != 0 ||
      ibv_query_port(verbs_->device, 1, &port) != 0)
    die("soft-RoCE: no address");
  if (::write(channel_, &own, sizeof(own)) != sizeof(own) ||
      ::read(channel_, &verbs_->far, sizeof(Named)) != sizeof(Named))
    die("the other end");
  ibv_qp_attr next{};
  next.qp_state = IBV_QPS_INIT;
  next.port_num = 1;
  next.qp_access_flags = IBV_ACCESS_REMOTE_READ;
  int failed = ibv_modify_qp(verbs_->pair, &next,
                             IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  for (int i = 0; i < kReceives && !own_.empty(); ++i) post_receive(static_cast<uint64_t>(i));
  next.qp_state = IBV_QPS_RTR;
  next.path_mtu = port.active_mtu;
  next.dest_qp_num = verbs_->far.qpn;
  next.max_dest_rd_atomic = next.max_rd_atomic = 1;
  next.min_rnr_timer = 12;
  next.ah_attr.is_global = 1;
  next.ah_attr.port_num = 1;
  next.ah_attr.grh = {.dgid = verbs_->far.gid,
                      .flow_label = 0,
                      .sgid_index = kGid,
                      .hop_limit = 64,
                      .traffic_class = 0};
  failed |= ibv_modify_qp(verbs_->pair, &next,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                              IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  next.qp_state = IBV_QPS_RTS;
  next.timeout = 14;
  next.retry_cnt = next.rnr_retry = 7;
  failed |= ibv_modify_qp(verbs_->pair, &next,
                          IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                              IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  if (failed) die("soft-RoCE: a queue pair does not connect");
  char ready = 1;
  if (::write(channel_, &ready, 1) != 1 || ::read(channel_, &ready, 1) != 1) die("the other end");
}

void Rxe::begin() {
  verbs_ = std::make_unique<Verbs>();
  open();
  connect();
}

void Rxe::post_receive(uint64_t place) {
  ibv_sge piece{.addr = reinterpret_cast<uintptr_t>(own_.data()) + (place + 1) * room_,
                .length = static_cast<uint32_t>(room_),
                .lkey = verbs_->region->lkey};
  ibv_recv_wr request{}, *bad;
  request.wr_id = place;
  request.sg_list = &piece;
  request.num_sge = 1;
  if (ibv_post_recv(verbs_->pair, &request, &bad) != 0) die("post_recv");
}

// Completions that are there; blocking: waits for one.
void Rxe::reap() {
  ibv_wc done[kReceives];
  int count = ibv_poll_cq(verbs_->queue, kReceives, done);
  if (count == 0 && !spin_) {
    ibv_cq* which;
    void* context;
    ibv_req_notify_cq(verbs_->queue, 0);
    // What came before the request makes no event.
    count = ibv_poll_cq(verbs_->queue, kReceives, done);
    if (count == 0) {
      if (ibv_get_cq_event(verbs_->channel, &which, &context) != 0) die("cq event");
      ibv_ack_cq_events(which, 1);
      count = ibv_poll_cq(verbs_->queue, kReceives, done);
    }
  }
  for (int i = 0; i < count; ++i) {
    if (done[i].status != IBV_WC_SUCCESS) die(ibv_wc_status_str(done[i].status));
    if (done[i].opcode == IBV_WC_RECV) verbs_->heard_at[verbs_->heard++] = done[i].wr_id;
    if (done[i].opcode == IBV_WC_RDMA_READ) verbs_->read_done = true;
  }
}

void Rxe::say(const std::string& text) {
  std::memcpy(own_.data(), text.data(), text.size());
  ibv_sge piece{.addr = reinterpret_cast<uintptr_t>(own_.data()),
                .length = static_cast<uint32_t>(text.size()),
                .lkey = verbs_->region->lkey};
  ibv_send_wr request{}, *bad;
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  request.send_flags = IBV_SEND_SIGNALED;
  if (ibv_post_send(verbs_->pair, &request, &bad) != 0) die("post_send");
}

std::string Rxe::hear(size_t bytes) {
  while (verbs_->heard == 0) reap();
  uint64_t place = verbs_->heard_at[--verbs_->heard];
  std::string text(reinterpret_cast<char*>(own_.data()) + (place + 1) * room_, bytes);
  post_receive(place);
  return text;
}

void Rxe::end() {
  char over = 1;
  if (::write(channel_, &over, 1) != 1 || ::read(channel_, &over, 1) != 1) die("the other end");
  verbs_.reset();
}

void Rxe::read_all() {
  ibv_sge piece{.addr = reinterpret_cast<uintptr_t>(file_),
                .length = static_cast<uint32_t>(room_),
                .lkey = verbs_->region->lkey};
  ibv_send_wr request{}, *bad;
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = IBV_WR_RDMA_READ;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = verbs_->far.address;
  request.wr.rdma.rkey = verbs_->far.rkey;
  verbs_->read_done = false;
  if (ibv_post_send(verbs_->pair, &request, &bad) != 0) die("post_send");
  while (!verbs_->read_done) reap();
}

std::pair<std::unique_ptr<Rxe>, std::unique_ptr<Rxe>> rxe_pair(bool spin, size_t room) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) die("socketpair");
  return {std::make_unique<Rxe>("rxa", ends[0], spin, room),
          std::make_unique<Rxe>("rxb", ends[1], spin, room)};
}

Line make_rxe(bool spin, size_t room) {
  auto [a, b] = rxe_pair(spin, room);
  return {std::move(a), std::move(b)};
}

}  // namespace sluice::module_test
