#include "tests/wire/golden_variants.h"

#include <numeric>

#include "tests/wire/hello.h"

namespace sluice::wire::test {
namespace {

TensorDescriptor compact(std::vector<int64_t> shape, DataType dtype) {
  return *TensorDescriptor::compact(shape, dtype);
}

TensorDescriptor strided(std::vector<int64_t> shape, std::vector<int64_t> strides, DataType dtype) {
  return *TensorDescriptor::strided(shape, strides, dtype, 0);
}

Offer supply(TensorDescriptor layout) {
  Offer m{};
  m.id = 0x0000000700000003;
  m.about = SupplyOffer{.want = 0x0000000100000002};
  m.layout = layout;
  m.has_layout = true;
  m.total = layout.span_bytes();
  return m;
}

void add_plain_offers(std::vector<NamedMessage>& out) {
  Offer tagged{};
  tagged.id = 1;
  tagged.about = TaggedOffer{.tag = 0xfeedfacecafebeef};
  tagged.total = 1 << 20;
  out.push_back({"offer", "tagged_without_tlvs", tagged});
  Offer in_line = tagged;
  in_line.flags = Offer::kInline;
  in_line.total = in_line.payload_bytes = 64;
  out.push_back({"offer", "tagged_inline", in_line});
  in_line.flags = Offer::kInline | Offer::kReport;
  in_line.total = in_line.payload_bytes = kMaxInlineBytes;
  out.push_back({"offer", "tagged_inline_longest_reported", in_line});
  in_line.total = in_line.payload_bytes = 0;
  out.push_back({"offer", "tagged_inline_empty", in_line});
  Offer write = tagged;
  write.flags = Offer::kDataFollows | Offer::kReport;
  write.about = WriteOffer{.grant = 0x99, .epoch = 0xabcdef01, .offset = 0x123456789a};
  write.total = static_cast<uint64_t>(INT64_MAX);
  out.push_back({"offer", "write_data_follows", write});
  Offer read = write;
  // With words that this kind does not use: they are kept as they came.
  read.about = OfferAbout(OfferKind::kRead, 0xabcdef01, 0x99, 0x123456789a);
  read.flags = 0;
  read.total = 12345;
  read.segments[0] = {3, 4096, 12345};
  read.segment_count = 1;
  out.push_back({"offer", "read_one_segment", read});
  Offer many = tagged;
  many.total = 0;
  for (uint32_t i = 0; i < kMaxSegments; ++i) {
    many.segments[i] = {i * 0x01010101u, uint64_t{i} << 40, 1000 + i};
    many.total += 1000 + i;
  }
  many.segment_count = kMaxSegments;
  out.push_back({"offer", "tagged_16_segments", many});
}

void add_supply_offers(std::vector<NamedMessage>& out) {
  std::vector<int64_t> shape;
  for (int rank = 0; rank <= kMaxRank; ++rank) {
    out.push_back(
        {"offer", "supply_rank_" + std::to_string(rank), supply(compact(shape, float32))});
    shape.push_back(rank + 2);
  }
  out.push_back({"offer", "supply_empty_dimension", supply(compact({4, 0, 6}, float64))});
  out.push_back({"offer", "supply_transposed", supply(strided({3, 5}, {1, 3}, bfloat16))});
  out.push_back({"offer", "supply_padded_rows", supply(strided({16, 100}, {128, 1}, float32))});
  out.push_back(
      {"offer", "supply_strided_rank_8",
       supply(strided({2, 2, 2, 2, 2, 2, 2, 2}, {1000, 400, 180, 80, 35, 16, 6, 2}, complex128))});
  out.push_back(
      {"offer", "supply_int4_lanes_3", supply(compact({7}, DataType{TypeCode::kInt, 4, 3}))});
  Offer numbered = supply(compact({1024, 1024}, float32));
  numbered.flags = Offer::kNumbered;
  numbered.layout_number = 3;
  numbered.segments[0] = {1, 1 << 22, 1 << 22};
  numbered.segment_count = 1;
  out.push_back({"offer", "supply_gives_its_layout_a_number", numbered});
  numbered.has_layout = false;
  numbered.about = OfferAbout(OfferKind::kSupply, 2, 0x0000000100000002, uint64_t{7} << 32);
  numbered.segments[0] = {2, uint64_t{7} << 32, 1 << 22};
  out.push_back({"offer", "supply_by_layout_number", numbered});
  Offer both = supply(strided({2, 3}, {8, 1}, int16));
  both.segments[0] = {1, (64 << 20) - 10, 10};
  both.segments[1] = {2, 0, 12};
  both.segment_count = 2;
  out.push_back({"offer", "supply_two_segments_strided", both});
}

void add_wants_with_windows(std::vector<NamedMessage>& out, const Want& known) {
  Want one = known;
  one.into = true;
  one.has_layout = true;
  one.layout = compact({4096, 25088}, float32);
  one.segments[0] = {0x8a000101, 0x00007f1234567000, uint64_t{411041792}};
  one.segment_count = 1;
  out.push_back({"want", "into_one_window", one});
  Want several = one;
  several.key = "fc6/weight";
  several.segments[0] = {0x8a000101, 0x00007f1234567000, 300000000};
  several.segments[1] = {0xffffffff, ~uint64_t{0} - 111041791, 111041791};
  several.segments[2] = {0, 0, 1};
  several.segment_count = 3;
  out.push_back({"want", "into_three_windows_with_key", several});
  Want most = one;
  for (uint32_t i = 0; i < kMaxSegments; ++i)
    most.segments[i] = {i * 0x01010101u, uint64_t{i} << 40, uint64_t{25690112}};
  most.segment_count = kMaxSegments;
  out.push_back({"want", "into_16_windows", most});
}

void add_wants(std::vector<NamedMessage>& out) {
  static const std::string longest = [] {
    std::string key(kMaxKeyBytes, 0);
    std::iota(key.begin(), key.end(), static_cast<char>(1));
    return key;
  }();
  Want known{};
  known.id = 0x0000000100000002;
  known.about = KeyWant{.key_id = 17, .step = 1000};
  out.push_back({"want", "known_key", known});
  Want which = known;
  which.about = KeyWant{.key_id = 17, .step = kNewestStep};
  out.push_back({"want", "which_step_is_newest", which});
  which.about = KeyWant{.key_id = 17, .step = kNextStep};
  out.push_back({"want", "which_step_is_next", which});
  Want first = known;
  first.key = "fc6/weight";
  out.push_back({"want", "first_use_of_key", first});
  first.key = "x";
  out.push_back({"want", "key_of_1_byte", first});
  first.key = "abcd";
  out.push_back({"want", "key_that_fills_its_padding", first});
  first.key = longest;
  out.push_back({"want", "key_of_255_bytes", first});
  static const std::vector<uint64_t> ids = [] {
    std::vector<uint64_t> all(kMaxStepsOfWant - 1);
    std::iota(all.begin(), all.end(), uint64_t{0x0000000100000003});
    return all;
  }();
  Want steps = known;
  steps.following = IdList(std::span(ids).first(1));
  out.push_back({"want", "two_steps", steps});
  steps.key = longest;
  steps.following = IdList(ids);
  out.push_back({"want", "32_steps_with_key", steps});
  steps.key = {};
  steps.about = KeyWant{.key_id = 17, .step = kNextStep - kMaxStepsOfWant};
  out.push_back({"want", "the_last_32_steps", steps});
  Want into = first;
  into.into = true;
  into.has_layout = true;
  into.layout = compact({4096, 25088}, float32);
  into.key = "fc6/weight";
  out.push_back({"want", "into_with_key", into});
  into.key = {};
  into.layout = strided({2, 3, 4}, {24, 8, 1}, uint8);
  out.push_back({"want", "into_strided", into});
  add_wants_with_windows(out, known);
  Want pull{};
  pull.id = 5;
  pull.about = PullWant{.offer = 0x0000000700000003, .offset = 1 << 22, .length = 411041792};
  out.push_back({"want", "bytes_of_an_offer", pull});
  Want read{};
  read.id = 6;
  read.about =
      ReadWant{.grant = 0x99, .epoch = 0xabcdef01, .offset = ~uint64_t{0}, .length = ~uint64_t{0}};
  out.push_back({"want", "one_sided_read", read});
}

void add_small_messages(std::vector<NamedMessage>& out) {
  out.push_back({"data", "first", Data{5, 0, 1}});
  out.push_back({"data", "longest", Data{0x0000000100000002, uint64_t{1} << 33, kMaxDataBytes}});
  out.push_back({"data", "empty", Data{5, 7, 0}});
  out.push_back({"data", "after", Data{5, 7, 1, true, uint64_t{1} << 40}});
  for (int code = 0; code < kCodeCount; ++code) {
    auto bytes = uint64_t{1} << (5 * code);
    out.push_back({"done", "code_" + std::to_string(code),
                   Done{0x100000000u + code, static_cast<Code>(code), bytes}});
  }
  Release release{};
  out.push_back({"release", "none", release});
  release.count = 1;
  release.ids[0] = 0x0102030405060708;
  out.push_back({"release", "one", release});
  release.count = kMaxReleases;
  for (uint64_t i = 0; i < kMaxReleases; ++i) release.ids[i] = i * 0x0101010101010101;
  out.push_back({"release", "most", release});
  out.push_back({"cancel", "want", Cancel{9, false}});
  out.push_back({"cancel", "offer", Cancel{~uint64_t{0}, true}});
  out.push_back({"credit", "first", Credit{256, 1 << 20}});
  out.push_back({"credit", "most", Credit{~uint64_t{0}, ~uint64_t{0}}});
  out.push_back({"ping", "question", Ping{0xdeadbeef01, false}});
  out.push_back({"ping", "reply", Ping{0xdeadbeef01, true}});
  out.push_back({"bye", "ok", Bye{Code::kOk}});
  out.push_back({"bye", "internal", Bye{Code::kInternal}});
}

}  // namespace

std::vector<NamedMessage> golden_variants() {
  std::vector<NamedMessage> out;
  for (const NamedHello& named : hello_variants())
    out.push_back({named.file, named.name, named.hello});
  add_plain_offers(out);
  add_supply_offers(out);
  add_wants(out);
  add_small_messages(out);
  return out;
}

}  // namespace sluice::wire::test
