// Messages that no rule of docs/wire.md allows, on conversations of every path: each ends its own.
#include "tests/hostile/attacker/siege.h"

namespace hostile {
namespace {

using Variants = std::vector<std::vector<Bytes>>;

// One good message of each type, by number; HELLO and DATA apart, which are good nowhere here.
std::vector<Bytes> good_messages() {
  return {{},
          hello().whole(),
          inline_message(1, 77, Bytes(8, 1)),
          want_key(1, 0, "some", 1),
          data(1, 0, Bytes(8, 1)),
          done(1, 0, 0),
          release({1}),
          cancel(1, false),
          credit(1, 1),
          ping(1, false),
          bye(0)};
}

void unknown_types(Siege& siege) {
  Variants all;
  for (int type : {0, 11, 12, 31, 64, 127, 128, 200, 254, 255})
    all.push_back({Message(static_cast<uint8_t>(type), 1).raw(Bytes(32, 0)).whole()});
  each_refused(siege, all);
}

void unknown_flags(Siege& siege) {
  Variants all;
  const uint8_t known[kTypes] = {0, 0, 7, 0, 0, 0, 0, 0, 0, 1, 0};
  for (int type = kHello; type <= kBye; ++type) {
    for (int bit = type == kHello ? 0 : 1; bit < 8; bit += 3) {
      Bytes message = good_messages()[static_cast<size_t>(type)];
      message[1] = static_cast<uint8_t>(message[1] | 1 << bit);
      if ((message[1] & ~known[type]) != 0) all.push_back({message});
    }
  }
  each_refused(siege, all);
}

void wrong_lengths(Siege& siege) {
  Variants all;
  for (int type = kOffer; type <= kBye; ++type) {
    Bytes good = good_messages()[static_cast<size_t>(type)];
    uint16_t bytes = take<uint16_t>(good.data() + 2);
    for (uint16_t wrong : {uint16_t{0}, uint16_t{8}, uint16_t{12}, static_cast<uint16_t>(bytes + 1),
                           uint16_t{1032}, uint16_t{0xfff8}}) {
      Bytes message = good;
      std::memcpy(message.data() + 2, &wrong, 2);
      message.resize(2048);
      all.push_back({message});
    }
    uint32_t payload = type == kData ? (4u << 20) + 1 : type == kOffer ? 65537 : 1;
    for (uint32_t wrong : {payload, 0xffffffffu}) {
      Bytes message = good;
      std::memcpy(message.data() + 4, &wrong, 4);
      all.push_back({message});
    }
  }
  each_refused(siege, all);
}

void wrong_tlvs(Siege& siege) {
  Variants all;
  auto offer_with = [](auto&& change) {
    Message message = offer(1, kTagged, 77, 0, kInline);
    change(message);
    return message.whole();
  };
  auto want_with = [](auto&& change) {
    Message message = want(1, kByKey, 1, 0);
    change(message);
    return message.whole();
  };
  for (uint16_t type : {uint16_t{0x8004}, uint16_t{0x8777}, uint16_t{0xffff}}) {
    all.push_back({offer_with([&](Message& m) { m.tlv(type, Bytes(4, 0)); })});
    all.push_back({want_with([&](Message& m) { m.tlv(type, Bytes(4, 0)); })});
    all.push_back({Message(kPing, 1).tlv(type, Bytes(4, 0)).whole()});
  }
  all.push_back({want_with([](Message& m) { m.tlv(kKey, {}); })});               // of no bytes
  all.push_back({want_with([](Message& m) { m.tlv(kKey, Bytes(256, 'k')); })});  // too long
  all.push_back({want_with(
      [](Message& m) { m.tlv(kKey, Bytes(4, 'k')).tlv(kKey, Bytes(4, 'l')); })});  // twice
  all.push_back({want_with(
      [](Message& m) { m.u16(kKey).u16(60).raw(Bytes(4, 'k')); })});  // beyond the header
  all.push_back({want_with([](Message& m) {
    m.u16(kKey).u16(1).raw({'k', 1, 0, 0});
  })});  // padding that says something
  all.push_back({want_with([](Message& m) { m.tlv(kLayout, Bytes(11, 0)); })});
  for (auto [at, value] : std::vector<std::pair<size_t, uint8_t>>{
           {0, 18}, {1, 7}, {2, 0}, {4, 9}, {5, 2}, {6, 1}, {8, 1}, {19, 0x80}}) {
    Bytes layout = layout_of(8);
    layout[at] = value;
    all.push_back({want_with([&](Message& m) { m.tlv(kLayout, layout).text(kKey, "some"); })});
  }
  all.push_back({want_with([](Message& m) {
    m.tlv(kLayout, layout_of(8)).tlv(kLayout, layout_of(8)).text(kKey, "some");
  })});
  // The header longest possible, of segments: one too many, of nothing, and beyond the end of all
  // addresses.
  all.push_back({offer_with([](Message& m) {
    for (int i = 0; i < 17; ++i) m.tlv(kSegment, segment(1, 0, 1));
  })});
  all.push_back({offer(1, kTagged, 77, 0).tlv(kSegment, segment(1, 0, 0)).whole()});
  all.push_back({offer(1, kTagged, 77, 8).tlv(kSegment, segment(1, ~7ull, 8)).whole()});
  all.push_back({offer(1, kTagged, 77, 8)
                     .tlv(kSegment, segment(1, 0, ~0ull))
                     .tlv(kSegment, segment(1, 0, 9))
                     .whole()});
  each_refused(siege, all);
}

void nonsense_fields(Siege& siege) {
  Variants all;
  for (int kind : {0, 5, 255})
    all.push_back({offer(1, static_cast<uint8_t>(kind), 77, 0, kInline).whole()});
  for (int kind : {0, 4, 255})
    all.push_back({want(1, static_cast<uint8_t>(kind), 1).text(kKey, "some").whole()});
  all.push_back({offer(1, kTagged, 77, 1ull << 63, 0).whole()});
  all.push_back(
      {offer(1, kTagged, 77, 9, kInline).whole(Bytes(8, 1))});           // total and payload differ
  all.push_back({offer(1, kSupply, 1, 8, kInline).whole(Bytes(8, 1))});  // without a layout
  all.push_back({offer(1, kSupply, 1, 8, kInline).tlv(kLayout, layout_of(9)).whole(Bytes(8, 1))});
  all.push_back({offer(1, kTagged, 77, 8, kInline | kDataFollows).whole(Bytes(8, 1))});
  // Numbers of layouts: of none, none at all, of another kind, beside DATA or other runs.
  auto numbered = [](uint8_t number, Message message) {
    Bytes bytes = message.whole();
    bytes[17] = number;
    return bytes;
  };
  all.push_back({numbered(1, offer(1, kSupply, 1, 8, kNumbered))});
  all.push_back({numbered(0, offer(1, kSupply, 1, 8, kNumbered))});
  all.push_back({numbered(9, offer(1, kSupply, 1, 8, kNumbered).tlv(kLayout, layout_of(8)))});
  all.push_back({numbered(1, offer(1, kTagged, 1, 8, kNumbered).tlv(kLayout, layout_of(8)))});
  all.push_back(
      {numbered(1, offer(1, kSupply, 1, 8, kNumbered | kDataFollows).tlv(kLayout, layout_of(8)))});
  all.push_back({numbered(1, offer(1, kSupply, 1, 8, kNumbered).tlv(kSegment, segment(1, 0, 8)))});
  all.push_back({want(1, kByKey, 1, 0, 0, 0, 2).text(kKey, "some").whole()});
  all.push_back(
      {want(1, kByKey, 1, 0, 0, 0, 1).text(kKey, "some").whole()});  // into, without a layout
  all.push_back({want(1, kByKey, 1, 65536).text(kKey, "some").whole()});
  all.push_back({want(1, kByKey, 1, 0xffffffff).text(kKey, "some").whole()});
  all.push_back({want(1, kByKey, 1, 0).text(kKey, "some").tlv(kSegment, segment(1, 0, 8)).whole()});
  all.push_back({done(1, 13, 0)});
  all.push_back({done(1, 0xffffffff, 0)});
  all.push_back({Message(kRelease, 33).raw(Bytes(33 * 8, 1)).whole()});
  all.push_back({Message(kRelease, 4).raw(Bytes(3 * 8, 1)).whole()});
  all.push_back({Message(kRelease, ~0ull).raw(Bytes(8, 1)).whole()});
  all.push_back({Message(kCancel, 1).u64(2).whole()});
  all.push_back({Message(kCredit, 1).u64(1).u64(1).whole()});
  all.push_back({Message(kBye, 1).u64(0).whole()});
  all.push_back({bye(13)});
  each_refused(siege, all);
}

// Headers that are right, fields that are dice.
void random_messages(Siege& siege) {
  uint64_t sent = 0;
  for (uint64_t round = 0; round < 150 * siege.dose && siege.more(); ++round) {
    auto channel = open_channel(siege);
    if (channel == nullptr) continue;
    sent += flood(siege, *channel, 200, [&](uint64_t) {
      uint8_t type = static_cast<uint8_t>(2 + siege.random() % 8);
      Bytes message = good_messages()[type];
      size_t header = take<uint16_t>(message.data() + 2);
      // A few fields, often small numbers, which name what is there.
      for (int i = 0; i < 2; ++i) {
        size_t at = 8 + siege.random() % (header - 8);
        uint64_t value = siege.random() % 3 == 0 ? siege.random() : siege.random() % 4;
        std::memcpy(message.data() + (at & ~size_t{7}), &value,
                    std::min<size_t>(8, header - (at & ~size_t{7})));
      }
      return message;
    });
    settle(siege, *channel);
  }
  siege.must(sent >= 1000, "1000 messages");
  siege.must(siege.seen.cut_off > 0, "some of them end their conversation");
}

void hello_again(Siege& siege) { each_refused(siege, Variants(30, {hello().whole()})); }

const Registered registered(
    "any",
    {
        {"unknown_types", "messages of types that there are not", unknown_types},
        {"unknown_flags", "each type with flags that it does not know", unknown_flags},
        {"wrong_lengths", "each type with lengths that cannot be", wrong_lengths},
        {"wrong_tlvs", "TLVs that are unknown, doubled, too long or padded with words", wrong_tlvs},
        {"nonsense_fields", "fields with values that there are not", nonsense_fields},
        {"random_messages", "good headers, and dice for fields", random_messages},
        {"hello_again", "HELLO in the middle of a conversation", hello_again},
    });

}  // namespace
}  // namespace hostile
