// Fixtures of this room's tests: a context with only a link group in it, a recording
// client, a raw peer socket, an audit of descriptors. Not part of the library.
#ifndef SLUICE_TESTS_TCP_TESTING_H_
#define SLUICE_TESTS_TCP_TESTING_H_

#include <dirent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sluice/runtime/context_core.h>
#include <sluice/spi/endpoint_core.h>
#include <sluice/tcp/link.h>
#include <sluice/tcp/link_group.h>
#include <sluice/tcp/socket.h>

namespace sluice::tcp::testing {

using Bytes = std::vector<std::byte>;

inline int open_descriptors() {
  int count = 0;
  DIR* directory = ::opendir("/proc/self/fd");
  while (::readdir(directory) != nullptr) ++count;
  ::closedir(directory);
  return count;
}

// At its end as many descriptors are open as at its beginning.
class DescriptorAudit {
 public:
  DescriptorAudit() : before_(open_descriptors()) {}
  ~DescriptorAudit() { CHECK(open_descriptors() == before_); }

 private:
  int before_;
};

// Drives a LinkGroup as the real provider does, without sessions.
class GroupProvider final : public Provider {
 public:
  explicit GroupProvider(ContextCore& context, StreamSource* streams = nullptr)
      : group(context, streams) {
    in_use_ = true;
  }
  Scheme scheme() const override { return Scheme::kTcp; }
  Task<Result<std::shared_ptr<EndpointCore>>> start_connect(const Address&,
                                                            const ConnectOptions&) override {
    co_return unsupported();
  }
  Result<std::unique_ptr<ListenerCore>> listen(const Address&, const ListenOptions&) override {
    return unsupported();
  }
  size_t progress(Instant now) override { return group.progress(now); }
  bool begin_sleep() override {
    group.begin_sleep();
    return !group.has_work();
  }
  void end_sleep() override { group.end_sleep(); }
  Instant next_timeout() override { return group.next_timeout(); }
  void shut_down() override {}

  LinkGroup group;

 private:
  static Status unsupported() {
    return Status(Code::kUnsupported, Scope::kOperation, "tcp/testing");
  }
};

struct LoneContext {
  explicit LoneContext(Waiting waiting = Waiting::kSleep, StreamSource* streams = nullptr)
      : context({.arena = {}, .arena_options = {}, .waiting = waiting}, nullptr) {
    REQUIRE(context.initialise().ok());
    auto provider = std::make_unique<GroupProvider>(context, streams);
    group = &provider->group;
    context.add_provider(std::move(provider));
  }
  ContextCore context;
  LinkGroup* group = nullptr;
};

// Small writes of a test arrive one by one, at once: no pacing by the congestion control,
// no waiting for more.
inline void send_without_delay(int fd) {
  int one = 1;
  REQUIRE(::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4) == 0);
  REQUIRE(::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) == 0);
}

inline Instant soon() { return after(now(), std::chrono::seconds(20)); }

// Connected over loopback: a non-blocking end for a link, a blocking one for the test.
struct SocketPair {
  Descriptor ours, theirs;
};
inline SocketPair socket_pair(int receive_buffer = 0) {
  Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // A window that stays small is set before the connection is made.
  if (receive_buffer > 0)
    ::setsockopt(listener.value(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  REQUIRE(::bind(listener.value(), generic, length) == 0);
  REQUIRE(::listen(listener.value(), 1) == 0);
  REQUIRE(::getsockname(listener.value(), generic, &length) == 0);
  auto ours = open_stream_socket(AF_INET);
  REQUIRE(ours.ok());
  REQUIRE(set_connection_options(ours->value()).ok());
  (void)::connect(ours->value(), generic, length);
  SocketPair pair;
  pair.ours = std::move(ours).value();
  pair.theirs = Descriptor(::accept4(listener.value(), nullptr, nullptr, SOCK_CLOEXEC));
  REQUIRE(pair.theirs);
  send_without_delay(pair.theirs.value());
  return pair;
}

inline void write_all(int fd, const void* data, size_t length) {
  REQUIRE(::send(fd, data, length, MSG_NOSIGNAL) == static_cast<ssize_t>(length));
}
inline void write_all(int fd, const Bytes& bytes) { write_all(fd, bytes.data(), bytes.size()); }

// Payload that differs at every place and with every seed.
inline Bytes pattern(size_t length, uint32_t seed) {
  Bytes bytes(length);
  uint32_t state = seed * 2654435761u + 1;
  for (auto& byte : bytes) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<std::byte>(state >> 24);
  }
  return bytes;
}

// The bytes of one message on the wire.
template <typename Message>
Bytes frame(Message message, const Bytes& payload = {}) {
  if constexpr (requires { message.payload_bytes; })
    message.payload_bytes = static_cast<uint32_t>(payload.size());
  Bytes out(wire::kMaxHeaderBytes);
  out.resize(wire::encode(message, out));
  out.insert(out.end(), payload.begin(), payload.end());
  return out;
}

inline Bytes ping(uint64_t nonce) { return frame(wire::Ping{.nonce = nonce, .reply = false}); }

inline void append(Bytes& stream, const Bytes& more) {
  stream.insert(stream.end(), more.begin(), more.end());
}

inline wire::Data data_at(uint64_t id, uint64_t offset) {
  wire::Data data;
  data.id = id;
  data.offset = offset;
  return data;
}

inline Bytes inline_offer(uint64_t id, const Bytes& payload) {
  wire::Offer offer{};
  offer.id = id;
  offer.flags = wire::Offer::kInline;
  offer.total = payload.size();
  return frame(offer, payload);
}

// Writes down what a link says; DATA goes into `memory`.
class Recorder : public LinkClient, public StreamClient {
 public:
  // Stream links hand over every header as it came.
  Status handle_tagged_inline(const wire::TaggedInline&, PayloadReader&, Instant) override {
    std::abort();
  }
  Status handle_message(ConstBytes header, PayloadReader& payload, Instant) override {
    check_upcall();
    auto common = wire::decode_header(header);
    REQUIRE(common.ok());
    Bytes message(header.begin(), header.end());
    message.resize(header.size() + common->payload_bytes);
    payload.read(std::span(message).subspan(header.size()));
    messages.push_back(std::move(message));
    if (on_message) return on_message();
    return Status();
  }
  Placement place(uint64_t id, uint64_t offset, uint64_t length) override {
    check_upcall();
    Placement placement;
    if (!wanted || (offset >= wanted_until)) return placement;
    REQUIRE(offset + length <= memory.size());
    last_id = id;
    size_t run = run_bytes == 0 ? length : run_bytes;
    while (length > 0 && placement.count < kMaxPlaces) {
      size_t part = std::min<size_t>(run, length);
      placement.runs[placement.count++] = std::span(memory).subspan(offset, part);
      offset += part;
      length -= part;
    }
    return placement;
  }
  Status placed(uint64_t, uint64_t offset, uint64_t length, Instant) override {
    check_upcall();
    if (in_order) CHECK(offset == placed_until);
    placed_until = offset + length;
    ++placed_calls;
    if (on_placed) return on_placed();
    return Status();
  }
  void pushed(uint64_t cookie, uint64_t length, Instant) override {
    check_upcall();
    if (pushed_bytes.size() <= cookie) pushed_bytes.resize(cookie + 1);
    pushed_bytes[cookie] += length;
    if (on_pushed) on_pushed();
  }
  bool note_messages(uint32_t count, Duration took, Instant) override {
    noted += count;
    noted_time += took;
    return idle_talk;
  }
  bool overdrawn(Instant) const override { return rests; }
  void writable(Instant) override {
    check_upcall();
    ++writable_calls;
  }
  void link_down(const Status& why, Instant) override {
    check_upcall();
    ++down_calls;
    down = why;
    if (on_down) on_down();
  }
  void check_upcall() {
    // Never from inside a call into the link, never after close().
    CHECK(!calling);
    CHECK(!closed);
    CHECK(down_calls == 0);
  }

  std::vector<Bytes> messages;
  Bytes memory;
  size_t run_bytes = 0;  // 0: one run
  bool wanted = true;
  bool in_order = true;  // offsets of DATA follow each other
  uint64_t wanted_until = ~uint64_t{0};
  uint64_t placed_until = 0;
  uint64_t last_id = 0;
  int placed_calls = 0, writable_calls = 0, down_calls = 0;
  bool idle_talk = false, rests = false;  // what the link is told
  uint64_t noted = 0;                     // messages that the link told of
  Duration noted_time{};
  std::vector<uint64_t> pushed_bytes;
  Status down;
  bool calling = false, closed = false;
  std::function<Status()> on_message, on_placed;
  std::function<void()> on_pushed, on_down;
};

// A link with a recorder, and the raw other end.
struct LinkAndPeer {
  explicit LinkAndPeer(LoneContext& lone, int peer_receive_buffer = 0) : lone(lone) {
    SocketPair pair = socket_pair(peer_receive_buffer);
    peer = std::move(pair.theirs);
    link = std::make_unique<TcpLink>(*lone.group, std::move(pair.ours));
    REQUIRE(link->watch().ok());
    link->set_client(&client, &client);
  }
  // What has arrived by now is handled.
  void pump() {
    for (int i = 0; i < 200; ++i) lone.context.progress();
  }
  template <typename Condition>
  void pump_until(Condition&& done) {
    REQUIRE(lone.context.wait_until(done, soon()).ok());
  }
  bool send(const Bytes& header, const Bytes& payload = {}) {
    client.calling = true;
    ConstBytes part(payload);
    bool sent =
        link->send(header, payload.empty() ? std::span<const ConstBytes>() : std::span(&part, 1));
    client.calling = false;
    return sent;
  }
  bool push(const Bytes& header, std::span<const ConstBytes> payload, uint64_t cookie) {
    client.calling = true;
    bool pushed = link->push(header, payload, cookie);
    link->flush();
    client.calling = false;
    return pushed;
  }
  void close() {
    client.closed = true;
    link->close();
  }
  // Everything the link sent until `total` bytes came, progressing it meanwhile.
  Bytes read_peer(size_t total) {
    Bytes bytes(total);
    size_t done = 0;
    Instant deadline = soon();
    while (done < total) {
      ssize_t got = ::recv(peer.value(), bytes.data() + done, total - done, MSG_DONTWAIT);
      if (got > 0) done += static_cast<size_t>(got);
      if (got == 0) break;
      lone.context.progress();
      if (now() > deadline) break;
    }
    bytes.resize(done);
    return bytes;
  }

  LoneContext& lone;
  Recorder client;
  Descriptor peer;
  std::unique_ptr<TcpLink> link;
};

}  // namespace sluice::tcp::testing

#endif  // SLUICE_TESTS_TCP_TESTING_H_
