#include <sluice/api/remote_key.h>

#include <bit>
#include <cstring>
#include <string>

namespace sluice {
static_assert(std::endian::native == std::endian::little, "the codec copies little-endian words");

std::array<std::byte, RemoteKey::kEncodedBytes> RemoteKey::encode() const {
  std::array<std::byte, kEncodedBytes> out{};
  std::memcpy(out.data(), &grant, 8);
  std::memcpy(out.data() + 8, &length, 8);
  std::memcpy(out.data() + 16, &epoch, 4);
  out[20] = static_cast<std::byte>(rights);
  return out;
}

Result<RemoteKey> RemoteKey::decode(std::span<const std::byte> bytes) {
  auto invalid = [](const std::string& why) {
    return Status(Code::kInvalidArgument, Scope::kOperation, "api/remote_key", why);
  };
  if (bytes.size() != kEncodedBytes) return invalid("a remote key is 24 bytes, not " + std::to_string(bytes.size()));
  RemoteKey key;
  std::memcpy(&key.grant, bytes.data(), 8);
  std::memcpy(&key.length, bytes.data() + 8, 8);
  std::memcpy(&key.epoch, bytes.data() + 16, 4);
  auto rights = static_cast<uint8_t>(bytes[20]);
  if (rights < 1 || rights > 3) return invalid("rights of a remote key are 1, 2 or 3, not " + std::to_string(rights));
  for (size_t i = 21; i < kEncodedBytes; ++i) {
    if (bytes[i] == std::byte{0}) continue;
    return invalid("padding of a remote key is zero, not " + std::to_string(static_cast<int>(bytes[i])));
  }
  key.rights = static_cast<Right>(rights);
  return key;
}

}  // namespace sluice
