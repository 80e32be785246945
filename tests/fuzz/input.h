// A fuzzer's bytes as the arguments of a program; zeros once they are used up.
#ifndef SLUICE_TESTS_FUZZ_INPUT_H_
#define SLUICE_TESTS_FUZZ_INPUT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice::fuzz {

class Input {
 public:
  // `amounts`: numbers that matter to a length or an offset.
  Input(const uint8_t* data, size_t size, std::span<const uint64_t> amounts)
      : data_(data), size_(size), amounts_(amounts) {}
  bool empty() const { return size_ == 0; }
  uint8_t byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  bool chance() { return (byte() & 1) != 0; }
  // One of those for a quarter of all bytes, else the byte itself.
  uint64_t amount() {
    uint8_t pick = byte();
    return pick < 64 ? amounts_[pick % amounts_.size()] : pick;
  }
  std::span<const uint8_t> rest(size_t most) {
    std::span<const uint8_t> bytes(data_, std::min(most, size_));
    data_ += bytes.size();
    size_ -= bytes.size();
    return bytes;
  }

 private:
  const uint8_t* data_;
  size_t size_;
  std::span<const uint64_t> amounts_;
};

}  // namespace sluice::fuzz

#endif  // SLUICE_TESTS_FUZZ_INPUT_H_
