#include "tests/kill/worker.h"

#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include <sluice/base/fault_point.h>
#include <sluice/exchange/exchange.h>
#include <sluice/select/open.h>
#include <sluice/spi/endpoint_core.h>

#include "tests/support/audit.h"

namespace sluice::test {
namespace {

// All operations of a case have this deadline; what ends later than kGrace after it hangs.
constexpr Duration kDeadline = std::chrono::milliseconds(900);
// In a guest: what nobody disturbs is over by then.
constexpr Duration kDeadlineInGuest = std::chrono::seconds(6);
constexpr Duration kGrace = std::chrono::seconds(8);
constexpr size_t kLarge = size_t{8} << 20;  // fills every socket buffer
// Many windows of frames; with five cases at once little more gets through within the deadline.
constexpr size_t kLargeFrames = size_t{2} << 20;
constexpr size_t kTensor = 400'000;

Board* board_of_hook = nullptr;
const KillCase* case_of_hook = nullptr;
int hits_left = 0;

// An optimised build has no labels to call it.
[[maybe_unused]] void on_label(const char* label) {
  if (std::strcmp(label, "session.done") == 0) board_of_hook->dones.fetch_add(1);
  if (case_of_hook->label != label || --hits_left != 0) return;
  board_of_hook->reached.store(1);
  ::kill(::getpid(), case_of_hook->signal);
}

// Differs by seed and by place, a word at a time: a slow pattern would use the deadlines up.
void fill(std::span<std::byte> bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes.size(); i += 8) {
    uint64_t word = (seed << 40) + i;
    std::memcpy(bytes.data() + i, &word, std::min<size_t>(8, bytes.size() - i));
  }
}
bool holds(std::span<const std::byte> bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes.size(); i += 8) {
    uint64_t word = (seed << 40) + i;
    if (std::memcmp(bytes.data() + i, &word, std::min<size_t>(8, bytes.size() - i)) != 0)
      return false;
  }
  return true;
}

struct Sink final : CompletionSink {
  void on_completion(Completion&& completion) noexcept override {
    all.push_back(std::move(completion));
  }
  std::deque<Completion> all;
};

class Worker {
 public:
  Worker(const KillCase& cell, Side side, Board& board)
      : cell_(cell),
        side_(side),
        board_(board),
        victim_(cell.victim == side),
        rdma_(cell.path == "rdma"),
        kmod_(cell.path == "kmod"),
        limit_(cell.in_guest() ? kDeadlineInGuest : kDeadline) {}

  void run() {
    open();
    if (rdma_) {
      // librdmacm opens the device once for the process and keeps it. Nobody listens there.
      (void)context_->connect(std::string("rdma://") + std::getenv("SLUICE_LAB_ADDRESS") + ":1");
      context_.reset();
      open();
    }
    context_.reset();
    Holdings before = holdings();
    open();
    listen();
    step(1);
    meet_peer();
    step(2);
    if (peer_) start();
    step(3);
    wait_for_end();
    step(4);
    check_results();
    if (victim_) return end_as_victim();
    step(5);
    board_.operations_ended.store(1);
    end_as_survivor();
    std::string left = left_behind(before, holdings());
    check(left.empty(), "left behind: " + left);
  }

 private:
  void check(bool ok, const std::string& what) {
    if (ok) return;
    std::snprintf(board_.failure, sizeof(board_.failure), "%s: %s", victim_ ? "victim" : "survivor",
                  what.c_str());
    ::_exit(kFailed);
  }
  template <typename T>
  T must(Result<T>&& result, const char* what) {
    check(result.ok(), std::string(what) + ": " + result.status().to_string());
    return std::move(result).value();
  }

  void step(int number) {
    if (!victim_) board_.survivor_step.store(number);
  }
  void open() {
    ArenaOptions arena{.limit_bytes = size_t{64} << 20,
                       .first_extent_bytes = size_t{16} << 20,
                       .largest_extent_bytes = size_t{16} << 20,
                       .receive_reserve_bytes = size_t{1} << 20};
    context_ = must(open_context({.arena = {}, .arena_options = arena, .waiting = Waiting::kSleep}),
                    "open");
  }
  void publish_address(const char* role, Listener& listener, char (&place)[160],
                       std::atomic<int>& ready) {
    std::string host = rdma_                ? std::getenv("SLUICE_LAB_ADDRESS")
                       : cell_.path == "l2" ? "lo"
                       : kmod_              ? "end0"
                                            : "127.0.0.1";
    std::string at = cell_.path == "shm"
                         ? "shm:" + cell_.mark + std::to_string(::getpid()) + "-" + role
                         : cell_.path + "://" + host + ":0";
    listener = must(context_->listen(at), "listen");
    std::snprintf(place, sizeof(place), "%s", listener.address().c_str());
    ready.store(1);
  }
  void listen() {
    if (!victim_)
      publish_address("bystander", bystanders_, board_.bystander_address, board_.survivor_ready);
    if (victim_) {
      board_of_hook = &board_;
      case_of_hook = &cell_;
      hits_left = cell_.hit;
#if defined(SLUICE_FAULT_POINTS)
      fault_hook.store(&on_label);
#endif
    }
    if (side_ == Side::kServer)
      publish_address("server", listener_, board_.server_address, board_.server_ready);
  }

  // One turn: own work, and the bystander's.
  void turn() {
    (void)context_->wait(after(now(), std::chrono::milliseconds(5)));
    if (!bystanders_) return;
    // A bystander whose call took too long has given it up and called again.
    if (!bystander_ || bystander_.state() != EndpointState::kConnected) {
      auto next = bystanders_.try_accept();
      if (next.ok()) bystander_ = std::move(*next);
    }
    if (!bystander_ || bystander_.state() != EndpointState::kConnected) return;
    if (!echo_.all.empty()) {
      Completion got = std::move(echo_.all.front());
      echo_.all.pop_front();
      echoing_ = false;
      if (got.status.ok()) (void)bystander_.send(2, std::move(got.buffers[0]).freeze());
    }
    if (echoing_) return;
    auto room = context_->allocate({64}, uint8, {.for_receive = true});
    if (!room.ok()) return;
    echoing_ =
        bystander_.receive({.tag = 1}, std::move(*room), {.sink = &echo_, .deadline = kNever}).ok();
  }

  void meet_peer() {
    Instant limit = after(now(), limit_);
    if (side_ == Side::kServer) {
      while (!peer_ && now() < limit) {
        turn();
        auto next = listener_.try_accept();
        if (next.ok()) peer_ = std::move(*next);
      }
      return;
    }
    while (board_.server_ready.load() == 0 && now() < limit) turn();
    if (board_.server_ready.load() == 0) return;
    auto peer = context_->connect(board_.server_address, {.timeout = limit_});
    check(victim_ || now() < after(limit, kGrace), "connect took longer than its timeout");
    if (peer.ok()) peer_ = std::move(*peer);
  }

  Buffer filled(size_t size, uint64_t seed) {
    Buffer buffer = must(context_->allocate({static_cast<int64_t>(size)}, uint8), "allocate");
    fill(buffer.bytes(), seed);
    return buffer;
  }
  PostOptions options() { return {.sink = &sink_, .deadline = end_, .level = Level::kPlaced}; }
  void posted(const Result<OperationId>& id) { posted_ += id.ok() ? 1 : 0; }
  uint64_t mine() const { return side_ == Side::kServer ? 100 : 200; }
  uint64_t theirs() const { return side_ == Side::kServer ? 200 : 100; }

  void start() {
    size_t size = cell_.path == "l2" || kmod_ ? kLargeFrames : kLarge;
    Tensor large = filled(size, 2).freeze();
    Buffer large_room = filled(size, 90);
    end_ = after(now(), limit_);
    core_ = peer_.shared();
    exchange_ = std::make_unique<Exchange>(*context_);
    (void)exchange_->add(peer_);  // it may have ended by now
    bool server = side_ == Side::kServer;
    posted(peer_.send(1, filled(64, 1).freeze(), options()));
    posted(peer_.send(2, std::move(large), options()));
    posted(peer_.receive({.tag = 1}, filled(64, 90), options()));
    posted(peer_.receive({.tag = 2}, std::move(large_room), options()));
    (void)exchange_->publish({server ? "s" : "c", 1}, filled(kTensor, mine()).freeze(),
                             {.readers = until_retired});
    (void)exchange_->publish({server ? "si" : "ci", 1}, filled(kTensor, mine() + 1).freeze(),
                             {.readers = until_retired});
    fetch_.emplace(exchange_->fetch({server ? "c" : "s", 1}, end_));
    released_.emplace(exchange_->fetch({server ? "c" : "s", 1}, end_));
    into_.emplace(exchange_->fetch_into({server ? "ci" : "si", 1}, filled(kTensor, 90), end_));
    if (!server) {
      key_asked_ = peer_
                       .receive({.tag = 3}, filled(RemoteKey::kEncodedBytes, 0),
                                {.sink = &key_sink_, .deadline = end_})
                       .ok();
      return;
    }
    auto key = peer_.grant(filled(1 << 20, 5), {.rights = Right::kReadWrite});
    if (!key.ok()) return;
    auto encoded = key->encode();
    Buffer message = filled(encoded.size(), 0);
    std::memcpy(message.data(), encoded.data(), encoded.size());
    posted(peer_.send(3, std::move(message).freeze(), options()));
  }

  // The client has the key: reads and writes through it.
  void use_key() {
    if (!key_asked_ || key_sink_.all.empty()) return;
    key_asked_ = false;
    Completion& got = key_sink_.all.front();
    if (!got.status.ok()) return;
    RemoteKey key = must(RemoteKey::decode(got.buffers[0].bytes()), "key");
    posted(peer_.read(key, 0, filled(500'000, 90), options()));
    posted(peer_.write(key, 500'000, filled(500'000, 6).freeze(), options()));
  }

  void wait_for_end() {
    auto ready = [](const auto& fetch) { return !fetch || fetch->ready(); };
    while (peer_) {
      turn();
      use_key();
      // One view goes home while the rest is still under way.
      if (released_ && released_->ready()) released_.reset();
      if (sink_.all.size() >= posted_ && !key_asked_ && ready(fetch_) && ready(released_) &&
          ready(into_))
        return;
      bool hangs = now() > after(end_, kGrace) && !victim_;
      check(!hangs, "operations hang: " + std::to_string(sink_.all.size()) + " of " +
                        std::to_string(posted_) + " ended");
    }
  }

  void check_results() {
    check(sink_.all.size() == posted_, "an operation ended twice");
    int delivered = 0;
    for (Completion& done : sink_.all) {
      for (Completion& other : sink_.all)
        check(&done == &other || done.id != other.id, "an operation ended twice");
      if (!done.status.ok()) {
        bool known =
            done.status == Code::kTimedOut || done.status == Code::kOutcomeUnknown ||
            done.status == Code::kUnreachable || done.status == Code::kCancelled ||
            // Of a process that is killed the kernel may end the keys before the connection; one
            // that was stopped asks for memory that was taken back meanwhile.
            ((rdma_ || kmod_) && (victim_ || cell_.signal == SIGKILL) &&
             done.status == Code::kAccessDenied);
        check(known, "an operation ended with " + done.status.to_string());
        continue;
      }
      // A write over RDMA is answered by the victim's device, which nobody killed or stopped; over
      // SLP by the protocol's core, which answers before the session does, or by the kernel.
      bool by_session =
          done.kind == OperationKind::kSend ||
          (done.kind == OperationKind::kWrite && !rdma_ && !kmod_ && cell_.path != "l2");
      delivered += by_session ? 1 : 0;
      if (done.kind == OperationKind::kReceive)
        check(holds(done.buffers[0].bytes(), done.tag), "a message is not what was sent");
      if (done.kind == OperationKind::kRead)
        check(holds(done.buffers[0].bytes(), 5), "a read is not what was granted");
    }
    // What was reported as placed was answered by the victim.
    if (!victim_)
      check(delivered <= board_.dones.load(),
            "more was reported placed than the victim ever answered");
    if (fetch_) {
      auto got = fetch_->take();
      if (got.ok()) view_ = std::move(got->value);
      fetch_.reset();
    }
    check(!view_ || holds(view_.bytes(), theirs()), "a fetched tensor is not what was published");
    if (!into_) return;
    Placed got = into_->take();
    Buffer buffer = got.take_buffer();
    check(static_cast<bool>(buffer), "a destination did not come back");
    check(!got.ok() || holds(buffer.bytes(), theirs() + 1),
          "a placed tensor is not what was published");
    into_.reset();
  }

  // A victim that was only stopped: its views are what they were.
  void end_as_victim() {
    while (board_.memory_reused.load() == 0) turn();
    check(!view_ || holds(view_.bytes(), theirs()),
          "memory on loan to a stopped process was used again");
    view_ = Tensor();
    exchange_.reset();
    if (peer_) (void)peer_.close(after(now(), limit_));
    sink_.all.clear();
    key_sink_.all.clear();
    listener_ = Listener();
    context_.reset();
  }

  void end_as_survivor() {
    sink_.all.clear();
    key_sink_.all.clear();
    std::vector<Buffer> scribbles;
    for (size_t size : {size_t{1} << 20, size_t{64} << 10}) {
      for (auto buffer = context_->arena().allocate(size); buffer.ok();
           buffer = context_->arena().allocate(size)) {
        std::memset(buffer->data(), 0xEE, size);
        scribbles.push_back(std::move(*buffer));
      }
    }
    step(6);
    // Dropping the handle aborts; the victim may be at rest, and hears of it when it looks again.
    if (cell_.cut()) peer_ = Endpoint();
    board_.memory_reused.store(1);
    while (board_.victim_gone.load() == 0) turn();
    step(7);
    scribbles.clear();
    check(!view_ || holds(view_.bytes(), theirs()), "a view changed after its owner's end");
    view_ = Tensor();
    exchange_.reset();
    if (peer_) (void)peer_.close(after(now(), limit_));
    step(8);
    while (board_.finish.load() == 0) turn();
    for (int i = 0; i < 20; ++i) turn();
    if (core_) {
      check(core_->state() == EndpointState::kClosed, "close is not the end");
      EndpointCounters counters = core_->counters();
      check(counters.posted == counters.completed, "posted " + std::to_string(counters.posted) +
                                                       ", completed " +
                                                       std::to_string(counters.completed));
    }
    if (bystander_) (void)bystander_.close(after(now(), limit_));
    step(9);
    core_.reset();
    Instant limit = after(now(), kGrace);
    auto left = [&] { return context_->arena().statistics(); };
    // What ends only now holds its buffers until it is taken.
    for (echo_.all.clear(); left().outstanding > 0 && now() < limit; echo_.all.clear())
      (void)context_->wait(after(now(), std::chrono::milliseconds(5)));
    check(left().outstanding == 0, std::to_string(left().outstanding) + " allocations, of " +
                                       std::to_string(left().used_bytes) +
                                       " bytes, did not come home");
    listener_ = Listener();
    bystanders_ = Listener();
    context_.reset();
  }

  const KillCase& cell_;
  Side side_;
  Board& board_;
  bool victim_, rdma_, kmod_;
  Duration limit_;
  std::unique_ptr<Context> context_;
  Listener listener_, bystanders_;
  Endpoint peer_, bystander_;
  std::shared_ptr<EndpointCore> core_;
  std::unique_ptr<Exchange> exchange_;
  Sink sink_, key_sink_, echo_;
  std::optional<Fetch> fetch_, released_;
  std::optional<FetchInto> into_;
  Tensor view_;
  Instant end_{};
  size_t posted_ = 0;
  bool key_asked_ = false, echoing_ = false;
};

}  // namespace

void work(const KillCase& cell, Side side, Board& board) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto worker = std::make_unique<Worker>(cell, side, board);
  worker->run();
  ::_exit(kFine);
}

}  // namespace sluice::test
