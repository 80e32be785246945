// Payload that the kernel sends out of the tensors' pages: content, when they come back, and when
// it is not tried. Over loopback the kernel copies them all the same, behind the receiver.
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <algorithm>
#include <thread>

#include <sluice/base/counters.h>
#include "tests/tcp/testing.h"

namespace sluice::tcp {
namespace {

using namespace testing;

constexpr size_t kChunk = size_t{1} << 20;
// Holds a part of what is lent. In less than that a receiver on this machine has no room for the
// pages into which the kernel copies late, and takes a frame every now and then.
constexpr int kSmallWindow = 64 << 10;
constexpr LendingRules kAlways{
    .wanted = true, .least_bytes = 1, .anywhere = true, .stops_if_copied = false};

Bytes data_header(uint64_t offset, size_t length) {
  wire::Data data = data_at(1, offset);
  data.payload_bytes = static_cast<uint32_t>(length);
  Bytes out(wire::kMaxHeaderBytes);
  out.resize(wire::encode(data, out));
  return out;
}

uint64_t sends() { return read_counter("tcp.zerocopy_sends"); }

struct Lender : LinkAndPeer {
  explicit Lender(LoneContext& lone, const LendingRules& rules = kAlways, int receive_buffer = 0)
      : LinkAndPeer(with(lone, rules), receive_buffer) {}
  static LoneContext& with(LoneContext& lone, const LendingRules& rules) {
    lone.group->set_lending(rules);
    return lone;
  }
  // False: no room.
  bool lend(const Bytes& payload, uint64_t cookie, size_t split = 0) {
    const Bytes header = data_header(0, payload.size());
    const std::array<ConstBytes, 2> runs{ConstBytes(payload).first(split),
                                         ConstBytes(payload).subspan(split)};
    client.calling = true;
    const bool lent = link->lend(header, runs, cookie);
    link->flush();
    client.calling = false;
    if (!lent) return false;
    append(expected, header);
    append(expected, payload);
    return true;
  }
  uint64_t reported(uint64_t cookie) const {
    return client.pushed_bytes.size() > cookie ? client.pushed_bytes[cookie] : 0;
  }
  bool heard_all(uint64_t cookie, uint64_t bytes) {
    return lone.context.wait_until([&] { return reported(cookie) == bytes; }, soon()).ok();
  }

  Bytes expected;  // what the peer is to read
};

// 0: all that the kernel takes. Else it takes no more than that of a call that lends, and has room.
size_t most_lent_by_call = 0;

// Memory that tells when its last holder is gone.
class Watched final : public Storage {
 public:
  explicit Watched(Bytes& bytes) {
    reset(bytes.data(), bytes.size(), StorageKind::kForeign,
          [](Storage* storage) noexcept { static_cast<Watched*>(storage)->held_ = false; });
  }
  bool held() const { return held_; }

 private:
  bool held_ = true;
};

}  // namespace

TEST_CASE("lent payload is reported when the kernel has let go of it, and not when it has taken it",
          "[tcp][lending]") {
  LoneContext lone;
  Lender pair(lone, kAlways, kSmallWindow);
  const uint64_t before = sends();
  const Bytes payload = pattern(600'000, 5);
  REQUIRE(pair.lend(payload, 0, 1000));
  // The socket has it, and its peer has not read it.
  pair.pump_until([&] { return !pair.link->has_unsent(); });
  CHECK(sends() > before);
  pair.pump();
  CHECK(pair.reported(0) < payload.size());
  CHECK((pair.read_peer(pair.expected.size()) == pair.expected));
  CHECK(pair.heard_all(0, payload.size()));
  CHECK(pair.link->uncopied_out(payload.size()) == 0);  // the kernel says that it copied
  pair.close();
}

// The kernel takes a part of a call for other reasons as well, and tells of room only if there was
// none.
TEST_CASE("a call that was taken in part does not say that there is no room", "[tcp][lending]") {
  LoneContext lone;
  Lender pair(lone);
  const uint64_t before = sends(), blocked = read_counter("tcp.writes_blocked");
  const Bytes payload = pattern(8000, 6);
  most_lent_by_call = 3000;
  const bool lent = pair.lend(payload, 0, 1000);
  most_lent_by_call = 0;
  REQUIRE(lent);
  CHECK_FALSE(pair.link->has_unsent());
  CHECK(sends() == before + 3);
  CHECK(read_counter("tcp.writes_blocked") == blocked);
  CHECK((pair.read_peer(pair.expected.size()) == pair.expected));
  CHECK(pair.heard_all(0, payload.size()));
  pair.close();
}

TEST_CASE("lent payload, pushed payload and messages keep their order, and arrive whole",
          "[tcp][lending]") {
  LoneContext lone;
  Lender pair(lone);
  constexpr uint64_t kRounds = 40;
  uint64_t total = 0, read = 0;
  Bytes got;
  std::vector<Bytes> payloads;  // in place until they are reported
  payloads.reserve(kRounds);
  for (uint64_t i = 0; i < kRounds; ++i) {
    payloads.push_back(pattern(1 + i * 7001, static_cast<uint32_t>(i)));
    const Bytes& payload = payloads.back();
    const Bytes header = data_header(0, payload.size());
    auto put = [&] {
      if (i % 3 != 2) return pair.lend(payload, i % 2, payload.size() / 3);
      const ConstBytes run(payload);
      if (!pair.push(header, std::span(&run, 1), i % 2)) return false;
      append(pair.expected, header);
      append(pair.expected, payload);
      return true;
    };
    while (!put()) append(got, pair.read_peer(pair.expected.size() - got.size()));
    if (pair.send(ping(i))) append(pair.expected, ping(i));
    total += payload.size();
  }
  append(got, pair.read_peer(pair.expected.size() - got.size()));
  CHECK((got == pair.expected));
  pair.pump_until([&] { return pair.reported(0) + pair.reported(1) == total; });
  read = pair.reported(0) + pair.reported(1);
  CHECK(read == total);
  pair.close();
}

TEST_CASE("what is only pushed is never lent, so that it can be settled",
          "[tcp][lending][revoke]") {
  LoneContext lone;
  Lender pair(lone);
  const uint64_t before = sends();
  const Bytes payload = pattern(kChunk, 3);
  const ConstBytes run(payload);
  REQUIRE(pair.push(data_header(0, kChunk), std::span(&run, 1), 0));
  pair.read_peer(data_header(0, kChunk).size() + kChunk);
  pair.pump_until([&] { return pair.reported(0) == kChunk; });
  CHECK(sends() == before);
  pair.close();
}

TEST_CASE("a connection stops to lend where the kernel copies anyway", "[tcp][lending]") {
  LoneContext lone;
  Lender pair(lone, {.anywhere = true});
  const Bytes payload = pattern(kChunk, 3);
  const uint64_t off = read_counter("tcp.zerocopy_turned_off"), sent_before = sends(),
                 copied_before = read_counter("tcp.zerocopy_copied");
  uint64_t rounds = 0;
  auto transfer = [&] {
    ++rounds;
    pair.expected.clear();
    REQUIRE(pair.lend(payload, 0));
    REQUIRE((pair.read_peer(pair.expected.size()) == pair.expected));
    REQUIRE(pair.heard_all(0, rounds * kChunk));
  };
  while (read_counter("tcp.zerocopy_turned_off") == off && rounds < 100) transfer();
  CHECK(read_counter("tcp.zerocopy_turned_off") == off + 1);
  const uint64_t sent = sends();
  CHECK(sent > sent_before);
  CHECK(read_counter("tcp.zerocopy_copied") - copied_before == sent - sent_before);
  for (int i = 0; i < 5; ++i) transfer();
  CHECK(sends() == sent);
  pair.close();
}

TEST_CASE("nothing is lent to this machine, in short pieces, or against the setting",
          "[tcp][lending]") {
  struct Case {
    LendingRules rules;
    size_t bytes;
  };
  const LendingRules usual;
  const auto [rules, bytes] =
      GENERATE_COPY(values<Case>({{usual, kChunk},
                                  {{.wanted = false, .anywhere = true}, kChunk},
                                  {{.anywhere = true}, usual.least_bytes - 1}}));
  LoneContext lone;
  Lender pair(lone, rules);
  const uint64_t before = sends();
  const Bytes payload = pattern(bytes, 3);
  REQUIRE(pair.lend(payload, 0));
  CHECK((pair.read_peer(pair.expected.size()) == pair.expected));
  CHECK(pair.heard_all(0, bytes));
  CHECK(sends() == before);
  pair.close();
}

TEST_CASE("many short loans to a peer that does not read are bounded, and the rest is copied",
          "[tcp][lending]") {
  LoneContext lone;
  Lender pair(lone, kAlways, kSmallWindow);
  const uint64_t before = sends();
  const Bytes filler = pattern(600'000, 1), payload = pattern(700, 2);
  REQUIRE(pair.lend(filler, 0));
  pair.pump();
  uint64_t taken = 0;
  for (int i = 0; i < 300; ++i) {
    if (pair.lend(payload, 1)) ++taken;
  }
  CHECK(taken > 100);
  CHECK(sends() - before >= 10);
  CHECK(sends() - before <= 64);
  CHECK((pair.read_peer(pair.expected.size()) == pair.expected));
  CHECK(pair.heard_all(1, taken * payload.size()));
  CHECK(pair.heard_all(0, filler.size()));
  pair.close();
}

TEST_CASE("where no page may be pinned, or few, bulk is copied, and the first is said once",
          "[tcp][lending]") {
  const rlim_t limit = GENERATE(0, 128 << 10);
  rlimit usual;
  REQUIRE(::getrlimit(RLIMIT_MEMLOCK, &usual) == 0);
  const rlimit less{limit, usual.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_MEMLOCK, &less) == 0);
  const uint64_t refused = read_counter("tcp.zerocopy_refused");
  int whole = 0, heard = 0;
  // Of this thread alone: it is not exempt from the limit.
  std::thread([&] {
    __user_cap_header_struct who{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct has[2] = {};
    ::syscall(SYS_capget, &who, has);
    has[0].effective &= ~(1u << CAP_IPC_LOCK);
    ::syscall(SYS_capset, &who, has);
    LoneContext lone;
    Lender pair(lone);
    const Bytes payload = pattern(kChunk, 3);
    for (uint64_t i = 1; i <= 3; ++i) {
      pair.lend(payload, 0);
      whole += pair.read_peer(pair.expected.size()) == pair.expected ? 1 : 0;
      pair.expected.clear();
      heard += pair.heard_all(0, i * kChunk) ? 1 : 0;
    }
    pair.close();
  }).join();
  CHECK(::setrlimit(RLIMIT_MEMLOCK, &usual) == 0);
  CHECK(whole == 3);
  CHECK(heard == 3);
  if (limit == 0) CHECK(read_counter("tcp.zerocopy_refused") == refused + 1);
}

TEST_CASE("notifications are not taken for the end of a connection, and its end is found",
          "[tcp][lending][end]") {
  LoneContext lone;
  Lender pair(lone);
  const Bytes payload = pattern(kChunk, 3);
  for (uint64_t i = 1; i <= 5; ++i) {
    pair.expected.clear();
    REQUIRE(pair.lend(payload, 0));
    pair.read_peer(pair.expected.size());
    REQUIRE(pair.heard_all(0, i * kChunk));
    // Nobody looks at the socket before it says something.
    write_all(pair.peer.value(), ping(i));
    pair.pump_until([&] { return pair.client.messages.size() == i; });
  }
  CHECK(pair.client.down_calls == 0);
  pair.peer.reset();
  pair.pump_until([&] { return pair.client.down_calls == 1; });
  pair.close();
}

TEST_CASE("a peer that dies with loans out takes the connection down, and they come back",
          "[tcp][lending][end]") {
  DescriptorAudit audit;
  LoneContext lone;
  Bytes memory = pattern(kChunk, 3);
  Watched watched(memory);
  Lender pair(lone, kAlways, kSmallWindow);
  REQUIRE(pair.lend(memory, 0));
  pair.pump();
  linger reset{1, 0};
  ::setsockopt(pair.peer.value(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
  pair.peer.reset();
  pair.pump_until([&] { return pair.client.down_calls == 1; });
  pair.link->quarantine(StorageRef::adopt(&watched));
  pair.close();
  CHECK(lone.context.wait_until([&] { return !watched.held(); }, soon()).ok());
  lone.group->drop_remains();
}

// All of it is with the kernel, which still needs it.
void close_while_lent(Lender& pair, Bytes& memory, Watched& watched) {
  REQUIRE(pair.lend(memory, 0));
  pair.pump_until([&] { return !pair.link->has_unsent(); });
  pair.link->quarantine(StorageRef::adopt(&watched));
  pair.close();
}

TEST_CASE("memory stays while a closed socket sends of it, and everything arrives",
          "[tcp][lending][end]") {
  DescriptorAudit audit;
  LoneContext lone;
  Bytes memory = pattern(600'000, 3);
  Watched watched(memory);
  Lender pair(lone, kAlways, kSmallWindow);
  close_while_lent(pair, memory, watched);
  pair.pump();
  CHECK(watched.held());
  CHECK((pair.read_peer(pair.expected.size()) == pair.expected));
  // In good order, whether or not anybody makes progress here.
  pollfd end{.fd = pair.peer.value(), .events = POLLIN, .revents = 0};
  REQUIRE(::poll(&end, 1, 20'000) == 1);
  std::byte more;
  CHECK(::recv(pair.peer.value(), &more, 1, 0) == 0);
  CHECK(lone.context.wait_until([&] { return !watched.held(); }, soon()).ok());
  CHECK(!lone.group->has_remains());
}

TEST_CASE("a closed socket whose peer does not read is reset in the end, and the memory comes back",
          "[tcp][lending][end]") {
  DescriptorAudit audit;
  LoneContext lone;
  Bytes memory = pattern(600'000, 3);
  Watched watched(memory);
  Lender pair(lone, kAlways, kSmallWindow);
  close_while_lent(pair, memory, watched);
  const uint64_t abandoned = read_counter("tcp.zerocopy_abandoned");
  lone.group->progress(lone.context.now());
  CHECK(watched.held());
  lone.group->progress(after(lone.context.now(), std::chrono::minutes(1)));
  CHECK(!watched.held());
  CHECK(read_counter("tcp.zerocopy_abandoned") == abandoned + 1);
  // What the memory is used for next does not reach the peer.
  memory.assign(memory.size(), std::byte{0xEE});
  Bytes got;
  std::array<std::byte, 65536> part;
  ssize_t length;
  while ((length = ::recv(pair.peer.value(), part.data(), part.size(), 0)) > 0)
    got.insert(got.end(), part.begin(), part.begin() + length);
  CHECK(length < 0);
  CHECK(got.size() < pair.expected.size());
  CHECK(std::equal(got.begin(), got.end(), pair.expected.begin()));
}

TEST_CASE("memory is not kept for a socket that has nothing lent", "[tcp][lending][end]") {
  DescriptorAudit audit;
  LoneContext lone;
  Bytes memory = pattern(1000, 3);
  Watched watched(memory);
  Lender pair(lone);
  pair.link->quarantine(StorageRef::adopt(&watched));
  CHECK(!watched.held());
  pair.close();
  CHECK(!lone.group->has_remains());
}

}  // namespace sluice::tcp

// In place of libc's, for the whole program.
extern "C" ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  msghdr part = *message;
  std::vector<iovec> pieces(message->msg_iov, message->msg_iov + message->msg_iovlen);
  const size_t most = sluice::tcp::most_lent_by_call;
  if (most > 0 && (flags & MSG_ZEROCOPY) != 0) {
    size_t left = most;
    for (iovec& piece : pieces) {
      piece.iov_len = std::min(piece.iov_len, left);
      left -= piece.iov_len;
    }
    part.msg_iov = pieces.data();
  }
  return ::syscall(SYS_sendmsg, fd, &part, flags);
}
