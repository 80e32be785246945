#include "tests/slp/world.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <tuple>
#include <utility>

namespace sluice::slp {
namespace {

using sim::Random;

constexpr uint64_t kMostEvents = 400'000;
constexpr uint64_t kPatience = 40 * kSecond;  // after everything is well again
constexpr uint64_t kDead = 3 * kSecond;

struct Message {
  std::vector<uint8_t> bytes;
  bool ce = false;
};

// One session between the two, in both users' books.
struct Meeting {
  Account account[2];
};

struct Announced {
  uint64_t cookie, length, free_from = 0;
  uint32_t rights;
  uint32_t handle;
};

class World;

class End {
 public:
  End(World& world, int which) : world_(world), which_(which) { slp_node_init(&node_, 1 << 20); }
  void set_budget(uint64_t budget) { slp_node_init(&node_, budget); }
  uint64_t now() const;
  void connect();
  void arrive(const Message& message);
  void on_time();
  uint64_t due() const;
  void send_out();
  void act(Random& random);
  void crash();
  void check_books(bool healed);
  bool up() const { return session_ != nullptr && slp_state_of(session_) == SLP_UP; }
  bool at_rest() const;
  void resume();
  End& other();
  slp_session* session() { return session_; }

  uint64_t skew = 0;
  bool paused = false, stalled = false;
  std::vector<Message> held;
  std::shared_ptr<Meeting> meeting;
  uint64_t restart_at = UINT64_MAX;

 private:
  static const slp_ops kOps;
  slp_config config();
  void listen(const slp_frame& frame);
  void hear(const slp_frame& frame);
  Account& mine() { return meeting->account[which_]; }
  Account& theirs() { return meeting->account[1 - which_]; }
  void forget_session();
  void collect_counters();
  void answer_rts(Random& random, const Announced& what);
  bool on_message(const slp_rts* rts, const uint8_t* data, uint32_t bytes);
  uint64_t new_cookie();

  World& world_;
  int which_;
  slp_node node_{};
  std::vector<uint64_t> memory_;
  slp_session* session_ = nullptr;
  slp_listener listener_{};
  uint16_t generation_ = 0;
  uint64_t nonce_ = 0, peer_nonce_ = 0;
  std::map<uint32_t, Announced> announced_;  // by handle
  std::set<uint64_t> open_transfers_;
  friend class World;
};

class World {
 public:
  explicit World(const Plan& plan) : plan(plan), random(plan.seed), ends{End(*this, 0), End(*this, 1)} {}
  Summary run();
  void transmit(int from, Message message);

  const Plan& plan;
  Random random;
  uint64_t now = 1;
  Summary summary;
  std::array<End, 2> ends;
  uint64_t next_id = 1;
  bool healed = false;
  void note(uint64_t what) { summary.digest = sim::mix(summary.digest ^ what); }

 private:
  struct Event {
    uint64_t at, order;
    int to;
    Message message;
    std::function<void()> action;
    bool operator<(const Event& other) const { return std::tie(at, order) > std::tie(other.at, other.order); }
  };
  void schedule(uint64_t at, std::function<void()> action) { events_.push({at, order_++, -1, {}, std::move(action)}); }
  void plan_users();
  void plan_faults();
  void deliver(int to, Message message, uint64_t at) { events_.push({at, order_++, to, std::move(message), {}}); }
  void step_ends();
  void heal();

  std::priority_queue<Event> events_;
  uint64_t order_ = 0;
  bool cut_[2] = {false, false};
  uint64_t sent_frames_[2] = {0, 0};
  std::optional<Message> swapped_;
  friend class End;
};

// ---- an end

const slp_ops End::kOps = {
    .place = [](void* user, uint64_t cookie, uint64_t offset, const slp_frame* frame, uint32_t at, uint32_t bytes) {
      static_cast<End*>(user)->mine().place(cookie, offset, frame->data + at, bytes);
    },
    .message = [](void* user, const slp_rts* rts, const uint8_t* data, uint32_t bytes) {
      return static_cast<End*>(user)->on_message(rts, data, bytes);
    },
    .ended = [](void* user, uint64_t cookie, slp_status status) {
      auto* end = static_cast<End*>(user);
      end->open_transfers_.erase(cookie);
      end->mine().ended(end->theirs(), cookie, status == SLP_OK);
      end->world_.note(cookie * 31 + status);
    },
    .written = [](void* user, uint64_t, bool, uint32_t) { static_cast<End*>(user)->world_.note(7); },
    .state = [](void* user, slp_state state, slp_status why) {
      auto* end = static_cast<End*>(user);
      end->world_.note(state * 64 + why);
      if (state == SLP_DOWN) end->world_.summary.ended_sessions++;
    },
    .wake = nullptr,
    .source_crc = [](void* user, uint64_t cookie, uint64_t offset, uint32_t bytes) {
      return slp_crc32c(0, static_cast<End*>(user)->mine().find(cookie).bytes.data() + offset, bytes);
    },
    .frame_crc = nullptr,
};

uint64_t End::now() const { return world_.now + skew; }
End& End::other() { return world_.ends[1 - which_]; }
uint64_t End::new_cookie() { return world_.next_id++; }

slp_config End::config() {
  slp_config config;
  slp_config_init(&config);
  config.ops = &kOps;
  config.user = this;
  config.node = &node_;
  config.nonce = nonce_ = world_.random.next() | 1;
  config.connection = 1 | static_cast<uint32_t>(++generation_) << 16;
  config.source_port = which_ == 0 ? 1000 : 2000;
  config.destination_port = which_ == 0 ? 2000 : 1000;
  config.mtu = world_.plan.mtu;
  config.payload_crc = world_.plan.payload_crc;
  config.dead_ns = kDead;
  return config;
}

void End::connect() {
  forget_session();
  meeting = std::make_shared<Meeting>();
  memory_.assign((slp_session_bytes() + 7) / 8, 0xA5A5A5A5A5A5A5A5u);
  slp_config configured = config();
  session_ = slp_connect(memory_.data(), &configured, now());
  ++world_.summary.sessions;
}

void End::collect_counters() {
  const slp_counters* counters = slp_counters_of(session_);
  world_.summary.frames += counters->frames_sent;
  world_.summary.resent += counters->resent;
  // Both keep to the rules, and checksums find what is damaged on the way.
  for (slp_drop never : {SLP_DROP_NUMBER, SLP_DROP_ACK, SLP_DROP_CONTENT, SLP_DROP_RANGE}) {
    require(counters->dropped[never] == 0, "an honest peer's frame was found to be against the rules");
  }
}

void End::forget_session() {
  if (session_ == nullptr) return;
  collect_counters();
  require(slp_state_of(session_) != SLP_DOWN || mine().open() == 0, "a session is over and a transfer of it is not");
  session_ = nullptr;
  announced_.clear();
  open_transfers_.clear();
}

// The process is gone, and its memory with it.
void End::crash() {
  if (session_ == nullptr) return;
  collect_counters();
  session_ = nullptr;
  announced_.clear();
  open_transfers_.clear();
  slp_node_init(&node_, world_.plan.pull_budget);
  held.clear();
  paused = stalled = false;
  listener_.secret[0]++;
}

void End::listen(const slp_frame& frame) {
  slp_meeting met;
  listener_.port = 2000;
  listener_.mtu = world_.plan.mtu;
  static const uint8_t kAddress[6] = {2, 0, 0, 0, 0, 1};
  slp_answer answer = slp_listen(&listener_, now(), kAddress, sizeof kAddress, &frame, &met);
  if (answer == SLP_LISTEN_REPLY) return world_.transmit(which_, {{met.reply, met.reply + met.reply_bytes}});
  if (answer == SLP_LISTEN_DROP) return;
  if (session_ != nullptr && peer_nonce_ == met.hello.nonce) return (void)slp_on_frame(session_, now(), &frame);
  // A HELLO that went astray for long: its session is over on the other side.
  if (other().nonce_ != met.hello.nonce || other().meeting == nullptr) return;
  if (session_ != nullptr) {
    slp_restarted(session_);
    forget_session();
  }
  // It may have begun once before, and crashed before the other end knew.
  meeting = other().meeting;
  meeting->account[which_] = Account();
  memory_.assign((slp_session_bytes() + 7) / 8, 0x5A5A5A5A5A5A5A5Au);
  slp_config configured = config();
  require(slp_accept(memory_.data(), &configured, &met.hello, now(), &session_) == SLP_OK, "a good HELLO was refused");
  peer_nonce_ = met.hello.nonce;
}

void End::hear(const slp_frame& frame) {
  slp_base base;
  bool hello = slp_decode_base(frame.data, frame.present, frame.bytes, &base) == SLP_TAKEN && base.type == SLP_HELLO;
  if (hello && which_ == 1) return listen(frame);
  bool ours = session_ != nullptr && slp_on_frame(session_, now(), &frame) != SLP_DROP_SESSION;
  if (ours) return;
  uint8_t reply[SLP_MAX_HEADER];
  uint32_t bytes = slp_no_session(&frame, reply);
  if (bytes > 0) world_.transmit(which_, {{reply, reply + bytes}});
}

void End::arrive(const Message& message) {
  if (paused) return held.push_back(message);
  // A copy of its exact size: reading beyond it is seen.
  std::vector<uint8_t> exact(message.bytes);
  slp_frame frame{.data = exact.data(), .present = exact.size(), .bytes = exact.size(), .ce = message.ce, .context = nullptr};
  hear(frame);
  send_out();
}

void End::on_time() {
  if (session_ == nullptr || paused) return;
  slp_on_timer(session_, now());
  send_out();
}

uint64_t End::due() const {
  if (session_ == nullptr || paused) return UINT64_MAX;
  uint64_t next = slp_next_timeout(session_);
  if (next == SLP_NEVER) return UINT64_MAX;
  return next > skew ? next - skew : 0;
}

void End::send_out() {
  if (session_ == nullptr || paused) return;
  slp_tx tx;
  for (int frames = 0; slp_poll_tx(session_, now(), &tx); ++frames) {
    require(frames < 5000, "a session sends without end");
    Message message;
    message.bytes.assign(tx.header, tx.header + tx.header_bytes);
    for (int i = 0; i < 2; ++i) message.bytes.insert(message.bytes.end(), tx.piece[i], tx.piece[i] + tx.piece_bytes[i]);
    if (tx.from_memory) {
      Region& region = mine().find(tx.cookie);
      require(region.live, "memory was read after it was taken back");
      require(tx.offset + tx.bytes <= region.bytes.size(), "memory was read beyond its end");
      message.bytes.insert(message.bytes.end(), region.bytes.begin() + static_cast<long>(tx.offset),
                           region.bytes.begin() + static_cast<long>(tx.offset + tx.bytes));
    }
    require(message.bytes.size() <= world_.plan.mtu, "a frame larger than the peer takes");
    world_.transmit(which_, std::move(message));
  }
}

bool End::on_message(const slp_rts* rts, const uint8_t* data, uint32_t bytes) {
  if (stalled) return false;
  require(bytes >= 8, "a message without its number");
  uint64_t id = slp_load64(data);
  mine().received(theirs(), id, data + 8, bytes - 8);
  world_.note(id);
  if (rts == nullptr) return true;
  auto found = other().announced_.find(rts->handle);
  for (uint64_t times = 1 + world_.random.below(3); times > 0 && found != other().announced_.end(); --times) {
    answer_rts(world_.random, found->second);
  }
  return true;
}

// Pulls from, or pushes into, what the other end announced.
void End::answer_rts(Random& random, const Announced& what) {
  uint64_t length = 1 + random.below(what.length);
  uint64_t cookie = new_cookie();
  if (what.rights == SLP_READ) {
    uint64_t offset = random.below(what.length - length + 1);
    mine().give(cookie, Region::Role::kTarget, length, 0);
    mine().want(cookie, {.pull = true, .peer_region = what.cookie, .offset = offset, .length = length, .own_region = cookie});
    open_transfers_.insert(cookie);
    if (slp_pull(session_, what.handle, offset, length, cookie) != SLP_OK) {
      open_transfers_.erase(cookie);
      mine().ended(theirs(), cookie, false);
    }
    return;
  }
  // Each place of the target is written by one push.
  Announced& room = other().announced_.at(what.handle);
  length = std::min(length, room.length - room.free_from);
  if (length == 0) return;
  mine().give(cookie, Region::Role::kSource, length, cookie);
  mine().want(cookie, {.pull = false, .peer_region = what.cookie, .offset = room.free_from, .length = length, .own_region = cookie});
  open_transfers_.insert(cookie);
  uint32_t notice = static_cast<uint32_t>(cookie);
  if (slp_push(session_, what.handle, room.free_from, length, cookie, &notice) != SLP_OK) {
    open_transfers_.erase(cookie);
    mine().ended(theirs(), cookie, false);
  }
  room.free_from += length;
}

// Something that a user does.
void End::act(Random& random) {
  if (session_ == nullptr || slp_state_of(session_) == SLP_DOWN) return;
  uint64_t choice = random.below(100);
  if (choice < 50) {
    uint32_t bytes = static_cast<uint32_t>(random.percent(70) ? random.below(200) : random.below(SLP_MAX_MESSAGE - 8));
    uint64_t id = world_.next_id++;
    std::vector<uint8_t> body(bytes);
    fill(id, 0, body.data(), bytes);
    uint8_t head[8];
    slp_store64(head, id);
    if (slp_send(session_, nullptr, head, 8, body.data(), bytes)) mine().sent(id, bytes);
  } else if (choice < 85) {
    uint64_t length = 1 + (random.percent(60) ? random.below(20'000) : random.below(300'000));
    uint64_t cookie = new_cookie();
    uint32_t rights = random.percent(60) ? SLP_READ : SLP_WRITE, handle = 0;
    if (!slp_can_send(session_, 8)) return;
    mine().give(cookie, rights == SLP_READ ? Region::Role::kSource : Region::Role::kTarget, length, cookie);
    if (!slp_open_handle(session_, cookie, length, rights, &handle)) return;
    announced_[handle] = {.cookie = cookie, .length = length, .rights = rights, .handle = handle};
    uint64_t id = world_.next_id++;
    uint8_t head[8];
    slp_store64(head, id);
    slp_rts rts{.handle = handle, .length = length};
    require(slp_send(session_, &rts, head, 8, nullptr, 0), "there was room for a message, and then there was none");
    mine().sent(id, 0);
  } else if (choice < 90 && world_.plan.cancels && !announced_.empty()) {
    auto chosen = std::next(announced_.begin(), static_cast<long>(random.below(announced_.size())));
    slp_close_handle(session_, chosen->first);
    mine().take_back(chosen->second.cookie);
    announced_.erase(chosen);
  } else if (choice < 95 && world_.plan.cancels && !open_transfers_.empty()) {
    uint64_t cookie = *std::next(open_transfers_.begin(), static_cast<long>(random.below(open_transfers_.size())));
    require(slp_cancel(session_, cookie), "a transfer that is under way cannot be cancelled");
    open_transfers_.erase(cookie);
    mine().ended(theirs(), cookie, false);
  } else if (world_.plan.stalls) {
    if (stalled) return resume();
    stalled = true;
  }
  send_out();
}

void End::resume() {
  stalled = false;
  if (session_ == nullptr) return;
  slp_resume(session_);
  send_out();
}

bool End::at_rest() const {
  if (session_ == nullptr || slp_state_of(session_) == SLP_DOWN) return restart_at == UINT64_MAX;
  slp_view view;
  slp_view_of(session_, &view);
  return slp_state_of(session_) == SLP_UP && slp_drained(session_) && view.in_flight_bytes == 0;
}

void End::check_books(bool both_up) {
  if (session_ == nullptr) return;
  if (slp_state_of(session_) == SLP_DOWN) require(mine().open() == 0, "a session is over and a transfer of it is not");
  if (both_up) {
    require(mine().open() == 0, "all is well and a transfer never ends");
    require(mine().undelivered() == 0, "all is well and a message never arrives");
    require(slp_drained(session_), "all is well and something is still to be sent");
    slp_view view;
    slp_view_of(session_, &view);
    require(view.in_flight_bytes == 0, "nothing is under way and the window is not free");
  }
  require(node_.pulling == 0 || mine().open() > 0, "pull budget was not given back");
  world_.summary.delivered += mine().delivered;
  world_.summary.transfers_ok += mine().transfers_ok;
  world_.summary.transfers_failed += mine().transfers_failed;
}

// ---- the network

void World::transmit(int from, Message message) {
  const Fate& fate = plan.fate[from];
  uint64_t number = sent_frames_[from]++;
  uint64_t at = now + fate.delay;
  if (from == plan.first_fates_of && number < plan.first_fates.size()) {
    char what = plan.first_fates[number];
    if (what == 'l') return;
    if (what == 's') return swapped_.emplace(std::move(message)), void();
    if (what == 't') deliver(1 - from, message, at);
    deliver(1 - from, std::move(message), at);
    if (swapped_) deliver(1 - from, *std::exchange(swapped_, {}), at + 1);
    return;
  }
  if (cut_[from]) return;
  if (healed) return deliver(1 - from, std::move(message), at);
  if (random.percent(fate.lost)) return;
  if (random.percent(fate.marked)) random.percent(50) ? void(message.ce = true) : void(message.bytes[1] |= SLP_FLAG_CE);
  if (random.percent(fate.padded)) message.bytes.resize(message.bytes.size() + 1 + random.below(20));
  if (random.percent(fate.damaged)) {
    size_t limit = plan.payload_crc ? message.bytes.size() : std::min<size_t>(message.bytes.size(), SLP_BASE_BYTES);
    if (random.percent(20)) message.bytes.resize(random.below(message.bytes.size()));
    else message.bytes[random.below(limit)] ^= static_cast<uint8_t>(1 + random.below(255));
  }
  if (random.percent(fate.late)) at += random.below(fate.most_late + 1);
  if (random.percent(fate.twice)) deliver(1 - from, message, at + random.below(fate.most_late + kMillisecond));
  deliver(1 - from, std::move(message), at);
}

void World::plan_users() {
  for (uint64_t i = 0; i < plan.steps; ++i) {
    int who = static_cast<int>(random.below(2));
    schedule(now + random.below(plan.span), [this, who] { ends[who].act(random); });
  }
}

void World::plan_faults() {
  auto moment = [&] { return now + random.below(2 * plan.span); };
  auto outage = [&](uint64_t longest) {
    int which = static_cast<int>(random.below(2));
    uint64_t from = moment(), length = random.below(longest);
    schedule(from, [this, which] { cut_[which] = true; });
    schedule(from + length, [this, which] { cut_[which] = false; });
  };
  for (uint64_t i = 0; i < plan.bursts; ++i) outage(2 * kMillisecond);
  for (uint64_t i = 0; i < plan.cuts; ++i) outage(5 * kSecond);
  for (uint64_t i = 0; i < plan.pauses; ++i) {
    int who = static_cast<int>(random.below(2));
    uint64_t from = moment(), length = random.below(random.percent(80) ? 50 * kMillisecond : 8 * kSecond);
    schedule(from, [this, who] { ends[who].paused = true; });
    schedule(from + length, [this, who] {
      if (!std::exchange(ends[who].paused, false)) return;
      for (Message& message : std::exchange(ends[who].held, {})) ends[who].arrive(message);
      ends[who].on_time();
    });
  }
  for (uint64_t i = 0; i < plan.jumps; ++i) {
    int who = static_cast<int>(random.below(2));
    uint64_t by = random.percent(50) ? random.below(kSecond) : random.below(10'000 * kSecond);
    schedule(moment(), [this, who, by] { ends[who].skew += by; });
  }
  for (uint64_t i = 0; i < plan.crashes; ++i) {
    int who = static_cast<int>(random.below(2));
    schedule(moment(), [this, who] {
      ends[who].crash();
      if (who == 0) ends[0].restart_at = now + random.below(20 * kMillisecond);
    });
  }
}

void World::heal() {
  healed = true;
  cut_[0] = cut_[1] = false;
  for (End& end : ends) {
    end.paused = false;
    for (Message& message : std::exchange(end.held, {})) end.arrive(message);
    end.resume();
    end.on_time();
  }
}

void World::step_ends() {
  for (End& end : ends) {
    for (int turns = 0; end.due() <= now; ++turns) {
      require(turns < 100, "a timer is due for ever");
      end.on_time();
    }
  }
  if (ends[0].restart_at <= now) {
    ends[0].restart_at = UINT64_MAX;
    ends[0].connect();
    ends[0].send_out();
  }
}

Summary World::run() {
  for (End& end : ends) end.set_budget(plan.pull_budget);
  ends[0].connect();
  ends[0].send_out();
  plan_users();
  plan_faults();
  uint64_t heal_at = now + 2 * plan.span + 6 * kSecond;
  if (plan.bursts + plan.cuts + plan.pauses + plan.jumps + plan.crashes == 0) heal_at = now + 2 * plan.span;
  schedule(heal_at, [this] { heal(); });
  uint64_t limit = heal_at + kPatience;
  for (uint64_t events = 0;; ++events) {
    require(events < kMostEvents, "the two never come to rest");
    uint64_t next = std::min({ends[0].due(), ends[1].due(), ends[0].restart_at});
    if (!events_.empty()) next = std::min(next, events_.top().at);
    // Keepalives go on for ever: it is over when nothing is under way between two of them.
    bool rest = healed && events_.empty() && ends[0].at_rest() && ends[1].at_rest();
    if (next == UINT64_MAX || rest) break;
    require(next <= limit, "all has been well for long, and the two are not done");
    now = std::max(now, next);
    if (!events_.empty() && events_.top().at <= now) {
      Event event = events_.top();
      events_.pop();
      if (event.action) event.action();
      else ends[event.to].arrive(event.message);
    }
    step_ends();
  }
  bool both_up = ends[0].up() && ends[1].up() && ends[0].meeting == ends[1].meeting;
  // Loss, damage and a clock that jumps end nothing.
  if (plan.crashes + plan.cuts + plan.pauses == 0) require(both_up, "a session ended without a cause");
  for (End& end : ends) end.check_books(both_up);
  for (End& end : ends) {
    if (end.session() != nullptr) end.collect_counters();
  }
  summary.virtual_ns = now;
  return summary;
}

}  // namespace

Plan plan_of(uint64_t seed) {
  Random random(seed ^ 0x51D);
  Plan plan;
  plan.seed = seed;
  uint64_t worst = random.pick<uint64_t>({0, 1, 1, 5, 5, 20, 40});
  for (Fate& fate : plan.fate) {
    fate.delay = random.pick<uint64_t>({1, 5, 20, 100, 2000}) * kMicrosecond;
    fate.lost = random.percent(70) ? random.below(worst + 1) : 0;
    fate.twice = random.percent(40) ? random.below(20) : 0;
    fate.late = random.percent(50) ? random.below(60) : 0;
    fate.most_late = random.pick<uint64_t>({1, 10, 100, 1000, 30'000}) * kMicrosecond;
    fate.damaged = random.percent(30) ? random.below(worst + 1) : 0;
    fate.marked = random.percent(20) ? random.below(60) : 0;
    fate.padded = random.percent(20) ? 50 : 0;
  }
  auto few = [&](uint64_t chance, uint64_t most) { return random.percent(chance) ? 1 + random.below(most) : 0; };
  plan.bursts = few(20, 3);
  plan.cuts = few(8, 2);
  plan.pauses = few(15, 2);
  plan.jumps = few(8, 2);
  plan.crashes = few(12, 2);
  plan.steps = random.between(2, 40);
  plan.span = random.pick<uint64_t>({1, 5, 20, 100}) * kMillisecond;
  plan.mtu = random.pick<uint16_t>({1452, 1452, 1500, 4000, 9000, 65000});
  plan.payload_crc = random.percent(40);
  plan.stalls = random.percent(25);
  plan.cancels = random.percent(40);
  plan.pull_budget = random.pick<uint64_t>({1 << 20, 1 << 20, 64 << 10, 3000});
  return plan;
}

Summary run(const Plan& plan) { return World(plan).run(); }

}  // namespace sluice::slp
