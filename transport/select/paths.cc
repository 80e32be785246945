#include <sluice/select/paths.h>

#include <algorithm>

#include <sluice/kmod/path.h>
#include <sluice/l2/path.h>
#include <sluice/loopback/path.h>
#include <sluice/select/ethernet.h>
#include <sluice/shm/path.h>
#include <sluice/tcp/path.h>
#include <sluice/verbs/path.h>

namespace sluice {
namespace {

// One line for each path. Best first; rings are looked at in every round of a spin.
const PathDescriptor* const kBuiltIn[] = {
    &shm::kPath,       //
    &verbs::kPath,     //
    &kmod::kPath,      //
    &l2::kPacketPath,  //
    &l2::kXdpPath,     //
    &l2::kUdpPath,     //
    &tcp::kPath,       //
    &loopback::kPath,  //
};

}  // namespace

std::vector<const PathDescriptor*> known_paths() {
  std::vector<const PathDescriptor*> all(std::begin(kBuiltIn), std::end(kBuiltIn));
  all.insert(all.end(), added_paths().begin(), added_paths().end());
  return all;
}

const PathDescriptor* find_path(std::string_view name) {
  for (const PathDescriptor* path : known_paths()) {
    if (path->name == name) return path;
  }
  return nullptr;
}

const PathDescriptor* find_path(Path wanted) {
  for (const PathDescriptor* path : known_paths()) {
    if (path->path == wanted) return path;
  }
  return nullptr;
}

std::unique_ptr<PathChoice> open_choice(const PathDescriptor& path, ContextCore& context,
                                        Provider& provider) {
  if (path.choose != nullptr) return path.choose(context, provider);
  return select::open_ethernet_choice(path, provider);
}

}  // namespace sluice
