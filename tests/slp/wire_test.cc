// Frames as bytes: what a decoder takes, what it drops and why, and packet numbers in full.
#include <catch2/catch.hpp>

#include <cstring>
#include <string>
#include <vector>

#include "kernel_compat/slp/slp_wire.h"

namespace {

slp_base example(uint8_t type, uint16_t payload) {
  slp_base base{};
  base.type = type;
  base.flags = SLP_FLAG_ACK;
  base.source_port = 0x1234;
  base.destination_port = 0x4321;
  base.payload_bytes = payload;
  base.connection = 0xa1b2c3d4;
  base.number = 0x01020304;
  base.ack = 0x11121314;
  base.ack_run = 0x2122;
  base.ack_age_us = 0x3132;
  base.credit_kib = 0x4142;
  base.ce_count = 0x5152;
  base.session = 0x61626364;
  return base;
}

std::vector<uint8_t> frame_of(const slp_base& base) {
  std::vector<uint8_t> frame(SLP_BASE_BYTES + slp_extension_bytes(base.type) + base.payload_bytes);
  for (size_t i = SLP_BASE_BYTES; i < frame.size(); ++i) frame[i] = static_cast<uint8_t>(i);
  slp_encode_base(frame.data(), &base);
  return frame;
}

slp_drop decode(const std::vector<uint8_t>& frame, slp_base* out = nullptr) {
  slp_base base;
  // Of its exact size, so that a read beyond it is seen.
  std::vector<uint8_t> exact(frame);
  return slp_decode_base(exact.data(), exact.size(), exact.size(), out != nullptr ? out : &base);
}

slp_find example_find(uint8_t type) {
  return {.type = type,
          .source_port = 0x1234,
          .destination_port = 0x4321,
          .nonce = 0x0102030405060708,
          .name = "worker-3.rack_1"};
}

std::vector<uint8_t> frame_of(const slp_find& find) {
  std::vector<uint8_t> frame(SLP_FIND_FRAME);
  REQUIRE(slp_encode_find(frame.data(), &find));
  return frame;
}

slp_drop decode_find(const std::vector<uint8_t>& frame, slp_find* out = nullptr) {
  slp_find find;
  std::vector<uint8_t> exact(frame);
  return slp_decode_find(exact.data(), exact.size(), exact.size(), out != nullptr ? out : &find);
}

}  // namespace

TEST_CASE("each field of the base comes back", "[slp]") {
  for (uint8_t type = 1; type < SLP_TYPES; ++type) {
    slp_base base = example(type, 5), back{};
    REQUIRE(decode(frame_of(base), &back) == SLP_TAKEN);
    CHECK(back.type == type);
    CHECK(back.flags == base.flags);
    CHECK(back.source_port == base.source_port);
    CHECK(back.destination_port == base.destination_port);
    CHECK(back.payload_bytes == 5);
    CHECK(back.connection == base.connection);
    CHECK(back.number == base.number);
    CHECK(back.ack == base.ack);
    CHECK(back.ack_run == base.ack_run);
    CHECK(back.ack_age_us == base.ack_age_us);
    CHECK(back.credit_kib == base.credit_kib);
    CHECK(back.ce_count == base.ce_count);
    CHECK(back.session == base.session);
    CHECK(back.payload_crc == 0);
  }
}

TEST_CASE("the bytes of a frame are these for ever", "[slp]") {
  static const uint8_t kPing[SLP_BASE_BYTES] = {
      0x27, 0x02, 0x34, 0x12, 0x21, 0x43, 0x00, 0x00, 0xd4, 0xc3, 0xb2, 0xa1, 0x04, 0x03,
      0x02, 0x01, 0x14, 0x13, 0x12, 0x11, 0x22, 0x21, 0x32, 0x31, 0x42, 0x41, 0x52, 0x51};
  std::vector<uint8_t> frame = frame_of(example(SLP_PING, 0));
  CHECK(std::memcmp(frame.data(), kPing, 28) == 0);
  CHECK(slp_load32(frame.data() + 36) == 0x61626364);
  std::vector<uint8_t> zeroed(frame);
  std::memset(zeroed.data() + 28, 0, 4);
  CHECK(slp_load32(frame.data() + 28) == slp_crc32c(0, zeroed.data(), zeroed.size()));
}

TEST_CASE("any hop may mark congestion, and nothing else passes unseen", "[slp]") {
  for (uint8_t type = 1; type < SLP_TYPES; ++type) {
    std::vector<uint8_t> frame = frame_of(example(type, 0));
    for (size_t bit = 0; bit < 8 * frame.size(); ++bit) {
      std::vector<uint8_t> changed(frame);
      changed[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
      if (bit == 8)
        CHECK(decode(changed) == SLP_TAKEN);
      else
        CHECK(decode(changed) != SLP_TAKEN);
    }
  }
}

TEST_CASE("frames are dropped for the first thing that is wrong with them", "[slp]") {
  std::vector<uint8_t> frame = frame_of(example(SLP_DATA, 100));
  for (size_t bytes = 0; bytes < SLP_BASE_BYTES + SLP_DATA_BYTES; ++bytes)
    CHECK(decode({frame.begin(), frame.begin() + static_cast<long>(bytes)}) == SLP_DROP_RUNT);
  for (size_t bytes = SLP_BASE_BYTES + SLP_DATA_BYTES; bytes < frame.size(); ++bytes) {
    CHECK(decode({frame.begin(), frame.begin() + static_cast<long>(bytes)}) == SLP_DROP_LENGTH);
  }
  auto with = [&](size_t at, uint8_t value) {
    std::vector<uint8_t> changed(frame);
    changed[at] = value;
    return decode(changed);
  };
  CHECK(with(0, 2 << 5 | SLP_DATA) == SLP_DROP_VERSION);
  CHECK(with(0, 1 << 5) == SLP_DROP_TYPE);
  CHECK(with(0, 1 << 5 | SLP_TYPES) == SLP_DROP_TYPE);
  CHECK(with(1, 0x80) == SLP_DROP_FLAGS);
  CHECK(with(12, 99) == SLP_DROP_HEADER_CRC);
  CHECK(with(SLP_BASE_BYTES, 99) == SLP_DROP_HEADER_CRC);
  // Padding is not the frame's.
  frame.resize(frame.size() + 30);
  CHECK(decode(frame) == SLP_TAKEN);
  // A checksum that nobody announced.
  slp_base base = example(SLP_PING, 0);
  base.payload_crc = 1;
  CHECK(decode(frame_of(base)) == SLP_DROP_CONTENT);
}

TEST_CASE("flags that do not go together are refused", "[slp]") {
  auto with = [](uint8_t type, uint8_t flags) {
    slp_base base = example(type, 0);
    base.flags = flags;
    std::vector<uint8_t> frame = frame_of(base);
    frame.resize(frame.size() + SLP_TAG_BYTES);
    return decode(frame);
  };
  CHECK(with(SLP_PING, SLP_FLAG_SEALED | SLP_FLAG_PHASE) == SLP_TAKEN);
  CHECK(with(SLP_PING, SLP_FLAG_PHASE) == SLP_DROP_FLAGS);
  CHECK(with(SLP_PING, SLP_FLAG_SEALED | SLP_FLAG_PCRC) == SLP_DROP_FLAGS);
  for (uint8_t type : {SLP_HELLO, SLP_HELLO_ACK, SLP_RETRY, SLP_NACK})
    CHECK(with(type, SLP_FLAG_SEALED) == SLP_DROP_FLAGS);
}

TEST_CASE("a tag belongs to the length of a sealed frame", "[slp]") {
  slp_base base = example(SLP_PING, 0);
  base.flags |= SLP_FLAG_SEALED;
  std::vector<uint8_t> frame = frame_of(base);
  CHECK(decode(frame) == SLP_DROP_LENGTH);
  frame.resize(frame.size() + SLP_TAG_BYTES);
  CHECK(decode(frame) == SLP_TAKEN);
}

TEST_CASE("a packet number in full is the nearest to the one expected", "[slp]") {
  const uint64_t k32 = uint64_t{1} << 32;
  CHECK(slp_expand_number(1, 1) == 1);
  CHECK(slp_expand_number(10, 9) == 9);
  CHECK(slp_expand_number(k32, 0) == k32);
  CHECK(slp_expand_number(k32 - 1, 0) == k32);
  CHECK(slp_expand_number(k32, 0xffffffff) == k32 - 1);
  CHECK(slp_expand_number(5 * k32 + 7, 0xfffffff0) == 5 * k32 - 16);
  CHECK(slp_expand_number(5 * k32 - 16, 3) == 5 * k32 + 3);
  // Near the beginning nothing is before zero.
  CHECK(slp_expand_number(3, 0xfffffff0) == 0xfffffff0);
  for (uint64_t expected :
       {uint64_t{1}, k32 / 2, k32 - 1, k32, 7 * k32 + 12345, (k32 << 20) + 99}) {
    for (int64_t off : {-1'000'000ll, -1ll, 0ll, 1ll, 1'000'000ll}) {
      uint64_t number = expected + static_cast<uint64_t>(off);
      if (off < 0 && expected < 1'000'001) continue;
      CHECK(slp_expand_number(expected, static_cast<uint32_t>(number)) == number);
    }
  }
}

TEST_CASE("each field of a HELLO comes back", "[slp]") {
  slp_hello hello{}, back{};
  hello.nonce = 0x0102030405060708;
  hello.epoch_bits = 9;
  hello.peer_nonce = 0x1112131415161718;
  hello.cookie = 0x2122232425262728;
  hello.connection = 0x31323334;
  hello.min_version = 1;
  hello.max_version = 3;
  hello.capabilities = 0x4142;
  hello.mtu = 9000;
  hello.stream_kib = 10;
  hello.transfers = 16;
  hello.handles = 64;
  hello.ack_delay_us = 200;
  for (uint8_t i = 0; i < 16; ++i) hello.salt[i] = i, hello.tag[i] = static_cast<uint8_t>(0xf0 + i);
  uint8_t bytes[SLP_HELLO_BYTES];
  slp_encode_hello(bytes, &hello);
  slp_decode_hello(bytes, &back);
  CHECK(back.nonce == hello.nonce);
  CHECK(back.peer_nonce == hello.peer_nonce);
  CHECK(back.cookie == hello.cookie);
  CHECK(back.connection == hello.connection);
  CHECK(back.min_version == 1);
  CHECK(back.max_version == 3);
  CHECK(back.capabilities == hello.capabilities);
  CHECK(back.mtu == 9000);
  CHECK(back.stream_kib == 10);
  CHECK(back.transfers == 16);
  CHECK(back.handles == 64);
  CHECK(back.ack_delay_us == 200);
  CHECK(back.epoch_bits == 9);
  CHECK(std::memcmp(back.salt, hello.salt, 16) == 0);
  CHECK(std::memcmp(back.tag, hello.tag, 16) == 0);
}

TEST_CASE("a name that is looked for comes back in small letters, with its ports and nonce",
          "[slp]") {
  for (uint8_t type : {SLP_FIND, SLP_FOUND}) {
    slp_find find = example_find(type), back{};
    std::strcpy(find.name, "Worker-3.RACK_1");
    REQUIRE(decode_find(frame_of(find), &back) == SLP_TAKEN);
    CHECK(back.type == type);
    CHECK(back.source_port == find.source_port);
    CHECK(back.destination_port == find.destination_port);
    CHECK(back.nonce == find.nonce);
    CHECK(std::string(back.name) == "worker-3.rack_1");
    // To sessions it is nothing.
    CHECK(decode(frame_of(find)) == SLP_DROP_TYPE);
  }
  uint8_t frame[SLP_FIND_FRAME];
  slp_find find = example_find(SLP_FIND);
  for (const std::string& name : {std::string(), std::string("two words"), std::string("a/b"),
                                  std::string("\xc3\xa4"), std::string("a\n")}) {
    std::strcpy(find.name, name.c_str());
    CHECK_FALSE(slp_encode_find(frame, &find));
  }
  slp_find longest = example_find(SLP_FIND), back{};
  std::memset(longest.name, 'z', SLP_NAME_BYTES);
  REQUIRE(decode_find(frame_of(longest), &back) == SLP_TAKEN);
  CHECK(std::string(back.name) == std::string(SLP_NAME_BYTES, 'z'));
  longest.name[SLP_NAME_BYTES] = 'z';  // without an end
  CHECK_FALSE(slp_encode_find(frame, &longest));
}

TEST_CASE("any hop may mark congestion on a question for a name, and nothing else passes unseen",
          "[slp]") {
  std::vector<uint8_t> frame = frame_of(example_find(SLP_FOUND));
  for (size_t bit = 0; bit < 8 * frame.size(); ++bit) {
    std::vector<uint8_t> changed(frame);
    changed[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    INFO("bit " << bit);
    CHECK((decode_find(changed) == SLP_TAKEN) == (bit == 8));
  }
  for (size_t bytes = 0; bytes < frame.size(); ++bytes)
    CHECK(decode_find({frame.begin(), frame.begin() + static_cast<long>(bytes)}) == SLP_DROP_RUNT);
  CHECK(decode_find(frame_of(example(SLP_PING, 60))) == SLP_DROP_TYPE);
}

TEST_CASE("what a question for a name must leave zero is zero, whatever its checksum says",
          "[slp]") {
  auto stamped = [](size_t at, uint8_t value, uint8_t type = SLP_FIND) {
    std::vector<uint8_t> changed = frame_of(example_find(type));
    changed[at] = value;
    slp_stamp_base(changed.data());
    return decode_find(changed);
  };
  CHECK(stamped(SLP_BASE_BYTES + 8, 'x') == SLP_TAKEN);
  for (size_t at = 6; at < 28; ++at) CHECK(stamped(at, 1) == SLP_DROP_CONTENT);
  for (size_t at = 32; at < 40; ++at) CHECK(stamped(at, 1) == SLP_DROP_CONTENT);
  for (uint8_t flag = 0x02; flag != 0; flag = static_cast<uint8_t>(flag << 1))
    CHECK(stamped(1, flag) == SLP_DROP_FLAGS);
  for (uint8_t letter : {'A', ' ', '/', '\0', '\x7f'})
    CHECK(stamped(SLP_BASE_BYTES + 8, letter) == SLP_DROP_CONTENT);
  CHECK(stamped(SLP_FIND_FRAME - 1, 'a') == SLP_DROP_CONTENT);  // behind the zeros
  slp_find find = example_find(SLP_FIND);
  find.destination_port = 0;
  CHECK(decode_find(frame_of(find)) == SLP_TAKEN);
  find.type = SLP_FOUND;
  CHECK(decode_find(frame_of(find)) == SLP_DROP_CONTENT);
  find = example_find(SLP_FIND);
  find.source_port = 0;
  CHECK(decode_find(frame_of(find)) == SLP_DROP_CONTENT);
  find = example_find(SLP_FIND);
  find.nonce = 0;
  CHECK(decode_find(frame_of(find)) == SLP_DROP_CONTENT);
}
