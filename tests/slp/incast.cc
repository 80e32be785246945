#include "tests/slp/incast.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

#include "kernel_compat/slp/slp.h"
#include "tests/slp/judge.h"

namespace sluice::slp {
namespace {

constexpr uint64_t kMicrosecond = 1000, kMillisecond = 1000 * kMicrosecond,
                   kSecond = 1000 * kMillisecond;
using Frame = std::vector<uint8_t>;

class Incast {
 public:
  explicit Incast(const Setting& setting) : setting_(setting), placed_(setting.senders) {
    slp_node_init(&receiver_node_, setting.pull_budget);
    for (size_t i = 0; i < setting.senders; ++i) pairs_.push_back(std::make_unique<Pair>(*this, i));
  }

  Result run() {
    for (auto& pair : pairs_) pair->begin();
    uint64_t total = setting_.bytes_each * setting_.senders;
    while (done_ < setting_.senders) {
      uint64_t next = events_.empty() ? UINT64_MAX : events_.top().at;
      for (auto& pair : pairs_) next = std::min(next, pair->due());
      require(next != UINT64_MAX && next <= 60 * kSecond, "it does not end");
      now_ = std::max(now_, next);
      if (!events_.empty() && events_.top().at <= now_) {
        Event event = events_.top();
        events_.pop();
        event.action();
      }
      for (auto& pair : pairs_) pair->on_time();
      if (result_.jain == 0 && all_placed_ >= total / 2) result_.jain = jain();
    }
    result_.used =
        static_cast<double>(total) / (static_cast<double>(last_ - first_) * setting_.bytes_per_ns);
    for (auto& pair : pairs_) {
      for (slp_session* session : {pair->sender, pair->receiver}) {
        result_.resent += slp_counters_of(session)->resent;
        result_.probes += slp_counters_of(session)->probes;
        require(slp_counters_of(session)->dropped[SLP_DROP_RANGE] == 0,
                "a sender went beyond the window");
      }
    }
    return result_;
  }

 private:
  struct Event {
    uint64_t at, order;
    std::function<void()> action;
    bool operator<(const Event& other) const {
      return std::tie(at, order) > std::tie(other.at, other.order);
    }
  };

  // One sender and its session with the receiver.
  struct Pair {
    Pair(Incast& incast, size_t index) : incast_(incast), index_(index) {
      slp_node_init(&sender_node_, 1 << 20);
    }
    void begin() {
      slp_config a = config(&sender_node_, 1, 2), b = config(&incast_.receiver_node_, 2, 1);
      slp_hello hello{};
      hello.nonce = a.nonce, hello.connection = a.connection,
      hello.min_version = hello.max_version = SLP_VERSION;
      hello.mtu = a.mtu, hello.stream_kib = SLP_STREAM_BYTES / 1024,
      hello.transfers = SLP_TRANSFERS, hello.handles = SLP_HANDLES, hello.ack_delay_us = 50;
      sender = slp_connect(sender_room_.data(), &a, incast_.now_);
      require(slp_accept(receiver_room_.data(), &b, &hello, incast_.now_, &receiver) == SLP_OK,
              "a good HELLO was refused");
      slp_tx tx;
      while (slp_poll_tx(receiver, incast_.now_, &tx))
        hear(sender, Frame(tx.header, tx.header + tx.header_bytes));
      require(slp_state_of(sender) == SLP_UP, "no session");
      uint32_t handle = 0, bytes = static_cast<uint32_t>(incast_.setting_.bytes_each);
      if (incast_.setting_.pull) {
        require(slp_open_handle(sender, 1, bytes, SLP_READ, &handle), "no transfer");
        require(slp_pull(receiver, handle, 0, bytes, 1) == SLP_OK, "no transfer");
      } else {
        require(slp_open_handle(receiver, 1, bytes, SLP_WRITE, &handle), "no transfer");
        require(slp_push(sender, handle, 0, bytes, 1, nullptr) == SLP_OK, "no transfer");
      }
      say();
    }
    slp_config config(slp_node* node, uint16_t from, uint16_t to) {
      static const slp_ops kOps = {
          .place = [](void* user, uint64_t, uint64_t, const slp_frame*, uint32_t,
                      uint32_t bytes) { static_cast<Pair*>(user)->placed(bytes); },
          .message = nullptr,
          .ended =
              [](void* user, uint64_t, slp_status status) {
                auto* pair = static_cast<Pair*>(user);
                require(status == SLP_OK, slp_status_text(status));
                ++pair->incast_.done_;
              },
          .written = nullptr,
          .state = nullptr,
          .wake = [](void* user) { static_cast<Pair*>(user)->awake_ = true; },
          .source_crc = nullptr,
          .frame_crc = nullptr};
      slp_config made;
      slp_config_init(&made);
      made.ops = &kOps, made.user = this, made.node = node;
      made.nonce = index_ * 2 + from, made.connection = 1, made.source_port = from,
      made.destination_port = to;
      made.mtu = incast_.setting_.mtu;
      made.ack_delay_ns = 50 * kMicrosecond, made.initial_rtt_ns = 50 * kMicrosecond;
      return made;
    }
    void placed(uint32_t bytes) {
      incast_.placed_[index_] += bytes;
      incast_.all_placed_ += bytes;
      if (incast_.first_ == 0) incast_.first_ = incast_.now_;
      incast_.last_ = incast_.now_;
    }
    void hear(slp_session* who, const Frame& frame, bool ce = false) {
      slp_frame in{.data = frame.data(),
                   .present = frame.size(),
                   .bytes = frame.size(),
                   .ce = ce,
                   .context = nullptr};
      (void)slp_on_frame(who, incast_.now_, &in);
    }
    uint64_t due() const {
      if (awake_) return incast_.now_;
      return std::min(slp_next_timeout(sender), slp_next_timeout(receiver));
    }
    void on_time() {
      if (due() > incast_.now_) return;
      awake_ = false;
      slp_on_timer(sender, incast_.now_);
      slp_on_timer(receiver, incast_.now_);
      say();
    }
    void say() {
      for (slp_session* who : {sender, receiver}) {
        slp_tx tx;
        while (slp_poll_tx(who, incast_.now_, &tx)) {
          Frame frame(tx.header, tx.header + tx.header_bytes);
          for (int i = 0; i < 2; ++i)
            frame.insert(frame.end(), tx.piece[i], tx.piece[i] + tx.piece_bytes[i]);
          frame.resize(frame.size() + tx.bytes);  // what they say does not matter
          if (who == sender)
            to_switch(std::move(frame));
          else
            incast_.schedule(incast_.now_ + 2 * incast_.setting_.delay,
                             [this, frame = std::move(frame)] { hear(sender, frame), say(); });
        }
      }
    }
    // By the sender's own link, one frame after the other.
    void to_switch(Frame frame) {
      uplink_free_ = std::max(uplink_free_, incast_.now_) + incast_.time_of(frame.size());
      incast_.schedule(
          uplink_free_ + incast_.setting_.delay,
          [this, frame = std::move(frame)]() mutable { incast_.enqueue(*this, std::move(frame)); });
    }

    Incast& incast_;
    size_t index_;
    slp_node sender_node_{};
    std::vector<uint64_t> sender_room_ = std::vector<uint64_t>((slp_session_bytes() + 7) / 8),
                          receiver_room_ = sender_room_;
    slp_session *sender = nullptr, *receiver = nullptr;
    uint64_t uplink_free_ = 0;
    bool awake_ = false;
  };

  uint64_t time_of(size_t bytes) const {
    return static_cast<uint64_t>(static_cast<double>(bytes + 38) / setting_.bytes_per_ns);
  }
  void schedule(uint64_t at, std::function<void()> action) {
    events_.push({at, order_++, std::move(action)});
  }
  // The switch's port towards the receiver.
  void enqueue(Pair& pair, Frame frame) {
    size_t bytes = frame.size();
    chance_ = chance_ * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX generator
    if ((chance_ >> 33) % 1000 < setting_.lost_per_mille) return;
    if (queued_ + bytes > setting_.queue_bytes) return void(++result_.dropped);
    bool ce = setting_.marks && queued_ > setting_.mark_above;
    result_.marked += ce;
    queued_ += bytes;
    result_.most_queued = std::max(result_.most_queued, queued_);
    port_free_ = std::max(port_free_, now_) + time_of(bytes);
    schedule(port_free_, [this, bytes] { queued_ -= bytes; });
    schedule(port_free_ + setting_.delay, [&pair, ce, frame = std::move(frame)] {
      pair.hear(pair.receiver, frame, ce);
      pair.say();
    });
  }
  double jain() const {
    double sum = 0, squares = 0;
    for (uint64_t bytes : placed_)
      sum += static_cast<double>(bytes),
          squares += static_cast<double>(bytes) * static_cast<double>(bytes);
    return sum * sum / (static_cast<double>(placed_.size()) * squares);
  }

  Setting setting_;
  uint64_t now_ = kSecond, order_ = 0, first_ = 0, last_ = 0;
  std::priority_queue<Event> events_;
  slp_node receiver_node_{};
  std::vector<std::unique_ptr<Pair>> pairs_;
  std::vector<uint64_t> placed_;
  uint64_t all_placed_ = 0, queued_ = 0, port_free_ = 0;
  size_t done_ = 0;
  uint64_t chance_ = 1;
  Result result_;
};

}  // namespace

Result incast(const Setting& setting) { return Incast(setting).run(); }

}  // namespace sluice::slp
