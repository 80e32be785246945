// The 24 bytes of a remote key, which programs carry to each other.
#include <catch2/catch.hpp>

#include <vector>

#include <sluice/api/remote_key.h>

namespace sluice {
namespace {

constexpr RemoteKey kKey{0x0102030405060708, 0x1112131415161718, 0x21222324, Right::kReadWrite};

TEST_CASE("a remote key has its documented bytes", "[remote_key]") {
  const uint8_t golden[] = {8, 7, 6, 5, 4, 3, 2, 1, 0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11,
                            0x24, 0x23, 0x22, 0x21, 3, 0, 0, 0};
  auto bytes = kKey.encode();
  REQUIRE(bytes.size() == sizeof(golden));
  for (size_t i = 0; i < bytes.size(); ++i) CHECK(static_cast<uint8_t>(bytes[i]) == golden[i]);
  auto key = RemoteKey::decode(bytes);
  REQUIRE(key.ok());
  CHECK(key->grant == kKey.grant);
  CHECK(key->length == kKey.length);
  CHECK(key->epoch == kKey.epoch);
  CHECK(key->rights == kKey.rights);
}

TEST_CASE("every value of every byte of a remote key is kept or refused", "[remote_key]") {
  for (size_t at = 0; at < RemoteKey::kEncodedBytes; ++at) {
    for (int value = 0; value < 256; ++value) {
      auto bytes = kKey.encode();
      bytes[at] = static_cast<std::byte>(value);
      auto key = RemoteKey::decode(bytes);
      bool allowed = at < 20 || (at == 20 && value >= 1 && value <= 3) || (at > 20 && value == 0);
      INFO("byte " << at << " = " << value);
      REQUIRE(key.ok() == allowed);
      if (allowed) REQUIRE(key->encode() == bytes);
      if (!allowed) REQUIRE(key.code() == Code::kInvalidArgument);
      if (!allowed) REQUIRE(key.status().detail().find(std::to_string(value)) != std::string_view::npos);
    }
  }
}

TEST_CASE("a remote key of another length is refused", "[remote_key]") {
  for (size_t length = 0; length < 100; ++length) {
    std::vector<std::byte> bytes(length, std::byte{1});
    if (length == RemoteKey::kEncodedBytes) continue;
    auto key = RemoteKey::decode(bytes);
    REQUIRE(key.code() == Code::kInvalidArgument);
    REQUIRE(key.status().detail() == "a remote key is 24 bytes, not " + std::to_string(length));
  }
}

}  // namespace
}  // namespace sluice
