// What the rest of the program knows of one path. Each path has one, in its own folder.
#ifndef SLUICE_SPI_PATH_DESCRIPTOR_H_
#define SLUICE_SPI_PATH_DESCRIPTOR_H_

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <sluice/api/context.h>
#include <sluice/api/path_names.h>
#include <sluice/api/receipt.h>
#include <sluice/spi/path_choice.h>
#include <sluice/spi/provider.h>

namespace sluice {

// A path on this machine.
struct PathState {
  bool usable = false;
  std::string why;  // usable for what, or what is missing and how to get it
  PathProperties properties;
};

struct PathDescriptor {
  Path path = Path::kNone;
  Scheme scheme = Scheme::kSluice;
  // As users say it: `sluice doctor --need rdma`, "not rdma: ...".
  std::string_view name;
  // For `sluice info --explain`. Null: not listed there.
  PathState (*explain)() = nullptr;
  // How `sluice doctor` tries it: where a listener is within this machine, or empty; and what to do
  // if that fails.
  std::string (*trial_address)() = nullptr;
  std::string_view remedy = {};
  // What both ends need so that sluice:// can take it; empty: nothing beside an IP address. For the
  // error of who asks for this path alone.
  std::string_view needs = {};
  // Null: another descriptor's provider has it.
  std::unique_ptr<Provider> (*open)(ContextCore& context) = nullptr;
  // Its part in sluice://, with the provider that open() made. Null: sluice:// does not try it.
  std::unique_ptr<PathChoice> (*choose)(ContextCore& context, Provider& provider) = nullptr;
};

// A path that is not built in: `const AddedPath added(kDescriptor);` in its own folder.
class AddedPath {
 public:
  // Requires: `descriptor` outlives the process; no context is open.
  explicit AddedPath(const PathDescriptor& descriptor);
};
std::span<const PathDescriptor* const> added_paths();

}  // namespace sluice

#endif  // SLUICE_SPI_PATH_DESCRIPTOR_H_
