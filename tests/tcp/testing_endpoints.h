// Whole endpoints of a test: a context with the TCP path alone, and a peer on a thread of its own.
#ifndef SLUICE_TESTS_TCP_TESTING_ENDPOINTS_H_
#define SLUICE_TESTS_TCP_TESTING_ENDPOINTS_H_

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <sluice/runtime/context_core.h>
#include <sluice/tcp/provider.h>
#include "tests/tcp/testing.h"

namespace sluice::tcp::testing {

// Catch's assertions belong to one thread: the peer's thread reports with this.
inline void must(bool ok, const std::string& what) {
  if (ok) return;
  std::fprintf(stderr, "peer: %s\n", what.c_str());
  std::abort();
}
inline void must(const Status& status, const char* what) {
  must(status.ok(), std::string(what) + ": " + status.to_string());
}

struct Node {
  explicit Node(Waiting waiting = Waiting::kAdaptive, std::shared_ptr<Arena> arena = nullptr,
                const PeerLimits& limits = {}) {
    if (!arena) {
      auto made = Arena::create({.limit_bytes = size_t{1} << 30});
      must(made.status(), "arena");
      arena = std::move(made).value();
    }
    context = std::make_unique<ContextCore>(ContextOptions{.arena = {},
                                                           .arena_options = {},
                                                           .waiting = waiting,
                                                           .tuning = {},
                                                           .peer_limits = limits},
                                            std::move(arena));
    must(context->initialise(), "context");
    auto provider = std::make_unique<TcpProvider>(*context);
    tcp = provider.get();
    context->add_provider(std::move(provider));
  }
  std::unique_ptr<ContextCore> context;
  TcpProvider* tcp = nullptr;
};

// Runs `serve` with the accepted endpoint on a thread of its own.
class PeerThread {
 public:
  template <typename Serve>
  explicit PeerThread(Serve serve, const std::string& listen_at = "tcp://127.0.0.1:0") {
    std::promise<std::string> where;
    auto known = where.get_future();
    thread_ = std::thread([serve, listen_at, &where] {
      Node node;
      auto listener = node.context->listen(listen_at);
      must(listener.status(), "listen");
      where.set_value(listener->address());
      auto endpoint = listener->accept(soon());
      must(endpoint.status(), "accept");
      serve(node, *endpoint);
    });
    address = known.get();
  }
  ~PeerThread() { thread_.join(); }
  std::string address;

 private:
  std::thread thread_;
};

inline void fill(Buffer& buffer, uint64_t seed) {
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (std::byte& byte : buffer.bytes()) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<std::byte>(state >> 56);
  }
}

inline bool same(const Buffer& a, const Buffer& b) {
  return a.size_bytes() == b.size_bytes() &&
         std::equal(a.bytes().begin(), a.bytes().end(), b.bytes().begin());
}

inline Buffer allocate(ContextCore& context, size_t size) {
  auto buffer = context.allocate({static_cast<int64_t>(size)}, uint8);
  must(buffer.status(), "allocate");
  return std::move(buffer).value();
}

// Two connected ends send each other so many messages at once, of bytes_of(number) bytes each, and
// verify them. Before it closes each calls check(its endpoint).
template <typename BytesOf, typename Check>
void bulk_both_ways(uint64_t messages, BytesOf bytes_of, Check check) {
  auto exchange = [=](Node& node, Endpoint& endpoint, uint64_t mine, uint64_t theirs) {
    CompletionQueue queue;
    for (uint64_t i = 0; i < messages; ++i) {
      must(endpoint
               .receive({.tag = i}, allocate(*node.context, bytes_of(i)),
                        {.sink = &queue, .user_data = i})
               .status(),
           "post");
      Buffer sent = allocate(*node.context, bytes_of(i));
      fill(sent, mine + i);
      must(endpoint.send(i, std::move(sent).freeze(), {.sink = &queue}).status(), "post");
    }
    for (uint64_t done = 0; done < 2 * messages; ++done) {
      must(node.context->wait_until([&] { return !queue.empty(); }, soon()), "wait");
      Completion completion;
      queue.poll(completion);
      must(completion.status, "operation");
      if (completion.kind != OperationKind::kReceive) continue;
      Buffer expected = allocate(*node.context, bytes_of(completion.user_data));
      fill(expected, theirs + completion.user_data);
      must(same(completion.buffers[0], expected), "wrong bytes");
      must(completion.receipt.copied_bytes == 0, "copied");
    }
    check(endpoint);
    must(endpoint.close(soon()), "close");
  };
  PeerThread peer([&](Node& node, Endpoint& endpoint) { exchange(node, endpoint, 100, 200); });
  Node node;
  auto endpoint = node.context->connect(peer.address);
  must(endpoint.status(), "connect");
  exchange(node, *endpoint, 200, 100);
}

}  // namespace sluice::tcp::testing

#endif  // SLUICE_TESTS_TCP_TESTING_ENDPOINTS_H_
