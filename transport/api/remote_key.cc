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
  std::memcpy(out.data() + 16, &address, 8);
  std::memcpy(out.data() + 24, &epoch, 4);
  std::memcpy(out.data() + 28, &device_key, 4);
  out[32] = static_cast<std::byte>(rights);
  return out;
}

Result<RemoteKey> RemoteKey::decode(std::span<const std::byte> bytes) {
  auto invalid = [](const std::string& why) {
    return Status(Code::kInvalidArgument, Scope::kOperation, "api/remote_key", why);
  };
  if (bytes.size() != kEncodedBytes)
    return invalid("a remote key is 40 bytes, not " + std::to_string(bytes.size()));
  RemoteKey key;
  std::memcpy(&key.grant, bytes.data(), 8);
  std::memcpy(&key.length, bytes.data() + 8, 8);
  std::memcpy(&key.address, bytes.data() + 16, 8);
  std::memcpy(&key.epoch, bytes.data() + 24, 4);
  std::memcpy(&key.device_key, bytes.data() + 28, 4);
  auto rights = static_cast<uint8_t>(bytes[32]);
  if (rights < 1 || rights > 7)
    return invalid("rights of a remote key are 1 to 7, not " + std::to_string(rights));
  for (size_t i = 33; i < kEncodedBytes; ++i) {
    if (bytes[i] == std::byte{0}) continue;
    return invalid("padding of a remote key is zero, not " +
                   std::to_string(static_cast<int>(bytes[i])));
  }
  key.rights = static_cast<Right>(rights);
  return key;
}

}  // namespace sluice
