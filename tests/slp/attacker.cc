// What somebody can do who sees every frame, changes and sends what he likes, and has not
// the secret.
#include <algorithm>

#include "tests/slp/stage.h"

namespace sluice::slp::stage {
namespace {

constexpr size_t kMostKept = 64;

bool numbered(const Message& message) { return (message.bytes[0] & 31) > SLP_NACK; }
bool greeting(const Message& message) { return (message.bytes[0] & 31) <= SLP_RETRY; }

void garble(Random& random, std::vector<uint8_t>& bytes, size_t from) {
  for (size_t i = from; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(random.next());
}

}  // namespace

void Attacker::see(int from, Message& message) {
  Random& random = world_.random;
  auto& kept = kept_[from];
  if (kept.size() < kMostKept)
    kept.push_back(message.bytes);
  else if (random.percent(20))
    kept[random.below(kMostKept)] = message.bytes;
  if (!random.percent(world_.plan.attacks)) return;
  uint64_t soon =
      world_.now + 1 + random.below(random.percent(50) ? 20 * kMicrosecond : 5 * kMillisecond);
  switch (random.below(6)) {
    case 0: {  // what was once said, again
      int whose = kept_[1 - from].empty() || random.percent(50) ? from : 1 - from;
      return world_.deliver(1 - whose, {.bytes = kept_[whose][random.below(kept_[whose].size())]},
                            soon);
    }
    case 1:  // and to the one who said it
      return world_.deliver(from, {.bytes = kept[random.below(kept.size())], .forged = true}, soon);
    case 2: return void(message = mangled(message));
    case 3: return world_.deliver(1 - from, stripped(message), soon);
    case 4: return world_.deliver(1 - from, forged(message), soon);
    default: return world_.deliver(from, nack(message), soon);
  }
}

// A few bits are others, and the checksum is right.
Message Attacker::mangled(const Message& seen) {
  Message out{.bytes = seen.bytes, .forged = true};
  for (uint64_t flips = 1 + world_.random.below(3); flips > 0; --flips) {
    size_t bit = world_.random.below(8 * out.bytes.size());
    bool free = bit == 8 || (bit >= 8 * 28 && bit < 8 * 32);  // CE and the checksum are anybody's
    if (!free)
      out.bytes[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    else
      out.bytes[out.bytes.size() - 1 - flips] ^= 0x10;
  }
  if (out.bytes == seen.bytes) out.bytes.back() ^= 1;
  if (out.bytes.size() >= SLP_BASE_BYTES + slp_extension_bytes(out.bytes[0] & 31))
    slp_stamp_base(out.bytes.data());
  return out;
}

// As if its sender had no cipher.
Message Attacker::stripped(const Message& seen) {
  Message out{.bytes = seen.bytes, .forged = true};
  if (greeting(seen)) {
    slp_hello hello;
    slp_decode_hello(out.bytes.data() + SLP_BASE_BYTES, &hello);
    hello.capabilities = 0, hello.epoch_bits = 0;
    std::fill(std::begin(hello.salt), std::end(hello.salt), uint8_t{0});
    std::fill(std::begin(hello.tag), std::end(hello.tag), uint8_t{0});
    slp_encode_hello(out.bytes.data() + SLP_BASE_BYTES, &hello);
  } else if (numbered(seen)) {
    out.bytes[1] &= static_cast<uint8_t>(~(SLP_FLAG_SEALED | SLP_FLAG_PHASE));
    out.bytes.resize(out.bytes.size() - SLP_TAG_BYTES);
    // It may end the session, if it is believed.
    if (world_.random.percent(30)) {
      out.bytes.resize(SLP_BASE_BYTES);
      out.bytes[0] = SLP_VERSION << 5 | SLP_BYE;
      slp_store16(out.bytes.data() + 6, 0);
    }
  }
  slp_stamp_base(out.bytes.data());
  return out;
}

// A frame that could be the next: all is right that can be known.
Message Attacker::forged(const Message& seen) {
  Random& random = world_.random;
  Message out{.bytes = seen.bytes, .forged = true};
  uint8_t* frame = out.bytes.data();
  if (greeting(seen)) {
    if (random.percent(50))
      slp_store64(frame + SLP_BASE_BYTES + 16, random.next());  // the cookie
    else
      slp_store32(frame + SLP_BASE_BYTES + 24, 7);  // the connection
  } else if (numbered(seen)) {
    slp_store32(frame + 12, slp_load32(frame + 12) + 1 + static_cast<uint32_t>(random.below(3)));
    if (random.percent(30)) slp_store32(frame + 12, static_cast<uint32_t>(random.below(5000)));
    garble(random, out.bytes, SLP_BASE_BYTES);
  }
  slp_stamp_base(frame);
  return out;
}

// To the sender of a frame: "there is no such session".
Message Attacker::nack(const Message& seen) {
  slp_base base;
  Message out{.bytes = std::vector<uint8_t>(SLP_BASE_BYTES + SLP_NACK_BYTES), .forged = true};
  if (slp_decode_base(seen.bytes.data(), seen.bytes.size(), seen.bytes.size(), &base) != SLP_TAKEN)
    return out;
  uint32_t meant = base.connection;
  if (base.type == SLP_HELLO) meant = slp_load32(seen.bytes.data() + SLP_BASE_BYTES + 24);
  slp_store16(out.bytes.data() + SLP_BASE_BYTES,
              static_cast<uint16_t>(1 + world_.random.below(SLP_STATUSES - 1)));
  slp_store32(out.bytes.data() + SLP_BASE_BYTES + 4, meant);
  std::swap(base.source_port, base.destination_port);
  slp_base said{};
  said.type = SLP_NACK, said.source_port = base.source_port,
  said.destination_port = base.destination_port, said.session = base.session;
  slp_encode_base(out.bytes.data(), &said);
  return out;
}

}  // namespace sluice::slp::stage
