// A cipher that is quick and no secret to anybody, with SLP's interface: for schedules. What
// it proves of the core is what a real one would: who does not know the key and the nonce
// makes no frame that opens. Each nonce goes into a book.
#ifndef SLUICE_TESTS_SLP_TOY_CIPHER_H_
#define SLUICE_TESTS_SLP_TOY_CIPHER_H_

#include <array>
#include <cstdint>

#include "kernel_compat/slp/slp.h"
#include "tests/slp/judge.h"

namespace sluice::slp {

class ToyCipher {
 public:
  ToyCipher(uint64_t secret, NonceBook* book) : secret_(secret), book_(book) {}
  static const slp_cipher kCalls;  // with a ToyCipher as their user

 private:
  using Key = std::array<uint8_t, 16>;
  static bool greet(void* user, const uint8_t* text, size_t bytes, uint8_t* out);
  static bool derive(void* user, uint32_t slot, const uint8_t* salt, const uint8_t* info,
                     uint32_t bytes);
  static bool seal(void* user, const slp_sealing* how, const slp_piece* plain, uint32_t pieces,
                   uint8_t* out);
  static bool open(void* user, const slp_sealing* how, const slp_frame* frame, uint32_t at,
                   uint32_t bytes);
  Key key_of(const uint8_t* salt, const uint8_t* info, uint32_t bytes) const;

  uint64_t secret_;
  NonceBook* book_;
  std::array<Key, SLP_KEY_SLOTS> keys_{};
};

}  // namespace sluice::slp

#endif  // SLUICE_TESTS_SLP_TOY_CIPHER_H_
