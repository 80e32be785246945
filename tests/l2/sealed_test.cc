// Sealed connections of the Ethernet backend: the secret's file, who is refused and why, and
// what a third program sees on the wire.
#include <catch2/catch.hpp>

#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include <sluice/api/context.h>
#include <sluice/base/counters.h>
#include <sluice/runtime/secret.h>
#include <sluice/select/open.h>

#include "tests/l2/secrets.h"
#include "tests/l2/wire.h"
#include "tests/support/audit.h"
#include "tests/support/skip.h"

namespace sluice::test {
namespace {

#define NEEDS_WIRE() \
  if (!own_network()) return skip("netns", kNoNetwork)

class Other final : public ProgressHook {
 public:
  size_t progress(Instant) override { return context->progress(); }
  Instant next_timeout() override { return kNever; }
  Context* context = nullptr;
};

Instant soon() { return after(now(), std::chrono::seconds(20)); }

// A listener with one secret's file, and who connects with another's; either may be empty.
struct Two {
  Two(const std::string& listens, const std::string& connects) {
    near = std::move(open_context({.arena = {}, .arena_options = {}, .waiting = Waiting::kSpin}))
               .value();
    far = std::move(open_context({.arena = {}, .arena_options = {}, .waiting = Waiting::kSpin}))
              .value();
    auto listening = far->listen("l2://lo:0", {.require = {}, .secret_file = listens});
    INFO(listening.status().to_string());
    REQUIRE(listening.ok());
    listener = std::move(listening).value();
    hook.context = far.get();
    near->add_hook(&hook);
    connected = near->connect(listener.address(), {.require = {}, .secret_file = connects});
    if (!connected.ok()) return;
    auto accepted = listener.accept(soon());
    REQUIRE(accepted.ok());
    server = std::move(accepted).value();
  }
  ~Two() { near->remove_hook(&hook); }

  std::unique_ptr<Context> near, far;
  Other hook;
  Listener listener;
  Result<Endpoint> connected = Status(Code::kInternal, Scope::kOperation, "test");
  Endpoint server;
};

struct Box final : CompletionSink {
  void on_completion(Completion&& completion) noexcept override {
    all.push_back(std::move(completion));
  }
  std::vector<Completion> all;
};

// Sees every frame of the loopback interface.
struct Eavesdropper {
  Eavesdropper()
      : fd(::socket(AF_PACKET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, htons(kEveryProtocol))) {
    sockaddr_ll where{};
    where.sll_family = AF_PACKET, where.sll_protocol = htons(kEveryProtocol),
    where.sll_ifindex = static_cast<int>(::if_nametoindex("lo"));
    REQUIRE(fd >= 0);
    REQUIRE(::bind(fd, reinterpret_cast<sockaddr*>(&where), sizeof(where)) == 0);
  }
  ~Eavesdropper() { ::close(fd); }
  // How many frames, and how many of them hold the text.
  std::pair<int, int> heard(const std::string& text) {
    std::vector<char> frame(70'000);
    std::pair<int, int> counts;
    for (ssize_t got; (got = ::recv(fd, frame.data(), frame.size(), 0)) > 0; ++counts.first) {
      counts.second += std::search(frame.begin(), frame.begin() + got, text.begin(), text.end()) !=
                       frame.begin() + got;
    }
    return counts;
  }
  static constexpr uint16_t kEveryProtocol = 3;  // ETH_P_ALL
  int fd;
};

}  // namespace

TEST_CASE("a secret's file is ours alone, and long enough", "[l2][seal]") {
  auto load = [](const std::string& content, mode_t mode) {
    SecretFile file(content, mode);
    auto secret = Secret::load(file.path);
    return std::pair{
        secret.ok() ? Code::kOk : secret.code(),
        secret.ok() ? std::string(secret.value()->bytes().begin(), secret.value()->bytes().end())
                    : std::string(secret.status().detail())};
  };
  CHECK(load("sixteen bytes...\r\n", 0600) ==
        std::pair{Code::kOk, std::string("sixteen bytes...")});
  CHECK(load(std::string(4096, 's'), 0400).first == Code::kOk);
  CHECK(load("fifteen bytes..\n", 0600).first == Code::kInvalidArgument);
  CHECK(load(std::string(4097, 's'), 0600).first == Code::kInvalidArgument);
  for (mode_t open : {0640, 0604, 0620, 0602, 0610}) {
    auto [code, why] = load("sixteen bytes...", open);
    CHECK(code == Code::kAccessDenied);
    CHECK(why.find("chmod 600") != std::string::npos);
  }
  CHECK(Secret::load("/nowhere/at/all").code() == Code::kInvalidArgument);
  CHECK(Secret::load("/dev/zero").code() != Code::kOk);
  CHECK(Secret::load("/tmp").code() == Code::kInvalidArgument);
}

TEST_CASE("with a secret everything crosses, and nobody else can read it", "[l2][seal]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  SecretFile file(kOneSecret);
  const std::string text = "what the third program looks for";
  for (bool sealed : {false, true}) {
    Eavesdropper eavesdropper;
    Two two(sealed ? file.path : "", sealed ? file.path : "");
    INFO(two.connected.status().to_string());
    REQUIRE(two.connected.ok());
    for (size_t size : {size_t{64}, size_t{1'000'000}}) {
      Buffer buffer = std::move(two.near->allocate({static_cast<int64_t>(size)}, uint8)).value();
      for (size_t i = 0; i < size; ++i)
        buffer.bytes()[i] = static_cast<std::byte>(text[i % text.size()]);
      Tensor tensor = std::move(buffer).freeze();
      Box box;
      Buffer into = std::move(two.far->allocate({static_cast<int64_t>(size)}, uint8)).value();
      REQUIRE(
          two.server.receive({.tag = 5}, std::move(into), {.sink = &box, .deadline = soon()}).ok());
      auto receipt = two.connected->send_and_wait(5, Tensor(tensor), soon());
      INFO(receipt.status().to_string());
      REQUIRE(receipt.ok());
      REQUIRE(two.near->wait_until([&] { return box.all.size() == 1; }, soon()).ok());
      REQUIRE(box.all[0].status.ok());
      CHECK(std::equal(tensor.bytes().begin(), tensor.bytes().end(),
                       box.all[0].buffers[0].bytes().begin()));
      // Decryption writes what it reads.
      if (sealed || size <= 4096)
        CHECK(box.all[0].receipt.copied_bytes == (sealed ? 2 * size : size));
      CHECK(box.all[0].receipt.copied_bytes <= 2 * size);
    }
    auto [frames, readable] = eavesdropper.heard(text);
    CHECK(frames > 4);
    CHECK((readable > 0) == !sealed);
  }
}

TEST_CASE("who has another secret, or none, is refused with the cause and what to do",
          "[l2][seal]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  SecretFile one(kOneSecret), another(kAnotherSecret);
  for (const Refused& t : who_is_refused(one, another)) {
    Two two(t.listens, t.connects);
    t.check(two.connected.status());
  }
}

TEST_CASE("with a secret the hundredth connection costs its port no more than the first",
          "[l2][seal]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  SecretFile file(kOneSecret);
  Two two(file.path, file.path);
  REQUIRE(two.connected.ok());
  std::vector<Endpoint> all;
  std::vector<uint64_t> compared;  // keys, by connection
  for (int i = 0; i < 100; ++i) {
    uint64_t before = read_counter("l2.places_compared"),
             looked_at = read_counter("l2.predecessors_looked_at");
    auto connected =
        two.near->connect(two.listener.address(), {.require = {}, .secret_file = file.path});
    REQUIRE(connected.ok());
    auto accepted = two.listener.accept(soon());
    REQUIRE(accepted.ok());
    all.push_back(std::move(*connected));
    all.push_back(std::move(*accepted));
    compared.push_back(read_counter("l2.places_compared") - before);
    // Two sessions (frames, UDP) of two ends: each is confirmed once, and looks at who else is at
    // its peer's place, where it is alone.
    CHECK(read_counter("l2.predecessors_looked_at") - looked_at <= 4);
  }
  // HELLOs may be repeated while somebody else has the processor.
  CHECK(*std::min_element(compared.end() - 10, compared.end()) <=
        *std::max_element(compared.begin(), compared.begin() + 10));
}

TEST_CASE("the environment names the secret's file, and the options another", "[l2][seal]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  SecretFile one(kOneSecret), open(kAnotherSecret, 0644);
  REQUIRE(::setenv(kSecretFileVariable, one.path.c_str(), 1) == 0);
  {
    Two two("", one.path);
    CHECK(two.connected.ok());
  }
  REQUIRE(::setenv(kSecretFileVariable, open.path.c_str(), 1) == 0);
  auto context = std::move(open_context({})).value();
  CHECK(context->listen("l2://lo:0").code() == Code::kAccessDenied);
  CHECK(context->listen("l2://lo:0", {.require = {}, .secret_file = one.path}).ok());
  REQUIRE(::unsetenv(kSecretFileVariable) == 0);
  CHECK(context->listen("l2://lo:0").ok());
  // Where nothing is sealed a secret is not taken for granted.
  CHECK(context->listen("tcp://127.0.0.1:0", {.require = {}, .secret_file = one.path}).code() ==
        Code::kUnsupported);
}

}  // namespace sluice::test
