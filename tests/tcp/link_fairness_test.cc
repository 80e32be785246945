// Many small messages on a link: how much of a turn they get, and what waits.
#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include <sluice/base/counters.h>
#include "tests/support/single_turns.h"
#include "tests/tcp/testing.h"

namespace sluice::tcp {
namespace {

using namespace testing;

// Messages that take the thread 50 us each, by the clock.
Status slow_message() {
  for (Instant until = after(now(), std::chrono::microseconds(50)); now() < until;) {}
  return Status();
}
// Messages of one turn on one link: the clock is read at every 32nd, kTurnTime is over at the
// second such time.
constexpr size_t kSlowMessagesPerTurn = 64;

TEST_CASE(
    "a flood of small messages is handled in turns that are bounded in time, and others have "
    "theirs in between",
    "[tcp][fairness][hostile]") {
  LoneContext lone;
  LinkAndPeer flooded(lone), quiet(lone);
  flooded.client.on_message = slow_message;
  Bytes flood;
  for (uint64_t i = 0; i < 5000; ++i) append(flood, frame(wire::Cancel{.id = i, .offer = false}));
  size_t sent = 0;
  const uint64_t cut = read_counter("tcp.turns_cut");
  const bool ends =
      GENERATE(false, true);  // the peer ends behind its flood, and all of that is still heard
  bool ended = false;
  size_t most = 0, heard_before_quiet = 0, work = 0;
  const Instant deadline = soon();
  while (flooded.client.messages.size() < 5000 && now() < deadline) {
    if (sent < flood.size()) {
      ssize_t n = ::send(flooded.peer.value(), flood.data() + sent, flood.size() - sent,
                         MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n > 0) sent += static_cast<size_t>(n);
    } else if (ends && !ended) {
      flooded.peer.reset();
      ended = true;
    }
    if (flooded.client.messages.empty()) write_all(quiet.peer.value(), ping(1));
    const size_t before = flooded.client.messages.size();
    work += lone.context.progress();
    most = std::max(most, flooded.client.messages.size() - before);
    if (quiet.client.messages.empty()) heard_before_quiet = flooded.client.messages.size();
  }
  CHECK(flooded.client.messages.size() == 5000);
  // One call may have both: what was left of the turn before, and an event of new bytes.
  CHECK(most <= 2 * kSlowMessagesPerTurn);
  // Messages count as work, most of them by the next turn: by that the context knows that a turn
  // was long, and looks for others.
  CHECK(work >= 4000);
  CHECK(heard_before_quiet <= 9 * kSlowMessagesPerTurn);
  CHECK(read_counter("tcp.turns_cut") > cut);
  if (ends) flooded.pump_until([&] { return flooded.client.down_calls == 1; });
  CHECK(flooded.client.messages.back() == frame(wire::Cancel{.id = 4999, .offer = false}));
  flooded.close();
  quiet.close();
}

TEST_CASE("messages that no operation needs are left where they are until the peer may go on",
          "[tcp][fairness][hostile]") {
  LoneContext lone;
  LinkAndPeer chatty(lone), quiet(lone);
  Bytes talk;
  for (uint64_t i = 0; i < 100; ++i) append(talk, ping(i));
  chatty.client.idle_talk = true;
  write_all(chatty.peer.value(), talk);
  chatty.pump_until([&] { return chatty.client.messages.size() == 100; });
  CHECK(chatty.client.noted >= 64);
  chatty.client.rests = true;
  write_all(chatty.peer.value(), talk);
  write_all(quiet.peer.value(), ping(1));
  quiet.pump_until([&] { return quiet.client.messages.size() == 1; });
  chatty.pump();
  CHECK(chatty.client.messages.size() == 100);
  chatty.client.rests = false;
  chatty.pump_until([&] { return chatty.client.messages.size() == 200; });
  CHECK(chatty.client.noted_time > Duration(0));
  // Once operations need them again, they do not wait.
  chatty.client.idle_talk = false;
  write_all(chatty.peer.value(), ping(200));
  chatty.pump_until([&] { return chatty.client.messages.size() == 201; });
  chatty.client.rests = true;
  write_all(chatty.peer.value(), ping(201));
  chatty.pump_until([&] { return chatty.client.messages.size() == 202; });
  // A peer that ends while its messages wait is heard in the end.
  chatty.client.idle_talk = true;
  chatty.client.rests = false;
  write_all(chatty.peer.value(), talk);
  chatty.pump_until([&] { return chatty.client.messages.size() == 302; });
  chatty.client.rests = true;
  write_all(chatty.peer.value(), ping(7));
  chatty.peer.reset();
  chatty.pump();
  CHECK(chatty.client.down_calls == 0);
  chatty.client.rests = false;
  chatty.pump_until([&] { return chatty.client.down_calls == 1; });
  CHECK(chatty.client.messages.back() == ping(7));
  chatty.close();
  quiet.close();
}

TEST_CASE("DATA is no idle talk, however many reads it takes", "[tcp][fairness]") {
  LoneContext lone;
  LinkAndPeer pair(lone);
  constexpr size_t kBytes = 1000, kPieces = 500;
  pair.client.idle_talk = pair.client.rests = true;
  pair.client.memory.resize(kBytes * kPieces);
  for (size_t i = 0; i < kPieces; ++i) {
    write_all(pair.peer.value(), frame(data_at(7, i * kBytes), pattern(kBytes, 1)));
    pair.pump_until([&] { return pair.client.placed_until == (i + 1) * kBytes; });
  }
  CHECK(pair.client.noted == 0);
  pair.close();
}

TEST_CASE("a link writes a part of what it has, and then others have their turn",
          "[tcp][fairness][hostile]") {
  // Of one turn: when it is pushed, by an event, and by the group.
  constexpr size_t kMost = 3 * (size_t{256} << 10);
  constexpr size_t kChunk = size_t{1} << 20, kChunks = 200;
  LoneContext lone;
  LinkAndPeer busy(lone), quiet(lone);
  const Bytes payload = pattern(kChunk, 3);
  const Bytes header = frame(data_at(1, 0));
  const std::array<ConstBytes, 1> runs = {ConstBytes(payload)};
  Bytes room(size_t{16} << 20);
  auto written = [&] { return busy.client.pushed_bytes.empty() ? 0 : busy.client.pushed_bytes[0]; };
  write_all(quiet.peer.value(), ping(1));
  while (quiet.client.messages.empty()) lone.context.progress();  // polled from now on
  uint64_t most = 0, chunks = 0, asked = 1;
  const Instant deadline = soon();
  test::SingleTurns turns(lone.context);
  while (written() < kChunks * kChunk && now() < deadline) {
    write_all(quiet.peer.value(), ping(++asked));
    const uint64_t before = written();
    while (chunks < kChunks && busy.link->push(header, runs, 0)) ++chunks;
    busy.link->flush();
    if (turns.progress()) most = std::max(most, written() - before);
    while (::recv(busy.peer.value(), room.data(), room.size(), MSG_DONTWAIT) > 0) {}
  }
  CHECK(written() == kChunks * kChunk);
  CHECK(most <= kMost);
  quiet.pump_until([&] { return quiet.client.messages.size() == asked; });
  busy.close();
  quiet.close();
}

TEST_CASE("many floods together take no longer turn than a few", "[tcp][fairness][hostile]") {
  LoneContext lone;
  constexpr size_t kPeers = 16, kEach = 2000;
  std::vector<std::unique_ptr<LinkAndPeer>> peers;
  Bytes flood;
  for (uint64_t i = 0; i < kEach; ++i) append(flood, frame(wire::Cancel{.id = i, .offer = false}));
  for (size_t i = 0; i < kPeers; ++i) {
    peers.push_back(std::make_unique<LinkAndPeer>(lone));
    peers.back()->client.on_message = slow_message;
    write_all(peers.back()->peer.value(), flood);
  }
  auto heard = [&] {
    size_t all = 0;
    for (auto& peer : peers) all += peer->client.messages.size();
    return all;
  };
  // Links of one turn: by events and by the group, each until 1 ms is over, the last of them with a
  // turn of its own.
  constexpr size_t kMost = (5 + 5) * 64;
  size_t most = 0, fewest = 0;
  bool half_way = false;
  const Instant deadline = after(soon(), std::chrono::seconds(20));
  for (size_t before = 0; before < kPeers * kEach && now() < deadline; before = heard()) {
    lone.context.progress();
    most = std::max(most, heard() - before);
    if (!half_way && heard() > kPeers * kEach / 2) {
      half_way = true;
      fewest = kEach;
      for (auto& peer : peers) fewest = std::min(fewest, peer->client.messages.size());
    }
  }
  CHECK(heard() == kPeers * kEach);
  CHECK(most <= kMost);
  // Half-way nobody is without: who was read last comes last.
  CHECK(fewest > 0);
  for (auto& peer : peers) peer->close();
}

}  // namespace
}  // namespace sluice::tcp
