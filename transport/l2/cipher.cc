#include <sluice/l2/cipher.h>

#include <dlfcn.h>
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <string.h>

#include <algorithm>
#include <string>

#include "kernel_compat/slp/slp.h"

namespace sluice::l2 {
namespace {

constexpr const char* kOrigin = "l2/cipher";
constexpr const char* kLibrary = "libcrypto.so.3";
// docs/slp.md, section 14.
constexpr uint8_t kGreetingInfo[] = {'s', 'l', 'p', '1', ' ', 'g', 'r',
                                     'e', 'e', 't', 'i', 'n', 'g'};

// clang-format off
#define SLUICE_CRYPTO_CALLS(CALL) \
  CALL(EVP_KDF_fetch) CALL(EVP_KDF_free) CALL(EVP_KDF_CTX_new) CALL(EVP_KDF_CTX_free) CALL(EVP_KDF_derive) \
  CALL(OSSL_PARAM_construct_utf8_string) CALL(OSSL_PARAM_construct_octet_string) CALL(OSSL_PARAM_construct_end) \
  CALL(EVP_sha256) CALL(HMAC) CALL(EVP_aes_256_gcm) CALL(EVP_CIPHER_CTX_new) CALL(EVP_CIPHER_CTX_free) CALL(EVP_CIPHER_CTX_ctrl) \
  CALL(EVP_EncryptInit_ex) CALL(EVP_EncryptUpdate) CALL(EVP_EncryptFinal_ex) \
  CALL(EVP_DecryptInit_ex) CALL(EVP_DecryptUpdate) CALL(EVP_DecryptFinal_ex)
// clang-format on

}  // namespace

class LibCrypto {
 public:
#define SLUICE_DECLARE(name) decltype(&::name) name = nullptr;
  SLUICE_CRYPTO_CALLS(SLUICE_DECLARE)
#undef SLUICE_DECLARE

  // Loaded once, for good: it has handlers that run at exit.
  static Result<const LibCrypto*> loaded() {
    static const Result<const LibCrypto*>& library = *new Result<const LibCrypto*>(load());
    if (!library.ok()) return library.status();
    return *library;
  }

 private:
  static Result<const LibCrypto*> load() {
    void* handle = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      const char* why = ::dlerror();
      return Status(Code::kUnsupported, Scope::kContext, kOrigin,
                    std::string(kLibrary) + " cannot be loaded (" +
                        (why != nullptr ? why : "no reason given") +
                        "), and a secret is set; install the package libssl3");
    }
    auto library = std::make_unique<LibCrypto>();
#define SLUICE_FIND(name)                                                                    \
  library->name = reinterpret_cast<decltype(&::name)>(::dlsym(handle, #name));               \
  if (library->name == nullptr) {                                                            \
    return Status(Code::kUnsupported, Scope::kContext, kOrigin,                              \
                  "the installed libcrypto has no " #name "; install OpenSSL 3.0 or newer"); \
  }
    SLUICE_CRYPTO_CALLS(SLUICE_FIND)
#undef SLUICE_FIND
    return static_cast<const LibCrypto*>(library.release());
  }
};

// What SLP calls; `user` is a Cipher.
struct Cipher::Calls {
  static Cipher& self(void* user) { return *static_cast<Cipher*>(user); }
  static bool greet(void* user, const uint8_t* text, size_t bytes, uint8_t* out) {
    Cipher& c = self(user);
    uint8_t digest[32];
    unsigned length = sizeof(digest);
    if (c.library_.HMAC(c.library_.EVP_sha256(), c.greeting_.data(),
                        static_cast<int>(c.greeting_.size()), text, bytes, digest,
                        &length) == nullptr)
      return false;
    std::copy_n(digest, SLP_TAG_BYTES, out);
    return true;
  }
  static bool derive(void* user, uint32_t slot, const uint8_t* salt, const uint8_t* info,
                     uint32_t bytes) {
    return self(user).fill(slot, {salt, 2 * SLP_SALT_BYTES}, {info, bytes});
  }
  static bool seal(void* user, const slp_sealing* how, const slp_piece* plain, uint32_t pieces,
                   uint8_t* out) {
    return self(user).seal(*how, {plain, pieces}, out);
  }
  static bool open(void* user, const slp_sealing* how, const slp_frame* frame, uint32_t at,
                   uint32_t bytes) {
    if (frame->present < at + bytes + SLP_TAG_BYTES) return false;
    return self(user).open(*how, const_cast<uint8_t*>(frame->data) + at, bytes);
  }
};

const slp_cipher* Cipher::calls() {
  static const slp_cipher kCalls = {
      .greet = Calls::greet, .derive = Calls::derive, .seal = Calls::seal, .open = Calls::open};
  return &kCalls;
}

Result<std::unique_ptr<Cipher>> Cipher::open(std::span<const uint8_t> secret) {
  static_assert(kSlots == SLP_KEY_SLOTS);
  SLUICE_TRY(const LibCrypto* library, LibCrypto::loaded());
  std::unique_ptr<Cipher> made(new Cipher(*library));
  made->secret_ = std::make_unique<uint8_t[]>(secret.size());
  made->secret_bytes_ = secret.size();
  std::copy(secret.begin(), secret.end(), made->secret_.get());
  if (made->expand({}, kGreetingInfo, made->greeting_)) return made;
  return Status(Code::kInternal, Scope::kContext, kOrigin,
                "libcrypto gives no HKDF; is its default provider disabled in openssl.cnf?");
}

Cipher::~Cipher() {
  for (Slot& slot : slots_) library_.EVP_CIPHER_CTX_free(slot.context);
  ::explicit_bzero(greeting_.data(), greeting_.size());
  if (secret_ != nullptr) ::explicit_bzero(secret_.get(), secret_bytes_);
}

// HKDF-SHA-256 (RFC 5869). An empty salt is as many zeros as SHA-256 has bytes.
bool Cipher::expand(std::span<const uint8_t> salt, std::span<const uint8_t> info,
                    std::span<uint8_t> out) const {
  EVP_KDF* kdf = library_.EVP_KDF_fetch(nullptr, OSSL_KDF_NAME_HKDF, nullptr);
  EVP_KDF_CTX* context = kdf != nullptr ? library_.EVP_KDF_CTX_new(kdf) : nullptr;
  static constexpr uint8_t kZeros[32] = {};
  if (salt.empty()) salt = kZeros;
  auto octets = [&](const char* name, std::span<const uint8_t> bytes) {
    return library_.OSSL_PARAM_construct_octet_string(name, const_cast<uint8_t*>(bytes.data()),
                                                      bytes.size());
  };
  char digest[] = "SHA256";
  OSSL_PARAM parameters[] = {
      library_.OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
      octets(OSSL_KDF_PARAM_KEY, {secret_.get(), secret_bytes_}),
      octets(OSSL_KDF_PARAM_SALT, salt),
      octets(OSSL_KDF_PARAM_INFO, info),
      library_.OSSL_PARAM_construct_end(),
  };
  bool done = context != nullptr &&
              library_.EVP_KDF_derive(context, out.data(), out.size(), parameters) == 1;
  library_.EVP_KDF_CTX_free(context);
  library_.EVP_KDF_free(kdf);
  return done;
}

bool Cipher::fill(uint32_t number, std::span<const uint8_t> salt, std::span<const uint8_t> info) {
  Slot& slot = slots_[number];
  slot.ready = false;
  if (slot.context == nullptr) slot.context = library_.EVP_CIPHER_CTX_new();
  if (slot.context == nullptr) return false;
  std::array<uint8_t, kKeyBytes> key;
  // A slot that seals never opens: those come first (slp.h).
  auto init = number < SLP_SEAL_SLOTS ? library_.EVP_EncryptInit_ex : library_.EVP_DecryptInit_ex;
  slot.ready = expand(salt, info, key) &&
               init(slot.context, library_.EVP_aes_256_gcm(), nullptr, key.data(), nullptr) == 1;
  ::explicit_bzero(key.data(), key.size());
  return slot.ready;
}

bool Cipher::seal(const slp_sealing& how, std::span<const slp_piece> plain, uint8_t* out) {
  const LibCrypto& l = library_;
  EVP_CIPHER_CTX* context = slots_[how.slot].context;
  int length = 0;
  if (!slots_[how.slot].ready ||
      l.EVP_EncryptInit_ex(context, nullptr, nullptr, nullptr, how.nonce) != 1)
    return false;
  if (l.EVP_EncryptUpdate(context, nullptr, &length, how.header, sizeof(how.header)) != 1)
    return false;
  for (const slp_piece& piece : plain) {
    if (piece.bytes == 0) continue;
    if (l.EVP_EncryptUpdate(context, out, &length, piece.data, static_cast<int>(piece.bytes)) != 1)
      return false;
    out += length;
  }
  if (l.EVP_EncryptFinal_ex(context, out, &length) != 1) return false;
  return l.EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, SLP_TAG_BYTES, out) == 1;
}

bool Cipher::open(const slp_sealing& how, uint8_t* data, uint32_t bytes) {
  const LibCrypto& l = library_;
  EVP_CIPHER_CTX* context = slots_[how.slot].context;
  int length = 0;
  uint8_t rest[16];
  if (!slots_[how.slot].ready ||
      l.EVP_DecryptInit_ex(context, nullptr, nullptr, nullptr, how.nonce) != 1)
    return false;
  if (l.EVP_DecryptUpdate(context, nullptr, &length, how.header, sizeof(how.header)) != 1)
    return false;
  if (bytes > 0 && l.EVP_DecryptUpdate(context, data, &length, data, static_cast<int>(bytes)) != 1)
    return false;
  if (l.EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, SLP_TAG_BYTES, data + bytes) != 1)
    return false;
  return l.EVP_DecryptFinal_ex(context, rest, &length) == 1;
}

}  // namespace sluice::l2
