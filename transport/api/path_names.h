// Names of paths and schemes, and how addresses of a scheme are written. A path that is not built
// in adds its own.
#ifndef SLUICE_API_PATH_NAMES_H_
#define SLUICE_API_PATH_NAMES_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sluice {

// Ways a tensor can cross. The numbers cross the wire (docs/wire.md, "HELLO"): a new path gets the
// next one.
enum class Path : uint8_t {
  kNone = 0,
  kLoopback = 1,
  kShm = 2,
  kVerbs = 3,
  kModule = 4,
  kPacket = 5,
  kUdp = 6,
  kTcp = 7,
  kXdp = 8,
};
std::string_view to_string(Path path);

enum class Scheme : uint8_t { kSluice, kShm, kTcp, kLoopback, kRdma, kL2, kKmod };
std::string_view to_string(Scheme scheme);

enum class AddressForm : uint8_t {
  kName,       // scheme:name
  kHostPort,   // scheme://host:port
  kInterface,  // scheme://interface/peer:port
};
// Requires: scheme < scheme_count().
AddressForm form_of(Scheme scheme);
size_t scheme_count();

// For paths that are not built in: numbers that no other path has. Requires: `name` outlives the
// process; no context is open; at most kMostAddedPaths.
inline constexpr size_t kMostAddedPaths = 8;
Path add_path(std::string_view name);
Scheme add_scheme(std::string_view name, AddressForm form);

}  // namespace sluice

#endif  // SLUICE_API_PATH_NAMES_H_
