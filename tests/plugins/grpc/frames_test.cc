// The bridge's frames: what was put in comes out, and nothing that a peer may send is believed.
#include <random>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include <sluice/grpc/frames.h>

namespace sluice::test {
namespace {

using grpc::Frame;
using grpc::FrameKind;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

const std::string kBody = "0123456789";

std::vector<Frame> one_of_each() {
  const grpc::Metadata metadata{
      {"key", "value"}, {"empty", ""}, {"a-bin", std::string("\0\xff", 2)}};
  return {
      {.kind = FrameKind::kHello, .version = 1, .token = {std::byte{7}}},
      {.kind = FrameKind::kWelcome, .version = 1},
      {.kind = FrameKind::kHeaders,
       .stream = 1,
       .text = "/a.B/C",
       .metadata = metadata,
       .timeout_ns = 5},
      {.kind = FrameKind::kHeaders, .stream = 1, .whole = true, .text = "/a.B/C"},
      {.kind = FrameKind::kMessage,
       .stream = 2,
       .length = 10,
       .parts = {{.length = 10, .bytes = bytes_of(kBody)}}},
      {.kind = FrameKind::kMessage,
       .stream = 2,
       .length = 1 << 20,
       .parts = {{.payload = 9, .length = 1 << 20}}},
      {.kind = FrameKind::kMessage,
       .stream = 2,
       .length = 40,
       .parts = {{.payload = 9, .length = 20},
                 {.length = 10, .bytes = bytes_of(kBody)},
                 {.payload = 10, .length = 10}}},
      {.kind = FrameKind::kHalfClose, .stream = 3},
      {.kind = FrameKind::kCancel, .stream = 4},
      {.kind = FrameKind::kInitialMetadata, .stream = 5, .metadata = metadata},
      {.kind = FrameKind::kStatus,
       .stream = 6,
       .text = "why",
       .details = "more",
       .metadata = metadata,
       .code = 13},
      {.kind = FrameKind::kWindow, .stream = 7, .count = 3},
      {.kind = FrameKind::kGoAway},
  };
}

std::string encoded(const Frame& frame) {
  std::string out;
  grpc::append(out, frame);
  return out;
}

}  // namespace

TEST_CASE("a frame that was encoded is decoded to the same", "[grpc][frames]") {
  std::string all;
  for (const Frame& frame : one_of_each()) grpc::append(all, frame);
  std::span<const std::byte> rest = bytes_of(all);
  for (const Frame& sent : one_of_each()) {
    auto came = grpc::take_frame(rest);
    REQUIRE(came);
    CHECK(came->kind == sent.kind);
    CHECK(came->stream == sent.stream);
    CHECK(came->whole == sent.whole);
    CHECK(came->text == sent.text);
    CHECK(came->details == sent.details);
    CHECK(came->metadata == sent.metadata);
    CHECK(came->code == sent.code);
    CHECK(came->count == sent.count);
    CHECK(came->length == sent.length);
    CHECK(came->timeout_ns == sent.timeout_ns);
    CHECK(came->token == sent.token);
    REQUIRE(came->parts.size() == sent.parts.size());
    for (size_t i = 0; i < sent.parts.size(); ++i) {
      const grpc::MessagePart &in = sent.parts[i], &out = came->parts[i];
      CHECK(out.payload == in.payload);
      CHECK(out.length == in.length);
      CHECK(std::equal(out.bytes.begin(), out.bytes.end(), in.bytes.begin(), in.bytes.end()));
    }
  }
  CHECK(rest.empty());
}

TEST_CASE("a frame that ends early, or says more than it has, is refused", "[grpc][frames]") {
  for (const Frame& frame : one_of_each()) {
    const std::string whole = encoded(frame);
    for (size_t length = 0; length < whole.size(); ++length) {
      const std::string cut = whole.substr(0, length);
      std::span<const std::byte> in = bytes_of(cut);
      CHECK_FALSE(grpc::take_frame(in));
      // The same with a length that agrees, so that the body is what is short.
      if (length < 12) continue;
      std::string shortened = cut;
      shortened[0] = static_cast<char>(length - 4);
      std::span<const std::byte> body = bytes_of(shortened);
      if (length < 260) CHECK_FALSE(grpc::take_frame(body));
    }
    std::string longer = whole + "x";
    longer[0] = static_cast<char>(longer[0] + 1);
    std::span<const std::byte> in = bytes_of(longer);
    CHECK_FALSE(grpc::take_frame(in));
  }
}

TEST_CASE("flags are refused that a frame does not have", "[grpc][frames]") {
  for (const Frame& frame : one_of_each()) {
    for (int flags = 0; flags < 256; ++flags) {
      std::string text = encoded(frame);
      text[5] = static_cast<char>(flags);
      std::span<const std::byte> in = bytes_of(text);
      const bool may = flags == 0 || (flags == 1 && frame.kind == FrameKind::kHeaders);
      CHECK(grpc::take_frame(in).has_value() == may);
    }
  }
}

TEST_CASE("lengths and kinds beyond the limits are refused", "[grpc][frames]") {
  const auto refused = [](const Frame& frame) {
    const std::string text = encoded(frame);
    std::span<const std::byte> in = bytes_of(text);
    return !grpc::take_frame(in).has_value();
  };
  const auto message = [](uint64_t length, std::vector<grpc::MessagePart> parts) {
    return Frame{.kind = FrameKind::kMessage, .length = length, .parts = std::move(parts)};
  };
  constexpr uint64_t kTooLong = uint64_t{1} << 31;
  CHECK(refused(message(kTooLong, {{.payload = 1, .length = kTooLong}})));
  CHECK(refused(message(~uint64_t{0}, {{.payload = 1, .length = ~uint64_t{0}}})));
  CHECK(refused(message(5, {{.length = 5}})));  // inline, and nothing there
  CHECK(refused(message(5, {})));
  CHECK(refused(message(5, {{.payload = 1, .length = 4}})));
  CHECK(refused(message(5, {{.payload = 1, .length = 6}})));
  CHECK(refused(message(5, {{.payload = 1, .length = 6}, {.payload = 2, .length = ~uint64_t{0}}})));
  std::vector<grpc::MessagePart> many(grpc::kMostParts, {.payload = 1, .length = 1});
  CHECK_FALSE(refused(message(many.size(), many)));
  many.push_back({.payload = 1, .length = 1});
  CHECK(refused(message(many.size(), many)));
  // Inline in two parts, together beyond what a frame may hold.
  const std::string half(grpc::kInlineBytes / 2 + 1, 'h');
  const grpc::MessagePart part{.length = half.size(), .bytes = bytes_of(half)};
  CHECK_FALSE(refused(message(half.size(), {part})));
  CHECK(refused(message(2 * half.size(), {part, part})));
  CHECK(refused({.kind = static_cast<FrameKind>(0)}));
  CHECK(refused({.kind = static_cast<FrameKind>(99)}));
  CHECK(refused({.kind = FrameKind::kHeaders, .text = std::string(grpc::kMethodBytes + 1, 'm')}));
  CHECK(refused(
      {.kind = FrameKind::kHeaders, .metadata = {{"k", std::string(grpc::kMetadataBytes, 'v')}}}));
}

TEST_CASE("bytes changed at random are decoded or refused, and read no further", "[grpc][frames]") {
  std::mt19937 random(1);
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (const Frame& frame : one_of_each()) grpc::append(text, frame);
    for (int change = 0; change < 1 + round % 4; ++change)
      text[random() % text.size()] = static_cast<char>(random());
    // Exactly as large as what is there: a sanitizer sees what lies beyond.
    const std::vector<char> exact(text.begin(), text.end());
    std::span<const std::byte> rest = std::as_bytes(std::span(exact));
    while (!rest.empty()) {
      const size_t before = rest.size();
      if (!grpc::take_frame(rest)) break;
      REQUIRE(rest.size() < before);
    }
  }
}

TEST_CASE("an announcement is taken whole or not at all", "[grpc][frames]") {
  const std::string text =
      grpc::encode(grpc::Announcement{.token = {std::byte{3}}, .address = "tcp://127.0.0.1:1"});
  auto read = grpc::decode_announcement(text);
  REQUIRE(read);
  CHECK(read->address == "tcp://127.0.0.1:1");
  CHECK(read->token[0] == std::byte{3});
  for (size_t length = 0; length < text.size(); ++length)
    CHECK_FALSE(grpc::decode_announcement(text.substr(0, length)));
  CHECK_FALSE(grpc::decode_announcement(text + "x"));
}

}  // namespace sluice::test
