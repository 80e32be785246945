// What the server under attack does for its clients, and what both know of it. Commands are text in
// a message with kCommand, answers text in one with kAnswer:
//   friend SECRET        "welcome": what follows may be wanted and supplied by this client
//   publish STEP BYTES   publishes kMade of that step for one reader; "published"
//   fetch STEP           fetches that step of kUp and STEP modulo kUpNames, asking all that may
//                        supply it; "good" or what was wrong
//   send STEP BYTES      a message with kParcel follows; "sent"
//   take STEP BYTES      posts a receive for kGift; "taking", or "full" if strangers hold too much
//   grant                "granted", then the 40 bytes of a key to read and write kGrantBytes; or
//                        "full"
//   revoke               revokes it, then overwrites the memory with kAfterRevoke; "revoked"
#ifndef SLUICE_TESTS_HOSTILE_VICTIM_SERVICE_H_
#define SLUICE_TESTS_HOSTILE_VICTIM_SERVICE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include <sluice/api/context.h>

namespace sluice::hostile {

inline constexpr Tag kCommand = 0xc0, kAnswer = 0xc1, kParcel = 0xc2, kGift = 0xc3;
inline constexpr const char* kMade = "made";
inline constexpr const char* kUp = "up/";
inline constexpr uint64_t kUpNames = 512;  // mostly new to the server: nobody is known to have them
inline constexpr const char* kWeights = "weights";
inline constexpr size_t kWeightsBytes = size_t{1} << 20;
inline constexpr size_t kCommandBytes = 256;
inline constexpr size_t kGrantBytes = size_t{1} << 20;
// Granted to each client for reading, and as much for writing, by keys that are sent to nobody.
inline constexpr size_t kSecretBytes = 4096;
inline constexpr std::byte kBeforeRevoke{0x11}, kAfterRevoke{0xee};
// Seeds of payload, so that nobody's bytes pass for another's.
inline constexpr uint64_t kMadeSeed = 1'000'000, kUpSeed = 2'000'000, kParcelSeed = 3'000'000,
                          kWeightsSeed = 4'000'000;

// The arena of either end: small, so that an attack on it shows.
ContextOptions context_options();

}  // namespace sluice::hostile

#endif  // SLUICE_TESTS_HOSTILE_VICTIM_SERVICE_H_
