// A proxy's link and a peer that says what no proxy says: the link ends with the reason, whatever
// comes, and keeps no more than its windows.
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <sluice/select/open.h>
#include <sluice/spi/endpoint_core.h>

#include "tests/support/fresh_name.h"
#include "tests/support/skip.h"
#include "tests/tcp/own_network.h"
#include "tools/proxy/frame.h"
#include "tools/proxy/link.h"
#include "tools/proxy/sockets.h"

namespace sluice::tools::proxy {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kWindow = kLeastWindow;
constexpr Frame kHello{
    .kind = FrameKind::kHello, .detail = kVersion, .stream = kMagic, .value = kWindow};
constexpr Frame kOpen{.kind = FrameKind::kOpen, .stream = 1};

Frame data(uint64_t stream, uint32_t length) {
  return {.kind = FrameKind::kData, .length = length, .stream = stream};
}
Frame piece(uint64_t stream, uint32_t length, uint64_t number) {
  return {.kind = FrameKind::kPiece, .length = length, .stream = stream, .value = number};
}
Frame credit(uint64_t stream, uint64_t total) {
  return {.kind = FrameKind::kCredit, .stream = stream, .value = total};
}
Frame end(uint64_t stream) { return {.kind = FrameKind::kEnd, .stream = stream}; }

// Over loopback: a link, with a service that takes connections and reads nothing, and the raw
// endpoint of its peer.
class Liar : private CompletionSink, private WantHandler {
 public:
  explicit Liar(bool with_service) {
    auto context = open_context({.arena_options = {.limit_bytes = size_t{64} << 20,
                                                   .first_extent_bytes = size_t{4} << 20}});
    REQUIRE(context.ok());
    context_ = std::move(*context);
    auto listening = find_addresses("unix:@" + test::fresh_name("proxy"));
    REQUIRE(listening.ok());
    service_ = *listening;
    auto socket = ListeningSocket::open(service_[0]);
    REQUIRE(socket.ok());
    listening_ = std::move(*socket);
    auto listener = context_->listen("loopback:" + test::fresh_name("proxy"));
    REQUIRE(listener.ok());
    auto endpoint = context_->connect(listener->address());
    REQUIRE(endpoint.ok());
    endpoint_ = std::move(*endpoint);
    endpoint_.core().set_want_handler(this);
    auto accepted = listener->accept(soon());
    REQUIRE(accepted.ok());
    LinkOptions options{.window = kWindow, .most_connections = 4, .service = {}};
    if (with_service) options.service = service_;
    link_ = std::make_unique<Link>(*context_, std::move(*accepted), totals_, options);
    REQUIRE(link_->start().ok());
  }
  ~Liar() {
    Link* const links[] = {link_.get()};
    finish(*context_, links, ResetReason::kEnding, soon());
    CHECK(link_->is_settled());
    CHECK(totals_.open == 0);
    link_.reset();
    endpoint_ = Endpoint();
    for (int i = 0; i < 100; ++i) context_->progress();
    service_.clear();
  }

  void say(std::span<const std::byte> message) {
    if (endpoint_.state() != EndpointState::kConnected) return;
    auto buffer = context_->allocate({static_cast<int64_t>(message.size())}, uint8);
    REQUIRE(buffer.ok());
    if (!message.empty()) std::memcpy(buffer->data(), message.data(), message.size());
    (void)endpoint_.send(kMagic, std::move(*buffer).freeze(), {.deadline = kNever});
    step();
  }
  void say(const Frame& frame, size_t rest = 0) {
    std::vector<std::byte> message(kFrameBytes + rest);
    encode(frame, message.data());
    say(message);
  }
  void step() {
    for (int i = 0; i < 20; ++i) {
      context_->progress();
      (void)link_->turn(context_->now());
    }
  }
  // Asks the link for one of its pieces.
  void ask(uint64_t number) {
    WantOptions want;
    want.key = "sluice.proxy";
    want.step = number;
    REQUIRE(endpoint_.core().post_want(want, {.sink = this, .deadline = kNever}).ok());
    step();
  }
  template <typename Done>
  bool reaches(Done&& done) {
    const Instant late = soon();
    while (!done() && context_->refresh_now() < late) step();
    return done();
  }
  std::string why() {
    (void)reaches([&] { return link_->failed(); });
    return std::string(link_->failure().detail());
  }
  Link& link() { return *link_; }
  const Totals& totals() const { return totals_; }
  size_t used_bytes() const { return context_->arena().statistics().used_bytes; }
  // Pieces are answered with tensors of so many bytes; 0: never.
  void answer_with(size_t bytes) { answer_ = bytes; }

 private:
  static Instant soon() { return after(now(), 10s); }
  void on_completion(Completion&&) noexcept override {}
  void on_want(EndpointCore& endpoint, const WantRequest& request) noexcept override {
    if (answer_ == 0) return;
    Tensor tensor = std::move(*context_->allocate({static_cast<int64_t>(answer_)}, uint8)).freeze();
    (void)endpoint.post_supply(request.token, tensor, {.deadline = kNever});
  }
  bool on_want_cancelled(EndpointCore&, uint64_t) noexcept override { return answer_ == 0; }
  void on_endpoint_closed(EndpointCore&, const Status&) noexcept override {}

  std::unique_ptr<Context> context_;
  std::vector<SocketAddress> service_;
  ListeningSocket listening_;
  Totals totals_;
  Endpoint endpoint_;
  std::unique_ptr<Link> link_;
  size_t answer_ = 0;
};

constexpr int kPortsStay = 2;

// What a child finds: 0 as it should be. Its network has two ports for callers, and the kernel
// takes the first of them.
int dials_its_own_port() {
  std::ofstream ports("/proc/sys/net/ipv4/ip_local_port_range");
  if (!(ports << "40000 40001" << std::flush)) return kPortsStay;
  const auto found = find_addresses("127.0.0.1:40000");
  if (!found.ok() || found->empty()) return 3;
  for (int call = 0; call < 4; ++call) {
    Result<Descriptor> socket = begin_connect(found->front());
    if (!socket.ok()) continue;  // told at once
    pollfd state{socket->value(), POLLOUT, 0};
    if (::poll(&state, 1, 10'000) != 1) return 4;
    if (connect_outcome(socket->value(), found->front()).code() != Code::kUnreachable) return 5;
    close_hard(*socket);
  }
  // The service that comes then finds its port free.
  return ListeningSocket::open(found->front()).ok() ? 0 : 6;
}

TEST_CASE("who is given the port that it dials has not reached a service", "[proxy]") {
  const int result = tcp::testing::in_own_network(dials_its_own_port);
  if (result < 0) return test::skip("netns", "unshare(CLONE_NEWNET) is not allowed here");
  if (result == kPortsStay)
    return test::skip("netns", "/proc/sys/net/ipv4/ip_local_port_range cannot be written here");
  CHECK(result == 0);
}

TEST_CASE("a frame is what was encoded, and nothing else is a frame", "[proxy]") {
  std::array<std::byte, kFrameBytes> bytes;
  const Frame told = piece(0x0123456789abcdef, 100'000, 0xfedcba9876543210);
  encode(told, bytes.data());
  auto frame = decode(bytes);
  REQUIRE(frame.ok());
  CHECK(frame->kind == told.kind);
  CHECK(frame->length == told.length);
  CHECK(frame->stream == told.stream);
  CHECK(frame->value == told.value);
  CHECK(static_cast<uint8_t>(bytes[0]) == 4);
  CHECK(static_cast<uint8_t>(bytes[8]) == 0xef);
  CHECK_FALSE(decode(std::span(bytes).first(kFrameBytes - 1)).ok());
  bytes[3] = std::byte{1};
  CHECK_FALSE(decode(bytes).ok());
}

struct Lie {
  const char* why;
  std::vector<Frame> frames;
  size_t rest = 0;  // bytes behind the last frame
};

TEST_CASE("a lie of the peer ends the link with its name", "[proxy]") {
  const uint32_t half = kWindow / 2;
  Frame old = kHello, narrow = kHello, stranger = kHello;
  old.detail = kVersion + 1;
  narrow.value = kLeastWindow - 1;
  stranger.stream = 7;
  const std::vector<Lie> lies = {
      {"another frame before HELLO", {kOpen}},
      {"another version of the proxy's frames", {old}},
      {"a window outside 64 KiB to 256 MiB", {narrow}},
      {"a HELLO that is no proxy's", {stranger}},
      {"a second HELLO", {kHello, kHello}},
      {"a stream out of its turn", {kHello, {.kind = FrameKind::kOpen, .stream = 2}}},
      {"a stream out of its turn", {kHello, kOpen, kOpen}},
      {"stream 0", {kHello, end(0)}},
      {"a frame of a stream that was not opened", {kHello, kOpen, end(2)}},
      {"DATA of another length than its message", {kHello, kOpen, data(1, 100)}, 99},
      {"DATA of another length than its message", {kHello, kOpen, data(1, 0)}},
      {"bytes behind a frame", {kHello, kOpen, end(1)}, 1},
      {"a message longer than any frame", {kHello, kOpen, data(1, 20'000)}, 20'000},
      {"a PIECE of a length that none has", {kHello, kOpen, piece(1, UINT32_MAX, 1)}},
      {"a PIECE of a length that none has", {kHello, kOpen, piece(1, 100, 1)}},
      {"a piece out of its turn", {kHello, kOpen, piece(1, half, 2)}},
      {"more data than it was given credit for",
       {kHello, kOpen, piece(1, half, 1), piece(1, half, 2), piece(1, half, 3)}},
      {"credit for what was not sent", {kHello, kOpen, credit(1, 1)}},
      {"a second END", {kHello, kOpen, piece(1, half, 1), end(1), end(1)}},
      {"data after its END", {kHello, kOpen, end(1), data(1, 1)}, 1},
      {"a RESET for no known reason",
       {kHello, kOpen, {.kind = FrameKind::kReset, .detail = 9, .stream = 1}}},
      {"a frame of unknown kind", {kHello, {.kind = static_cast<FrameKind>(77), .stream = 1}}},
  };
  for (const Lie& lie : lies) {
    INFO(lie.why);
    Liar liar(true);
    for (size_t i = 0; i < lie.frames.size(); ++i)
      liar.say(lie.frames[i], i + 1 == lie.frames.size() ? lie.rest : 0);
    CHECK(liar.why() == lie.why);
    CHECK(liar.totals().lies == 1);
  }
}

TEST_CASE("a peer opens no stream towards a proxy without a service", "[proxy]") {
  Liar liar(false);
  liar.say(kHello);
  liar.say(kOpen);
  CHECK(liar.why() == "a stream opened towards a proxy without a service");
}

TEST_CASE("a piece must have the length that was announced", "[proxy]") {
  for (size_t bytes : {size_t{20'000}, size_t{40'000}}) {
    Liar liar(true);
    liar.answer_with(bytes);
    liar.say(kHello);
    liar.say(kOpen);
    liar.say(piece(1, 30'000, 1));
    CHECK(liar.why() == "a piece of another length than was announced");
  }
}

TEST_CASE("a piece asked for that was not announced ends the link", "[proxy]") {
  Liar liar(true);
  liar.say(kHello);
  liar.ask(1);
  CHECK(liar.why() == "a piece asked for that was not announced");
}

// However much the peer says that it takes.
TEST_CASE("a peer that asks for nothing and reads nothing makes a link keep one window",
          "[proxy]") {
  const uint64_t window = GENERATE(kWindow, kMostWindow);
  Liar liar(false);
  Frame hello = kHello;
  hello.value = window;
  liar.say(hello);
  const size_t before = liar.used_bytes();
  std::array<int, 2> pair;
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair.data()) == 0);
  Descriptor program(pair[0]);
  liar.link().open(Descriptor(pair[1]));
  const std::vector<char> bytes(100'000);
  for (int i = 0; i < 100; ++i) {
    (void)::send(program.value(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    liar.step();
  }
  CHECK(liar.totals().bytes_out == kWindow);
  CHECK(liar.used_bytes() - before < 2 * kWindow);
  // Granted, it goes on.
  liar.say(credit(1, kWindow / 2));
  CHECK(liar.reaches([&] { return liar.totals().bytes_out == kWindow + kWindow / 2; }));
}

TEST_CASE("connections above the limit are reset, and frames for them are late", "[proxy]") {
  Liar liar(true);
  liar.say(kHello);
  for (uint64_t stream = 1; stream <= 300; ++stream) {
    liar.say({.kind = FrameKind::kOpen, .stream = stream});
    liar.say(data(stream, 10), 10);
  }
  CHECK_FALSE(liar.link().failed());
  CHECK(liar.totals().open == 4);
  CHECK(liar.totals().refused_many == 296);
}

TEST_CASE("a link whose proxy ends takes no further stream", "[proxy]") {
  Liar liar(true);
  liar.say(kHello);
  liar.say(kOpen);
  liar.link().take_no_more();
  liar.say({.kind = FrameKind::kOpen, .stream = 2});
  liar.say(data(2, 10), 10);  // it had been sent before the peer knew
  CHECK_FALSE(liar.link().failed());
  CHECK(liar.totals().open == 1);
  CHECK(liar.totals().connections == 1);
  CHECK(liar.totals().refused_ending == 1);
}

TEST_CASE("no bytes make a link crash", "[proxy]") {
  std::mt19937_64 random(20261123);
  for (int round = 0; round < 300; ++round) {
    Liar liar(true);
    liar.answer_with(round % 2 == 0 ? 10'000 : 0);
    liar.say(kHello);
    liar.say(kOpen);
    uint64_t pieces = 0;
    for (int i = 0; i < 40 && !liar.link().failed(); ++i) {
      Frame frame{.kind = static_cast<FrameKind>(random() % 9),
                  .detail = static_cast<uint8_t>(random() % 5),
                  .length = static_cast<uint32_t>(random() % 3 == 0 ? random() : 10'000),
                  .stream = random() % 3,
                  .value = random() % 3 == 0 ? random() : random() % 100};
      if (frame.kind == FrameKind::kPiece && random() % 4 != 0) frame.value = ++pieces;
      std::vector<std::byte> message(kFrameBytes +
                                     (frame.kind == FrameKind::kData ? random() % 200 : 0));
      if (random() % 4 != 0) frame.length = static_cast<uint32_t>(message.size() - kFrameBytes);
      if (frame.kind == FrameKind::kPiece) frame.length = 10'000;
      encode(frame, message.data());
      if (random() % 16 == 0) message[random() % message.size()] ^= std::byte{4};
      if (random() % 32 == 0) message.resize(random() % kFrameBytes);
      liar.say(message);
    }
  }
  SUCCEED("it ended every time");
}

}  // namespace
}  // namespace sluice::tools::proxy
