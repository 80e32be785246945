// What arrives on a link: framing, placement, hostile bytes, the end of the peer.
#include <random>

#include <sluice/base/counters.h>
#include "tests/tcp/testing.h"

namespace sluice::tcp {
namespace {

using namespace testing;

// A session as it may be recorded: control, inline payload, DATA in two messages.
struct Recording {
  Recording() {
    add(inline_offer(1, pattern(100, 1)));
    data = pattern(3000, 2);
    append(stream, frame(data_at(7, 0), Bytes(data.begin(), data.begin() + 2000)));
    add(frame(wire::Done{.id = 9, .code = Code::kOk, .bytes = 3}));
    append(stream, frame(data_at(7, 2000), Bytes(data.begin() + 2000, data.end())));
    add(frame(wire::Ping{.nonce = 4, .reply = false}));
    add(inline_offer(2, pattern(700, 3)));
    add(frame(wire::Bye{.code = Code::kOk}));
  }
  void add(const Bytes& message) {
    messages.push_back(message);
    append(stream, message);
  }
  void prepare(Recorder& client) const {
    client.messages.clear();
    client.memory.assign(data.size(), std::byte{0});
    client.placed_until = 0;
  }
  void check(const Recorder& client) const {
    CHECK(client.messages == messages);
    CHECK(client.memory == data);
    CHECK(client.placed_until == data.size());
    CHECK(client.down_calls == 0);
  }
  Bytes stream, data;
  std::vector<Bytes> messages;
};

TEST_CASE("a recorded session arrives whole wherever the stream is cut", "[tcp][framing]") {
  DescriptorAudit audit;
  LoneContext lone;
  LinkAndPeer pair(lone);
  Recording recording;
  for (size_t cut = 1; cut < recording.stream.size(); ++cut) {
    recording.prepare(pair.client);
    write_all(pair.peer.value(), recording.stream.data(), cut);
    pair.pump();
    write_all(pair.peer.value(), recording.stream.data() + cut, recording.stream.size() - cut);
    pair.pump_until([&] { return pair.client.messages.size() >= recording.messages.size(); });
    INFO("cut at byte " << cut);
    recording.check(pair.client);
    if (pair.client.messages != recording.messages) break;
  }
  pair.close();
}

TEST_CASE("a recorded session arrives whole byte by byte and in runs of seven bytes",
          "[tcp][framing]") {
  LoneContext lone;
  LinkAndPeer pair(lone);
  Recording recording;
  pair.client.run_bytes = 7;
  recording.prepare(pair.client);
  for (std::byte byte : recording.stream) {
    write_all(pair.peer.value(), &byte, 1);
    pair.pump();
  }
  pair.pump_until([&] { return pair.client.messages.size() == recording.messages.size(); });
  recording.check(pair.client);
  pair.close();
}

TEST_CASE("a stream that ends early delivers what came and takes the link down once",
          "[tcp][framing]") {
  DescriptorAudit audit;
  LoneContext lone;
  Recording recording;
  for (size_t length = 0; length <= recording.stream.size(); length += 13) {
    LinkAndPeer pair(lone);
    recording.prepare(pair.client);
    write_all(pair.peer.value(), recording.stream.data(), length);
    pair.peer.reset();
    pair.pump_until([&] { return pair.client.down_calls > 0; });
    INFO("ends after " << length << " bytes");
    CHECK(pair.client.down == Code::kUnreachable);
    // Every message that was whole was delivered.
    size_t whole = 0, bytes = 0;
    for (const Bytes& message : pair.client.messages) {
      CHECK(message == recording.messages[whole++]);
      bytes += message.size();
    }
    CHECK(bytes + pair.client.placed_until <= length);
    pair.pump();
    CHECK(pair.client.down_calls == 1);
    pair.close();
  }
}

TEST_CASE("the end between two messages and the end inside one are told apart", "[tcp][framing]") {
  LoneContext lone;
  LinkAndPeer between(lone), inside(lone);
  Bytes message = frame(wire::Ping{.nonce = 1, .reply = false});
  write_all(between.peer.value(), message);
  write_all(inside.peer.value(), message.data(), message.size() - 1);
  between.peer.reset();
  inside.peer.reset();
  between.pump_until([&] { return between.client.down_calls + inside.client.down_calls == 2; });
  CHECK(between.client.messages.size() == 1);
  CHECK(between.client.down.detail().find("middle of a message") == std::string::npos);
  CHECK(inside.client.down.detail().find("middle of a message") != std::string::npos);
}

TEST_CASE("a header that breaks the rules takes down its link only and tells the peer",
          "[tcp][hostile]") {
  DescriptorAudit audit;
  LoneContext lone;
  LinkAndPeer bystander(lone);
  Bytes good = frame(wire::Ping{.nonce = 1, .reply = false});
  struct Change {
    const char* what;
    size_t at;
    std::vector<int> bytes;
  };
  const std::vector<Change> changes = {
      {"type 0", 0, {0}},
      {"type 200", 0, {200}},
      {"unknown flags", 1, {0xff}},
      {"header of 8 bytes", 2, {8, 0}},
      {"header of 20 bytes", 2, {20, 0}},
      {"header of 65528 bytes", 2, {0xf8, 0xff}},
      {"payload on PING", 4, {1, 0, 0, 0}},
      {"payload of 4 GiB", 4, {0xff, 0xff, 0xff, 0xff}},
  };
  for (const Change& change : changes) {
    LinkAndPeer pair(lone);
    Bytes bad = good;
    for (size_t i = 0; i < change.bytes.size(); ++i)
      bad[change.at + i] = static_cast<std::byte>(change.bytes[i]);
    uint64_t counted = read_counter("tcp.frames_corrupt");
    write_all(pair.peer.value(), good);
    write_all(pair.peer.value(), bad);
    pair.pump_until([&] { return pair.client.down_calls > 0; });
    INFO(change.what);
    CHECK(pair.client.down == Code::kCorrupt);
    CHECK(pair.client.messages.size() == 1);
    CHECK(read_counter("tcp.frames_corrupt") == counted + 1);
    pair.close();
    Bytes bye = frame(wire::Bye{.code = Code::kCorrupt});
    CHECK(pair.read_peer(bye.size()) == bye);
  }
  write_all(bystander.peer.value(), good);
  bystander.pump_until([&] { return bystander.client.messages.size() == 1; });
  bystander.close();
}

TEST_CASE("oversized DATA and inline payloads are refused before a byte is kept",
          "[tcp][hostile]") {
  LoneContext lone;
  Bytes too_much_data = frame(data_at(1, 0));
  uint32_t length = wire::kMaxDataBytes + 1;
  std::memcpy(too_much_data.data() + 4, &length, 4);
  Bytes too_much_inline = inline_offer(1, {});
  length = wire::kMaxInlineBytes + 1;
  std::memcpy(too_much_inline.data() + 4, &length, 4);
  Bytes past_the_end = frame(data_at(1, ~uint64_t{0} - 1), pattern(16, 1));
  for (const Bytes& bad : {too_much_data, too_much_inline, past_the_end}) {
    LinkAndPeer pair(lone);
    write_all(pair.peer.value(), bad);
    pair.pump_until([&] { return pair.client.down_calls > 0; });
    CHECK(pair.client.down == Code::kCorrupt);
    CHECK(pair.client.placed_calls == 0);
    pair.close();
  }
}

TEST_CASE("random bytes end a link or are waited for, and never more", "[tcp][hostile]") {
  DescriptorAudit audit;
  LoneContext lone;
  std::mt19937 random(20240611);
  Recording recording;
  for (int round = 0; round < 300; ++round) {
    LinkAndPeer pair(lone);
    pair.client.wanted = false;  // offsets of DATA are anything
    Bytes stream = recording.stream;
    for (int flips = 1 + round % 4; flips > 0; --flips) {
      stream[random() % stream.size()] = static_cast<std::byte>(random());
    }
    pair.client.in_order = false;  // the session's matter
    (void)::send(pair.peer.value(), stream.data(), stream.size(), MSG_NOSIGNAL);
    pair.pump();
    CHECK(pair.client.messages.size() <= 2 * recording.messages.size());
    if (pair.client.down_calls > 0) CHECK(pair.client.down == Code::kCorrupt);
    pair.close();
  }
}

TEST_CASE("DATA that nobody wants is dropped to the byte", "[tcp][placement]") {
  LoneContext lone;
  LinkAndPeer pair(lone);
  pair.client.wanted = false;
  Bytes after_it = frame(wire::Done{.id = 5, .code = Code::kOk, .bytes = 0});
  for (size_t length : {1u, 15u, 487u, 488u, 489u, 512u, 4096u, 70000u, 1048576u, 3145729u}) {
    pair.client.messages.clear();
    pair.client.placed_until = 0;
    Bytes stream = frame(data_at(3, 0), pattern(length, 1));
    append(stream, after_it);
    size_t sent = 0;
    while (sent < stream.size()) {
      ssize_t n = ::send(pair.peer.value(), stream.data() + sent, stream.size() - sent,
                         MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n > 0) sent += static_cast<size_t>(n);
      pair.lone.context.progress();
    }
    pair.pump_until([&] { return !pair.client.messages.empty() || pair.client.down_calls > 0; });
    INFO(length << " bytes");
    CHECK(pair.client.placed_until == length);
    REQUIRE(pair.client.messages.size() == 1);
    CHECK(pair.client.messages[0] == after_it);
  }
  pair.close();
}

TEST_CASE("an operation that ends in the middle of its DATA loses only the rest",
          "[tcp][placement]") {
  LoneContext lone;
  LinkAndPeer pair(lone);
  Bytes data = pattern(100'000, 4);
  pair.client.memory.assign(data.size(), std::byte{0});
  pair.client.wanted_until = 40'000;
  Bytes stream = frame(data_at(3, 0), data);
  append(stream, frame(wire::Ping{.nonce = 2, .reply = false}));
  write_all(pair.peer.value(), stream.data(), 40'024);
  pair.pump_until([&] { return pair.client.placed_until == 40'000; });
  write_all(pair.peer.value(), stream.data() + 40'024, stream.size() - 40'024);
  pair.pump_until([&] { return pair.client.messages.size() == 1; });
  CHECK(pair.client.placed_until == data.size());
  CHECK(std::equal(data.begin(), data.begin() + 40'000, pair.client.memory.begin()));
  CHECK(pair.client.memory[40'000] == std::byte{0});
  pair.close();
}

TEST_CASE("DATA that came with its header and has more places than one call names goes to them all",
          "[tcp][placement]") {
  LoneContext lone;
  LinkAndPeer pair(lone);
  Bytes data = pattern(20 * kMaxPlaces, 5);
  pair.client.memory.assign(data.size(), std::byte{0});
  pair.client.run_bytes = 7;
  Bytes stream = frame(data_at(3, 0), data);
  append(stream, frame(wire::Ping{.nonce = 2, .reply = false}));
  write_all(pair.peer.value(), stream);
  pair.pump_until([&] { return pair.client.messages.size() == 1; });
  CHECK(pair.client.placed_calls == 3);  // 56, 56 and 48 bytes
  CHECK(pair.client.memory == data);
  pair.close();
}

TEST_CASE("bulk goes into place without passing through staging", "[tcp][placement]") {
  LoneContext lone;
  LinkAndPeer pair(lone);
  constexpr size_t kTotal = size_t{32} << 20;
  constexpr size_t kMessage = size_t{1} << 20;
  Bytes data = pattern(kTotal, 9);
  pair.client.memory.assign(kTotal, std::byte{0});
  uint64_t staged = read_counter("tcp.staged_bytes_copied");
  for (size_t at = 0; at < kTotal; at += kMessage) {
    Bytes message =
        frame(data_at(1, at), Bytes(data.begin() + static_cast<ptrdiff_t>(at),
                                    data.begin() + static_cast<ptrdiff_t>(at + kMessage)));
    size_t sent = 0;
    while (sent < message.size()) {
      ssize_t n = ::send(pair.peer.value(), message.data() + sent, message.size() - sent,
                         MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n > 0) sent += static_cast<size_t>(n);
      lone.context.progress();
    }
  }
  pair.pump_until([&] { return pair.client.placed_until == kTotal; });
  CHECK(pair.client.memory == data);
  CHECK(read_counter("tcp.staged_bytes_copied") - staged < kTotal / 500);
  pair.close();
}

TEST_CASE("a reset in the middle of DATA delivers what came and ends the link", "[tcp][end]") {
  DescriptorAudit audit;
  LoneContext lone;
  LinkAndPeer pair(lone);
  Bytes data = pattern(100'000, 5);
  pair.client.memory.assign(data.size(), std::byte{0});
  Bytes stream = frame(wire::Ping{.nonce = 2, .reply = false});
  append(stream, frame(data_at(3, 0), data));
  write_all(pair.peer.value(), stream.data(), 60'000);
  linger reset{1, 0};
  ::setsockopt(pair.peer.value(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
  pair.peer.reset();
  pair.pump_until([&] { return pair.client.down_calls > 0; });
  CHECK(pair.client.down == Code::kUnreachable);
  CHECK(pair.client.messages.size() == 1);
  CHECK(pair.client.placed_until > 0);
  pair.close();
}

TEST_CASE("a client may close the link inside any upcall", "[tcp][end]") {
  DescriptorAudit audit;
  LoneContext lone;
  Recording recording;
  SECTION("message") {
    LinkAndPeer pair(lone);
    recording.prepare(pair.client);
    pair.client.on_message = [&] {
      pair.close();
      return Status();
    };
    write_all(pair.peer.value(), recording.stream);
    pair.pump_until([&] { return pair.client.closed; });
    pair.pump();
    CHECK(pair.client.messages.size() == 1);
  }
  SECTION("placed") {
    LinkAndPeer pair(lone);
    recording.prepare(pair.client);
    pair.client.on_placed = [&] {
      pair.close();
      return Status();
    };
    write_all(pair.peer.value(), recording.stream);
    pair.pump_until([&] { return pair.client.closed; });
    pair.pump();
    CHECK(pair.client.placed_calls == 1);
  }
  SECTION("down") {
    LinkAndPeer pair(lone);
    pair.client.on_down = [&] { pair.close(); };
    pair.peer.reset();
    pair.pump_until([&] { return pair.client.closed; });
    pair.pump();
  }
  SECTION("another link's") {
    LinkAndPeer first(lone), second(lone);
    recording.prepare(first.client);
    recording.prepare(second.client);
    first.client.on_message = [&] {
      second.close();
      return Status();
    };
    second.client.on_message = [&] {
      first.close();
      return Status();
    };
    write_all(first.peer.value(), recording.stream);
    write_all(second.peer.value(), recording.stream);
    first.pump();
    CHECK(first.client.closed != second.client.closed);
    first.close();
    second.close();
  }
}

TEST_CASE("a status from the client takes the link down with it", "[tcp][end]") {
  LoneContext lone;
  LinkAndPeer pair(lone);
  pair.client.on_message = [] { return Status(Code::kAccessDenied, Scope::kEndpoint, "test"); };
  write_all(pair.peer.value(), frame(wire::Ping{.nonce = 2, .reply = false}));
  pair.pump_until([&] { return pair.client.down_calls > 0; });
  CHECK(pair.client.down == Code::kAccessDenied);
  pair.close();
}

}  // namespace
}  // namespace sluice::tcp
