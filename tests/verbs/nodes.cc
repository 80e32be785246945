// RDMA between two machines of the lab: `nodes serve` on node 2, `nodes SCENARIO...` on
// node 1. Each scenario says in one line what it saw, or what was wrong (exit status 1).
#include <sys/wait.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <sluice/base/counters.h>
#include <sluice/exchange/exchange.h>
#include <sluice/select/open.h>

#include "tests/verbs/nodes_faults.h"
#include "tests/verbs/nodes_peer.h"

namespace {

using namespace sluice;
using namespace sluice::nodes;
using namespace std::chrono_literals;

// Of a receive whose message asks the server to revoke; and what is in the memory afterwards.
constexpr uint64_t kRevoke = 4, kSecret = 99;

// One client of the server.
struct Client final : CompletionSink {
  void on_completion(Completion&& completion) noexcept override {
    bool ok = completion.status.ok();
    if (ok && completion.user_data == kRevoke) return revoke_shared();
    if (completion.kind == OperationKind::kReceive && ok) {
      (void)completion.buffers[0].reshape(TensorDescriptor::bytes(completion.receipt.bytes));
      Tensor echo = std::move(completion.buffers[0]).freeze();
      (void)endpoint.send(2, echo);
    }
    if (completion.kind == OperationKind::kReceive && ok) receive();
    if (!ok && completion.status.code() != Code::kCancelled)
      std::fprintf(stderr, "%s\n", completion.status.to_string().c_str());
  }
  void receive() {
    auto room = context->arena().allocate(kLargest);
    if (room.ok())
      (void)endpoint.receive({.tag = 1}, std::move(*room), {.sink = this, .deadline = kNever});
  }
  // What is written once revoke() has returned is nobody's but ours; the peer hears that it may
  // try.
  void revoke_shared() {
    Status revoked = endpoint.revoke(key);
    if (!revoked.ok()) std::fprintf(stderr, "%s\n", revoked.to_string().c_str());
    fill(shared.bytes(), kSecret);
    (void)endpoint.send(5, filled(*context, 8, 0).freeze());
  }
  Context* context = nullptr;
  Endpoint endpoint;
  Buffer shared;
  RemoteKey key;
};

// Sends back what comes with tag 1, at its own length (a message of 8 bytes first says which
// length is meant), lends memory, publishes tensors. Until it is ended.
int serve(const std::string& scheme) {
  auto own = context();
  auto listener = own->listen(scheme + "://" + here() + ":7000");
  if (!listener.ok()) return std::printf("%s\n", listener.status().to_string().c_str()), 1;
  Exchange exchange{*own};
  for (uint64_t step = 0; step < 4; ++step) {
    size_t size = step == 0 ? 300'000 : size_t{3} << 20;
    (void)exchange.publish({"weights", step}, filled(*own, size, step).freeze(),
                           {.readers = until_retired});
  }
  std::vector<std::unique_ptr<Client>> clients;
  while (true) {
    auto accepted = listener->accept(in(1s));
    std::erase_if(clients,
                  [](const auto& c) { return c->endpoint.state() == EndpointState::kClosed; });
    if (!accepted.ok()) continue;
    auto client = std::make_unique<Client>();
    client->context = own.get();
    client->endpoint = std::move(*accepted);
    client->shared = filled(*own, kShared, 77);
    auto key = client->endpoint.grant(
        client->shared,
        {.rights = client->endpoint.info().path.capabilities.has(Capability::kAtomics)
                       ? Right::kAll
                       : Right::kReadWrite});
    if (!key.ok()) {
      std::printf("no grant: %s\n", key.status().to_string().c_str());
      continue;
    }
    client->key = *key;
    (void)client->endpoint.receive(
        {.tag = 4}, filled(*own, 8, 0),
        {.sink = client.get(), .user_data = kRevoke, .deadline = kNever});
    Buffer text = filled(*own, RemoteKey::kEncodedBytes, 0);
    auto encoded = key->encode();
    std::memcpy(text.data(), encoded.data(), encoded.size());
    (void)client->endpoint.send(3, std::move(text).freeze());
    for (int i = 0; i < 4; ++i) client->receive();
    if (!exchange.add(client->endpoint).ok()) return 1;
    clients.push_back(std::move(client));
  }
}

// Every kind of operation, up to `limit` bytes, with the bytes checked.
bool exchange_all(size_t limit) {
  auto met = meet("rdma");
  EXPECT(met.ok(), met.status().to_string());
  Peer& p = **met;
  uint64_t failed_before = read_counter("verbs.completions_failed");
  EXPECT(p.endpoint.info().path.path == Path::kVerbs);
  for (size_t size :
       {size_t{1}, size_t{4096}, size_t{4097}, size_t{100'000}, size_t{1} << 20, kLargest}) {
    if (size > limit) continue;
    EXPECT(p.endpoint.send(1, filled(*p.own, size, size).freeze()).ok());
    auto back = p.endpoint.receive_and_wait({.tag = 2}, filled(*p.own, kLargest, 0), in(60s));
    EXPECT(back.ok(), back.status().to_string());
    EXPECT(holds(back->buffer.bytes().first(size), size), std::to_string(size) + " bytes");
  }
  for (size_t size : {size_t{8}, size_t{70'000}, kLargest}) {
    if (size > limit) continue;
    auto written =
        p.endpoint.write_and_wait(p.key, 4096, filled(*p.own, size, size + 1).freeze(), in(60s));
    EXPECT(written.ok(), written.status().to_string());
    EXPECT(written->copied_bytes == 0);
    auto read = p.endpoint.read_and_wait(p.key, 4096, filled(*p.own, size, 0), in(60s));
    EXPECT(read.ok(), read.status().to_string());
    EXPECT(holds(read->buffer.bytes(), size + 1), std::to_string(size) + " bytes one-sided");
    EXPECT(read->receipt.copied_bytes == 0);
  }
  if (p.endpoint.info().path.capabilities.has(Capability::kAtomics)) {
    auto zero = p.endpoint.write_and_wait(
        p.key, 0,
        [&] {
          Buffer b = filled(*p.own, 8, 0);
          std::memset(b.data(), 0, 8);
          return std::move(b).freeze();
        }(),
        in(20s));
    EXPECT(zero.ok(), zero.status().to_string());
    for (uint64_t i = 0; i < 10; ++i) {
      auto before = p.endpoint.fetch_add_and_wait(p.key, 0, 3, in(20s));
      EXPECT(before.ok(), before.status().to_string());
      EXPECT(*before == i * 3);
    }
    auto swapped = p.endpoint.compare_swap_and_wait(p.key, 0, 30, 7, in(20s));
    EXPECT(swapped.ok() && *swapped == 30);
    auto missed = p.endpoint.compare_swap_and_wait(p.key, 0, 30, 8, in(20s));
    EXPECT(missed.ok() && *missed == 7);
  }
  Exchange exchange{*p.own};
  EXPECT(exchange.add(p.endpoint).ok());
  for (uint64_t step = 0; step < (limit < kLargest ? 1 : 4); ++step) {
    auto fetched = p.own->run_until(exchange.fetch({"weights", step}, in(60s)));
    EXPECT(fetched.ok(), fetched.status().to_string());
    EXPECT(holds(fetched->value.bytes(), step));
    EXPECT(fetched->receipt.copied_bytes == 0);
    auto placed = p.own->run_until(exchange.fetch_into(
        {"weights", step}, filled(*p.own, step == 0 ? 300'000 : size_t{3} << 20, 99), in(60s)));
    EXPECT(placed.status().ok(), placed.status().to_string());
    EXPECT(holds(placed.value().value.bytes(), step));
    EXPECT(placed.value().receipt.copied_bytes == 0);
  }
  EXPECT(read_counter("verbs.completions_failed") == failed_before);
  Status closed = p.endpoint.close(in(20s));
  EXPECT(closed.ok(), closed.to_string());
  return true;
}

bool traffic() { return exchange_all(kLargest); }
// Soft-RoCE waits out its timer (0.27 s) for most lost frames.
// Now and then it uses up its repeats or loses its way altogether: then the connection
// ends, in time, and a new one carries the rest.
bool lossy() {
  for (int attempt = 1; attempt <= 4; ++attempt) {
    if (exchange_all(100'000)) {
      std::printf("whole at attempt %d, %d stuck\n", attempt,
                  static_cast<int>(read_counter("verbs.queues_stuck")));
      return true;
    }
    uint64_t lost = read_counter("verbs.peers_unplugged") + read_counter("verbs.queues_stuck") +
                    read_counter("verbs.peers_gone");
    EXPECT(lost >= static_cast<uint64_t>(attempt), "it was not the device");
  }
  return false;
}

bool cycles() {
  constexpr int kCycles = 1000;
  auto warm = meet("rdma");
  EXPECT(warm.ok(), warm.status().to_string());
  auto own = context();
  for (int i = 0; i < kCycles; ++i) {
    auto endpoint = own->connect("rdma://" + peer() + ":7000");
    EXPECT(endpoint.ok(), "cycle " + std::to_string(i) + ": " + endpoint.status().to_string());
    EXPECT(endpoint->close(in(20s)).ok(), "cycle " + std::to_string(i));
  }
  // What is there now, beside the first connection, is nothing.
  EXPECT((*warm)
             ->endpoint.read_and_wait((*warm)->key, 0, filled(*(*warm)->own, 4096, 0), in(20s))
             .ok());
  (void)own->wait(in(2s));
  FILE* pipe = ::popen("rdma resource show qp | grep -c pid", "r");
  int count = -1;
  EXPECT(pipe != nullptr && std::fscanf(pipe, "%d", &count) == 1);
  ::pclose(pipe);
  EXPECT(count <= 4, std::to_string(count) + " queue pairs are left");
  EXPECT((*warm)->endpoint.close(in(20s)).ok());
  std::printf("%d connections were made and closed\n", kCycles);
  return true;
}

// One listener has peers with and without RDMA.
bool mixed() {
  auto by_rdma = meet("sluice", {.require = rdma});
  EXPECT(by_rdma.ok(), by_rdma.status().to_string());
  EXPECT((*by_rdma)->endpoint.info().path.path == Path::kVerbs);
  EXPECT((*by_rdma)->endpoint.close(in(20s)).ok());
  auto best = meet("sluice");
  EXPECT(best.ok(), best.status().to_string());
  EXPECT((*best)->endpoint.info().path.path == Path::kVerbs, (*best)->endpoint.info().reason);
  EXPECT((*best)->endpoint.close(in(20s)).ok());
  // In a mount namespace without the devices' folder, a machine without devices.
  std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  std::string alone =
      "unshare -m sh -c 'mount -t tmpfs none /sys/class/infiniband && exec " + self + " by-tcp'";
  EXPECT(std::system(alone.c_str()) == 0);
  return true;
}

bool by_tcp() {
  auto by_tcp = meet("sluice");
  EXPECT(by_tcp.ok(), by_tcp.status().to_string());
  EndpointInfo info = (*by_tcp)->endpoint.info();
  EXPECT(info.path.path == Path::kTcp, info.reason);
  EXPECT(info.reason.find("not rdma") != std::string::npos, info.reason);
  EXPECT((*by_tcp)->endpoint.send(1, filled(*(*by_tcp)->own, 100'000, 4).freeze()).ok());
  auto back = (*by_tcp)->endpoint.receive_and_wait({.tag = 2}, filled(*(*by_tcp)->own, kLargest, 0),
                                                   in(30s));
  EXPECT(back.ok() && holds(back->buffer.bytes().first(100'000), 4));
  auto forced = meet("rdma", {.timeout = 2s}, 1ms);
  EXPECT(!forced.ok());
  std::printf("rdma, then tcp (%s); rdma:// alone: %s\n", info.reason.c_str(),
              forced.status().to_string().c_str());
  EXPECT((*by_tcp)->endpoint.close(in(20s)).ok());
  return true;
}

// Frames of one end that the other end's port is too small for.
bool mtu() {
  EXPECT(std::system("ip link set lab0 mtu 4200") == 0);
  bool fine = traffic();
  EXPECT(std::system("ip link set lab0 mtu 1500") == 0);
  return fine;
}

// In the middle of reads, again and again: none brings a byte that was written after the
// revocation.
bool revoked() {
  constexpr int kRounds = 4;
  constexpr size_t kPart = size_t{1} << 20;
  std::vector<std::byte> before(kShared);
  fill(before, 77);
  size_t good = 0, refused = 0;
  for (int round = 0; round < kRounds; ++round) {
    auto met = meet("rdma");
    EXPECT(met.ok(), met.status().to_string());
    Peer& p = **met;
    CompletionQueue done;
    size_t posted = 0, ended = 0;
    auto read = [&](size_t part) {
      posted += p.endpoint
                    .read(p.key, part * kPart, filled(*p.own, kPart, 0),
                          {.sink = &done, .user_data = part, .deadline = in(20s)})
                    .ok();
    };
    bool whole = true;
    auto take = [&] {
      Completion completion;
      while (done.poll(completion)) {
        ++ended;
        (completion.status.ok() ? good : refused) += 1;
        if (completion.status.ok())
          whole = whole && std::memcmp(completion.buffers[0].data(),
                                       before.data() + completion.user_data * kPart, kPart) == 0;
      }
    };
    // With the first reads done, and with all under way.
    size_t parts = 0;
    if (round % 2 == 0) read(parts++);
    Instant first = in(20s);
    while (ended < posted && now() < first) (void)p.own->wait(in(50ms)), take();
    while (parts < 12) read(parts++);
    EXPECT(p.endpoint.send(4, filled(*p.own, 8, 0).freeze()).ok());
    auto told = p.endpoint.receive_and_wait({.tag = 5}, filled(*p.own, 8, 0), in(20s));
    // Where the device refused a read in the meantime, the connection ended before the word came.
    EXPECT(told.ok() || p.endpoint.state() == EndpointState::kClosed, told.status().to_string());
    for (size_t part : {0, 31}) read(part);
    Instant limit = in(30s);
    while (ended < posted && now() < limit) {
      take();
      (void)p.own->wait(in(50ms));
    }
    take();
    EXPECT(ended == posted, std::to_string(ended) + " of " + std::to_string(posted) + " ended");
    EXPECT(whole, "round " + std::to_string(round) +
                      ": a read brought bytes that were written after revoke() had returned");
  }
  EXPECT(refused > 0 && good > 0, std::to_string(good) + " reads went through, " +
                                      std::to_string(refused) + " were refused");
  std::printf("%d revocations: %zu reads before, %zu refused\n", kRounds, good, refused);
  return true;
}

// Root may lock what it likes: without that capability and with 64 KiB it may not.
bool memlock() {
  std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  std::string limited =
      "ulimit -l 64; exec setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock " + self +
      " memlock-limited";
  EXPECT(std::system(("sh -c '" + limited + "'").c_str()) == 0);
  return true;
}

bool memlock_limited() {
  auto met = meet("rdma", {.timeout = 3s}, 1ms);
  EXPECT(!met.ok());
  std::string text = met.status().to_string();
  EXPECT(met.code() == Code::kNoMemory, text);
  EXPECT(text.find("ulimit -l") != std::string::npos, text);
  std::printf("memlock: %s\n", text.c_str());
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  ::setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin", 1);  // ip, tc, rdma, modprobe
  const std::map<std::string, std::function<bool()>> scenarios = {
      {"traffic", traffic}, {"lossy", lossy},     {"cut", cut},
      {"idle", idle},       {"removed", removed}, {"cycles", cycles},
      {"mixed", mixed},     {"revoked", revoked}, {"by-tcp", by_tcp},
      {"mtu", mtu},         {"memlock", memlock}, {"memlock-limited", memlock_limited}};
  if (argc > 1 && std::strcmp(argv[1], "serve") == 0) return serve(argc > 2 ? argv[2] : "rdma");
  bool fine = argc > 1;
  for (int i = 1; i < argc; ++i) {
    auto scenario = scenarios.find(argv[i]);
    Instant begun = now();
    bool passed = scenario != scenarios.end() && scenario->second();
    double seconds = std::chrono::duration<double>(now() - begun).count();
    std::printf("%s: %s after %.1f s\n", argv[i], passed ? "passed" : "FAILED", seconds);
    fine = fine && passed;
  }
  return fine ? 0 : 1;
}
