#include "tools/perf/flags/target.h"

#include <algorithm>
#include <array>
#include <utility>

namespace sluice::tools {

Json encode_key(const RemoteKey& key) {
  Json bytes = Json::array();
  for (std::byte b : key.encode()) bytes.push_back(std::to_integer<unsigned>(b));
  return {{"key", bytes}};
}

Result<RemoteKey> decode_key(const Json& message) {
  auto field = message.find("key");
  std::array<std::byte, RemoteKey::kEncodedBytes> bytes{};
  bool fits = field != message.end() && field->is_array() && field->size() == bytes.size();
  for (size_t i = 0; fits && i < bytes.size(); ++i) {
    fits = (*field)[i].is_number_unsigned() && (*field)[i].get<uint64_t>() <= 255;
    if (fits) bytes[i] = static_cast<std::byte>((*field)[i].get<uint64_t>());
  }
  if (!fits)
    return Status(Code::kCorrupt, Scope::kEndpoint, "perf/target",
                  "the peer sent no remote key; run the same version on both sides");
  return RemoteKey::decode(bytes);
}

Status Target::grant(const Side& side, Result<Buffer> memory, Right rights) {
  SLUICE_TRY(buffer_, std::move(memory));
  std::fill_n(buffer_.data(), buffer_.size_bytes(), std::byte{0});
  SLUICE_TRY(key_, side.endpoint.grant(buffer_, {.rights = rights}));
  return Status();
}

void Target::revoke(const Side& side) {
  if (buffer_ && side.endpoint) (void)side.endpoint.revoke(key_);
}

}  // namespace sluice::tools
