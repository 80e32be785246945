// A listener over shared memory whose process has no descriptor left: its callers learn why.
#include <catch2/catch.hpp>

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "tests/shm/raw_peer.h"
#include "tests/shm/server.h"
#include "tests/support/few_descriptors.h"
#include "tests/support/fresh_name.h"

namespace sluice::test {
namespace {

// A process that connects when it is told to, and says what came of it.
class Caller {
 public:
  explicit Caller(const std::string& address) {
    std::array<int, 2> go{}, said{};
    REQUIRE(::pipe2(go.data(), O_CLOEXEC) == 0);
    REQUIRE(::pipe2(said.data(), O_CLOEXEC) == 0);
    child_ = ::fork();
    if (child_ == 0) {
      ::close(go[1]);
      char byte;
      (void)!::read(go[0], &byte, 1);
      auto context = open_context({});
      const std::string text = context.ok()
                                   ? (*context)
                                         ->connect(address, {.timeout = std::chrono::seconds(30)})
                                         .status()
                                         .to_string()
                                   : context.status().to_string();
      (void)!::write(said[1], text.data(), text.size());
      std::_Exit(0);
    }
    ::close(go[0]);
    ::close(said[1]);
    go_ = Descriptor(go[1]);
    said_ = Descriptor(said[0]);
  }
  ~Caller() {
    int status = 0;
    CHECK(::waitpid(child_, &status, 0) == child_);
  }
  void call() { (void)!::write(go_.value(), "c", 1); }
  bool has_said() {
    pollfd look{.fd = said_.value(), .events = POLLIN, .revents = 0};
    return ::poll(&look, 1, 0) > 0;
  }
  std::string said() {
    std::array<char, 1000> text;
    const ssize_t n = ::read(said_.value(), text.data(), text.size());
    return {text.data(), static_cast<size_t>(std::max<ssize_t>(n, 0))};
  }

 private:
  pid_t child_ = -1;
  Descriptor go_, said_;
};

// One is enough to accept a caller, and then there is none to look at its process with.
TEST_CASE("callers of a listener that has no descriptor are told so at once", "[shm]") {
  for (size_t left : {0, 1}) {
    INFO(left << " descriptors are left");
    const std::string name = fresh_name("poor");
    Caller caller("shm:" + name), later("shm:" + name);
    auto context = open_small();
    auto listener = context->listen("shm:" + name);
    REQUIRE(listener.ok());
    auto run = [&](Caller& until) {
      until.call();
      for (const Instant limit = soon(); !until.has_said() && now() < limit;)
        (void)context->wait(after(now(), std::chrono::milliseconds(1)));
    };
    {
      FewDescriptors few(left);
      run(caller);
    }
    const std::string said = caller.said();
    INFO(said);
    CHECK(said.find("kTryAgain") == 0);
    CHECK(said.find("no descriptor") != std::string::npos);
    CHECK(said.find("ulimit -n there") != std::string::npos);
    run(later);
    CHECK(later.said().find("kOk") == 0);
  }
}

// More than are told at one look.
TEST_CASE("everybody who waits at a listener without a descriptor is told so", "[shm]") {
  Server server;
  std::vector<std::unique_ptr<RawPeer>> peers;
  for (int i = 0; i < 40; ++i) {
    peers.push_back(std::make_unique<RawPeer>(server.name));
    REQUIRE(peers.back()->greet());
  }
  bool told = false;
  {
    FewDescriptors none(0);
    told = server.until([&] {
      return std::all_of(peers.begin(), peers.end(), [](auto& peer) { return peer->ended(); });
    });
  }
  CHECK(told);
  for (auto& peer : peers) CHECK(peer->bye() == Code::kNoMemory);
  RawPeer next(server.name);
  REQUIRE(next.greet());
  CHECK(server.until([&] { return next.met(); }));
}

}  // namespace
}  // namespace sluice::test
