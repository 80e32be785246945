// The secret that the two ends of a sealed connection share, as a file has it. A program that has
// set one takes sealed paths only, unless it says otherwise. Knows no path.
#ifndef SLUICE_RUNTIME_SECRET_H_
#define SLUICE_RUNTIME_SECRET_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <sluice/base/result.h>

namespace sluice {

// Names the file of the secret where ConnectOptions and ListenOptions name none.
inline constexpr const char* kSecretFileVariable = "SLUICE_L2_SECRET_FILE";

// By the option, or by the variable for a whole process.
bool secret_is_set(const std::string& secret_file);

class Secret {
 public:
  // Less can be guessed; more is a wrong file.
  static constexpr size_t kLeast = 16, kMost = 4096;

  // The file's bytes, without line ends behind them. Errors: kAccessDenied (not ours, or
  // others may read it), kInvalidArgument (no such file, too short, too long).
  static Result<std::shared_ptr<const Secret>> load(const std::string& path);
  // That of `secret_file`, or of the variable's file; null: none is set.
  static Result<std::shared_ptr<const Secret>> chosen(const std::string& secret_file);
  explicit Secret(std::vector<uint8_t> bytes) : bytes_(std::move(bytes)) {}
  Secret(const Secret&) = delete;
  ~Secret();  // leaves nothing of it in memory

  std::span<const uint8_t> bytes() const { return bytes_; }

 private:
  std::vector<uint8_t> bytes_;
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_SECRET_H_
