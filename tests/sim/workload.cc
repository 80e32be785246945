// What the programs of a schedule do, and what is done to them.
#include <algorithm>
#include <array>
#include <span>

#include "tests/sim/pattern.h"
#include "tests/sim/simulation.h"

#include <sluice/spi/endpoint_core.h>

namespace sluice::sim {
namespace {

// Streams of messages: the low bits of a tag. 0xFFFF is never sent.
constexpr uint64_t kStreams = 3;
constexpr uint64_t kStreamMask = 0xFFFF;

Status simulated(Code code) {
  return Status(code, Scope::kEndpoint, "sim", "ended by the schedule");
}

}  // namespace

void Peer::on_completion(Completion&& completion) noexcept {
  Simulation& world = world_;
  world.oracle_->completed(side_, std::move(completion));
  if (crashed_ || !world.random_.percent(world.callback_percent_)) return;
  world.random_action(*this);
}

void Peer::on_want(EndpointCore&, const WantRequest& request) noexcept {
  world_.oracle_->want_arrived(side_, request.step);
  wants_.push_back({request.token, request.step, request.into, request.layout});
  if (world_.random_.percent(40)) world_.answer_want(*this);
}

bool Peer::on_want_cancelled(EndpointCore&, uint64_t token) noexcept {
  world_.oracle_->want_cancelled(side_, token);
  return std::erase_if(wants_, [&](const Waiting& want) { return want.token == token; }) > 0;
}

void Peer::on_endpoint_closed(EndpointCore&, const Status& why) noexcept {
  ++closed_calls_;
  // Our own late polls are no silence of the peer; neither is a slow path's queue, for
  // limits of seconds.
  Duration limit = world_.session_options_[side_].silence_limit;
  bool called_silent = why.detail().find("silence limit") != std::string_view::npos;
  bool had_reason = world_.crashed_side_ >= 0 || world_.network_->broken() ||
                    world_.peers_[1 - side_]->quiet_ >= limit;
  if (called_silent && limit >= 1s && !had_reason)
    world_.trace_.wrong("a peer that answers was called silent");
  wants_.clear();
}

void Simulation::judge_post(const Peer& peer, const Status& status) {
  if (status.ok()) return;
  trace_.note(peer.side_, "refused", static_cast<uint64_t>(status.code()));
  bool expected =
      status == Code::kTryAgain || status == Code::kWrongState || status == Code::kAccessDenied;
  if (status == Code::kWrongState && peer.session_->state() == EndpointState::kConnected)
    expected = false;
  if (!expected) trace_.wrong("a good call was refused: " + status.to_string());
}

// Mostly around the thresholds; now and then nothing, now and then much.
uint64_t Simulation::size() {
  switch (random_.below(8)) {
    case 0: return 0;
    case 1: return random_.below(8);
    case 2: return network_options_.inline_bytes - 1 + random_.below(3);
    case 3: return network_options_.data_bytes - 1 + random_.below(3);
    case 4: return random_.below(uint64_t{3} * network_options_.data_bytes + 1) % 6000;
    default: return random_.below(300);
  }
}

PostOptions Simulation::options(Peer& peer, Record& record) {
  PostOptions post{.sink = &peer, .user_data = oracle_->next_user_data()};
  post.level = random_.pick<Level>({Level::kSourceReusable, Level::kPlaced});
  uint64_t choice = random_.below(10);
  if (choice < 4) post.deadline = kNever;
  if (choice == 4) post.deadline = trace_.now;
  if (choice > 4 && choice < 8)
    post.deadline = trace_.now + random_.duration(std::chrono::milliseconds(50));
  record.side = peer.side_;
  record.level = post.level;
  record.deadline = post.deadline;
  if (post.deadline == Instant{}) {
    record.deadline = after(trace_.now, session_options_[peer.side_].operation_timeout);
  }
  if (record.deadline != kNever)
    longest_deadline_ = std::max(longest_deadline_, record.deadline - trace_.now);
  return post;
}

// Arena memory, or the program's own.
Tensor Simulation::make_tensor(Peer& peer, uint64_t bytes, uint64_t key, uint64_t offset) {
  if (random_.percent(8)) {
    auto* memory = new std::vector<std::byte>(bytes + 1);
    fill_pattern(std::span(*memory).first(bytes), key, offset);
    auto done = [](void* user) { delete static_cast<std::vector<std::byte>*>(user); };
    return Tensor::wrap(memory->data(), TensorDescriptor::bytes(bytes), done, memory).value();
  }
  // Sometimes the tensor begins inside its memory.
  uint64_t before = random_.percent(20) ? random_.below(64) : 0;
  Buffer buffer = peer.arena_->allocate(before + bytes + 1).value();
  fill_pattern(buffer.bytes().subspan(before, bytes), key, offset);
  Tensor tensor = std::move(buffer).freeze().slice_bytes(before, bytes).value();
  peer.sources_.push_back({tensor, key, offset});
  return tensor;
}

void Simulation::post_send(Peer& peer) {
  Record record{.kind = OperationKind::kSend};
  record.key = ++serial_;
  record.tag = record.key << 16 | random_.below(kStreams);
  uint64_t pieces =
      random_.percent(70) ? 1 : random_.between(1, random_.percent(90) ? 4 : wire::kMaxSegments);
  std::vector<Tensor> segments;
  for (uint64_t i = 0; i < pieces; ++i) {
    uint64_t bytes = pieces > 4 ? size() % 200 : size();
    segments.push_back(make_tensor(peer, bytes, record.key, record.total));
    record.total += bytes;
  }
  PostOptions post = options(peer, record);
  if (random_.percent(15)) {
    record.silent = true;
    post = {};
    record.deadline = post.deadline = kNever;
    record.level = post.level;
  }
  oracle_->entered_call();
  auto id = peer.session_->post_send(record.tag, segments, post);
  oracle_->left_call();
  judge_post(peer, id.status());
  if (!id.ok()) return;
  record.id = *id;
  oracle_->accepted(std::move(record));
}

void Simulation::post_receive(Peer& peer) {
  Record record{.kind = OperationKind::kReceive};
  record.key = ++serial_;
  record.match = {.tag = random_.below(kStreams), .mask = random_.percent(30) ? 0 : kStreamMask};
  // One particular message that was sent, at times.
  if (random_.percent(15)) {
    for (const Record& other : oracle_->records()) {
      if (other.kind == OperationKind::kSend && other.side != peer.side_ && random_.percent(40))
        record.match = {.tag = other.tag};
    }
  }
  uint64_t pieces = random_.percent(70) ? 1 : random_.between(1, 4);
  std::vector<Buffer> buffers;
  for (uint64_t i = 0; i < pieces; ++i) {
    uint64_t bytes = random_.percent(60) ? 13'000 / pieces : size();
    Buffer buffer = peer.arena_->allocate(bytes + 1).value();
    if (!buffer.reshape(TensorDescriptor::bytes(bytes)).ok()) return;
    fill_pattern(buffer.bytes(), oracle_->prefill_key(record), record.capacity);
    record.capacity += bytes;
    buffers.push_back(std::move(buffer));
  }
  PostOptions post = options(peer, record);
  oracle_->entered_call();
  auto id = peer.session_->post_receive(record.match, buffers, post);
  oracle_->left_call();
  judge_post(peer, id.status());
  if (!id.ok()) return;
  record.id = *id;
  oracle_->accepted(std::move(record));
}

void Simulation::post_want(Peer& peer) {
  Record record{.kind = OperationKind::kWant};
  record.key = record.step = ++serial_;
  std::string key = "key " + std::to_string(record.step);
  WantOptions want{
      .key_id = static_cast<uint32_t>(peer.next_key_id_++), .key = key, .step = record.step};
  if (random_.percent(50)) {
    want.destination = peer.arena_->allocate(size() + 1).value();
    record.has_destination = true;
    record.layout = want.destination.descriptor();
  }
  PostOptions post = options(peer, record);
  oracle_->entered_call();
  auto id = peer.session_->post_want(want, post);
  oracle_->left_call();
  judge_post(peer, id.status());
  if (!id.ok()) return;
  record.id = *id;
  oracle_->accepted(std::move(record));
}

// Several steps of one key.
void Simulation::post_wants(Peer& peer) {
  constexpr size_t kMost = 6;
  const uint64_t count = random_.between(2, kMost);
  const std::string key = "key " + std::to_string(serial_ + 1);
  const WantOptions want{
      .key_id = static_cast<uint32_t>(peer.next_key_id_++), .key = key, .step = serial_ + 1};
  std::array<Record, kMost> records;
  std::array<PostOptions, kMost> post;
  std::array<OperationId, kMost> ids;
  for (uint64_t i = 0; i < count; ++i) {
    records[i].kind = OperationKind::kWant;
    records[i].key = records[i].step = ++serial_;
    post[i] = options(peer, records[i]);
    post[i].user_data += i;  // accepted in this order
  }
  oracle_->entered_call();
  Result<size_t> posted =
      peer.session_->post_wants(want, std::span(post).first(count), std::span(ids).first(count));
  oracle_->left_call();
  judge_post(peer, posted.status());
  for (size_t i = 0; posted.ok() && i < *posted; ++i) {
    records[i].id = ids[i];
    oracle_->accepted(std::move(records[i]));
  }
}

void Simulation::answer_want(Peer& peer) {
  if (peer.wants_.empty()) return;
  size_t index = random_.below(peer.wants_.size());
  Peer::Waiting want = peer.wants_[index];
  if (random_.percent(15)) {
    oracle_->entered_call();
    Status status = peer.session_->refuse_want(want.token, Code::kUnsupported);
    oracle_->left_call();
    judge_post(peer, status);
    if (status.ok()) peer.wants_.erase(peer.wants_.begin() + static_cast<ptrdiff_t>(index));
    return;
  }
  bool fits = want.into && random_.percent(80);
  uint64_t key = ++serial_;
  Tensor tensor = make_tensor(peer, fits ? want.layout.span_bytes() : size(), key, 0);
  // One tensor for many askers.
  if (!fits && random_.percent(30) && !peer.sources_.empty()) {
    const Peer::Source& source = peer.sources_[random_.below(peer.sources_.size())];
    if (source.offset == 0) {
      tensor = source.tensor;
      key = source.key;
    }
  }
  Record record{
      .kind = OperationKind::kSupply, .key = key, .total = tensor.size_bytes(), .step = want.step};
  PostOptions post = options(peer, record);
  oracle_->entered_call();
  auto id = peer.session_->post_supply(want.token, tensor, post);
  oracle_->left_call();
  judge_post(peer, id.status());
  if (!id.ok()) return;
  oracle_->supplied(want.step, key, tensor.descriptor());
  record.id = *id;
  oracle_->accepted(std::move(record));
  std::erase_if(peer.wants_, [&](const Peer::Waiting& w) { return w.token == want.token; });
}

void Simulation::make_grant(Peer& peer) {
  GrantRecord grant{.side = peer.side_, .key = ++serial_, .fixed_bytes = random_.between(1, 3000)};
  GrantOptions how{.rights = random_.pick<Right>({Right::kRead, Right::kWrite, Right::kReadWrite})};
  if (random_.percent(20)) {
    how.deadline = trace_.now + random_.duration(std::chrono::milliseconds(20));
    grant.expires = true;
  }
  Buffer memory = peer.arena_->allocate(grant.fixed_bytes * 3).value();
  std::fill(memory.bytes().begin(), memory.bytes().end(), std::byte{0});
  fill_pattern(memory.bytes().first(grant.fixed_bytes), grant.key);
  bool as_tensor = how.rights == Right::kRead && random_.percent(50);
  if (as_tensor)
    grant.tensor = std::move(memory).freeze();
  else
    grant.memory = std::move(memory);
  auto key =
      as_tensor ? peer.session_->grant(grant.tensor, how) : peer.session_->grant(grant.memory, how);
  judge_post(peer, key.status());
  if (!key.ok()) return;
  grant.remote = *key;
  trace_.note(peer.side_, "granted", key->grant, key->length);
  oracle_->grants().push_back(std::move(grant));
}

void Simulation::revoke_grant(Peer& peer) {
  for (GrantRecord& grant : oracle_->grants()) {
    if (grant.side != peer.side_ || grant.revoked || random_.percent(50)) continue;
    bool known = alive(peer);
    oracle_->entered_call();
    Status status = peer.session_->revoke(grant.remote);
    oracle_->left_call();
    trace_.note(peer.side_, "revoked", grant.remote.grant);
    if (known && !status.ok())
      trace_.wrong("a live grant cannot be revoked: " + status.to_string());
    oracle_->revoked(grant);
    return;
  }
}

void Simulation::post_one_sided(Peer& peer, bool write) {
  std::deque<GrantRecord>& grants = oracle_->grants();
  if (grants.empty()) return;
  size_t index = random_.below(grants.size());
  GrantRecord& grant = grants[index];
  if (grant.side == peer.side_) return;
  Record record{.kind = write ? OperationKind::kWrite : OperationKind::kRead,
                .key = ++serial_,
                .grant = index};
  RemoteKey key = grant.remote;
  Right right = write ? Right::kWrite : Right::kRead;
  record.must_be_denied =
      grant.revoked || (static_cast<uint8_t>(key.rights) & static_cast<uint8_t>(right)) == 0;
  if (random_.percent(5)) {
    ++key.epoch;
    record.must_be_denied = true;
  }
  if (write) {
    record.total = std::min(size(), 3 * grant.fixed_bytes - (grant.fixed_bytes + grant.next_slot));
    record.offset = grant.fixed_bytes + grant.next_slot;
    if (!record.must_be_denied) grant.next_slot += record.total;
  } else {
    record.offset = random_.below(grant.fixed_bytes);
    record.total = std::min(size(), grant.fixed_bytes - record.offset);
  }
  PostOptions post = options(peer, record);
  oracle_->entered_call();
  Result<OperationId> id = [&]() -> Result<OperationId> {
    if (write) {
      Tensor from = make_tensor(peer, record.total, record.key, 0);
      return peer.session_->post_write(key, record.offset, from, post);
    }
    Buffer into = peer.arena_->allocate(record.total + 1).value();
    (void)into.reshape(TensorDescriptor::bytes(record.total)).ok();
    return peer.session_->post_read(key, record.offset, into, post);
  }();
  oracle_->left_call();
  judge_post(peer, id.status());
  if (!id.ok()) return;
  record.id = *id;
  oracle_->accepted(std::move(record));
}

void Simulation::cancel_something(Peer& peer) {
  size_t pending = oracle_->pending(peer.side_);
  if (pending == 0) return;
  size_t which = random_.below(pending);
  for (Record& record : oracle_->records()) {
    if (record.side != peer.side_ || record.done || record.silent || which-- > 0) continue;
    trace_.note(peer.side_, "cancel", record.id);
    oracle_->entered_call();
    (void)peer.session_->cancel(record.id).ok();  // it may have ended a moment ago
    oracle_->left_call();
    return;
  }
}

void Simulation::drop_something(Peer& peer) {
  std::vector<HeldTensor>& held = oracle_->held();
  for (size_t i = 0; i < held.size(); ++i) {
    if (held[i].side != peer.side_ || random_.percent(30)) continue;
    oracle_->drop_view(i);
    return;
  }
}

// The program takes its memory back as soon as it may, and uses it for something else.
void Simulation::thaw_something(Peer& peer) {
  for (size_t i = 0; i < peer.sources_.size(); ++i) {
    std::optional<Buffer> buffer = peer.sources_[i].tensor.try_thaw();
    if (!buffer) continue;
    if (network_->read_by_peer(peer.side_, buffer->data(), buffer->size_bytes())) {
      trace_.wrong("memory was given back while the peer reads it");
    }
    trace_.note(peer.side_, "reused", peer.sources_[i].key);
    std::fill(buffer->bytes().begin(), buffer->bytes().end(), std::byte{0x5A});
    peer.sources_.erase(peer.sources_.begin() + static_cast<ptrdiff_t>(i));
    if (random_.percent(50)) return;
    --i;
  }
}

// Pauses, stalls, jumps of the clock, and ends of all kinds.
void Simulation::disturb() {
  Duration length = random_.duration(random_.pick<Duration>({1ms, 100ms, 5s}));
  int side = static_cast<int>(random_.below(2));
  Peer& peer = *peers_[side];
  switch (random_.below(8)) {
    case 0:
    case 1:
      trace_.note(side, "paused");
      peer.paused_until_ = trace_.now + length;
      peer.quiet_ += length;
      return;
    case 2:
      trace_.note(side, "stalled");
      network_->stall(side, trace_.now + length);
      for (auto& each : peers_) each->quiet_ += length;
      return;
    case 3:  // everybody slept
      trace_.note(side, "clock jumps");
      trace_.now += length;
      return;
    case 4:
      trace_.note(side, "path breaks");
      network_->cut({trace_.now + random_.duration(100ms), trace_.now + random_.duration(100ms)},
                    random_.percent(50));
      return;
    case 5:
      if (peer.crashed_ || peers_[1 - side]->crashed_) return;
      trace_.note(side, "crashes");
      peer.crashed_ = true;
      peer.turn_at_ = kNever;
      crashed_side_ = side;
      network_->crash(side);
      network_->cut({trace_.now + random_.duration(100ms), trace_.now + random_.duration(100ms)},
                    random_.percent(50));
      return;
    case 6:
      if (!alive(peer)) return;
      trace_.note(side, "closes");
      oracle_->entered_call();
      peer.session_->start_close();
      oracle_->left_call();
      return;
    default:
      if (!alive(peer)) return;
      trace_.note(side, "aborts");
      oracle_->entered_call();
      peer.session_->abort(simulated(Code::kCancelled));
      oracle_->left_call();
  }
}

void Simulation::act(int side) {
  if (random_.percent(trouble_percent_)) disturb();
  Peer& peer = *peers_[side];
  if (peer.crashed_ || peer.paused_until_ > trace_.now) return;
  random_action(peer);
}

void Simulation::random_action(Peer& peer) {
  if (peer.crashed_) return;
  if (!peer.handler_set_ && alive(peer) && random_.percent(20)) {
    peer.handler_set_ = true;
    peer.session_->set_want_handler(&peer);
  }
  switch (random_.below(16)) {
    case 0:
    case 1:
    case 2: return post_send(peer);
    case 3:
    case 4:
    case 5: return post_receive(peer);
    case 6:
    case 7: return random_.percent(70) ? post_want(peer) : post_wants(peer);
    case 8: return answer_want(peer);
    case 9: return make_grant(peer);
    case 10:
      return random_.percent(40) ? revoke_grant(peer) : post_one_sided(peer, random_.percent(50));
    case 11: return post_one_sided(peer, false);
    case 12: return post_one_sided(peer, true);
    case 13: return cancel_something(peer);
    case 14: return drop_something(peer);
    default: return thaw_something(peer);
  }
}

}  // namespace sluice::sim
