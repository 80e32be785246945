// What an operation cost and which way it went; and the vocabulary of paths,
// capabilities and requirements that goes with it.
#ifndef SLUICE_API_RECEIPT_H_
#define SLUICE_API_RECEIPT_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include <sluice/api/path_names.h>
#include <sluice/base/clock.h>

namespace sluice {

// How far the bytes of a peer's tensor can be trusted not to change.
enum class Trust : uint8_t {
  kOwned,   // in memory only we can write
  kShared,  // a view of memory its owner can still write
};

// Counts of this process's side. The kernel's copies are those the path is known
// to make (README.md); they are added when the bytes pass, not measured.
struct Receipt {
  Path path = Path::kNone;
  Trust trust = Trust::kOwned;
  uint32_t retries = 0;              // times the transport had to repeat a part
  uint64_t bytes = 0;                // payload moved or viewed
  uint64_t copied_bytes = 0;         // copied by a CPU in this process
  uint64_t kernel_copied_bytes = 0;  // copied by this side's kernel on our behalf
  Instant posted{};                  // to the resolution of Context::now()
  Instant completed{};
};

// What a path can do. Bits, so that a caller asks for what it needs.
enum class Capability : uint32_t {
  kViews = 1u << 0,          // a receiver reads the sender's memory in place
  kZeroCopyFetch = 1u << 1,  // fetch moves no byte by a CPU on either side
  kPassiveTarget = 1u << 2,  // one-sided operations need no progress at the target
  kRdma = 1u << 3,
  kAtomics = 1u << 4,
  // The next ones are of paths whose devices check keys. Where the target's session checks them,
  // both always hold.
  kRefusalsTold = 1u << 5,  // a refused access ends as kAccessDenied; else, and if the
                            // network loses the refusal, as a broken connection
  kKeysOfConnection =
      1u << 6,            // a key of arena memory is void on every other connection of its context
  kReadRights = 1u << 7,  // a key without Right::kRead opens nothing to readers
  // Only the two ends can read, change or make the bytes. They are encrypted and authenticated by a
  // secret that both have (l2 with a secret), or they stay in memory of one user of this machine,
  // as the kernel proves of both ends (shm, loopback).
  kSealed = 1u << 8,
};

class Capabilities {
 public:
  constexpr Capabilities() = default;
  constexpr Capabilities(std::initializer_list<Capability> list) {
    for (Capability c : list) bits_ |= static_cast<uint32_t>(c);
  }
  constexpr bool has(Capability c) const { return (bits_ & static_cast<uint32_t>(c)) != 0; }
  constexpr uint32_t bits() const { return bits_; }
  constexpr Capabilities with(Capability c) const {
    Capabilities more = *this;
    more.bits_ |= static_cast<uint32_t>(c);
    return more;
  }

 private:
  uint32_t bits_ = 0;
};

// What a connection must be able to do; a path that cannot is refused with the
// reason, never used in silence.
struct Requirements {
  bool zero_copy = false;  // fetch copies no byte by a CPU, user or kernel, on either side
  bool rdma = false;
  bool sealed = false;  // Capability::kSealed
  int max_copies = -1;  // CPU copies of each byte, both sides and kernels; -1: any
  // This path and no other; kNone: any. sluice:// then tries no other, and plain Ethernet as if
  // ConnectOptions::ethernet, or that of ListenOptions, were set.
  Path path = Path::kNone;

  // Of two different paths the left one's is kept.
  constexpr Requirements operator|(const Requirements& other) const {
    Requirements both = *this;
    both.zero_copy = zero_copy || other.zero_copy;
    both.rdma = rdma || other.rdma;
    both.sealed = sealed || other.sealed;
    if (max_copies < 0 || (other.max_copies >= 0 && other.max_copies < max_copies))
      both.max_copies = other.max_copies;
    if (path == Path::kNone) both.path = other.path;
    return both;
  }
};
inline constexpr Requirements any_path{};
inline constexpr Requirements zero_copy{.zero_copy = true};
inline constexpr Requirements rdma{.rdma = true};
inline constexpr Requirements sealed{.sealed = true};
constexpr Requirements max_copies(int n) { return {.max_copies = n}; }

// What a path offers, to be held against Requirements.
struct PathProperties {
  Path path = Path::kNone;
  Capabilities capabilities;
  // CPU copies of each byte of a fetch into a fresh tensor, both sides and kernels.
  int copies_per_fetch = 0;
};
// Empty if `properties` satisfy `require`, else the reason why not.
std::string unmet(const Requirements& require, const PathProperties& properties);

}  // namespace sluice

#endif  // SLUICE_API_RECEIPT_H_
