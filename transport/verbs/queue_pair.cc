// Making, connecting and ending a queue pair. Posting is in queue_pair_post.cc, completions
// in queue_pair_poll.cc.
#include <sluice/verbs/queue_pair.h>

#include <errno.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/base/log.h>

namespace sluice::verbs {
namespace {

constexpr const char* kOrigin = "verbs/queue_pair";
// Send requests at once: messages, transfers, and what opens and closes windows.
constexpr uint32_t kWantedDepth = 256;
// Bytes that go with the request itself; what a device has not is asked for in smaller.
constexpr std::array<uint32_t, 3> kInlineSizes = {220, 64, 0};
// Chunks of a transfer: large enough that the device does the work, small enough that
// another operation gets its turn.
constexpr uint64_t kLargestChunk = 1u << 20;
// Soft-RoCE counts its repeats until the whole message is acknowledged, not until there is
// progress: with 1 % of the packets lost, a message of 256 packets uses up all six in one
// case of 40 (tests/verbs/nodes.cc, lossy), one of 32 in none of thousands.
constexpr uint64_t kSoftwareChunkPackets = 32;
// How long a queue may take to flush once it is in error.
constexpr Duration kFlushTime = std::chrono::milliseconds(100);
// Timeout 16: 4.096 us * 2^16 = 0.27 s (InfiniBand 1.2.1, 9.7.6.1.3); six repeats, so that
// a dead peer is noticed in two to eight seconds, as devices round. Never 7: soft-RoCE then
// repeats for ever.
constexpr uint8_t kAckTimeout = 16;
constexpr uint8_t kRetries = 6;
// Credits make "receiver not ready" impossible; a peer that breaks them is not repeated for long.
constexpr uint8_t kReceiverNotReadyRetries = 3;
constexpr uint8_t kReceiverNotReadyTimer = 12;  // 0.64 ms

Counter queue_pairs("verbs.queue_pairs");
Counter queues_moderated("verbs.queues_moderated");
Counter flushes_overdue("verbs.flushes_overdue");
Counter queue_pairs_stuck("verbs.queue_pairs_stuck");

// ibv_mtu counts from 256 bytes = 1.
uint64_t packet_bytes(uint8_t mtu) { return uint64_t{128} << mtu; }

Status device_error(const std::string& what, int error) {
  Code code = error == ENOMEM || error == EMFILE ? Code::kNoMemory : Code::kInternal;
  std::string remedy = error == ENOMEM ? "; if locked memory is limited (ulimit -l), raise it" : "";
  return Status(code, Scope::kOperation, kOrigin, what + remedy, error);
}

}  // namespace

Result<std::unique_ptr<QueuePair>> QueuePair::create(Device& device, uint8_t port, Use use) {
  std::unique_ptr<QueuePair> made(new QueuePair(device, use));
  made->port_ = port;
  made->chunk_limit_ = std::min<uint64_t>(device.message_limit(port), kLargestChunk);
  if (device.limits().software && !device.limits().iwarp) {
    made->chunk_limit_ =
        std::min(made->chunk_limit_, kSoftwareChunkPackets * packet_bytes(made->port_mtu()));
  }
  SLUICE_RETURN_IF_ERROR(made->create_queues());
  if (use == Use::kAll) SLUICE_RETURN_IF_ERROR(made->make_slots());
  queue_pairs.add();
  return made;
}

Status QueuePair::create_queues() {
  const DeviceLimits& limits = device_.limits();
  depth_ = std::min(kWantedDepth, limits.queue_depth);
  if (depth_ < 2 * kSlots || limits.queue_depth < kSlots) {
    return Status(Code::kUnsupported, Scope::kOperation, kOrigin,
                  "RDMA device " + device_.name() + " has queues of " +
                      std::to_string(limits.queue_depth) + " requests, 128 are needed");
  }
  records_.resize(std::bit_ceil(depth_));
  record_mask_ = records_.size() - 1;
  deferred_.reserve(depth_ + kSlots);
  windows_.reserve(depth_);
  errno = 0;
  // Every request that can be outstanding has an entry: the queue cannot overrun.
  cq_ = api_.create_cq(device_.handle(), static_cast<int>(depth_ + kSlots),
                       reinterpret_cast<void*>(user_), device_.channel());
  if (cq_ == nullptr)
    return device_error("no completion queue on RDMA device " + device_.name(), errno);
  moderate_events();
  ibv_qp_init_attr initial{};
  initial.send_cq = initial.recv_cq = cq_;
  initial.qp_type = IBV_QPT_RC;
  initial.cap.max_send_wr = depth_;
  initial.cap.max_recv_wr = kSlots;
  initial.cap.max_send_sge = std::min<uint32_t>(limits.pieces, kMaxPlaces);
  initial.cap.max_recv_sge = 1;
  for (uint32_t size : kInlineSizes) {
    initial.cap.max_inline_data = size;
    errno = 0;
    qp_ = api_.create_qp(device_.pd(), &initial);
    if (qp_ != nullptr) break;
  }
  if (qp_ == nullptr) return device_error("no queue pair on RDMA device " + device_.name(), errno);
  max_pieces_ = std::max<uint32_t>(initial.cap.max_send_sge, 1);
  max_read_pieces_ = std::min(max_pieces_, limits.read_pieces);
  max_inline_ = initial.cap.max_inline_data;
  return Status();
}

// Devices that cannot do without. The rule's first setting is none, and shows who cannot at once.
void QueuePair::moderate_events() {
  const ModerationWish wish = device_.moderation();
  if (!device_.moderate(cq_, wish.automatic ? EventModerator::kProfiles[0] : wish.fixed)) return;
  queues_moderated.add();
  if (wish.automatic) moderator_.emplace();
}

// In memory of their own: no tensor lies beside what the device writes for us.
Status QueuePair::make_slots() {
  size_t bytes = kSlotsBytes + 2 * kProofBytes;
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return device_error("no memory for the message slots of a connection", errno);
  slots_ = static_cast<std::byte*>(memory);
  // A child must not get copies of pages that the device writes to.
  (void)::madvise(memory, bytes, MADV_DONTFORK);
  SLUICE_TRY(slots_mr_, device_.registrar().pin(memory, bytes, IBV_ACCESS_LOCAL_WRITE));
  if (device_.limits().iwarp) {
    SLUICE_TRY(proof_mr_,
               device_.registrar().pin(slots_ + kSlotsBytes, kProofBytes, IBV_ACCESS_REMOTE_READ));
  }
  return Status();
}

ProofPlace QueuePair::proof_place() const {
  if (proof_mr_ == nullptr) return {};
  return {.address = reinterpret_cast<uint64_t>(proof_mr_->addr), .key = proof_mr_->rkey};
}

Status QueuePair::prove_at(ProofPlace peer) {
  if (device_.limits().iwarp && peer.key == 0) {
    return Status(Code::kCorrupt, Scope::kEndpoint, kOrigin,
                  "a peer over iWARP that names no place to prove writes by; is its sluice as new "
                  "as this one?");
  }
  peer_proof_ = peer;
  return Status();
}

Status QueuePair::initialise(rdma_cm_id* id) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  int mask = 0;
  if (int e = api_.init_qp_attr(id, &attributes, &mask); e != 0)
    return device_error("the connection manager does not know the path", e);
  // What peers may do is said by windows, one by one.
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
  if (device_.limits().atomics) attributes.qp_access_flags |= IBV_ACCESS_REMOTE_ATOMIC;
  mask |= IBV_QP_ACCESS_FLAGS;
  if (int e = api_.modify_qp(qp_, &attributes, mask); e != 0)
    return device_error("the queue pair refuses its port", e);
  std::array<uint32_t, kReceivesPosted> slots;
  for (uint32_t first = 0; first < slots_in_; first += kReceivesPosted) {
    std::iota(slots.begin(), slots.end(), first);
    SLUICE_RETURN_IF_ERROR(post_receives(slots));
  }
  return Status();
}

uint8_t QueuePair::port_mtu() const {
  ibv_port_attr attributes{};
  if (api_.query_port(device_.handle(), port_, &attributes) != 0) return IBV_MTU_1024;
  return static_cast<uint8_t>(std::clamp<int>(attributes.active_mtu, IBV_MTU_256, IBV_MTU_4096));
}

Status QueuePair::ready(rdma_cm_id* id, uint8_t peer_mtu) {
  if (device_.limits().iwarp) return Status();
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  int mask = 0;
  if (int e = api_.init_qp_attr(id, &attributes, &mask); e != 0)
    return device_error("the connection manager does not know the path", e);
  attributes.min_rnr_timer = kReceiverNotReadyTimer;
  // Both ends know both ports: the connection manager took that of the asker alone.
  attributes.path_mtu = static_cast<ibv_mtu>(
      std::min<uint8_t>(static_cast<uint8_t>(attributes.path_mtu), std::min(peer_mtu, port_mtu())));
  // The peer's port may have smaller packets than ours.
  if (device_.limits().software) {
    chunk_limit_ =
        std::min(chunk_limit_,
                 kSoftwareChunkPackets * packet_bytes(static_cast<uint8_t>(attributes.path_mtu)));
  }
  // The peer's wish: its device may be larger. It is told the same in our answer.
  attributes.max_dest_rd_atomic =
      std::min(attributes.max_dest_rd_atomic, device_.limits().reads_in);
  mask |= IBV_QP_MIN_RNR_TIMER;
  if (int e = api_.modify_qp(qp_, &attributes, mask); e != 0)
    return device_error("the queue pair refuses the peer's address", e);
  attributes = {};
  attributes.qp_state = IBV_QPS_RTS;
  mask = 0;
  if (int e = api_.init_qp_attr(id, &attributes, &mask); e != 0)
    return device_error("the connection manager does not know the path", e);
  attributes.max_rd_atomic = std::min(attributes.max_rd_atomic, device_.limits().reads_out);
  // Not what the peer asked for: it may have asked for ever.
  attributes.timeout = kAckTimeout;
  attributes.retry_cnt = kRetries;
  attributes.rnr_retry = kReceiverNotReadyRetries;
  mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
  if (int e = api_.modify_qp(qp_, &attributes, mask); e != 0)
    return device_error("the queue pair refuses to send", e);
  return Status();
}

void QueuePair::fail(Status why) {
  if (failed()) return;
  failure_.why = std::move(why);
}

void QueuePair::account_flushed(const ibv_wc& completion) {
  if (completion.status != IBV_WC_SUCCESS) note_error(completion);
  bool receive = (completion.wr_id >> 63) != 0;
  auto slot = static_cast<uint32_t>(completion.wr_id & 0xFFFFFFFF);
  if (receive && slot < kSlots && posted_[slot]) {
    posted_[slot] = false;
    --receives_out_;
  }
  if (!receive && is_posted(completion.wr_id)) retire(completion.wr_id, nullptr, {});
}

// Waits until every request has come back, so that the account closes; what does not come
// is ended by destroying the queue.
void QueuePair::drain_flushed() {
  Instant deadline = after(now(), kFlushTime);
  // Requests that ended well without a completion of their own come back with one that has.
  if (tail_ != head_ && free_requests() > 0) {
    ibv_send_wr marker{};
    marker.opcode = IBV_WR_SEND;
    marker.send_flags = IBV_SEND_SIGNALED;
    (void)post(marker, {.kind = Kind::kBind});
    (void)flush();
  }
  for (const ibv_wc& completion : deferred_) account_flushed(completion);
  while (batch_at_ < batch_size_) account_flushed(batch_[static_cast<size_t>(batch_at_++)]);
  std::array<ibv_wc, 16> completions;
  while (tail_ != head_ || receives_out_ > 0) {
    int count = api_.poll_cq(cq_, static_cast<int>(completions.size()), completions.data());
    if (count < 0) return;
    for (int i = 0; i < count; ++i) account_flushed(completions[static_cast<size_t>(i)]);
    if (count == 0 && now() >= deadline) {
      flushes_overdue.add();
      return;
    }
  }
}

void QueuePair::stop() {
  if (qp_ == nullptr) return;
  drop_list();
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  bool flushing = api_.modify_qp(qp_, &attributes, IBV_QP_STATE) == 0 && !device_.dead();
  if (flushing) drain_flushed();
  // Before the queue pair: a bound window holds it, and soft-RoCE waits 50 s for that.
  revoke_windows();
  bool quiet = flushing && tail_ == head_ && receives_out_ == 0;
  if (quiet && !device_.port_active(port_)) {
    device_.bury(std::exchange(qp_, nullptr), std::exchange(cq_, nullptr), port_);
    deferred_.clear();
    return;
  }
  if (int e = api_.destroy_qp(qp_); e != 0 && !device_.dead()) {
    queue_pairs_stuck.add();
    // In error and with all its requests back it reaches nothing.
    stuck_ = stuck_ || !quiet;
    log(LogLevel::kError,
        "a queue pair cannot be destroyed (errno " + std::to_string(e) + ")" +
            (stuck()
                 ? "; the memory that it may still reach is not used again while the device is open"
                 : ""));
    device_.keep_refused(qp_, std::exchange(cq_, nullptr));
  }
  qp_ = nullptr;
  for (uint64_t sequence = tail_; sequence != head_; ++sequence) {
    if (ibv_mr* mr = std::exchange(record(sequence).temporary, nullptr)) (void)api_.dereg_mr(mr);
  }
  tail_ = head_;
  deferred_.clear();
}

void QueuePair::revoke_windows() {
  if (!stopped()) (void)flush();  // a bind that waits names a window
  windows_.revoke_all();
  to_invalidate_.clear();
  closed_at_once_.clear();
}

QueuePair::~QueuePair() {
  stop();
  if (cq_ != nullptr) (void)api_.destroy_cq(cq_);
  if (proof_mr_ != nullptr) (void)api_.dereg_mr(proof_mr_);
  if (slots_mr_ != nullptr) (void)api_.dereg_mr(slots_mr_);
  if (slots_ != nullptr) ::munmap(slots_, kSlotsBytes + 2 * kProofBytes);
  device_.remove_user(user_);
}

}  // namespace sluice::verbs
