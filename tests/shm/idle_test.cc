// What a connection over shared memory costs while nobody uses it: memory, by the kernel's account
// of this process, descriptors and mappings. And control regions of another layout.
#include <catch2/catch.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sluice/base/counters.h>
#include <sluice/runtime/identity.h>

#include "tests/shm/raw_peer.h"
#include "tests/shm/server.h"
#include "tests/support/audit.h"

namespace sluice::test {
namespace {

constexpr uint64_t kKiB = 1024;

// Shared memory of this process, by the kernel: pages that are mapped twice count once.
uint64_t shared_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;) {
    uint64_t kib = 0;
    if (word == "Pss_Shmem:" && file >> kib) return kib * kKiB;
  }
  FAIL("/proc/self/smaps_rollup does not say Pss_Shmem");
  return 0;
}
// Mappings of control regions.
uint64_t regions_mapped() {
  std::ifstream file("/proc/self/maps");
  uint64_t count = 0;
  for (std::string line; std::getline(file, line);)
    count += line.find("sluice-control") != std::string::npos ? 1 : 0;
  return count;
}

struct Count final : CompletionSink {
  void on_completion(Completion&& completion) noexcept override {
    ok += completion.status.ok() ? 1 : 0;
  }
  PostOptions options() { return {.sink = this, .deadline = soon()}; }
  uint64_t ok = 0;
};

// Two contexts on one thread: while the first is progressed, so is the second.
struct Two {
  struct Both final : ProgressHook {
    size_t progress(Instant) override { return other->progress(); }
    Instant next_timeout() override { return Instant{}; }  // nothing wakes the first for the other
    Context* other = nullptr;
  };
  Two() {
    both.other = server.context.get();
    client->add_hook(&both);
  }
  ~Two() { client->remove_hook(&both); }
  std::pair<Endpoint, Endpoint> join() {
    auto near = client->connect("shm:" + server.name);
    INFO(near.status().to_string());
    REQUIRE(near.ok());
    return {std::move(*near), server.accept()};
  }
  // Sends so many messages of one byte before the other end takes any.
  void send(std::pair<Endpoint, Endpoint>& ends, uint64_t messages) {
    Count sent, received;
    for (uint64_t i = 0; i < messages; ++i) {
      auto room = server.context->allocate({1}, uint8);
      auto buffer = client->allocate({1}, uint8);
      REQUIRE((room.ok() && buffer.ok()));
      REQUIRE(ends.second.receive({.tag = 1}, std::move(*room), received.options()).ok());
      REQUIRE(ends.first.send(1, std::move(*buffer).freeze(), sent.options()).ok());
    }
    while (received.ok < messages) client->progress();
  }

  Server server{PeerLimits{.connections = {4096, 8192}}};
  std::unique_ptr<Context> client = open_small({.connections = {4096, 8192}});
  Both both;
};

TEST_CASE("an idle connection has 8 KiB of memory each way, two mappings and a descriptor",
          "[shm]") {
  constexpr uint64_t kPeers = 50;
  Two two;
  std::vector<std::pair<Endpoint, Endpoint>> open;
  open.push_back(two.join());
  two.send(open[0], 1);  // the arenas' first extents, and all that is made once
  const uint64_t bytes = shared_bytes(), mapped = regions_mapped();
  const Holdings before = holdings();
  for (uint64_t i = 0; i < kPeers; ++i) open.push_back(two.join());
  // Messages one after the other, more than a lap of the largest ring, change nothing.
  for (int i = 0; i < 1200; ++i) two.send(open[1], 1);
  CHECK(regions_mapped() - mapped == 4 * kPeers);  // both ends are here
  CHECK(holdings().descriptors.size() - before.descriptors.size() == 2 * kPeers);
  const uint64_t each = (shared_bytes() - bytes) / (2 * kPeers);
  CHECK(each <= 9 * kKiB);
  CHECK(each >= 7 * kKiB);
}

TEST_CASE("a control region begins with 8 KiB of memory, mapped or not", "[shm]") {
  Server server;
  auto [peer, endpoint] = server.meet();
  CHECK(peer->other_region_bytes() == 8 * kKiB);
}

TEST_CASE("a ring grows when it is full, and only that one", "[shm]") {
  Two two;
  std::vector<std::pair<Endpoint, Endpoint>> open;
  for (int i = 0; i < 3; ++i) open.push_back(two.join());
  two.send(open[0], 1);
  const uint64_t grown = read_counter("shm.rings_grown"), bytes = shared_bytes();
  two.send(open[1], 50);
  CHECK(read_counter("shm.rings_grown") == grown);
  two.send(open[1], 200);
  CHECK(read_counter("shm.rings_grown") == grown + 1);
  CHECK(shared_bytes() - bytes >= 100 * kKiB);
  CHECK(shared_bytes() - bytes <= 200 * kKiB);
  two.send(open[1], 200);
  CHECK(read_counter("shm.rings_grown") == grown + 1);
}

// As peers had it before rings could grow: shorter, all of it there.
TEST_CASE("a peer whose control region has another layout is told so", "[shm]") {
  Server server;
  struct Case {
    uint64_t bytes, layout;
    Code code;
  };
  for (const Case& one : {Case{131'712, 0x534c554943455232, Code::kUnsupported},
                          Case{sizeof(shm::SharedRegion), 0x534c554943455232, Code::kUnsupported},
                          Case{131'712, shm::kRegionLayout, Code::kCorrupt}}) {
    RawPeer peer(server.name);
    peer.hello = local_hello(64 * kMiB);
    const int memory = memfd(one.bytes, 0, true);
    const uint64_t words[] = {one.layout, peer.hello.incarnation};
    REQUIRE(::pwrite(memory, words, sizeof(words), 0) == sizeof(words));
    std::array<std::byte, wire::kMaxHeaderBytes> bytes;
    const size_t length = wire::encode(peer.hello, bytes);
    REQUIRE(::fcntl(memory, F_ADD_SEALS, all_seals()) == 0);
    REQUIRE(peer.say(std::span(bytes).first(length), {&memory, 1}));
    ::close(memory);
    REQUIRE(server.until([&] { return peer.ended(); }));
    REQUIRE(peer.bye());
    INFO(one.bytes);
    CHECK(*peer.bye() == one.code);
  }
}

}  // namespace
}  // namespace sluice::test
