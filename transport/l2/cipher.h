// The cipher of SLP's sealed sessions by OpenSSL's libcrypto, which is loaded when it is
// first asked for: AES-256-GCM, HKDF-SHA-256, HMAC-SHA-256. The only door to OpenSSL.
#ifndef SLUICE_L2_CIPHER_H_
#define SLUICE_L2_CIPHER_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include <sluice/base/result.h>

struct evp_cipher_ctx_st;
struct slp_cipher;
struct slp_frame;
struct slp_piece;
struct slp_sealing;

namespace sluice::l2 {

class LibCrypto;

// The keys of one session, or of a listener, which only greets.
class Cipher final {
 public:
  // Errors: kUnsupported (no libcrypto: the detail names the package), kInternal.
  static Result<std::unique_ptr<Cipher>> open(std::span<const uint8_t> secret);
  ~Cipher();
  Cipher(const Cipher&) = delete;

  // What slp_config and slp_listener take, together with the Cipher itself as their user.
  static const slp_cipher* calls();

 private:
  static constexpr size_t kSlots = 5, kKeyBytes = 32;
  struct Calls;
  struct Slot {
    evp_cipher_ctx_st* context = nullptr;
    bool ready = false;
  };
  explicit Cipher(const LibCrypto& library) : library_(library) {}
  bool expand(std::span<const uint8_t> salt, std::span<const uint8_t> info,
              std::span<uint8_t> out) const;
  bool fill(uint32_t slot, std::span<const uint8_t> salt, std::span<const uint8_t> info);
  bool seal(const slp_sealing& how, std::span<const slp_piece> plain, uint8_t* out);
  bool open(const slp_sealing& how, uint8_t* data, uint32_t bytes);

  const LibCrypto& library_;
  std::unique_ptr<uint8_t[]> secret_;
  size_t secret_bytes_ = 0;
  std::array<uint8_t, kKeyBytes> greeting_{};
  std::array<Slot, kSlots> slots_;
};

}  // namespace sluice::l2

#endif  // SLUICE_L2_CIPHER_H_
