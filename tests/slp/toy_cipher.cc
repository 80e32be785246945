#include "tests/slp/toy_cipher.h"

#include <cstring>
#include <vector>

#include "tests/sim/random.h"

namespace sluice::slp {
namespace {

using Key = std::array<uint8_t, 16>;

uint64_t word_at(const uint8_t* from) {
  uint64_t word;
  std::memcpy(&word, from, 8);
  return word;
}

// By whole words: most of a schedule's time would go here.
void mask(const Key& key, const uint8_t* nonce, uint8_t* data, size_t bytes) {
  uint64_t state = slp_siphash(key.data(), nonce, SLP_NONCE_BYTES);
  size_t at = 0;
  for (; at + 8 <= bytes; at += 8) {
    uint64_t word = word_at(data + at) ^ sim::mix(state + at);
    std::memcpy(data + at, &word, 8);
  }
  for (uint64_t left = sim::mix(state + at); at < bytes; ++at, left >>= 8)
    data[at] ^= static_cast<uint8_t>(left);
}

// A change of any bit changes it; who does not know the key cannot say how.
uint64_t sum_of(uint64_t start, const uint8_t* data, size_t bytes) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;  // 2^64 by the golden ratio
  uint64_t sum = sim::mix(start ^ bytes);
  for (; bytes >= 8; bytes -= 8, data += 8) {
    sum = (sum ^ word_at(data)) * kOdd;
    sum ^= sum >> 32;
  }
  for (; bytes > 0; --bytes, ++data) sum = (sum ^ *data) * kOdd;
  return sim::mix(sum ^ start);
}

void tag_of(const Key& key, const slp_sealing& how, const uint8_t* data, size_t bytes,
            uint8_t* out) {
  uint8_t first[SLP_BASE_BYTES + SLP_NONCE_BYTES];
  std::memcpy(first, how.header, SLP_BASE_BYTES);
  std::memcpy(first + SLP_BASE_BYTES, how.nonce, SLP_NONCE_BYTES);
  uint64_t inner = slp_load64(key.data()) ^ slp_siphash(key.data(), first, sizeof(first));
  uint64_t low = sum_of(inner, data, bytes);
  slp_store64(out, low);
  slp_store64(out + 8, sim::mix(low ^ inner));
}

}  // namespace

const slp_cipher ToyCipher::kCalls = {.greet = greet, .derive = derive, .seal = seal, .open = open};

ToyCipher::Key ToyCipher::key_of(const uint8_t* salt, const uint8_t* info, uint32_t bytes) const {
  std::vector<uint8_t> text(salt, salt + 2 * SLP_SALT_BYTES);
  text.insert(text.end(), info, info + bytes);
  Key start{}, key;
  slp_store64(start.data(), secret_);
  slp_store64(key.data(), slp_siphash(start.data(), text.data(), text.size()));
  start[8] = 1;
  slp_store64(key.data() + 8, slp_siphash(start.data(), text.data(), text.size()));
  return key;
}

bool ToyCipher::greet(void* user, const uint8_t* text, size_t bytes, uint8_t* out) {
  Key key{};
  slp_store64(key.data(), static_cast<ToyCipher*>(user)->secret_);
  for (uint8_t half = 0; half < 2; ++half) {
    key[15] = static_cast<uint8_t>(half + 1);
    slp_store64(out + 8 * half, slp_siphash(key.data(), text, bytes));
  }
  return true;
}

bool ToyCipher::derive(void* user, uint32_t slot, const uint8_t* salt, const uint8_t* info,
                       uint32_t bytes) {
  auto* cipher = static_cast<ToyCipher*>(user);
  cipher->keys_.at(slot) = cipher->key_of(salt, info, bytes);
  return true;
}

bool ToyCipher::seal(void* user, const slp_sealing* how, const slp_piece* plain, uint32_t pieces,
                     uint8_t* out) {
  auto* cipher = static_cast<ToyCipher*>(user);
  const Key& key = cipher->keys_.at(how->slot);
  if (cipher->book_ != nullptr)
    cipher->book_->sealed(slp_load64(key.data()), slp_load32(how->nonce),
                          slp_load64(how->nonce + 4));
  size_t bytes = 0;
  for (uint32_t i = 0; i < pieces; ++i) {
    if (plain[i].bytes > 0) std::memcpy(out + bytes, plain[i].data, plain[i].bytes);
    bytes += plain[i].bytes;
  }
  mask(key, how->nonce, out, bytes);
  tag_of(key, *how, out, bytes, out + bytes);
  return true;
}

bool ToyCipher::open(void* user, const slp_sealing* how, const slp_frame* frame, uint32_t at,
                     uint32_t bytes) {
  const Key& key = static_cast<ToyCipher*>(user)->keys_.at(how->slot);
  auto* data = const_cast<uint8_t*>(frame->data) + at;
  uint8_t tag[SLP_TAG_BYTES];
  tag_of(key, *how, data, bytes, tag);
  // As with a real one, what does not open is not what it was.
  mask(key, how->nonce, data, bytes);
  return std::memcmp(tag, data + bytes, sizeof(tag)) == 0;
}

}  // namespace sluice::slp
