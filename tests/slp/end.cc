// One end: a session and its user, who does what chance says and keeps the judge's books.
#include <algorithm>
#include <cstring>
#include <iterator>

#include "tests/slp/assemble.h"
#include "tests/slp/stage.h"

namespace sluice::slp::stage {
namespace {

constexpr uint64_t kDead = 3 * kSecond;
constexpr uint8_t kFrameKey[16] = {1};  // any

End& end_of(void* user) { return static_cast<Life*>(user)->end; }

}  // namespace

const slp_ops End::kOps = {
    .place =
        [](void* user, uint64_t cookie, uint64_t offset, const slp_frame* frame, uint32_t at,
           uint32_t bytes) { end_of(user).mine().place(cookie, offset, frame->data + at, bytes); },
    .message =
        [](void* user, const slp_rts* rts, const uint8_t* data, uint32_t bytes) {
          End& end = end_of(user);
          return end.life_.get() == user && end.on_message(rts, data, bytes);
        },
    .ended =
        [](void* user, uint64_t cookie, slp_status status) {
          End& end = end_of(user);
          end.open_transfers_.erase(cookie);
          end.mine().ended(end.theirs(), cookie, status == SLP_OK);
          end.world_.note(cookie * 31 + status);
        },
    .written = [](void* user, uint64_t, bool, uint32_t) { end_of(user).world_.note(7); },
    .state =
        [](void* user, slp_state state, slp_status why) {
          End& end = end_of(user);
          end.world_.note(state * 64 + why);
          if (state == SLP_DOWN && end.life_.get() == user) end.world_.summary.ended_sessions++;
        },
    .wake = nullptr,
    .source_crc =
        [](void* user, uint64_t cookie, uint64_t offset, uint32_t bytes) {
          return slp_crc32c(0, end_of(user).mine().find(cookie).bytes.data() + offset, bytes);
        },
    .frame_crc = nullptr,
    .borrow = nullptr,
    .give_back = nullptr,
};

const slp_ops End::kLendingOps = [] {
  slp_ops ops = kOps;
  ops.borrow = [](void* user) -> void* {
    auto* life = static_cast<Life*>(user);
    require(life->work.empty(), "a session borrows what it has");
    life->work.assign((slp_work_bytes() + 7) / 8, 0xC3C3C3C3C3C3C3C3u);
    return life->work.data();
  };
  ops.give_back = [](void* user, void* work) {
    auto* life = static_cast<Life*>(user);
    require(work == life->work.data(), "a session gives back what it has not");
    life->work = std::vector<uint64_t>();
  };
  return ops;
}();

uint64_t End::now() const { return world_.now + skew; }
End& End::other() { return world_.ends[1 - which_]; }
Account& End::theirs() {
  Meeting& meeting = *life_->meeting;
  return which_ == 1    ? meeting.caller
         : life_->hears ? meeting.lives[*life_->hears]
                        : meeting.lives.back();
}

// A stream begins with the first message of its sender's life, and goes on with no other's.
void End::find_whom_it_hears(uint64_t first_id) {
  const std::deque<Account>& lives = life_->meeting->lives;
  auto found = std::find_if(lives.begin(), lives.end(),
                            [&](const Account& each) { return each.expects(first_id); });
  if (found != lives.end()) life_->hears = static_cast<size_t>(found - lives.begin());
}

uint64_t End::new_cookie() { return world_.next_id++; }

std::unique_ptr<Life> End::new_life(slp_config& config) {
  auto life = std::make_unique<Life>(*this, &world_.book);
  slp_config_init(&config);
  config.user = life.get();
  config.node = &node_;
  config.nonce = world_.random.next() | 1;
  life->lends = (config.nonce & 2) != 0;
  config.ops = life->lends ? &kLendingOps : &kOps;
  // What was in the memory before does not matter.
  life->memory.assign(((life->lends ? slp_state_bytes() : slp_session_bytes()) + 7) / 8,
                      which_ == 0 ? 0xA5A5A5A5A5A5A5A5u : 0x5A5A5A5A5A5A5A5Au);
  std::fill(std::begin(config.generations), std::end(config.generations),
            static_cast<uint16_t>(config.nonce >> 32));
  config.connection = 1 | static_cast<uint32_t>(++generation_) << 16;
  config.source_port = which_ == 0 ? 1000 : 2000;
  config.destination_port = which_ == 0 ? 2000 : 1000;
  config.mtu = world_.plan.mtu[which_];
  config.payload_crc = world_.plan.payload_crc;
  config.dead_ns = kDead;
  if (!world_.plan.sealed) return life;
  config.cipher = &ToyCipher::kCalls;
  config.cipher_user = &life->cipher;
  config.epoch_bits = world_.plan.epoch_bits;
  slp_store64(config.salt, world_.random.next());
  return life;
}

void End::connect() {
  forget_session();
  slp_config config;
  life_ = new_life(config);
  life_->meeting = std::make_shared<Meeting>();
  nonce_ = config.nonce;
  life_->session = slp_connect(life_->memory.data(), &config, now());
  ++world_.summary.sessions;
}

void End::collect_counters() {
  if (life_ != nullptr) collect_counters(life_->session);
}

void End::collect_counters(const slp_session* session) {
  const slp_counters* counters = slp_counters_of(session);
  world_.summary.frames += counters->frames_sent;
  world_.summary.resent += counters->resent;
  world_.summary.keys += counters->keys;
  world_.summary.forged +=
      counters->dropped[SLP_DROP_FORGED] + counters->dropped[SLP_DROP_UNSEALED];
  world_.summary.repeated += counters->dropped[SLP_DROP_REPEATED];
  // Both keep to the rules, and checksums find what is damaged on the way.
  auto none = [&](slp_drop why) {
    require(counters->dropped[why] == 0,
            "an honest peer's frame was found to be against the rules");
  };
  none(SLP_DROP_ACK);
  none(SLP_DROP_RANGE);
  if (world_.plan.attacks > 0)
    return;  // the others are seen before it is seen that a frame is forged
  none(SLP_DROP_NUMBER);
  none(SLP_DROP_CONTENT);
}

void End::forget_session() {
  if (life_ == nullptr) return;
  collect_counters();
  require(slp_state_of(life_->session) != SLP_DOWN || mine().open() == 0,
          "a session is over and a transfer of it is not");
  life_.reset();
  announced_.clear();
  open_transfers_.clear();
}

// The process is gone, and its memory with it.
void End::crash() {
  rivals_.clear();
  if (life_ == nullptr) return;
  collect_counters();
  life_.reset();
  announced_.clear();
  open_transfers_.clear();
  slp_node_init(&node_, world_.plan.pull_budget);
  held.clear();
  paused = stalled = false;
  listener_.secret[0]++;
}

void End::listen(const slp_frame& frame, bool forged) {
  slp_meeting met;
  listener_.port = 2000;
  listener_.mtu = world_.plan.mtu[which_];
  if (world_.plan.sealed && listening_ == nullptr) {
    listening_ = std::make_unique<ToyCipher>(kSecret, &world_.book);
    listener_.cipher = &ToyCipher::kCalls;
    listener_.cipher_user = listening_.get();
  }
  static const uint8_t kAddress[6] = {2, 0, 0, 0, 0, 1};
  slp_answer answer = slp_listen(&listener_, now(), kAddress, sizeof kAddress, &frame, &met);
  if (answer == SLP_LISTEN_REPLY)
    return world_.transmit(which_, {{met.reply, met.reply + met.reply_bytes}});
  if (answer == SLP_LISTEN_DROP) return;
  require(!forged, "a forged HELLO was let in");
  if (life_ != nullptr && life_->peer_nonce == met.hello.nonce)
    return (void)hear(*life_, frame, false);
  for (auto& rival : rivals_) {
    if (rival->peer_nonce == met.hello.nonce) return (void)hear(*rival, frame, false);
  }
  begin(met.hello);
}

void End::begin(const slp_hello& hello) {
  // A HELLO that went astray for long: its session is over on the other side.
  bool current = other().nonce_ == hello.nonce && other().life_ != nullptr;
  if (!current && !world_.plan.sealed) return;
  slp_config config;
  std::unique_ptr<Life> life = new_life(config);
  life->peer_nonce = hello.nonce;
  if (current) life->meeting = other().life_->meeting;
  require(slp_accept(life->memory.data(), &config, &hello, now(), &life->session) == SLP_OK,
          "a good HELLO was refused");
  if (world_.plan.sealed) return rivals_.push_back(std::move(life));
  if (life_ != nullptr) {
    slp_restarted(life_->session);
    forget_session();
  }
  life_ = std::move(life);
  life_->meeting->lives.emplace_back();
}

// The first frame of a session shows that its HELLO was not an old one.
void End::look_for_confirmed() {
  std::erase_if(rivals_,
                [](const auto& rival) { return slp_state_of(rival->session) == SLP_DOWN; });
  auto found = std::find_if(rivals_.begin(), rivals_.end(),
                            [](const auto& rival) { return slp_confirmed(rival->session); });
  if (found == rivals_.end()) return;
  std::unique_ptr<Life> life = std::move(*found);
  rivals_.erase(found);
  require(life->meeting != nullptr, "a HELLO of the past began a session");
  if (life_ != nullptr) {
    slp_restarted(life_->session);
    forget_session();
  }
  life_ = std::move(life);
  life_->meeting->lives.emplace_back();
  if (!stalled) slp_resume(life_->session);
}

// What a session is, but for its counters.
std::vector<uint64_t> Life::inside() const {
  std::vector<uint64_t> all = memory;
  auto at = reinterpret_cast<const uint8_t*>(slp_counters_of(session)) -
            reinterpret_cast<const uint8_t*>(memory.data());
  std::memset(reinterpret_cast<uint8_t*>(all.data()) + at, 0, sizeof(slp_counters));
  all.insert(all.end(), work.begin(), work.end());
  return all;
}

bool End::hear(Life& life, const slp_frame& frame, bool forged) {
  const slp_counters* counters = slp_counters_of(life.session);
  uint64_t keys = counters->keys;
  // What a forged frame must leave as it is: all but counters. (Time that was missed is noted.)
  std::vector<uint64_t> before;
  if (forged && slp_state_of(life.session) == SLP_UP && slp_next_timeout(life.session) >= now())
    before = life.inside();
  slp_drop drop = slp_on_frame(life.session, now(), &frame);
  require(!forged || drop != SLP_TAKEN, "a forged frame was taken");
  if (!before.empty() && counters->keys == keys)
    require(before == life.inside(), "a forged frame changed a session");
  if (drop == SLP_TAKEN && (frame.data[0] & 31) > SLP_NACK) {
    uint8_t base[SLP_BASE_BYTES];
    slp_copy_base(base, frame.data);
    world_.book.taken(slp_siphash(kFrameKey, base, sizeof(base)));
  }
  return drop != SLP_DROP_SESSION;
}

void End::hear(const slp_frame& frame, bool forged) {
  slp_base base;
  bool hello = slp_decode_base(frame.data, frame.present, frame.bytes, &base) == SLP_TAKEN &&
               base.type == SLP_HELLO;
  if (hello && which_ == 1) return listen(frame, forged);
  if (life_ != nullptr && hear(*life_, frame, forged)) return;
  for (auto& rival : rivals_) {
    if (hear(*rival, frame, forged)) return look_for_confirmed();
  }
  uint8_t reply[SLP_MAX_HEADER];
  uint32_t bytes = slp_no_session(&frame, reply);
  if (bytes > 0) world_.transmit(which_, {{reply, reply + bytes}});
}

void End::arrive(const Message& message) {
  if (paused) return held.push_back(message);
  // A copy of its exact size: reading beyond it is seen.
  std::vector<uint8_t> exact(message.bytes);
  slp_frame frame{.data = exact.data(),
                  .present = exact.size(),
                  .bytes = exact.size(),
                  .ce = message.ce,
                  .context = nullptr};
  hear(frame, message.forged);
  send_out();
}

void End::on_time() {
  if (paused) return;
  if (life_ != nullptr) slp_on_timer(life_->session, now());
  for (auto& rival : rivals_) slp_on_timer(rival->session, now());
  look_for_confirmed();
  send_out();
}

uint64_t End::due() const {
  if (paused) return UINT64_MAX;
  uint64_t next = life_ == nullptr ? SLP_NEVER : slp_next_timeout(life_->session);
  for (const auto& rival : rivals_) next = std::min(next, slp_next_timeout(rival->session));
  if (next == SLP_NEVER) return UINT64_MAX;
  return next > skew ? next - skew : 0;
}

void End::send_out() {
  if (paused) return;
  if (life_ != nullptr) send_out(*life_);
  for (auto& rival : rivals_) send_out(*rival);
}

void End::send_out(Life& life) {
  slp_tx tx;
  for (int frames = 0; slp_poll_tx(life.session, now(), &tx); ++frames) {
    require(frames < 5000, "a session sends without end");
    const uint8_t* memory = nullptr;
    if (tx.from_memory) {
      Region& region = books_of(life).find(tx.cookie);
      require(region.live, "memory was read after it was taken back");
      require(tx.offset + tx.bytes <= region.bytes.size(), "memory was read beyond its end");
      memory = region.bytes.data() + tx.offset;
    }
    Message message{.bytes = assemble(life.session, tx, memory)};
    require(!message.bytes.empty(), "a frame could not be sealed");
    require(message.bytes.size() <= world_.plan.mtu[1 - which_],
            "a frame larger than the peer takes");
    world_.transmit(which_, std::move(message));
  }
}

bool End::on_message(const slp_rts* rts, const uint8_t* data, uint32_t bytes) {
  if (stalled) return false;
  require(bytes >= 8, "a message without its number");
  uint64_t id = slp_load64(data);
  if (which_ == 0 && !life_->hears) find_whom_it_hears(id);
  mine().received(theirs(), id, data + 8, bytes - 8);
  world_.note(id);
  if (rts == nullptr) return true;
  auto found = other().announced_.find(rts->handle);
  for (uint64_t times = 1 + world_.random.below(3); times > 0 && found != other().announced_.end();
       --times) {
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
    mine().want(cookie, {.pull = true,
                         .peer_region = what.cookie,
                         .offset = offset,
                         .length = length,
                         .own_region = cookie});
    open_transfers_.insert(cookie);
    if (slp_pull(session(), what.handle, offset, length, cookie) != SLP_OK) {
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
  mine().want(cookie, {.pull = false,
                       .peer_region = what.cookie,
                       .offset = room.free_from,
                       .length = length,
                       .own_region = cookie});
  open_transfers_.insert(cookie);
  uint32_t notice = static_cast<uint32_t>(cookie);
  if (slp_push(session(), what.handle, room.free_from, length, cookie, &notice) != SLP_OK) {
    open_transfers_.erase(cookie);
    mine().ended(theirs(), cookie, false);
  }
  room.free_from += length;
}

// Something that a user does.
void End::act(Random& random) {
  if (life_ == nullptr || slp_state_of(session()) == SLP_DOWN) return;
  uint64_t choice = random.below(100);
  if (choice < 50) {
    uint32_t bytes = static_cast<uint32_t>(random.percent(70) ? random.below(200)
                                                              : random.below(SLP_MAX_MESSAGE - 8));
    uint64_t id = world_.next_id++;
    std::vector<uint8_t> body(bytes);
    fill(id, 0, body.data(), bytes);
    uint8_t head[8];
    slp_store64(head, id);
    if (slp_send(session(), nullptr, head, 8, body.data(), bytes)) mine().sent(id, bytes);
  } else if (choice < 85) {
    uint64_t length = 1 + (random.percent(60) ? random.below(20'000) : random.below(300'000));
    uint64_t cookie = new_cookie();
    uint32_t rights = random.percent(60) ? SLP_READ : SLP_WRITE, handle = 0;
    if (!slp_can_send(session(), 8)) return;
    mine().give(cookie, rights == SLP_READ ? Region::Role::kSource : Region::Role::kTarget, length,
                cookie);
    if (!slp_open_handle(session(), cookie, length, rights, &handle)) return;
    announced_[handle] = {.cookie = cookie, .length = length, .rights = rights, .handle = handle};
    uint64_t id = world_.next_id++;
    uint8_t head[8];
    slp_store64(head, id);
    slp_rts rts{.handle = handle, .length = length};
    require(slp_send(session(), &rts, head, 8, nullptr, 0),
            "there was room for a message, and then there was none");
    mine().sent(id, 0);
  } else if (choice < 90 && world_.plan.cancels && !announced_.empty()) {
    auto chosen = std::next(announced_.begin(), static_cast<long>(random.below(announced_.size())));
    slp_close_handle(session(), chosen->first);
    mine().take_back(chosen->second.cookie);
    announced_.erase(chosen);
  } else if (choice < 95 && world_.plan.cancels && !open_transfers_.empty()) {
    uint64_t cookie = *std::next(open_transfers_.begin(),
                                 static_cast<long>(random.below(open_transfers_.size())));
    require(slp_cancel(session(), cookie), "a transfer that is under way cannot be cancelled");
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
  if (session() == nullptr) return;
  slp_resume(session());
  send_out();
}

bool End::at_rest() const {
  if (session() == nullptr || slp_state_of(session()) == SLP_DOWN) return restart_at == UINT64_MAX;
  slp_view view;
  slp_view_of(session(), &view);
  return slp_state_of(session()) == SLP_UP && slp_drained(session()) && view.in_flight_bytes == 0;
}

void End::check_books(bool both_up) {
  if (session() == nullptr) return;
  if (slp_state_of(session()) == SLP_DOWN)
    require(mine().open() == 0, "a session is over and a transfer of it is not");
  if (both_up) {
    require(mine().open() == 0, "all is well and a transfer never ends");
    require(mine().undelivered() == 0, "all is well and a message never arrives");
    require(slp_drained(session()), "all is well and something is still to be sent");
    require(life_->work.empty(), "nothing is under way and a session gives nothing back");
    slp_view view;
    slp_view_of(session(), &view);
    require(view.in_flight_bytes == 0, "nothing is under way and the window is not free");
  }
  require(node_.pulling == 0 || mine().open() > 0, "pull budget was not given back");
  world_.summary.delivered += mine().delivered;
  world_.summary.transfers_ok += mine().transfers_ok;
  world_.summary.transfers_failed += mine().transfers_failed;
}

}  // namespace sluice::slp::stage
