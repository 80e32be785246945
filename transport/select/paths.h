// Every path that this build has: the one list of them.
#ifndef SLUICE_SELECT_PATHS_H_
#define SLUICE_SELECT_PATHS_H_

#include <memory>
#include <string_view>
#include <vector>

#include <sluice/runtime/context_core.h>
#include <sluice/spi/path_choice.h>
#include <sluice/spi/path_descriptor.h>

namespace sluice {

// Best first, as sluice:// tries them; then those that were added (AddedPath).
std::vector<const PathDescriptor*> known_paths();
// Null: no path is called so.
const PathDescriptor* find_path(std::string_view name);
const PathDescriptor* find_path(Path path);

// A path's part in sluice:// for one context, with the provider that its descriptor opened; null:
// none.
std::unique_ptr<PathChoice> open_choice(const PathDescriptor& path, ContextCore& context,
                                        Provider& provider);

}  // namespace sluice

#endif  // SLUICE_SELECT_PATHS_H_
