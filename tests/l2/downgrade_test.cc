// A secret means sealed paths: whoever stops frames, takes a field out of a HELLO or comes without
// the secret gets no connection in the clear, at either end. Over a cable between two namespaces.
#include <catch2/catch.hpp>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include <sluice/runtime/identity.h>
#include <sluice/select/open.h>
#include <sluice/wire/messages.h>

#include "tests/l2/two.h"
#include "tests/l2/wire.h"
#include "tests/support/audit.h"
#include "tests/support/skip.h"

namespace sluice::test {
namespace {

#define NEEDS_WIRE() \
  if (far_node() == nullptr) return skip("netns", kNoNetwork)

constexpr const char* kDropped = "ingress protocol 0x88b5 bpf da bytecode '1,6 0 0 2'";

class SecretFile {
 public:
  SecretFile() {
    int fd = ::mkstemp(path_);
    REQUIRE(fd >= 0);
    REQUIRE(::write(fd, "sixteen bytes or more", 21) == 21);
    ::close(fd);
  }
  ~SecretFile() { ::unlink(path_); }
  const char* path() const { return path_; }

 private:
  char path_[32] = "/tmp/sluice-secret-XXXXXX";
};

struct Addresses {
  Addresses() {
    REQUIRE(run("ip address add 10.9.0.1/24 dev left"));
    REQUIRE(far_node()->run_inside("ip address add 10.9.0.2/24 dev right"));
  }
  ~Addresses() {
    (void)run("ip address flush dev left");
    (void)far_node()->run_inside("ip address flush dev right");
  }
};

// The far context listens at 10.9.0.2 with `listen`; the near one runs it.
struct World {
  explicit World(const ListenOptions& listen) {
    near = std::move(open_context({.arena = {}, .arena_options = {}, .waiting = Waiting::kSpin}))
               .value();
    far_node()->inside([&] {
      far = std::move(open_context({.arena = {}, .arena_options = {}, .waiting = Waiting::kSpin}))
                .value();
    });
    far_node()->inside([&] {
      auto opened = far->listen("sluice://10.9.0.2:0", listen);
      INFO(opened.status().to_string());
      REQUIRE(opened.ok());
      listener = std::move(opened).value();
    });
    hook.world = this;
    near->add_hook(&hook);
  }
  ~World() { near->remove_hook(&hook); }

  struct Hook final : ProgressHook {
    size_t progress(Instant) override {
      size_t work = world->between ? world->between() : 0;
      far_node()->inside([&] {
        work += world->far->progress();
        if (auto next = world->listener.try_accept(); next.ok())
          world->accepted.push_back(std::move(next).value());
      });
      return work;
    }
    Instant next_timeout() override { return kNever; }
    World* world = nullptr;
  };
  Hook hook;
  std::unique_ptr<Context> near, far;
  Listener listener;
  std::vector<Endpoint> accepted;
  std::function<size_t()> between;  // what runs beside the two
};

ConnectOptions sealed_by(const SecretFile& secret) {
  return {.timeout = std::chrono::seconds(20), .secret_file = secret.path(), .ethernet = true};
}
ListenOptions listening_with(const SecretFile& secret) {
  return {.secret_file = secret.path(), .ethernet = true};
}

bool is_in_the_clear(const World& world) {
  for (const Endpoint& endpoint : world.accepted) {
    if (!endpoint.info().path.capabilities.has(Capability::kSealed)) return true;
  }
  return false;
}

TEST_CASE("with a secret at both ends sluice:// is sealed, and says so", "[l2][sealed]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  Addresses addresses;
  SecretFile secret;
  World world(listening_with(secret));
  auto endpoint = world.near->connect(world.listener.address(), sealed_by(secret));
  INFO(endpoint.status().to_string());
  REQUIRE(endpoint.ok());
  CHECK(endpoint->info().path.path == Path::kPacket);
  CHECK(endpoint->info().path.capabilities.has(Capability::kSealed));
  REQUIRE(world.near->wait_until([&] { return !world.accepted.empty(); }, soon()).ok());
  CHECK_FALSE(is_in_the_clear(world));
  CHECK(endpoint->close(soon()).ok());
}

TEST_CASE("a secret without frames is refused with the setting that allows them", "[l2][sealed]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  Addresses addresses;
  SecretFile secret;
  World world({.secret_file = secret.path()});
  auto endpoint =
      world.near->connect(world.listener.address(),
                          {.timeout = std::chrono::seconds(20), .secret_file = secret.path()});
  CHECK(endpoint.code() == Code::kUnsupported);
  INFO(endpoint.status().to_string());
  CHECK(endpoint.status().detail().find("set SLUICE_ETHERNET=1 on both sides, or use l2://udp/") !=
        std::string_view::npos);
}

TEST_CASE("a network that drops frames brings nobody with a secret to TCP, but who allows that",
          "[l2][sealed]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  Addresses addresses;
  if (!run(std::string("tc qdisc add dev left clsact && tc filter add dev left ") + kDropped))
    return skip("tc", "no classic BPF filter by tc here");
  SecretFile secret;
  {
    World world({.secret_file = secret.path(), .allow_unsealed = true, .ethernet = true});
    auto endpoint = world.near->connect(world.listener.address(), sealed_by(secret));
    INFO(endpoint.status().to_string());
    CHECK(endpoint.code() == Code::kUnsupported);
    CHECK(endpoint.status().detail().find("tcp is not sealed") != std::string_view::npos);
    CHECK(world.accepted.empty());
    ConnectOptions open = sealed_by(secret);
    open.allow_unsealed = true;
    auto in_the_clear = world.near->connect(world.listener.address(), open);
    INFO(in_the_clear.status().to_string());
    REQUIRE(in_the_clear.ok());
    CHECK(in_the_clear->info().path.path == Path::kTcp);
    CHECK(in_the_clear->close(soon()).ok());
  }
  CHECK(run("tc qdisc del dev left clsact"));
}

TEST_CASE("a listener with a secret accepts nobody in the clear", "[l2][sealed]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  Addresses addresses;
  SecretFile secret;
  World world(listening_with(secret));
  // Who has no secret, and asks for TCP as soon as frames are refused.
  auto endpoint = world.near->connect(world.listener.address(),
                                      {.timeout = std::chrono::seconds(20), .ethernet = true});
  if (endpoint.ok()) {
    CHECK(world.near
              ->wait_until([&] { return endpoint->state() != EndpointState::kConnected; }, soon())
              .ok());
  }
  CHECK(world.accepted.empty());
}

// Between a caller and the listener: passes bytes on, and takes the TLV that says where frames are
// listened for out of HELLO.
class Stripper {
 public:
  explicit Stripper(const std::string& to) {
    sockaddr_in here{};
    here.sin_family = AF_INET;
    REQUIRE(::inet_pton(AF_INET, "10.9.0.1", &here.sin_addr) == 1);
    socklen_t length = sizeof(here);
    listening_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    REQUIRE(::bind(listening_, reinterpret_cast<sockaddr*>(&here), length) == 0);
    REQUIRE(::listen(listening_, 4) == 0);
    REQUIRE(::getsockname(listening_, reinterpret_cast<sockaddr*>(&here), &length) == 0);
    address = "sluice://10.9.0.1:" + std::to_string(ntohs(here.sin_port));
    there_.sin_family = AF_INET;
    REQUIRE(::inet_pton(AF_INET, "10.9.0.2", &there_.sin_addr) == 1);
    there_.sin_port = htons(static_cast<uint16_t>(std::stoi(to.substr(to.rfind(':') + 1))));
  }
  ~Stripper() {
    for (int fd : {listening_, caller_, server_}) {
      if (fd >= 0) ::close(fd);
    }
  }
  Stripper(const Stripper&) = delete;
  Stripper& operator=(const Stripper&) = delete;

  size_t turn() {
    if (caller_ < 0) {
      caller_ = ::accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (caller_ < 0) return 0;
      server_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      REQUIRE(::connect(server_, reinterpret_cast<sockaddr*>(&there_), sizeof(there_)) == 0);
    }
    return pass(caller_, server_, false) + pass(server_, caller_, true);
  }
  std::string address;
  bool stripped = false;

 private:
  size_t pass(int from, int to, bool strips) {
    std::vector<std::byte> bytes(65536);
    ssize_t got = ::recv(from, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got <= 0) return 0;
    bytes.resize(static_cast<size_t>(got));
    wire::Hello hello;
    if (strips && !stripped && wire::decode(bytes, hello).ok()) {
      REQUIRE(hello.packet_port != 0);
      hello.packet_port = hello.module_port = 0;
      bytes.resize(wire::kMaxHeaderBytes);
      bytes.resize(wire::encode(hello, bytes));
      stripped = true;
    }
    return ::send(to, bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0 ? 1 : 0;
  }
  int listening_ = -1, caller_ = -1, server_ = -1;
  sockaddr_in there_{};
};

TEST_CASE(
    "a HELLO whose field about frames was taken out on the way brings nobody with a secret to TCP",
    "[l2][sealed]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  Addresses addresses;
  SecretFile secret;
  World world({.secret_file = secret.path(), .allow_unsealed = true, .ethernet = true});
  Stripper between(world.listener.address());
  world.between = [&] { return between.turn(); };
  auto endpoint = world.near->connect(between.address, sealed_by(secret));
  INFO(endpoint.status().to_string());
  CHECK(between.stripped);
  CHECK(endpoint.code() == Code::kUnsupported);
  CHECK(endpoint.status().detail().find("not l2: the peer listens for no frames there") !=
        std::string_view::npos);
  CHECK(endpoint.status().detail().find("tcp is not sealed") != std::string_view::npos);
  CHECK(world.accepted.empty());
}

TEST_CASE("a stranger on another machine is told no host, user, process or namespace",
          "[l2][tcp]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  Addresses addresses;
  World world({});
  const std::string address = world.listener.address();
  sockaddr_in to{};
  to.sin_family = AF_INET;
  REQUIRE(::inet_pton(AF_INET, "10.9.0.2", &to.sin_addr) == 1);
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  REQUIRE(::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0);
  // The truth, which is the same for all contexts of this process, and is no stranger's to say.
  const wire::Hello truth = local_hello(0);
  std::vector<std::byte> bytes(wire::kMaxHeaderBytes);
  const size_t length = wire::encode(truth, bytes);
  REQUIRE(::send(fd, bytes.data(), length, 0) == static_cast<ssize_t>(length));
  ssize_t got = 0;
  REQUIRE(world.near
              ->wait_until(
                  [&] { return (got = ::recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT)) > 0; },
                  soon())
              .ok());
  ::close(fd);
  wire::Hello told;
  REQUIRE(wire::decode(std::span(bytes).first(static_cast<size_t>(got)), told).ok());
  CHECK(told.incarnation == truth.incarnation);
  CHECK_FALSE(told.host == truth.host);
  CHECK(told.pid == 0);
  CHECK(told.uid == 0);
  CHECK(told.network_namespace == 0);
  CHECK(told.user_namespace == 0);
}

TEST_CASE("with a secret in the environment paths that are not sealed are refused at both ends",
          "[l2][sealed]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  SecretFile secret;
  Setting set("SLUICE_L2_SECRET_FILE", secret.path());
  auto context = std::move(open_context({.arena = {}, .arena_options = {}})).value();
  for (const char* address : {"tcp://127.0.0.1:0", "kmod://lo:0"}) {
    INFO(address);
    CHECK(context->listen(address).code() == Code::kUnsupported);
  }
  CHECK(context->connect("tcp://127.0.0.1:9", {.timeout = std::chrono::seconds(2)}).code() ==
        Code::kUnsupported);
  CHECK(context->listen("tcp://127.0.0.1:0", {.allow_unsealed = true}).ok());
  CHECK(context->listen("shm:sealed-by-the-kernel").ok());
  CHECK(context->listen("l2://lo:0").ok());
}

}  // namespace
}  // namespace sluice::test
