// What a link sends: order, back-pressure, loans of payload, a gentle end.
#include <sluice/base/counters.h>
#include "tests/tcp/testing.h"

namespace sluice::tcp {
namespace {

using namespace testing;

Bytes data_header(uint64_t id, uint64_t offset, size_t length) {
  wire::Data data;
  data.id = id;
  data.offset = offset;
  data.payload_bytes = static_cast<uint32_t>(length);
  Bytes out(wire::kMaxHeaderBytes);
  out.resize(wire::encode(data, out));
  return out;
}

TEST_CASE("a message leaves at once when nothing is queued", "[tcp][send]") {
  LoneContext lone;
  LinkAndPeer pair(lone);
  Bytes message = ping(1);
  REQUIRE(pair.send(message));
  Bytes got(message.size());
  CHECK(::recv(pair.peer.value(), got.data(), got.size(), MSG_DONTWAIT) ==
        static_cast<ssize_t>(got.size()));
  CHECK(got == message);
  pair.close();
}

TEST_CASE("messages and payload keep their order while the peer does not read", "[tcp][send]") {
  LoneContext lone;
  LinkAndPeer pair(lone, 4096);
  constexpr size_t kChunk = size_t{1} << 20;
  Bytes payload = pattern(kChunk, 3);
  Bytes expected;
  auto expect = [&](const Bytes& bytes) {
    expected.insert(expected.end(), bytes.begin(), bytes.end());
  };
  uint64_t pushes = 0;
  bool refused = false;
  for (uint64_t i = 0; i < 1000 && !refused; ++i) {
    Bytes header = data_header(1, i * kChunk, kChunk);
    // Three runs, one of them empty.
    std::array<ConstBytes, 3> runs = {ConstBytes(payload).first(1000), ConstBytes(),
                                      ConstBytes(payload).subspan(1000)};
    if (pair.push(header, runs, i)) {
      expect(header);
      expect(payload);
      ++pushes;
    } else {
      refused = true;
    }
    if (pair.send(ping(i))) expect(ping(i));
  }
  CHECK(refused);
  CHECK(pushes * kChunk >= OutputQueue::kMaxPushedBytes);
  CHECK(pushes < 40);
  CHECK(pair.client.writable_calls == 0);
  CHECK(pair.read_peer(expected.size()) == expected);
  pair.pump_until([&] {
    return pair.client.pushed_bytes.size() == pushes && pair.client.pushed_bytes.back() == kChunk;
  });
  for (uint64_t bytes : pair.client.pushed_bytes) CHECK(bytes == kChunk);
  pair.pump();
  CHECK(pair.client.writable_calls == 1);
  pair.close();
}

TEST_CASE("settled payload is what it was, whatever is written to the tensor afterwards",
          "[tcp][send][revoke]") {
  LoneContext lone;
  LinkAndPeer pair(lone, 4096);
  constexpr size_t kChunk = size_t{1} << 20;
  const Bytes original = pattern(kChunk, 3);
  Bytes revoked = original, kept = original, expected;
  // A queue with both cookies in turn, the first of them written in part.
  uint64_t pushes = 0;
  while (true) {
    Bytes& payload = pushes % 2 == 0 ? revoked : kept;
    Bytes header = data_header(1, pushes * kChunk, kChunk);
    std::array<ConstBytes, 2> runs = {ConstBytes(payload).first(1000),
                                      ConstBytes(payload).subspan(1000)};
    if (!pair.push(header, runs, pushes % 2)) break;
    expected.insert(expected.end(), header.begin(), header.end());
    expected.insert(expected.end(), original.begin(), original.end());
    ++pushes;
  }
  REQUIRE(pair.link->has_unsent());
  auto copied = [] { return read_counter("tcp.settled_bytes_copied"); };
  uint64_t before = copied();
  pair.link->settle(0);
  uint64_t once = copied();
  CHECK(once > before);
  CHECK(once - before <= OutputQueue::kMaxPushedBytes);
  pair.link->settle(0);  // nothing is left of it
  CHECK(copied() == once);
  revoked.assign(revoked.size(), std::byte{0xEE});
  Bytes got = pair.read_peer(expected.size());
  CHECK(got.size() == expected.size());
  CHECK((got == expected));
  // Every byte is reported as before, and the queue has room again.
  uint64_t of_each = (pushes + 1) / 2 * kChunk;
  pair.pump_until([&] {
    return pair.client.pushed_bytes.size() == 2 &&
           pair.client.pushed_bytes[1] == pushes / 2 * kChunk;
  });
  CHECK(pair.client.pushed_bytes[0] == of_each);
  CHECK(!pair.link->has_unsent());
  pair.close();
}

TEST_CASE("control messages to a peer that does not read are refused at a bound and lose nothing",
          "[tcp][send]") {
  LoneContext lone;
  LinkAndPeer pair(lone, 4096);
  Bytes payload = pattern(16384, 8);
  Bytes expected;
  uint64_t sent = 0;
  while (sent < 100'000) {
    Bytes message = inline_offer(sent, payload);
    Bytes header(message.begin(), message.end() - static_cast<ptrdiff_t>(payload.size()));
    if (!pair.send(header, payload)) break;
    expected.insert(expected.end(), message.begin(), message.end());
    ++sent;
  }
  CHECK(sent < 100'000);
  CHECK(pair.read_peer(expected.size()) == expected);
  pair.pump_until([&] { return pair.client.writable_calls == 1; });
  REQUIRE(pair.send(ping(1)));
  CHECK(pair.read_peer(ping(1).size()) == ping(1));
  pair.close();
}

TEST_CASE("a message of every size survives being written in parts", "[tcp][send]") {
  LoneContext lone;
  LinkAndPeer pair(lone, 4096);
  Bytes expected;
  size_t taken = 0;
  // Fills the socket, then goes on as room comes and goes.
  for (size_t length = 0; length < 60'000; length += 251) {
    Bytes payload = pattern(length, static_cast<uint32_t>(length));
    Bytes message = inline_offer(length, payload);
    Bytes header(message.begin(), message.end() - static_cast<ptrdiff_t>(payload.size()));
    Instant deadline = soon();
    while (!pair.send(header, payload) && now() < deadline) {
      Bytes got = pair.read_peer(std::min<size_t>(50'000, expected.size() - taken));
      REQUIRE(std::equal(got.begin(), got.end(), expected.begin() + static_cast<ptrdiff_t>(taken)));
      taken += got.size();
    }
    expected.insert(expected.end(), message.begin(), message.end());
  }
  Bytes got = pair.read_peer(expected.size() - taken);
  CHECK(std::equal(got.begin(), got.end(), expected.begin() + static_cast<ptrdiff_t>(taken),
                   expected.end()));
  pair.close();
}

TEST_CASE("a push to a peer that has gone ends in link_down, once, from progress", "[tcp][send]") {
  DescriptorAudit audit;
  LoneContext lone;
  LinkAndPeer pair(lone);
  write_all(pair.peer.value(), ping(3));
  linger reset{1, 0};
  ::setsockopt(pair.peer.value(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
  pair.peer.reset();
  Bytes payload = pattern(1000, 1);
  ConstBytes run(payload);
  CHECK(pair.push(data_header(1, 0, payload.size()), std::span(&run, 1), 0));
  CHECK(pair.send(ping(1)));
  CHECK(pair.client.down_calls == 0);
  pair.pump_until([&] { return pair.client.down_calls > 0; });
  CHECK(pair.client.down == Code::kUnreachable);
  // What the peer said before it went was heard.
  CHECK(pair.client.messages.size() == 1);
  pair.close();
}

TEST_CASE("a client may close the link while its payload is reported", "[tcp][send]") {
  LoneContext lone;
  LinkAndPeer pair(lone);
  pair.client.on_pushed = [&] { pair.close(); };
  Bytes payload = pattern(1000, 1);
  ConstBytes run(payload);
  CHECK(pair.push(data_header(1, 0, payload.size()), std::span(&run, 1), 0));
  CHECK(pair.push(data_header(1, 0, payload.size()), std::span(&run, 1), 1));
  pair.pump_until([&] { return pair.client.closed; });
  pair.pump();
  CHECK(pair.client.pushed_bytes.size() == 1);
}

TEST_CASE("a BYE sent before close arrives although the peer's bytes were not read", "[tcp][end]") {
  DescriptorAudit audit;
  LoneContext lone;
  LinkAndPeer pair(lone);
  for (int i = 0; i < 100; ++i) write_all(pair.peer.value(), inline_offer(1, pattern(1000, 1)));
  Bytes bye = frame(wire::Bye{.code = Code::kCancelled});
  REQUIRE(pair.send(bye));
  pair.close();
  Bytes got(bye.size() + 1);
  CHECK(::recv(pair.peer.value(), got.data(), got.size(), 0) == static_cast<ssize_t>(bye.size()));
  CHECK(::recv(pair.peer.value(), got.data(), got.size(), 0) == 0);
}

TEST_CASE("nothing is called and nothing is sent after close", "[tcp][end]") {
  LoneContext lone;
  LinkAndPeer pair(lone);
  write_all(pair.peer.value(), ping(1));
  pair.close();
  CHECK(pair.link->send(ping(2), {}));
  pair.link->flush();
  pair.link->close();
  pair.pump();
  CHECK(pair.client.messages.empty());
  std::byte byte;
  CHECK(::recv(pair.peer.value(), &byte, 1, 0) == 0);
}

TEST_CASE("the links of one context do not wait for each other", "[tcp][fairness]") {
  LoneContext lone;
  LinkAndPeer busy(lone), quiet(lone);
  // More for the busy one than one turn takes.
  constexpr size_t kTotal = size_t{3} << 20;
  busy.client.memory.assign(kTotal, std::byte{0});
  Bytes payload = pattern(kTotal, 1);
  Bytes message = data_header(1, 0, kTotal);
  message.insert(message.end(), payload.begin(), payload.end());
  size_t sent = 0;
  while (sent < message.size()) {
    ssize_t n = ::send(busy.peer.value(), message.data() + sent, message.size() - sent,
                       MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n <= 0) break;
    sent += static_cast<size_t>(n);
  }
  write_all(quiet.peer.value(), ping(1));
  quiet.pump_until([&] { return quiet.client.messages.size() == 1; });
  busy.close();
  quiet.close();
}

}  // namespace
}  // namespace sluice::tcp
