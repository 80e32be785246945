// The 40 bytes of a remote key, which programs carry to each other.
#include <catch2/catch.hpp>

#include <vector>

#include <sluice/api/remote_key.h>

namespace sluice {
namespace {

constexpr RemoteKey kKey{.grant = 0x0102030405060708,
                         .length = 0x1112131415161718,
                         .address = 0x2122232425262728,
                         .epoch = 0x31323334,
                         .device_key = 0x41424344,
                         .rights = Right::kReadWrite};

TEST_CASE("a remote key has its documented bytes", "[remote_key]") {
  const uint8_t golden[] = {8,    7,    6,    5,    4,    3,    2,    1,    0x18, 0x17,
                            0x16, 0x15, 0x14, 0x13, 0x12, 0x11, 0x28, 0x27, 0x26, 0x25,
                            0x24, 0x23, 0x22, 0x21, 0x34, 0x33, 0x32, 0x31, 0x44, 0x43,
                            0x42, 0x41, 3,    0,    0,    0,    0,    0,    0,    0};
  auto bytes = kKey.encode();
  REQUIRE(bytes.size() == sizeof(golden));
  for (size_t i = 0; i < bytes.size(); ++i) CHECK(static_cast<uint8_t>(bytes[i]) == golden[i]);
  auto key = RemoteKey::decode(bytes);
  REQUIRE(key.ok());
  CHECK(key->grant == kKey.grant);
  CHECK(key->length == kKey.length);
  CHECK(key->address == kKey.address);
  CHECK(key->epoch == kKey.epoch);
  CHECK(key->device_key == kKey.device_key);
  CHECK(key->rights == kKey.rights);
}

TEST_CASE("every value of every byte of a remote key is kept or refused", "[remote_key]") {
  for (size_t at = 0; at < RemoteKey::kEncodedBytes; ++at) {
    for (int value = 0; value < 256; ++value) {
      auto bytes = kKey.encode();
      bytes[at] = static_cast<std::byte>(value);
      auto key = RemoteKey::decode(bytes);
      bool allowed = at < 32 || (at == 32 && value >= 1 && value <= 7) || (at > 32 && value == 0);
      INFO("byte " << at << " = " << value);
      REQUIRE(key.ok() == allowed);
      if (allowed) REQUIRE(key->encode() == bytes);
      if (!allowed) REQUIRE(key.code() == Code::kInvalidArgument);
      if (!allowed)
        REQUIRE(key.status().detail().find(std::to_string(value)) != std::string_view::npos);
    }
  }
}

TEST_CASE("rights are bits: each is there or not, whatever the others are", "[remote_key]") {
  for (int value = 1; value <= 7; ++value) {
    auto bytes = kKey.encode();
    bytes[32] = static_cast<std::byte>(value);
    auto key = RemoteKey::decode(bytes);
    REQUIRE(key.ok());
    INFO("rights " << value);
    CHECK(has_right(key->rights, Right::kRead) == ((value & 1) != 0));
    CHECK(has_right(key->rights, Right::kWrite) == ((value & 2) != 0));
    CHECK(has_right(key->rights, Right::kAtomic) == ((value & 4) != 0));
    CHECK(has_right(key->rights, Right::kReadWrite) == ((value & 3) == 3));
    CHECK(has_right(key->rights, Right::kAll) == (value == 7));
  }
}

TEST_CASE("a remote key of another length is refused", "[remote_key]") {
  for (size_t length = 0; length < 100; ++length) {
    std::vector<std::byte> bytes(length, std::byte{1});
    if (length == RemoteKey::kEncodedBytes) continue;
    auto key = RemoteKey::decode(bytes);
    REQUIRE(key.code() == Code::kInvalidArgument);
    REQUIRE(key.status().detail() == "a remote key is 40 bytes, not " + std::to_string(length));
  }
}

}  // namespace
}  // namespace sluice
