// One SLP frame as numbers, read by the protocol's own code (kernel_compat/slp), and what
// is wrong with it. Remembers the streams of each direction, so that their records can be
// told. Knows no file, no socket, no output.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernel_compat/slp/slp_wire.h"
#include "tools/dump/packet.h"

namespace sluice::tools::dump {

bool is_find(uint8_t type);                // FIND or FOUND, which belong to no session
std::string_view type_name(uint8_t type);  // "DATA"; unknown ones: "type 17"
std::string status_name(uint32_t status);  // "bad handle"

// A record of a stream, with what it says by name.
struct Record {
  std::string name;  // "PULL"
  std::vector<std::pair<const char*, uint64_t>> fields;
};

struct Frame {
  slp_base base{};
  slp_drop drop = SLP_TAKEN;  // why a receiver would drop it by its bytes alone
  std::string problem;        // empty: none; else in words
  bool cut = false;           // the capture kept less than the frame
  bool decoded = false;       // base is what the frame says
  size_t extension_bytes = 0;
  size_t frame_bytes = 0;                            // without padding; if decoded
  std::span<const uint8_t> extension, payload;       // what was kept of them
  std::vector<std::pair<uint16_t, uint16_t>> pairs;  // ACK: gap and run
  std::vector<Record> records;                       // EAGER: those that this frame completes
};

// `bytes` of a frame of `length`. The tail may be padding.
Frame decode_frame(std::span<const uint8_t> bytes, uint64_t length);

// Puts the pieces of streams together.
class Streams {
 public:
  // Adds records to frames with pieces of a stream. `flow` names the direction between two hosts.
  void take(const std::string& flow, Frame& frame);

 private:
  struct Stream {
    uint32_t next = 0;                               // offset of what comes next, low 32 bits
    std::vector<uint8_t> begun;                      // of a record that is not whole yet
    std::map<uint32_t, std::vector<uint8_t>> early;  // what came before what is missing, by offset
    size_t early_bytes = 0;
    bool lost = false;  // nothing more can be told
  };
  static void append(Stream& stream, unsigned number, std::span<const uint8_t> bytes,
                     std::vector<Record>& out);
  static void catch_up(Stream& stream, unsigned number, std::vector<Record>& out);

  std::map<std::string, Stream> streams_;
};

}  // namespace sluice::tools::dump
