// Each rule of docs/wire.md broken once: refused, with message, field and value named.
#include <catch2/catch.hpp>

#include <cstring>
#include <functional>

#include "tests/wire/golden_file.h"
#include "tests/wire/random_messages.h"

namespace sluice::wire::test {
namespace {

Bytes golden(const std::string& file, const std::string& name) {
  for (GoldenVariant& v : read_golden("tests/wire/golden/" + file + ".txt")) {
    if (v.name == name) return std::move(v.bytes);
  }
  FAIL("no golden message " << file << "/" << name);
  return {};
}

template <typename T>
Bytes with(Bytes bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(T));
  return bytes;
}

Bytes with_tlv(Bytes bytes, uint16_t type, uint16_t length, Bytes value = {}) {
  size_t at = bytes.size();
  value.resize(std::max<size_t>(value.size(), length));
  bytes.resize(at + 4);
  bytes = with(with(std::move(bytes), at, type), at + 2, length);
  bytes.insert(bytes.end(), value.begin(), value.end());
  while (bytes.size() % 8 != 0) bytes.push_back(std::byte{0});
  return with(std::move(bytes), 2, static_cast<uint16_t>(bytes.size()));
}

void refused(const Bytes& bytes, const std::string& expected) {
  Verdict v = judge(bytes);
  INFO(to_hex(bytes));
  CHECK_FALSE(v.accepted);
  CHECK(v.problem == "");
  CHECK_THAT(v.text, Catch::StartsWith("kCorrupt: " + expected));
}

void accepted(const Bytes& bytes) {
  Verdict v = judge(bytes);
  INFO(to_hex(bytes) << " " << v.text);
  CHECK(v.accepted);
  CHECK(v.problem == "");
}

TEST_CASE("a header that no message has is refused", "[wire][refusal]") {
  Bytes ping = golden("ping", "question");
  refused(Bytes(ping.begin(), ping.begin() + 15), "message: header of 15 bytes, at least 16");
  refused({}, "message: header of 0 bytes");
  refused(with(ping, 0, uint8_t{0}), "message: unknown type 0");
  refused(with(ping, 0, uint8_t{11}), "message: unknown type 11");
  refused(with(ping, 0, uint8_t{'G'}), "message: unknown type 71; the peer may not speak sluice");
  refused(with(ping, 1, uint8_t{2}), "PING: unknown flags 0x2, known are 0x1");
  refused(with(golden("offer", "tagged_without_tlvs"), 1, uint8_t{0x80}),
          "OFFER: unknown flags 0x80");
  refused(with(ping, 2, uint16_t{8}), "PING: header_bytes is 8");
  refused(with(ping, 2, uint16_t{20}), "PING: header_bytes is 20");
  refused(with(ping, 2, uint16_t{1032}), "PING: header_bytes is 1032");
  refused(with(golden("hello", "plain"), 2, uint16_t{88}), "HELLO: header_bytes is 88");
  refused(with(ping, 4, uint32_t{1}), "PING: payload_bytes is 1, at most 0");
  refused(with(golden("data", "longest"), 4, kMaxDataBytes + 1),
          "DATA: payload_bytes is 4194305, at most 4194304");
  refused(with(golden("offer", "tagged_inline"), 4, kMaxInlineBytes + 1),
          "OFFER: payload_bytes is 65537, at most 65536");
  refused(with(golden("offer", "tagged_without_tlvs"), 4, uint32_t{1}),
          "OFFER: payload_bytes is 1, at most 0");
}

TEST_CASE("a HELLO that is not ours is refused", "[wire][refusal]") {
  Bytes hello = golden("hello", "rendezvous");
  refused(with(hello, 16, 0x53554c43u),
          "HELLO: magic is 0x53554c43, not 0x43554c53; the peer does not speak sluice");
  refused(with(hello, 20, uint16_t{2}), "HELLO: versions are 2..1");
  refused(with(hello, 20, uint16_t{0}), "HELLO: versions are 0..1");
  refused(with_tlv(golden("hello", "plain"), 0x0004, 31), "HELLO: rendezvous of 31 bytes, not 32");
  refused(with_tlv(hello, 0x0004, 32), "HELLO: rendezvous appears 2 times");
  refused(with_tlv(hello, 0x0005, 5), "HELLO: rdma of 5 bytes, not 4");
  refused(with_tlv(hello, 0x0005, 4), "HELLO: rdma port is 0");
  refused(with_tlv(golden("hello", "rdma"), 0x0005, 4), "HELLO: rdma appears 2 times");
  refused(with_tlv(hello, 0x0006, 2), "HELLO: ethernet of 2 bytes, not 4");
  refused(with_tlv(hello, 0x0006, 4), "HELLO: both ports of ethernet are 0");
  refused(with_tlv(golden("hello", "ethernet"), 0x0006, 4), "HELLO: ethernet appears 2 times");
  refused(with_tlv(hello, 0x0007, 8), "HELLO: streams of 8 bytes, not 16");
  refused(with_tlv(golden("hello", "streams"), 0x0007, 16), "HELLO: streams appears 2 times");
  refused(with_tlv(golden("data", "first"), 0x8008, 4), "DATA: after of 4 bytes, not 8");
  refused(with_tlv(golden("data", "after"), 0x8008, 8), "DATA: after appears 2 times");
  refused(with_tlv(hello, 0x8004, 32), "HELLO: unknown critical TLV 0x8004");
}

TEST_CASE("what a later version may add to HELLO is skipped", "[wire][refusal]") {
  Bytes hello = golden("hello", "plain");
  accepted(with(hello, 88, ~uint64_t{0}));
  accepted(with(hello, 88, uint64_t{1} << 63));
  accepted(with(hello, 22, uint16_t{9}));
  accepted(with_tlv(with_tlv(hello, 0x7fff, 100), 0x0004, 32));
}

TEST_CASE("an OFFER that contradicts itself is refused", "[wire][refusal]") {
  Bytes tagged = golden("offer", "tagged_without_tlvs");
  refused(with(tagged, 16, uint8_t{0}), "OFFER: unknown kind 0");
  refused(with(tagged, 16, uint8_t{5}), "OFFER: unknown kind 5");
  refused(with(tagged, 17, uint8_t{1}), "OFFER: reserved byte 17 is 1, not zero");
  refused(with(tagged, 18, uint16_t{3}), "OFFER: reserved word 18 is 3, not zero");
  refused(with(tagged, 40, uint64_t{1} << 63),
          "OFFER: total is 9223372036854775808, above 2^63 - 1");
  refused(with(tagged, 16, uint8_t{2}), "OFFER: kind 2 (supply) without a layout");
  Bytes in_line = golden("offer", "tagged_inline");
  refused(with(in_line, 40, uint64_t{65}),
          "OFFER: total is 65 but the inline payload has 64 bytes");
  Bytes supply = golden("offer", "supply_rank_2");
  refused(with(supply, 40, uint64_t{25}), "OFFER: total is 25 but the layout spans 24 bytes");
  refused(with_tlv(supply, 0x8001, 12), "OFFER: layout appears 2 times");
}

TEST_CASE("an OFFER whose layout is a number says nothing else of it, and one run",
          "[wire][refusal]") {
  for (const char* form : {"supply_gives_its_layout_a_number", "supply_by_layout_number"}) {
    Bytes numbered = golden("offer", form);
    accepted(numbered);
    refused(with(numbered, 17, uint8_t{0}), "OFFER: layout number is 0, must be 1 to 8");
    refused(with(numbered, 17, uint8_t{9}), "OFFER: layout number is 9, must be 1 to 8");
    refused(with(numbered, 18, uint16_t{1}), "OFFER: reserved word 18 is 1, not zero");
    refused(with(numbered, 1, uint8_t{0x0c}), "OFFER: flags 0xc: 0x8 comes alone");
    refused(with(numbered, 1, uint8_t{0x0a}), "OFFER: flags 0xa: 0x8 comes alone");
    refused(with(numbered, 16, uint8_t{4}), "OFFER: flag 0x8 in another kind than 2 (supply)");
    refused(with(numbered, 1, uint8_t{0}), "OFFER: reserved byte 17 is 3, not zero");
  }
  Bytes alone = golden("offer", "supply_by_layout_number");
  refused(with(alone, 40, uint64_t{0}), "OFFER: total is 0 at offset 30064771072");
  refused(with(alone, 40, uint64_t{1} << 63), "OFFER: total is 9223372036854775808 at offset");
  refused(with(alone, 32, ~uint64_t{0}),
          "OFFER: total is 4194304 at offset 18446744073709551615, must be at least 1 byte and end "
          "below 2^64");
  Bytes run = with(Bytes(20), 12, uint64_t{4194304});
  refused(with_tlv(alone, 0x8002, 20, run), "OFFER: segment count is 1 beside a layout's number");
  accepted(with_tlv(alone, 0x0777, 4));
}

TEST_CASE("a decoder refuses another's message, and a part of its own", "[wire][refusal]") {
  RandomMessages random(11);
  for (size_t type = 1; type < kMessageTypeCount; ++type) {
    for (size_t other = 1; other < kMessageTypeCount; ++other) {
      Bytes bytes = encode_any(random.next(static_cast<MessageType>(other)));
      Result<Header> header = decode_header(bytes);
      REQUIRE(header.ok());
      bytes.resize(header->header_bytes);
      std::visit(
          [&](auto out) {
            INFO(to_string(static_cast<MessageType>(type)) << " of " << to_hex(bytes));
            CHECK(decode(bytes, out).ok() == (type == other));
            if (type != other) return;
            for (size_t length = 0; length < bytes.size(); length += 8)
              CHECK(decode(std::span(bytes).first(length), out).code() == Code::kCorrupt);
          },
          random.next(static_cast<MessageType>(type)));
    }
  }
}

// What has the form of most offers is read in one go: by the same rules.
TEST_CASE("a supply of one segment is refused for what any other offer is", "[wire][refusal]") {
  const std::array<int64_t, 2> shape{2, 3};
  Offer offer;
  offer.id = 9;
  offer.about = SupplyOffer{};
  offer.total = 24;
  offer.has_layout = true;
  offer.layout = TensorDescriptor::compact(shape, float32).value();
  offer.segment_count = 1;
  offer.segments[0] = {.extent = 7, .offset = 4096, .length = 24};
  const Bytes plain = encode_any(offer);
  constexpr size_t kTotal = 40, kOffset = 56, kLength = 64, kType = 76, kShape = 88;
  REQUIRE(plain.size() == kShape + 16);
  accepted(plain);
  refused(with(plain, kShape, int64_t{4}), "OFFER: total is 24 but the layout spans 48 bytes");
  refused(with(plain, kShape + 8, int64_t{2}), "OFFER: total is 24 but the layout spans 16 bytes");
  refused(with(plain, kShape, int64_t{-2}), "OFFER");
  refused(with(plain, kTotal, uint64_t{23}), "OFFER");
  refused(with(plain, kLength, uint64_t{23}), "OFFER");
  refused(with(with(plain, kLength, uint64_t{32}), kTotal, uint64_t{32}),
          "OFFER: total is 32 but the layout spans 24 bytes");
  refused(with(plain, kOffset, ~uint64_t{0} - 22), "OFFER");
  accepted(with(plain, kOffset, ~uint64_t{0} - 24));
  refused(with(plain, kType, uint8_t{200}), "OFFER");
  refused(with(plain, kShape - 8, uint64_t{9}), "OFFER");
  // No header has such a length: half a dimension more than the rank says.
  Bytes longer = plain;
  longer.resize(plain.size() + 4);
  longer = with(longer, 2, static_cast<uint16_t>(longer.size()));
  CHECK(decode(longer, offer).code() == Code::kCorrupt);
}

TEST_CASE("segments that do not make the total are refused", "[wire][refusal]") {
  Bytes one = golden("offer", "read_one_segment");
  refused(with(one, 64, uint64_t{12344}),
          "OFFER: total is 12345 but the segments have 12344 bytes");
  refused(with(one, 64, uint64_t{0}), "OFFER: segment of extent 3 has offset 4096 and length 0");
  refused(with(one, 56, ~uint64_t{0}),
          "OFFER: segment of extent 3 has offset 18446744073709551615");
  refused(with(one, 50, uint16_t{19}), "OFFER: segment of 19 bytes, not 20");
  refused(with(one, 1, uint8_t{1}), "OFFER: total is 12345 but the inline payload has 0 bytes");
  refused(with(with(one, 1, uint8_t{1}), 4, uint32_t{12345}),
          "OFFER: segment count is 1 beside an inline payload");
  Bytes value(20, std::byte{1});
  refused(with_tlv(golden("offer", "tagged_16_segments"), 0x8002, 20, value),
          "OFFER: segment count is above 16");
  Bytes huge(20, std::byte{0});
  huge = with(huge, 12, ~uint64_t{0});
  refused(with_tlv(one, 0x8002, 20, huge),
          "OFFER: segment 1 of length 18446744073709551615 takes the sum beyond");
}

TEST_CASE("a WANT that contradicts itself is refused", "[wire][refusal]") {
  Bytes known = golden("want", "known_key");
  refused(with(known, 16, uint8_t{0}), "WANT: unknown kind 0");
  refused(with(known, 16, uint8_t{4}), "WANT: unknown kind 4");
  refused(with(known, 17, uint8_t{2}), "WANT: into is 2, not 0 or 1");
  refused(with(known, 17, uint8_t{1}), "WANT: into is 1 without a layout");
  refused(with(known, 18, uint16_t{1}), "WANT: reserved word 18 is 1, not zero");
  refused(with_tlv(known, 0x8003, 0), "WANT: key of 0 bytes");
  refused(with_tlv(known, 0x8003, 256), "WANT: key of 256 bytes, must have 1 to 255");
  refused(with_tlv(golden("want", "key_of_1_byte"), 0x8003, 1), "WANT: key appears 2 times");
  refused(with_tlv(known, 0x8004, 32), "WANT: unknown critical TLV 0x8004");
}

TEST_CASE("a WANT for several steps that cannot be answered is refused", "[wire][refusal]") {
  Bytes known = golden("want", "known_key");
  for (size_t bytes : {size_t{0}, size_t{7}, size_t{9}, size_t{32 * 8}})
    refused(with_tlv(known, 0x8009, bytes), "WANT: following of " + std::to_string(bytes) +
                                                " bytes, must be 8 for each of 1 to 31");
  Bytes two = golden("want", "two_steps");
  refused(with_tlv(two, 0x8009, 8), "WANT: following appears 2 times");
  for (uint8_t kind : {uint8_t{2}, uint8_t{3}})
    refused(with(two, 16, kind), "WANT: following beside another kind than 1");
  refused(with(with_tlv(two, 0x8001, 12, with(Bytes(12, std::byte{0}), 0, 0x00010801u)), 17,
               uint8_t{1}),
          "WANT: following beside another kind than 1, or into 1");
  Bytes last = golden("want", "the_last_32_steps");
  refused(with(last, 24, kNextStep - kMaxStepsOfWant + 1), "WANT: 31 steps following step");
  for (uint64_t step : {kNextStep - 1, kNextStep, kNewestStep})
    refused(with(two, 24, step), "WANT: 1 steps following step " + std::to_string(step));
}

TEST_CASE("windows of a WANT that cannot be written are refused", "[wire][refusal]") {
  Bytes one = golden("want", "into_one_window");
  size_t at = one.size() - 24;  // TLV, extent, offset, length
  REQUIRE(one[at + 2] == std::byte{20});
  refused(with(one, at + 16, uint64_t{0}),
          "WANT: segment of extent 2315256065 has offset 139716164218880 and length 0");
  refused(with(one, at + 8, ~uint64_t{0}),
          "WANT: segment of extent 2315256065 has offset 18446744073709551615");
  refused(with(one, at + 2, uint16_t{19}), "WANT: segment of 19 bytes, not 20");
  refused(with_tlv(one, 0x8002, 21), "WANT: segment of 21 bytes, not 20");
  refused(with(one, 17, uint8_t{0}), "WANT: segment count is 1 without a destination");
  refused(with(golden("want", "into_16_windows"), 17, uint8_t{0}),
          "WANT: segment count is 16 without a destination");
  Bytes value(20, std::byte{1});
  refused(with_tlv(golden("want", "known_key"), 0x8002, 20, value),
          "WANT: segment count is 1 without a destination");
  refused(with_tlv(golden("want", "into_16_windows"), 0x8002, 20, value),
          "WANT: segment count is above 16");
  // Whether windows together fit the tensor is the receiver's to decide, as is what a path may
  // carry.
  accepted(with(one, at + 16, uint64_t{1}));
  Bytes huge = with(Bytes(20, std::byte{0}), 12, ~uint64_t{0});
  accepted(with_tlv(with_tlv(one, 0x8002, 20, huge), 0x8002, 20, huge));
  // In any order among the other TLVs.
  Bytes early =
      with_tlv(with_tlv(with(golden("want", "known_key"), 17, uint8_t{1}), 0x8002, 20, value),
               0x8001, 12, with(Bytes(12, std::byte{0}), 0, 0x00010801u));
  accepted(with_tlv(early, 0x8002, 20, value));
}

TEST_CASE("a layout with the wrong form is refused", "[wire][refusal]") {
  Bytes into = golden("want", "into_strided");  // TLV at 48, its value at 52
  refused(with(into, 56, uint8_t{4}),
          "WANT: layout of rank 4 and form 1 has 48 bytes of dimensions, not 64");
  refused(with(into, 56, uint8_t{255}), "WANT: layout of rank 255, at most 8");
  refused(with(into, 57, uint8_t{0}),
          "WANT: layout of rank 3 and form 0 has 48 bytes of dimensions, not 24");
  refused(with(into, 57, uint8_t{2}), "WANT: layout of form 2, not 0 or 1");
  refused(with(into, 58, uint16_t{7}), "WANT: layout has reserved words 0x7 and 0x0, not zero");
  refused(with(into, 60, uint32_t{7}), "WANT: layout has reserved words 0x0 and 0x7, not zero");
  refused(with(into, 52, uint8_t{99}), "WANT: layout: unknown dtype");
  refused(with_tlv(golden("want", "known_key"), 0x8001, 11),
          "WANT: layout of 11 bytes, at least 12");
}

TEST_CASE("the small messages are as strict", "[wire][refusal]") {
  refused(with(golden("done", "code_0"), 16, uint32_t{13}), "DONE: unknown code 13");
  refused(with(golden("done", "code_0"), 20, uint32_t{1}), "DONE: reserved word 20 is 1, not zero");
  refused(with(golden("bye", "ok"), 16, uint64_t{13}), "BYE: unknown code 13");
  refused(with(golden("bye", "ok"), 16, uint64_t{1} << 32), "BYE: unknown code 4294967296");
  refused(with(golden("bye", "ok"), 8, uint64_t{4}), "BYE: id is 4, not zero");
  refused(with(golden("credit", "first"), 8, uint64_t{4}), "CREDIT: id is 4, not zero");
  refused(with(golden("cancel", "want"), 16, uint64_t{2}), "CANCEL: kind is 2, not 0 or 1");
  refused(with(golden("release", "most"), 8, uint64_t{33}), "RELEASE: count is 33, at most 32");
  refused(with(golden("release", "most"), 8, ~uint64_t{0}),
          "RELEASE: count is 18446744073709551615");
  refused(with(golden("release", "one"), 8, uint64_t{2}),
          "RELEASE: count is 2 in a header of 24 bytes");
  // As encode() would write one more than there may be.
  Bytes more = golden("release", "most");
  more.resize(more.size() + 8);
  more = with(with(std::move(more), 8, uint64_t{33}), 2, uint16_t{16 + 33 * 8});
  refused(more, "RELEASE: count is 33, at most 32");
}

TEST_CASE("an unknown TLV is skipped in every message unless it is critical", "[wire][refusal]") {
  for (const std::string& path : golden_paths()) {
    for (const GoldenVariant& v : read_golden(path)) {
      INFO(path << " " << v.name);
      for (uint16_t length : {0, 1, 4, 12, 200}) {
        Bytes extended = with_tlv(v.bytes, 0x0777, length, Bytes(length, std::byte{0xab}));
        Verdict verdict = judge(extended);
        CHECK(verdict.accepted);
        CHECK(verdict.problem == "");
        CHECK(verdict.text == v.text);
        Bytes critical = with_tlv(v.bytes, 0x8777, length);
        CHECK_THAT(judge(critical).text, Catch::Contains("unknown critical TLV 0x8777"));
        CHECK(judge(critical).problem == "");
      }
      // Its padding not zero, its length beyond the message.
      Bytes padded = with_tlv(v.bytes, 0x0777, 1);
      CHECK_THAT(judge(with(padded, padded.size() - 1, uint8_t{9})).text,
                 Catch::Contains("padding of TLV 0x777 has 0x9, not zero"));
      CHECK_THAT(judge(with(padded, padded.size() - 6, uint16_t{5})).text,
                 Catch::Contains("TLV 0x777 of length 5 reaches beyond the message"));
    }
  }
}

TEST_CASE("a header that is not the span it came in is refused by every decoder",
          "[wire][refusal]") {
  Bytes ping = golden("ping", "question");
  Ping out;
  Status status = decode(std::span<const std::byte>(ping).first(8), out);
  CHECK(status == Code::kCorrupt);
  CHECK(status.detail() == "PING: header of 8 bytes, at least 16");
  ping.resize(24);
  CHECK(decode(ping, out).detail() == "PING: header_bytes is 16 in a header of 24 bytes");
  Bye bye;
  CHECK(decode(ping, bye).detail() == "BYE: type is 9");
}

TEST_CASE("random bytes behind a plausible header never surprise", "[wire][refusal]") {
  for (uint64_t seed = 0; seed < 100000; ++seed) {
    RandomMessages random(seed);
    Bytes bytes = encode_any(random.next(static_cast<MessageType>(1 + random.below(10))));
    for (uint64_t changes = 1 + random.below(4); changes > 0; --changes) {
      bytes[random.below(bytes.size())] = static_cast<std::byte>(random.word());
    }
    std::string problem = judge_stream(bytes);
    if (!problem.empty()) FAIL("seed " << seed << ": " << problem);
  }
  SUCCEED();
}

}  // namespace
}  // namespace sluice::wire::test
