#include <sluice/kmod/traits.h>
#include <sluice/spi/eager.h>

namespace sluice::kmod {

// Copies as /proc/net/sluice counts them, in the kernel: of a message user, stream, frame, stream,
// queue, user (three at each end), and ours from there to its place; of memory pages to frame,
// frame to pages. Where the device takes pages as they are, Link::uncopied_out() says so.
LinkTraits kmod_traits() {
  // Pinned as long as it is under way: two of them fill what a session has under way for one
  // operation, and fit the 8 MiB of locked memory that a user has by default.
  constexpr uint64_t kChunkBytes = 4 << 20;
  LinkTraits traits;
  traits.properties.path = Path::kModule;
  traits.sends_at_once = true;
  traits.inline_bytes = kEagerBytes;
  traits.chunk_bytes = kChunkBytes;
  traits.properties.copies_per_fetch = 2;
  traits.properties.capabilities = {
      Capability::kRefusalsTold, Capability::kKeysOfConnection, Capability::kReadRights,
      Capability::kPassiveTarget,  // the target's kernel answers
  };
  traits.inline_out = {.user = 0, .kernel = 3};
  traits.inline_in = {.user = 1, .kernel = 3};
  traits.bulk_out = traits.bulk_in = {.user = 0, .kernel = 1};
  return traits;
}

}  // namespace sluice::kmod
