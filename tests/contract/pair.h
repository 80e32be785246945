// Two contexts on one thread, connected over the path under test: each side's progress
// also progresses the other, so that blocking calls work, unless a test freezes a side.
#ifndef SLUICE_TESTS_CONTRACT_PAIR_H_
#define SLUICE_TESTS_CONTRACT_PAIR_H_

#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include <sluice/api/context.h>

#include "tests/support/audit.h"
#include "tests/support/pattern.h"

namespace sluice::test {

// From the environment (SLUICE_CONTRACT_PATH): a path's name as its descriptor has it, udp6 (udp at
// ::1) or sluice. Listeners of paths that have hosts are at SLUICE_CONTRACT_HOST, else at
// 127.0.0.1.
const std::string& path_under_test();
// From the environment (SLUICE_CONTRACT_FAULTS): none, or what every connection of every
// context suffers. "delayed": whatever a path may do without breaking its contract
// (fault::Plan::delayed, of seed SLUICE_CONTRACT_SEED).
bool faults_under_test();
// What it did so far, in all contexts.
struct FaultsDone {
  uint64_t held_back = 0, refused = 0, split = 0, spurious = 0;
  uint64_t sockets_narrowed = 0;
};
FaultsDone faults_done();
// TCP connections that got a small send buffer.
uint64_t sockets_narrowed();
bool path_has_views();
// Bulk travels as DATA in a stream of bytes.
bool path_streams();
// A CPU copies each byte of a fetch.
bool path_copies();
// Capability::kSealed, without a secret.
bool path_is_sealed();
// What endpoints say that they are.
Path expected_path();
// SLP, by one of its carriers.
bool path_is_slp();
// The paths below the sessions move the bytes and check keys: RDMA devices and SLP.
bool path_is_module();
bool path_is_direct();
// One-sided access needs nobody at the target.
bool path_has_device();
// RDMA by the fake fabric of tests/verbs (SLUICE_CONTRACT_VERBS=fake, or fake-narrow: without
// memory windows), or by the device
// that SLUICE_CONTRACT_HOST is the address of; those are soft devices, which copy.
bool fake_device_under_test();
bool copying_device_under_test();
// That fabric loses packets.
bool fabric_loses();
// How many of `bytes` of device memory, with a dma-buf or without, pass host memory at one end.
inline uint64_t bounced(bool dma_buf, uint64_t bytes) {
  return fake_device_under_test() && dma_buf ? 0 : bytes;
}
// Largest message that travels inside a control message, and one that does not.
size_t inline_limit();
// Where a listener of this path can listen: a new place each time.
std::string fresh_address();
// A connect() address of this path where nobody listens.
std::string deserted_address();

// A bound on a hang. SLUICE_CONTRACT_SECONDS: another one, for kernels that are slow because they
// look for defects.
inline Instant soon() {
  static const char* const asked = std::getenv("SLUICE_CONTRACT_SECONDS");
  return after(now(), std::chrono::seconds(asked != nullptr ? std::atoi(asked) : 20));
}
inline Instant in(Duration d) { return after(now(), d); }

// Keeps what completed, in order. One per endpoint: ids are an endpoint's own.
class Box final : public CompletionSink {
 public:
  void on_completion(Completion&& completion) noexcept override {
    all.push_back(std::move(completion));
  }
  PostOptions options(uint64_t user_data = 0, Instant deadline = soon(),
                      Level level = Level::kPlaced) {
    return {.sink = this, .user_data = user_data, .deadline = deadline, .level = level};
  }
  size_t count(OperationId id) const;
  Completion* find(OperationId id);
  std::deque<Completion> all;  // references stay valid
};

ArenaOptions small_arena();
std::unique_ptr<Context> open(Waiting waiting = Waiting::kSpin,
                              const ArenaOptions& arena = small_arena());
Buffer room(Context& context, size_t size);
Buffer filled(Context& context, size_t size, uint64_t seed);
Tensor tensor(Context& context, size_t size, uint64_t seed);
Tensor floats(Context& context, std::initializer_list<int64_t> shape, float first);

// Progresses `other` whenever the context it is hooked to is progressed.
class ProgressOther final : public ProgressHook {
 public:
  size_t progress(Instant) override;
  Instant next_timeout() override { return kNever; }
  Context* other = nullptr;
  bool frozen = false;

 private:
  bool inside_ = false;
};

struct PairOptions {
  ArenaOptions arena = small_arena();
  ConnectOptions connect;
  ListenOptions listen;
  Waiting waiting = Waiting::kSpin;
  bool same_arena = false;
};

class Pair {
 public:
  explicit Pair(const PairOptions& options = {});
  ~Pair();
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  // Another connection between the two contexts: {client's end, server's end}.
  std::pair<Endpoint, Endpoint> connect_again(const ConnectOptions& options = {});
  // From now on the server's context runs only when a test progresses it.
  void freeze_server() { client_hook_.frozen = true; }
  void thaw_server() { client_hook_.frozen = false; }
  // From now on neither progresses the other, and each may be another thread's, until they meet.
  void part();
  void meet();
  // Both sides run until `done`, or 20 s.
  bool until(const std::function<bool()>& done, Instant deadline = soon());
  // Both sides run until neither has done anything for a while.
  void settle();
  // The completion of `id`; fails the test if it does not come.
  Completion& wait(Box& box, OperationId id);

  // A new sink that lives until all operations have ended.
  Box& box() { return boxes_.emplace_back(); }

  // The contexts go at once, whatever is outstanding; the endpoint handles stay.
  void drop_contexts();

  // Ends both endpoints and contexts, with the checks of the destructor: everything posted
  // has completed, no memory is out.
  void finish();

  std::unique_ptr<Context> client_context, server_context;
  std::unique_ptr<Listener> listener;
  std::string address;
  Endpoint client, server;

 private:
  ProgressOther client_hook_, server_hook_;
  std::deque<Box> boxes_;
  bool finished_ = false;
};

// Connects `from` to `address` while `to` is progressed by another thread's turn: both
// contexts are this thread's again afterwards.
Result<Endpoint> connect_to(Context& from, Context& to, const std::string& address,
                            const ConnectOptions& options = {});

}  // namespace sluice::test

#endif  // SLUICE_TESTS_CONTRACT_PAIR_H_
