// The secret that the two ends of a sealed connection share, as a file has it.
#ifndef SLUICE_L2_SECRET_H_
#define SLUICE_L2_SECRET_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <sluice/base/result.h>
#include <sluice/runtime/sealing.h>

namespace sluice::l2 {

// Where it is looked for if an endpoint's options name no file.
using sluice::kSecretFileVariable;

class Secret {
 public:
  // Less can be guessed; more is a wrong file.
  static constexpr size_t kLeast = 16, kMost = 4096;

  // The file's bytes, without line ends behind them. Errors: kAccessDenied (not ours, or
  // others may read it), kInvalidArgument (no such file, too short, too long).
  static Result<std::shared_ptr<const Secret>> load(const std::string& path);
  explicit Secret(std::vector<uint8_t> bytes) : bytes_(std::move(bytes)) {}
  Secret(const Secret&) = delete;
  ~Secret();  // leaves nothing of it in memory

  std::span<const uint8_t> bytes() const { return bytes_; }

 private:
  std::vector<uint8_t> bytes_;
};

}  // namespace sluice::l2

#endif  // SLUICE_L2_SECRET_H_
