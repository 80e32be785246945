#include <sluice/l2/traits.h>
#include <sluice/spi/eager.h>

namespace sluice::l2 {
namespace {

LinkTraits slp_traits(Path path, uint64_t chunk_bytes) {
  LinkTraits traits;
  traits.properties.path = path;
  traits.properties.capabilities = {Capability::kRefusalsTold, Capability::kKeysOfConnection,
                                    Capability::kReadRights};
  traits.sends_at_once = true;  // the provider sends what a turn has left in SLP's stream
  traits.inline_bytes = kEagerBytes;
  traits.chunk_bytes = chunk_bytes;
  return traits;
}

}  // namespace

LinkTraits l2_traits(Path path, bool sealed, bool kernel_copies) {
  // Largest transfer. SLP cuts it into frames of the network's size, and can cancel it at any time,
  // so an operation on memory in one piece is one transfer.
  constexpr uint64_t kChunkBytes = 1 << 30;
  LinkTraits traits = slp_traits(path, kChunkBytes);
  if (sealed)
    traits.properties.capabilities = traits.properties.capabilities.with(Capability::kSealed);
  // Encryption writes each byte once more, and so does decryption.
  const uint8_t cipher = sealed ? 1 : 0, kernel = kernel_copies ? 1 : 0;
  // AF_XDP: into the memory that is shared with the kernel.
  const uint8_t shared = path == Path::kXdp ? 1 : 0;
  // Both kernels, both ciphers, and from the frame to its place.
  traits.properties.copies_per_fetch = 2 * kernel + 2 * cipher + shared + 1;
  traits.inline_out = {.user = static_cast<uint8_t>(1 + cipher + shared), .kernel = kernel};
  traits.inline_in = {.user = static_cast<uint8_t>(1 + cipher), .kernel = kernel};
  traits.bulk_out = {.user = static_cast<uint8_t>(cipher + shared), .kernel = kernel};
  traits.bulk_in = {.user = static_cast<uint8_t>(1 + cipher), .kernel = kernel};
  return traits;
}

}  // namespace sluice::l2
