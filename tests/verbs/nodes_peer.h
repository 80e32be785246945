// The connections of `nodes` (nodes.cc) on node 1: to its server on node 2, with bytes that can be
// checked. A scenario returns whether all was as it should be.
#ifndef SLUICE_TESTS_VERBS_NODES_PEER_H_
#define SLUICE_TESTS_VERBS_NODES_PEER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>

#include <sluice/select/open.h>

namespace sluice::nodes {

// Of the memory that the server lends, and the largest message.
inline constexpr size_t kShared = size_t{32} << 20;
inline constexpr size_t kLargest = (size_t{8} << 20) + 3;

// Addresses of this node and of the other one, as the lab tells them.
std::string here();
std::string peer();
inline Instant in(Duration d) { return after(now(), d); }

// In a scenario: says what was not so, and ends it.
#define EXPECT(what, ...)                                        \
  do {                                                           \
    if (what) break;                                             \
    std::printf("FAILED %s:%d: %s ", __FILE__, __LINE__, #what); \
    std::printf("%s\n", std::string(__VA_ARGS__).c_str());       \
    return false;                                                \
  } while (false)

void fill(std::span<std::byte> bytes, uint64_t seed);
bool holds(std::span<const std::byte> bytes, uint64_t seed);
Buffer filled(Context& context, size_t size, uint64_t seed);

// Errors: ends the program.
std::unique_ptr<Context> context();

struct Peer {
  std::unique_ptr<Context> own = context();
  Endpoint endpoint;
  RemoteKey key;
};

// Connects, and takes the key of the memory that the server lends. Blocks: until then, or until
// `patience` is over.
Result<std::unique_ptr<Peer>> meet(const std::string& scheme, const ConnectOptions& options = {},
                                   Duration patience = std::chrono::seconds(30));

}  // namespace sluice::nodes

#endif  // SLUICE_TESTS_VERBS_NODES_PEER_H_
