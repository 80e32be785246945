// Capture files as bytes: classic pcap (both byte orders, micro- and nanoseconds) and
// pcapng. Every byte may be hostile or missing; what is wrong is named with its place.
// Knows nothing of what the packets are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <sluice/base/result.h>

namespace sluice::tools::dump {

// Where the bytes of a capture come from, in order.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Fills `into` as far as there is something; less means that the end is here.
  virtual size_t read(std::span<uint8_t> into) = 0;
};

// Largest frame in a capture (tcpdump's largest snapshot).
inline constexpr size_t kMostFrameBytes = 262'144;

struct Captured {
  uint64_t time_ns = 0;  // since 1970
  uint16_t link_type = 0;
  uint64_t original_bytes = 0;     // on the wire
  std::span<const uint8_t> bytes;  // of which these were kept; until the next call
};

class CaptureReader {
 public:
  explicit CaptureReader(ByteSource& source) : source_(source) {}
  // The next packet, or none at the end. Errors: kCorrupt; nothing more can be read then.
  Result<std::optional<Captured>> next();

 private:
  enum class Form : uint8_t { kUnknown, kClassic, kBlocks };
  struct Interface {
    uint16_t link_type = 0;
    uint32_t snapshot = 0;
    uint8_t resolution = 6;  // if_tsresol
    int64_t offset_seconds = 0;
  };
  struct Options;

  uint16_t get16(size_t at) const;
  uint32_t get32(size_t at) const;
  Status corrupt(const std::string& what) const;
  // `size` bytes into block_ from `at` on; false: fewer are left.
  bool fetch(size_t at, size_t size);
  bool skip(uint64_t size);

  Status begin();
  Status begin_classic();
  Result<std::optional<Captured>> next_classic();
  Result<std::optional<Captured>> next_block();
  Result<std::optional<Captured>> in_block(uint32_t type);
  Status section(uint32_t length_as_read);
  Status interface_block();
  Result<std::optional<Captured>> packet_block(uint32_t type);
  Result<std::optional<Captured>> simple_packet_block();
  Result<std::optional<Captured>> packet(uint32_t interface, uint64_t ticks, uint32_t kept,
                                         uint32_t original, size_t at);

  ByteSource& source_;
  Form form_ = Form::kUnknown;
  bool swapped_ = false;  // numbers are of the other byte order
  bool nanoseconds_ = false;
  uint16_t link_type_ = 0;
  std::vector<Interface> interfaces_;
  std::vector<uint8_t> block_;
  uint64_t offset_ = 0;   // bytes read so far
  uint64_t packets_ = 0;  // told so far
  bool over_ = false;
};

// Writes classic pcap with nanoseconds, as the machine counts bytes.
class CaptureWriter {
 public:
  static std::vector<uint8_t> header(uint16_t link_type);
  static std::vector<uint8_t> record(const Captured& packet);
};

}  // namespace sluice::tools::dump
