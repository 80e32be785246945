// A link with further streams: what goes where, in which order it counts, and how it ends.
#include <thread>

#include <sluice/base/counters.h>
#include "tests/tcp/testing.h"

namespace sluice::tcp {
namespace {

using namespace testing;

constexpr size_t kChunk = size_t{256} << 10;

Bytes data_message(uint64_t id, uint64_t offset, const Bytes& payload, uint64_t after) {
  wire::Data data = data_at(id, offset);
  data.has_after = true;
  data.after = after;
  return frame(data, payload);
}

// A link with further streams, and the raw other ends.
struct Several : LinkAndPeer {
  explicit Several(LoneContext& lone, size_t count = 2, int peer_receive_buffer = 0)
      : LinkAndPeer(lone) {
    client.in_order = false;
    for (size_t i = 0; i < count; ++i) {
      SocketPair pair = socket_pair(peer_receive_buffer);
      REQUIRE(link->add_stream(std::move(pair.ours), {}).ok());
      further.push_back(std::move(pair.theirs));
    }
  }
  bool push_chunk(uint64_t number, const Bytes& payload) {
    const ConstBytes part(payload);
    wire::Data data = data_at(1, number * kChunk);
    data.payload_bytes = static_cast<uint32_t>(payload.size());
    Bytes header(wire::kMaxHeaderBytes);
    header.resize(wire::encode(data, header));
    return push(header, std::span(&part, 1), number);
  }
  // What there is at the peer's end of a further stream, once `total` bytes or its end came.
  Bytes read_further(size_t which, size_t total) {
    Bytes bytes(total);
    size_t done = 0;
    const Instant deadline = soon();
    while (done < total && now() < deadline) {
      ssize_t got = ::recv(further[which].value(), bytes.data() + done, total - done, MSG_DONTWAIT);
      if (got > 0) done += static_cast<size_t>(got);
      ended = got == 0;
      if (ended) break;
      lone.context.progress();
    }
    bytes.resize(done);
    return bytes;
  }
  std::vector<Descriptor> further;
  bool ended = false;  // read_further() came to the end of the stream
};

wire::Data decode_data(const Bytes& bytes) {
  auto common = wire::decode_header(bytes);
  REQUIRE(common.ok());
  REQUIRE(common->type == wire::MessageType::kData);
  wire::Data data;
  REQUIRE(wire::decode(ConstBytes(bytes).first(common->header_bytes), data).ok());
  return data;
}

constexpr size_t kDataHeader = 40;  // with what it comes after

TEST_CASE("DATA goes by the further streams in turn, messages by the first", "[tcp][streams]") {
  DescriptorAudit audit;
  LoneContext lone;
  Several pair(lone);
  CHECK(pair.link->streams() == 2);
  const Bytes payload = pattern(1000, 1);
  REQUIRE(pair.send(ping(1)));
  REQUIRE(pair.send(ping(2)));
  REQUIRE(pair.push_chunk(0, payload));
  REQUIRE(pair.send(ping(3)));
  REQUIRE(pair.push_chunk(1, payload));
  Bytes first = pair.read_further(0, kDataHeader + 1000);
  Bytes second = pair.read_further(1, kDataHeader + 1000);
  CHECK(decode_data(first).offset == 0);
  CHECK(decode_data(first).after == 2);
  CHECK(decode_data(second).offset == kChunk);
  CHECK(decode_data(second).after == 3);
  CHECK(std::equal(payload.begin(), payload.end(), first.begin() + kDataHeader));
  Bytes messages = ping(1);
  append(messages, ping(2));
  append(messages, ping(3));
  CHECK(pair.read_peer(messages.size()) == messages);
  pair.pump_until([&] { return pair.client.pushed_bytes.size() == 2; });
  CHECK(pair.client.pushed_bytes == std::vector<uint64_t>{1000, 1000});
  pair.close();
}

TEST_CASE("a stream that stands still holds up nothing but its own DATA", "[tcp][streams]") {
  LoneContext lone;
  Several pair(lone, 2, 4096);
  const Bytes payload = pattern(kChunk, 2);
  uint64_t pushed = 0;
  size_t read = 0;
  const Instant deadline = soon();
  Bytes drop(size_t{1} << 20);
  // The peer reads the second alone.
  while (read < 100 * kChunk && now() < deadline) {
    if (pair.push_chunk(pushed, payload)) ++pushed;
    ssize_t got = ::recv(pair.further[1].value(), drop.data(), drop.size(), MSG_DONTWAIT);
    if (got > 0) read += static_cast<size_t>(got);
    lone.context.progress();
  }
  CHECK(read >= 100 * kChunk);
  CHECK(pair.client.writable_calls > 0);
  // What the other holds is bounded by its queue and the socket.
  CHECK(pushed * kChunk < read + OutputQueue::kMaxPushedBytes + (size_t{8} << 20));
  pair.close();
}

TEST_CASE("DATA is not placed before the messages that it comes after", "[tcp][streams]") {
  LoneContext lone;
  Several pair(lone);
  pair.client.memory.resize(4000);
  const Bytes early = pattern(2000, 3), later = pattern(2000, 4);
  std::vector<std::string> seen;
  pair.client.on_message = [&] {
    seen.emplace_back("message");
    return Status();
  };
  pair.client.on_placed = [&] {
    seen.emplace_back("placed");
    return Status();
  };
  // The header first, so that both ways in are taken: read with it, and straight into place.
  const Bytes whole = data_message(1, 2000, later, 2), second = data_message(1, 0, early, 2);
  write_all(pair.further[0].value(), whole);
  write_all(pair.further[1].value(), second.data(), kDataHeader);
  pair.pump();
  write_all(pair.further[1].value(), second.data() + kDataHeader, 2000);
  pair.pump();
  CHECK(seen.empty());
  write_all(pair.peer.value(), ping(1));
  pair.pump_until([&] { return seen.size() == 1; });
  pair.pump();
  CHECK(seen.size() == 1);
  write_all(pair.peer.value(), ping(2));
  pair.pump_until([&] { return pair.client.placed_calls >= 2 && seen.size() >= 4; });
  CHECK(seen[1] == "message");
  Bytes expected = early;
  append(expected, later);
  CHECK(pair.client.memory == expected);
  pair.close();
}

// Nothing is polled for while it waits: the processor is free.
TEST_CASE("what waits for the first stream sleeps", "[tcp][streams]") {
  LoneContext lone;
  Several pair(lone, 1);
  pair.client.memory.resize(100);
  write_all(pair.further[0].value(), data_message(1, 0, pattern(100, 5), 1));
  // Once it has come; the kernel may take its time.
  int looks = 0;
  while (lone.context.wait(after(now(), std::chrono::milliseconds(50))) != Code::kTimedOut)
    REQUIRE(++looks < 100);
  CHECK(pair.client.placed_calls == 0);
  write_all(pair.peer.value(), ping(1));
  pair.pump_until([&] { return pair.client.placed_calls > 0; });
  pair.close();
}

TEST_CASE("BYE and the end of the first stream count when the others are read out",
          "[tcp][streams]") {
  const bool says_bye = GENERATE(true, false);
  LoneContext lone;
  Several pair(lone);
  pair.client.memory.resize(3000);
  const Bytes payload = pattern(3000, 6);
  if (says_bye) write_all(pair.peer.value(), frame(wire::Bye{}));
  pair.peer = says_bye ? std::move(pair.peer) : Descriptor();
  pair.further[1] = Descriptor();
  pair.pump();
  CHECK(pair.client.messages.empty());
  CHECK(pair.client.down_calls == 0);
  write_all(pair.further[0].value(), data_message(1, 0, payload, 0));
  pair.pump_until([&] { return pair.client.placed_until == 3000; });
  pair.pump();
  CHECK(pair.client.messages.empty());
  CHECK(pair.client.down_calls == 0);
  pair.further[0] = Descriptor();
  pair.pump_until([&] { return !pair.client.messages.empty() || pair.client.down_calls > 0; });
  CHECK(pair.client.messages.size() == (says_bye ? 1u : 0u));
  CHECK(pair.client.down_calls == (says_bye ? 0 : 1));
  CHECK(pair.client.memory == payload);
  pair.close();
}

// One stream is being opened, and the peer was asked to take it.
struct OneJoining final : StreamSource {
  void ask_for_streams(TcpLink&) override {}
  bool joining(const TcpLink&) const override { return open; }
  void stop_opening(TcpLink&) override {}
  void forget(TcpLink&) override {}
  bool open = true;
};

TEST_CASE("BYE and the end wait for a stream that the peer may have taken", "[tcp][streams]") {
  const bool says_bye = GENERATE(true, false);
  OneJoining joining;
  LoneContext lone(Waiting::kSleep, &joining);
  LinkAndPeer pair(lone);
  if (says_bye) write_all(pair.peer.value(), frame(wire::Bye{}));
  pair.peer = says_bye ? std::move(pair.peer) : Descriptor();
  pair.pump();
  CHECK(pair.client.messages.empty());
  CHECK(pair.client.down_calls == 0);
  joining.open = false;
  pair.link->streams_changed();
  pair.pump_until([&] { return !pair.client.messages.empty() || pair.client.down_calls > 0; });
  CHECK(pair.client.messages.size() == (says_bye ? 1u : 0u));
  pair.close();
}

TEST_CASE("who has said BYE does not wait for streams that are still joining", "[tcp][streams]") {
  const bool before = GENERATE(true, false), says_bye = GENERATE(true, false);
  const uint64_t overdue = read_counter("tcp.streams_overdue");
  OneJoining joining;
  LoneContext lone(Waiting::kSleep, &joining);
  LinkAndPeer pair(lone);
  if (before) REQUIRE(pair.send(frame(wire::Bye{})));
  if (says_bye) write_all(pair.peer.value(), frame(wire::Bye{}));
  // The end is an orderly one, or the answer to our BYE would be a reset.
  if (!says_bye) ::shutdown(pair.peer.value(), SHUT_WR);
  if (!before) {
    pair.pump();
    CHECK(pair.client.messages.empty());
    CHECK(pair.client.down_calls == 0);
    REQUIRE(pair.send(frame(wire::Bye{})));
    pair.pump();
    CHECK((!pair.client.messages.empty() || pair.client.down_calls > 0));  // no look is awaited
  }
  pair.pump_until([&] { return !pair.client.messages.empty() || pair.client.down_calls > 0; });
  CHECK(pair.client.messages.size() == (says_bye ? 1u : 0u));
  CHECK(read_counter("tcp.streams_overdue") == overdue);
  pair.close();
}

TEST_CASE("a peer that says BYE and keeps its streams open is not waited for", "[tcp][streams]") {
  LoneContext lone;
  Several pair(lone);
  const Instant began = now();
  write_all(pair.peer.value(), frame(wire::Bye{}));
  pair.pump_until([&] { return !pair.client.messages.empty(); });
  CHECK(now() - began >= std::chrono::seconds(4));
  CHECK(pair.client.down_calls == 0);
  pair.close();
}

TEST_CASE("our BYE ends the further streams behind what they carry", "[tcp][streams]") {
  LoneContext lone;
  Several pair(lone, 2, 4096);
  const Bytes payload = pattern(kChunk, 7);
  REQUIRE(pair.push_chunk(0, payload));
  REQUIRE(pair.send(frame(wire::Bye{})));
  CHECK(pair.read_further(0, 10 * kChunk).size() == kDataHeader + kChunk);
  CHECK(pair.ended);
  CHECK(pair.read_further(1, 1).empty());
  CHECK(pair.ended);
  CHECK(pair.read_peer(frame(wire::Bye{}).size()) == frame(wire::Bye{}));
  pair.close();
}

TEST_CASE("a stream that is added behind our BYE is ended at once", "[tcp][streams]") {
  LoneContext lone;
  const size_t before = GENERATE(0, 1);
  Several pair(lone, before);
  REQUIRE(pair.send(frame(wire::Bye{})));
  SocketPair late = socket_pair();
  REQUIRE(pair.link->add_stream(std::move(late.ours), {}).ok());
  pair.further.push_back(std::move(late.theirs));
  CHECK(pair.read_further(before, 1).empty());
  CHECK(pair.ended);
  pair.close();
}

TEST_CASE("what a further stream may not carry ends the connection, with the cause",
          "[tcp][streams]") {
  struct Wrong {
    Bytes on_further, on_first;
    std::string why;
  };
  const Wrong wrong =
      GENERATE(Wrong{ping(1), {}, "PING on a further stream, which carries DATA alone"},
               Wrong{frame(data_at(1, 0), Bytes(10)), {}, "does not say what it comes after"},
               Wrong{{}, data_message(1, 0, Bytes(10), 0), "DATA of the first stream says"},
               Wrong{Bytes(16, std::byte{0xff}), {}, "type"});
  LoneContext lone;
  Several pair(lone);
  if (!wrong.on_further.empty()) write_all(pair.further[1].value(), wrong.on_further);
  if (!wrong.on_first.empty()) write_all(pair.peer.value(), wrong.on_first);
  pair.pump_until([&] { return pair.client.down_calls > 0; });
  CHECK(pair.client.down == Code::kCorrupt);
  INFO(pair.client.down.to_string());
  CHECK(pair.client.down.to_string().find(wrong.why) != std::string::npos);
  const Bytes bye = frame(wire::Bye{.code = Code::kCorrupt});
  CHECK(pair.read_peer(bye.size()) == bye);
  pair.close();
}

TEST_CASE("a further stream that breaks ends the connection, and payload is given back",
          "[tcp][streams]") {
  LoneContext lone;
  Several pair(lone, 2, 4096);
  const Bytes payload = pattern(kChunk, 8);
  for (uint64_t i = 0; i < 8; ++i) REQUIRE(pair.push_chunk(i, payload));
  const bool in_the_middle = GENERATE(true, false), alone = GENERATE(true, false);
  if (in_the_middle) {
    pair.client.memory.resize(1000);
    const Bytes cut = data_message(1, 0, pattern(1000, 9), 0);
    write_all(pair.further[0].value(), cut.data(), cut.size() - 1);
  } else {
    linger now_or_never{.l_onoff = 1, .l_linger = 0};  // a reset
    ::setsockopt(pair.further[0].value(), SOL_SOCKET, SO_LINGER, &now_or_never,
                 sizeof(now_or_never));
  }
  pair.further[0] = Descriptor();
  // BYE may still come where it broke alone.
  if (!alone) {
    pair.further.clear();
    pair.peer = Descriptor();
  } else if (in_the_middle) {
    return;
  }
  pair.pump_until([&] { return pair.client.down_calls > 0; });
  CHECK(pair.client.down == Code::kUnreachable);
  CHECK_FALSE(pair.link->has_unsent());
  pair.close();
}

TEST_CASE("BYE that came before a stream broke is an orderly end", "[tcp][streams]") {
  LoneContext lone;
  Several pair(lone);
  write_all(pair.peer.value(), frame(wire::Bye{}));
  linger now_or_never{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(pair.further[0].value(), SOL_SOCKET, SO_LINGER, &now_or_never, sizeof(now_or_never));
  pair.further.clear();
  pair.client.on_message = [&] {
    pair.close();
    return Status();
  };
  pair.pump_until([&] { return !pair.client.messages.empty(); });
  CHECK(pair.client.down_calls == 0);
}

TEST_CASE("what a stream brought before it broke counts, and BYE behind that", "[tcp][streams]") {
  LoneContext lone;
  Several pair(lone, 2, 4096);
  pair.client.memory.resize(3000);
  const Bytes payload = pattern(3000, 11), chunk = pattern(kChunk, 12);
  for (uint64_t i = 0; pair.push_chunk(i, chunk); ++i) REQUIRE(i < 1000);  // writing is blocked
  const bool early = GENERATE(true, false);
  write_all(pair.further[0].value(), data_message(1, 0, payload, early ? 1 : 0));
  if (early) pair.pump();
  linger now_or_never{.l_onoff = 1, .l_linger = 0};
  for (Descriptor& stream : pair.further) {
    ::setsockopt(stream.value(), SOL_SOCKET, SO_LINGER, &now_or_never, sizeof(now_or_never));
    stream = Descriptor();
  }
  pair.pump();
  CHECK(pair.client.down_calls == 0);
  write_all(pair.peer.value(), ping(1));
  write_all(pair.peer.value(), frame(wire::Bye{}));
  pair.client.on_message = [&] {
    if (pair.client.messages.size() == 2) pair.close();
    return Status();
  };
  pair.pump_until([&] { return pair.client.messages.size() == 2; });
  CHECK(pair.client.placed_until == 3000);
  CHECK(pair.client.memory == payload);
  CHECK(pair.client.down_calls == 0);
}

// Computing does not count against the peer.
TEST_CASE("a program that was away for long reads what the streams hold before BYE",
          "[tcp][streams]") {
  LoneContext lone;
  Several pair(lone);
  pair.client.memory.resize(size_t{16} << 20);
  write_all(pair.peer.value(), frame(wire::Bye{}));
  pair.pump();
  const Bytes payload = pattern(size_t{1} << 20, 13);
  std::thread writing([&] {
    for (size_t i = 0; i < 16; ++i) {
      const Bytes message = data_message(1, i << 20, payload, 0);
      for (size_t at = 0; at < message.size();) {
        ssize_t sent = ::send(pair.further[i % 2].value(), message.data() + at, message.size() - at,
                              MSG_NOSIGNAL);
        if (sent <= 0) std::abort();
        at += static_cast<size_t>(sent);
      }
    }
    pair.further.clear();
  });
  (void)::poll(nullptr, 0, 6000);
  pair.pump_until([&] { return !pair.client.messages.empty(); });
  writing.join();
  for (size_t i = 0; i < 16; ++i) {
    CHECK(std::equal(payload.begin(), payload.end(),
                     pair.client.memory.begin() + static_cast<ptrdiff_t>(i << 20)));
  }
  pair.close();
}

TEST_CASE("settle() reaches what waits on every stream", "[tcp][streams]") {
  LoneContext lone;
  Several pair(lone, 2, 4096);
  Bytes payload = pattern(kChunk, 10);
  const Bytes as_it_was = payload;
  const ConstBytes part(payload);
  for (uint64_t i = 0;; ++i) {  // until neither has room
    wire::Data data = data_at(1, i * kChunk);
    data.payload_bytes = static_cast<uint32_t>(kChunk);
    Bytes header(wire::kMaxHeaderBytes);
    header.resize(wire::encode(data, header));
    if (!pair.push(header, std::span(&part, 1), 1)) break;
    REQUIRE(i < 1000);
  }
  pair.link->settle(1);
  std::fill(payload.begin(), payload.end(), std::byte{0});
  REQUIRE(pair.send(frame(wire::Bye{})));
  for (size_t which : {0, 1}) {
    const Bytes got = pair.read_further(which, 100 * (kDataHeader + kChunk));
    CHECK(pair.ended);
    const size_t chunks = got.size() / (kDataHeader + kChunk);
    CHECK(chunks * kChunk >= OutputQueue::kMaxPushedBytes);
    REQUIRE(got.size() == chunks * (kDataHeader + kChunk));
    for (size_t i = 0; i < chunks; ++i) {
      auto begin = got.begin() + static_cast<ptrdiff_t>(i * (kDataHeader + kChunk) + kDataHeader);
      CHECK(std::equal(as_it_was.begin(), as_it_was.end(), begin));
    }
  }
  pair.close();
}

}  // namespace
}  // namespace sluice::tcp
