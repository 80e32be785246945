#include "tests/sim/simulation.h"

#include <algorithm>
#include <random>

#include "tests/sim/pattern.h"

namespace sluice::sim {
namespace {

// A schedule that takes more turns than this does not end: somebody says "work" and
// has none.
constexpr uint64_t kMostTurns = 200'000;
// Far more than every round trip at the slowest latency together.
constexpr Duration kSettleTime = std::chrono::seconds(5);

// Kept from schedule to schedule: each must give everything back.
std::shared_ptr<Arena>& shared_arena(int side) {
  static std::shared_ptr<Arena> arenas[2];
  if (!arenas[side]) {
    ArenaOptions options;
    options.limit_bytes = size_t{64} << 20;
    options.first_extent_bytes = size_t{4} << 20;
    arenas[side] = Arena::create(options).value();
  }
  return arenas[side];
}

}  // namespace

Outcome run_schedule(uint64_t seed, bool print) { return Simulation(seed, print).run(); }

Peer::Peer(Simulation& world, int side) : world_(world), side_(side), set_(world.trace_) {}

Simulation::Simulation(uint64_t seed, bool print) : seed_(seed), random_(seed), trace_(print) {}

Simulation::~Simulation() = default;

void Simulation::open() {
  NetworkOptions& net = network_options_;
  net.views = random_.percent(50);
  net.inline_bytes = random_.pick<uint32_t>({32, 64, 200});
  if (seed_ % 3 != 0) net.most_inline_bytes = 4 * net.inline_bytes;
  net.data_bytes = random_.pick<uint32_t>({16, 100, 512, 4096});
  net.queue_bytes = random_.pick<size_t>({200, 1000, 4096, 1 << 20});
  net.window_bytes = random_.pick<size_t>({64, 1000, 1 << 20});
  net.latency_max = random_.duration(std::chrono::milliseconds(2));
  net.refuse_percent = random_.pick<uint64_t>({0, 0, 10, 50});
  net.fragment_max = random_.pick<uint64_t>({1 << 20, 300, 40});
  net.strict_flush = random_.percent(50);
  net.announce_percent = random_.pick<uint64_t>({0, 0, 30});
  callback_percent_ = random_.pick<uint64_t>({0, 10, 30});
  trouble_percent_ = random_.pick<uint64_t>({0, 0, 5, 20});
  pace_ = random_.duration(std::chrono::milliseconds(20));
  turn_delay_ = random_.pick<Duration>({Duration(0), 5us, 200us});
  want_late_handler_ = random_.percent(10);
  quotas_ = random_.percent(5);
  for (int side = 0; side < 2; ++side) {
    proto::SessionOptions& options = session_options_[side];
    options.operation_timeout = random_.pick<Duration>({1ms, 50ms, 2s});
    options.ping_interval = random_.pick<Duration>({2ms, 100ms, 1s});
    options.silent_after = 3 * options.ping_interval;
    if (random_.percent(20)) options.silence_limit = 10 * options.ping_interval;
    options.operation_limit = random_.pick<uint32_t>({3, 8, 64, 4096});
    options.want_limit = random_.pick<uint32_t>({1, 4, 4096});
    options.credit_messages = random_.pick<uint64_t>({1, 2, 5, 256});
    options.credit_bytes = random_.pick<uint64_t>({2, 4, 5000}) * net.inline_bytes;
    if (quotas_) {
      const uint64_t most = random_.pick<size_t>({0, 600, 4000});
      PeerLimits limits;
      limits.unexpected_bytes =
          limits.incoming_bytes = {std::max<uint64_t>(most, 1), std::max<uint64_t>(4 * most, 1)};
      account_[side] = PeerAccounts(resolve(limits, 0)).open(PeerIdentity::of_process());
    }
    if (random_.percent(75)) features_[side] |= wire::kFeatureLayoutNumbers;
    if (random_.percent(75)) features_[side] |= wire::kFeatureSteps;
    peers_[side] = std::make_unique<Peer>(*this, side);
    peers_[side]->arena_ = shared_arena(side);
    // The doorbell of a mailbox is for sleepers; nobody sleeps here.
    peers_[side]->mailbox_ = std::make_shared<Mailbox>(-1);
  }
  // What each sender may use is what the other side said.
  oracle_ = std::make_unique<Oracle>(
      trace_, std::array{session_options_[1].credit_messages, session_options_[0].credit_messages},
      std::array{session_options_[1].credit_bytes, session_options_[0].credit_bytes},
      std::array<uint64_t, 2>{session_options_[0].want_limit, session_options_[1].want_limit});
  network_ = std::make_unique<Network>(net, random_.next(),
                                       std::array{peers_[0]->arena_.get(), peers_[1]->arena_.get()},
                                       trace_, *oracle_);
  for (int side = 0; side < 2; ++side) {
    Peer& peer = *peers_[side];
    wire::Hello hello[2];
    for (int i = 0; i < 2; ++i) {
      hello[i].incarnation = 100 + static_cast<uint64_t>(i);
      hello[i].credit_messages = session_options_[i].credit_messages;
      hello[i].credit_bytes = session_options_[i].credit_bytes;
      hello[i].features = features_[i];
    }
    peer.session_ = std::make_shared<proto::Session>(proto::SessionParts{
        .link = network_->make_link(side),
        .arena = peer.arena_,
        .mailbox = peer.mailbox_,
        .host = &peer.set_,
        .ours = hello[side],
        .peer = hello[1 - side],
        .options = session_options_[side],
        .reason = "simulated",
        .random =
            [bits = std::mt19937_64(seed_ + static_cast<uint64_t>(side))](
                std::span<std::byte> out) mutable {
              for (std::byte& byte : out) byte = static_cast<std::byte>(bits());
            },
        .account = account_[side],
    });
    peer.set_.add(peer.session_);
    if (!want_late_handler_) {
      peer.session_->set_want_handler(&peer);
      peer.handler_set_ = true;
    }
  }
}

bool Simulation::alive(const Peer& peer) const {
  return !peer.crashed_ && peer.session_->state() != EndpointState::kClosed;
}

bool Simulation::connected() const {
  auto connected = [](const std::unique_ptr<Peer>& peer) {
    return !peer->crashed_ && peer->session_->state() == EndpointState::kConnected;
  };
  return connected(peers_[0]) && connected(peers_[1]) && !network_->broken();
}

// A context sleeps until one of these says otherwise: a wake-up that is missing here is
// one that a program would wait for.
Instant Simulation::turn_due(const Peer& peer) const {
  if (peer.crashed_) return kNever;
  if (peer.set_.has_work() || !peer.mailbox_->empty()) return trace_.now;
  return std::min(network_->next_poll(peer.side_), peer.set_.next_timeout());
}

Instant Simulation::next_event() const {
  Instant next = network_->next_pump();
  for (const auto& peer : peers_) {
    Instant due = peer->turn_at_ != kNever ? peer->turn_at_ : turn_due(*peer);
    if (due != kNever) next = std::min(next, std::max(due, peer->paused_until_));
  }
  return next;
}

void Simulation::take_turn(Peer& peer) {
  ++turns_;
  peer.turn_at_ = kNever;
  // In the order of Context::progress(): providers (links, then sessions), then views.
  network_->poll(peer.side_);
  peer.set_.progress(trace_.now);
  peer.mailbox_->open_all();
  if (turn_due(peer) > trace_.now) oracle_->check_deadlines(peer.side_);
}

// To the next event, at most to `most`.
void Simulation::step(Instant most) {
  trace_.now = std::max(trace_.now, std::min(next_event(), most));
  network_->pump();
  for (auto& peer : peers_) {
    if (peer->turn_at_ == kNever) {
      Instant due = turn_due(*peer);
      if (due <= trace_.now)
        peer->turn_at_ =
            trace_.now + (turn_delay_ > Duration(0) ? random_.duration(turn_delay_) : Duration(0));
    }
    if (std::max(peer->turn_at_, peer->paused_until_) <= trace_.now) take_turn(*peer);
  }
  network_->release_quarantine();
  if (turns_ > kMostTurns && trace_.ok())
    trace_.wrong("the schedule does not end: turns without work");
}

void Simulation::run_until(Instant end) {
  while (trace_.ok()) {
    if (next_event() > end) break;
    step(end);
  }
  trace_.now = std::max(trace_.now, end);
}

// Until nothing moves but timers.
void Simulation::settle() {
  Instant end = trace_.now + kSettleTime;
  while (trace_.ok() && trace_.now < end) {
    bool busy = network_->next_pump() != kNever;
    for (const auto& peer : peers_) {
      if (peer->crashed_) continue;
      busy = busy || peer->turn_at_ != kNever || turn_due(*peer) <= trace_.now;
      busy = busy || network_->next_poll(peer->side_) != kNever;
    }
    if (!busy) return;
    step(end);
  }
}

void Simulation::heal() {
  network_->heal();
  for (auto& peer : peers_) {
    peer->paused_until_ = kStart;
    if (!peer->handler_set_ && alive(*peer)) {
      peer->session_->set_want_handler(peer.get());
      peer->handler_set_ = true;
    }
  }
}

// All that is left on both sides may be waiting for the other: then every slot of the
// table but those must be free.
void Simulation::check_tables() {
  for (auto& peer : peers_) {
    EndpointCounters counters = peer->session_->counters();
    // Sends whose end is not told: some may still wait.
    bool silent = std::any_of(oracle_->records().begin(), oracle_->records().end(),
                              [&](const Record& r) { return r.silent && r.side == peer->side_; });
    if (!silent && counters.posted - counters.completed != oracle_->pending(peer->side_))
      trace_.wrong("the counters of posted and completed are off");
    uint64_t held = 0;
    for (const HeldTensor& h : oracle_->held())
      held += h.side != peer->side_ && h.tensor.owned_by_peer() ? 1 : 0;
    uint64_t offered =
        network_options_.views ? oracle_->offered(peer->side_, network_options_.inline_bytes) : 0;
    if (!silent && counters.loans_outstanding != held + offered) {
      trace_.wrong("loans outstanding: " + std::to_string(counters.loans_outstanding) +
                   ", held by the peer: " + std::to_string(held) +
                   ", offered to it: " + std::to_string(offered));
    }
    uint64_t views = 0;
    for (const HeldTensor& h : oracle_->held())
      views += h.side == peer->side_ && h.tensor.owned_by_peer() ? 1 : 0;
    if (counters.views_outstanding != views) trace_.wrong("views outstanding is off");
    uint32_t limit = session_options_[peer->side_].operation_limit;
    if (limit > 64 || silent) continue;
    // A supply that ended early keeps its slot while its view is out.
    uint64_t lingering = held;
    for (const Record& r : oracle_->records()) {
      if (r.kind == OperationKind::kSupply && r.side == peer->side_ && !r.done && lingering > 0)
        --lingering;
    }
    uint64_t room = limit - oracle_->pending(peer->side_) - lingering;
    uint64_t taken = 0;
    while (true) {
      Record record{.side = peer->side_,
                    .kind = OperationKind::kReceive,
                    .match = {.tag = 0xFFFF, .mask = 0xFFFF}};
      record.key = ++serial_;
      Buffer none(peer->arena_->allocate(1).value().storage(), TensorDescriptor::bytes(0));
      PostOptions post{
          .sink = peer.get(), .user_data = oracle_->next_user_data(), .deadline = kNever};
      auto id = peer->session_->post_receive(record.match, std::span(&none, 1), post);
      if (!id.ok()) break;
      record.id = *id;
      oracle_->accepted(std::move(record));
      ++taken;
    }
    if (taken != room)
      trace_.wrong("operations leaked: room for " + std::to_string(taken) + " of " +
                   std::to_string(room));
  }
}

void Simulation::close_all() {
  int order = static_cast<int>(random_.below(4));
  for (int i = 0; i < 2; ++i) {
    Peer& peer = *peers_[(order & 1) != 0 ? 1 - i : i];
    if (!alive(peer)) continue;
    oracle_->entered_call();
    peer.session_->start_close();
    oracle_->left_call();
    if ((order & 2) != 0) settle();
  }
  settle();
  for (auto& peer : peers_) {
    if (peer->crashed_) continue;
    if (peer->session_->state() != EndpointState::kClosed)
      trace_.wrong("a closed endpoint does not come to its end");
    EndpointCounters counters = peer->session_->counters();
    if (counters.posted != counters.completed)
      trace_.wrong("posted and completed differ after the close");
    if (peer->handler_set_ && peer->closed_calls_ != 1)
      trace_.wrong("the exchange was told of the end " + std::to_string(peer->closed_calls_) +
                   " times");
  }
}

void Simulation::tear_down() {
  for (auto& peer : peers_) {
    peer->mailbox_->open_all();
    peer->mailbox_->close();
    peer->set_.detach_all();
    peer->session_.reset();
  }
  if (crashed_side_ >= 0) oracle_->forget_views(crashed_side_);
  for (auto& peer : peers_) oracle_->drop_views(peer->side_);
  network_->release_quarantine();
  if (network_->quarantined() > 0)
    trace_.wrong("loans stay in quarantine though nobody can read them");
  if (network_->live_imports() > 0)
    trace_.wrong("a mapping of the peer's memory was never dropped");
  for (auto& peer : peers_) peer->sources_.clear();
  oracle_->check_end(crashed_side_);
  std::array<std::shared_ptr<Arena>, 2> arenas = {peers_[0]->arena_, peers_[1]->arena_};
  oracle_.reset();
  peers_ = {};
  for (int side = 0; side < 2; ++side) {
    size_t out = arenas[side]->statistics().outstanding;
    if (out == 0) continue;
    trace_.wrong(std::to_string(out) + " allocations of " + (side == 0 ? "A" : "B") +
                 " never came back");
    shared_arena(side).reset();
  }
}

Outcome Simulation::run() {
  open();
  actions_left_ = random_.between(5, 30);
  while (actions_left_ > 0 && trace_.ok()) {
    --actions_left_;
    act(static_cast<int>(random_.below(2)));
    run_until(trace_.now + random_.duration(pace_));
  }
  heal();
  settle();
  if (trace_.ok() && connected()) oracle_->check_nothing_stuck();
  if (random_.percent(70)) {
    for (auto& peer : peers_) {
      if (!peer->crashed_) oracle_->drop_views(peer->side_);
    }
  }
  settle();
  if (trace_.ok() && connected()) {
    oracle_->check_nothing_stuck();
    check_tables();
  }
  if (random_.percent(50)) run_until(trace_.now + longest_deadline_ + 2ms);
  for (auto& peer : peers_) {
    if (!peer->crashed_) oracle_->check_deadlines(peer->side_);
  }
  if (trace_.ok()) close_all();
  Outcome outcome;
  outcome.operations = oracle_->records().size();
  tear_down();
  outcome.ok = trace_.ok();
  outcome.why = trace_.first_wrong();
  outcome.hash = trace_.hash();
  outcome.turns = turns_;
  return outcome;
}

}  // namespace sluice::sim
