#include "transport/collective/mesh.h"

#include <algorithm>
#include <cstring>

#include <sluice/base/counters.h>
#include <sluice/spi/endpoint_core.h>
#include "transport/collective/round.h"

namespace sluice::internal {
namespace {

constexpr const char* kOrigin = "collective/group";
// Code u8 (0: goodbye), rank that is to blame as u32 is part of the text; text.
constexpr size_t kAlarmBytes = 512;
constexpr Tag kAlarmTag = lane_tag(Lane::kAlarm, 0);
// A message that the path had no room for is posted again after this, or with the next event.
constexpr Duration kPostAgain = std::chrono::milliseconds(1);
Counter groups_broken("collective.groups_broken");
}  // namespace

Mesh::Mesh(Context& context, int rank, int size)
    : context_(context),
      exchange_(context),
      rank_(rank),
      peers_(static_cast<size_t>(size)),
      left_(static_cast<size_t>(size)) {
  context_.add_hook(this);
}

Mesh::~Mesh() {
  context_.remove_hook(this);
  closing_ = true;
  for (RoundState* round : rounds_) round->cancel();
  // The alarms' receives report to this object: their endpoints end first.
  for (Endpoint& peer : peers_)
    if (peer.shared())
      peer.shared()->abort(Status(Code::kCancelled, Scope::kEndpoint, kOrigin, "the group ended"));
  while (listening_ > 0 || std::any_of(orphans_.begin(), orphans_.end(),
                                       [](const auto& round) { return !round->finished(); })) {
    if (context_.progress() == 0 && !context_.wait(after(now(), 100ms)).ok()) break;
  }
}

Status Mesh::start(std::vector<Endpoint> peers) {
  peers_ = std::move(peers);
  bool ended = false;
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == rank_) continue;
    Status added = listen_for_alarms(rank);
    const bool over = added.ok() && peer(rank).state() != EndpointState::kConnected;
    if (added.ok() && !over) added = exchange_.add(peer(rank));
    if (!added.ok()) return blame(rank, added, "opening the group");
    ended = ended || over;
    path_ = std::max(path_, peer(rank).info().path.path);
  }
  // A rank may have broken the group already. Its alarm lies here: it is heard before a collective
  // finds that the connection has ended.
  if (ended) context_.progress();
  return Status();
}

Status Mesh::listen_for_alarms(int rank) {
  SLUICE_TRY(Buffer room, context_.arena().allocate(kAlarmBytes));
  SLUICE_RETURN_IF_ERROR(peer(rank).receive(
      {.tag = kAlarmTag}, std::move(room),
      {.sink = this, .user_data = static_cast<uint64_t>(rank), .deadline = kNever}));
  ++listening_;
  return Status();
}

void Mesh::on_completion(Completion&& completion) noexcept {
  const int rank = static_cast<int>(completion.user_data);
  --listening_;
  if (closing_) return;
  if (!completion.status.ok()) return on_lost(rank, completion.status);
  hear(rank, completion.buffers[0].bytes().first(
                 std::min<size_t>(completion.receipt.bytes, completion.buffers[0].size_bytes())));
  (void)listen_for_alarms(rank);  // its endpoint may be closed already: operations say so
}

void Mesh::on_lost(int rank, const Status& why) {
  if (left_[static_cast<size_t>(rank)]) return;
  fail_soon(blame(rank, why, "the group"));
}

void Mesh::hear(int rank, std::span<const std::byte> alarm) {
  if (alarm.empty()) return;
  const auto code = static_cast<uint8_t>(alarm[0]);
  if (code == 0) {
    left_[static_cast<size_t>(rank)] = true;
    return;
  }
  // A peer's bytes: any code it may name, and its text as it is.
  const Code said = code < kCodeCount ? static_cast<Code>(code) : Code::kCorrupt;
  std::string text(reinterpret_cast<const char*>(alarm.data()) + 1, alarm.size() - 1);
  if (broken_.ok() && failure_.ok())
    failure_ =
        Status(said, Scope::kContext, kOrigin, "rank " + std::to_string(rank) + " says: " + text);
}

void Mesh::say(int rank, const Status& why) {
  Endpoint& to = peer(rank);
  if (rank == rank_ || to.state() != EndpointState::kConnected) return;
  Result<Buffer> room = context_.arena().allocate(kAlarmBytes);
  if (!room.ok()) return;  // the others find out by their deadlines
  const std::string_view text = why.detail().substr(0, kAlarmBytes - 1);
  room->data()[0] = static_cast<std::byte>(why.code());
  if (!text.empty()) std::memcpy(room->data() + 1, text.data(), text.size());
  (void)to.send(kAlarmTag, Region(*room, 0, 1 + text.size()).as_tensor(), {});
}

Status Mesh::usable() {
  if (broken_.ok() && !failure_.ok()) fail(failure_);
  if (!broken_.ok())
    return Status(Code::kWrongState, Scope::kContext, kOrigin,
                  "the group is broken, open a new one: " + std::string(broken_.detail()));
  if (closing_) return Status(Code::kWrongState, Scope::kContext, kOrigin, "the group is closed");
  for (int rank = 0; rank < size(); ++rank)
    if (left_[static_cast<size_t>(rank)])
      return Status(Code::kUnreachable, Scope::kContext, kOrigin,
                    "rank " + std::to_string(rank) + " has closed its group");
  return Status();
}

Status Mesh::blame(int peer, const Status& why, const std::string& what) const {
  const std::string rank = "rank " + std::to_string(peer);
  if (why == Code::kTimedOut) {
    // A peer that waits for another is not to blame: in a ring each knows its neighbour alone.
    std::string silent;
    for (int other = 0; other < size(); ++other) {
      if (other == rank_ || !peers_[static_cast<size_t>(other)].info().peer_silent) continue;
      silent += (silent.empty() ? "rank " : ", rank ") + std::to_string(other);
    }
    return Status(Code::kTimedOut, Scope::kContext, kOrigin,
                  what + ": " +
                      (silent.empty() ? rank + " did not take part before the deadline; it may "
                                               "have waited for another rank"
                                      : silent + " did not call progress(), and the deadline "
                                                 "passed"),
                  why.os_error());
  }
  // A message that was refused as it is does not mean that the rank is lost.
  const char* const lost = why == Code::kInvalidArgument ? ": " : ": lost ";
  return Status(why == Code::kWrongState ? Code::kUnreachable : why.code(), Scope::kContext,
                kOrigin, what + lost + rank + ": " + std::string(why.detail()), why.os_error());
}

void Mesh::fail_soon(Status why) {
  if (broken_.ok() && failure_.ok()) failure_ = std::move(why);
}

void Mesh::dropped(const Call& call) {
  fail_soon(Status(Code::kCancelled, Scope::kContext, kOrigin,
                   call.name() + " was dropped on rank " + std::to_string(rank_) +
                       " before its end; keep each Task until it has ended"));
}

void Mesh::fail(const Status& why) {
  if (!broken_.ok()) return;
  // What was found first is the cause of what was found later.
  broken_ = failure_.ok() ? why : failure_;

  groups_broken.add();
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == rank_) continue;
    say(rank, broken_);
    exchange_.remove(peer(rank));  // ends its fetches
    // The alarm may have no room, or no credit while the peer has messages that it does not
    // receive. The end of the connection needs neither, and lets an alarm that has both go first.
    peer(rank).start_close();
  }
  for (size_t i = 0; i < rounds_.size(); ++i) rounds_[i]->cancel();
}

size_t Mesh::progress(Instant now) {
  size_t work = 0;
  if (!failure_.ok() && broken_.ok()) {
    fail(failure_);
    ++work;
  }
  for (size_t i = 0; i < rounds_.size(); ++i)
    if (rounds_[i]->wants_turn()) work += rounds_[i]->post();
  for (size_t i = 0; i < waiting_.size();) {
    Waiter* waiting = waiting_[i];
    const bool over = waiting->ends_when_broken && (!broken_.ok() || now >= waiting->deadline);
    if (!over && !waiting->ready(waiting->state)) {
      ++i;
      continue;
    }
    // The coroutine may add and remove others: begin anew.
    waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(i));
    ++work;
    waiting->waiter.resume();
    i = 0;
  }
  std::erase_if(orphans_, [](const auto& round) { return round->finished(); });
  return work;
}

Instant Mesh::next_timeout() {
  if (!failure_.ok() && broken_.ok()) return Instant{};
  Instant next = kNever;
  for (RoundState* round : rounds_)
    if (round->wants_turn()) next = std::min(next, after(context_.now(), kPostAgain));
  for (Waiter* waiting : waiting_) {
    if (waiting->ready(waiting->state)) return Instant{};
    if (waiting->ends_when_broken) next = std::min(next, waiting->deadline);
  }
  return next;
}

Status Mesh::close(Instant deadline) {
  if (closing_) return Status();
  // Who closes first must not take with it what others have yet to receive.
  Status first = broken_;
  if (first.ok()) {
    for (int rank = 0; rank < size(); ++rank) say(rank, Status());
    first = context_.wait_until(
        [&] {
          for (int rank = 0; rank < size(); ++rank)
            if (rank != rank_ && !left_[static_cast<size_t>(rank)]) return !broken_.ok();
          return true;
        },
        deadline);
    if (!broken_.ok()) first = broken_;
  }
  closing_ = true;
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == rank_) continue;
    exchange_.remove(peer(rank));
    Status closed = peer(rank).close(deadline);
    if (first.ok() && !closed.ok()) first = closed;
  }
  return first;
}

}  // namespace sluice::internal
