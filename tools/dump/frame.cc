#include "tools/dump/frame.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice::tools::dump {
namespace {

// Streams that are remembered: more, and all are forgotten at once.
constexpr size_t kMostStreams = 1024;
// Bytes of one stream kept while earlier ones are missing: more than a sender may have under way
// (docs/slp.md, section 6).
constexpr size_t kMostEarlyBytes = 32'768;
// Longer than any record of version 1.
constexpr uint32_t kMostRecordBytes = 16'384;

uint64_t word(std::span<const uint8_t> bytes, size_t at) { return slp_load32(bytes.data() + at); }
uint64_t long_word(std::span<const uint8_t> bytes, size_t at) {
  return slp_load64(bytes.data() + at);
}
bool zeros(std::span<const uint8_t> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](uint8_t b) { return b == 0; });
}

std::string explain(slp_drop drop, std::span<const uint8_t> bytes, uint64_t length) {
  switch (drop) {
    case SLP_DROP_RUNT:
      return fmt::format("runt: {} bytes are less than base and extension", length);
    case SLP_DROP_VERSION: return fmt::format("version {}", bytes[0] >> 5);
    case SLP_DROP_TYPE: return fmt::format("type {} is none", bytes[0] & 31);
    case SLP_DROP_FLAGS: return fmt::format("flags {:#04x} have reserved bits", bytes[1]);
    case SLP_DROP_LENGTH:
      return fmt::format("length: a payload of {} bytes in {}", slp_load16(bytes.data() + 6),
                         length);
    case SLP_DROP_HEADER_CRC:
      return fmt::format("header checksum {:08x} is wrong", slp_load32(bytes.data() + 28));
    default: return "content: a payload checksum without its flag";
  }
}

// Types of no session, and so of another reader.
bool is_of_find(std::span<const uint8_t> bytes) { return !bytes.empty() && is_find(bytes[0] & 31); }
slp_drop read_find(std::span<const uint8_t> bytes, uint64_t length, slp_base& base) {
  slp_find find;
  slp_drop drop = slp_decode_find(bytes.data(), bytes.size(), length, &find);
  base = {};
  base.type = find.type;
  if (drop != SLP_TAKEN) return drop;
  base.flags = bytes[1];
  base.source_port = find.source_port;
  base.destination_port = find.destination_port;
  return drop;
}

// What a receiver looks at next; empty: as docs/slp.md says.
std::string nonsense(const Frame& frame) {
  std::span<const uint8_t> e = frame.extension;
  switch (frame.base.type) {
    case SLP_HELLO:
    case SLP_HELLO_ACK:
    case SLP_RETRY: return zeros(e.subspan(44, 12)) ? "" : "its zeros are none";
    case SLP_NACK: return zeros(e.subspan(2, 2)) ? "" : "its zeros are none";
    case SLP_ACK: {
      uint32_t pairs = slp_load16(e.data());
      if (!zeros(e.subspan(2, 2))) return "its zeros are none";
      if (pairs > SLP_MAX_PAIRS || frame.base.payload_bytes != 4 * pairs)
        return fmt::format("{} pairs in {} bytes", pairs, frame.base.payload_bytes);
      return "";
    }
    case SLP_EAGER:
      if (e[4] >= SLP_STREAMS) return fmt::format("stream {}", e[4]);
      return zeros(e.subspan(5, 3)) ? (frame.base.payload_bytes > 0 ? "" : "no bytes")
                                    : "its zeros are none";
    case SLP_DATA:
      if (!zeros(e.subspan(12, 4))) return "its zeros are none";
      // Which of the two units the session has, only its greeting tells.
      if (long_word(e, 0) % SLP_UNIT_BYTES != 0 && long_word(e, 0) % SLP_SMALL_UNIT_BYTES != 0)
        return fmt::format("offset {} is within a unit", long_word(e, 0));
      return frame.base.payload_bytes > 0 ? "" : "no bytes";
    default: return "";
  }
}

void read_payload(Frame& frame) {
  bool whole = frame.payload.size() == frame.base.payload_bytes;
  if (whole && (frame.base.flags & SLP_FLAG_PCRC) != 0 &&
      slp_crc32c(0, frame.payload.data(), frame.payload.size()) != frame.base.payload_crc) {
    frame.drop = SLP_DROP_PAYLOAD_CRC;
    frame.problem = fmt::format("payload checksum {:08x} is wrong", frame.base.payload_crc);
    return;
  }
  if ((frame.base.flags & SLP_FLAG_SEALED) != 0) return;  // what it says cannot be seen
  if (std::string why = nonsense(frame); !why.empty()) {
    frame.drop = SLP_DROP_CONTENT;
    frame.problem = fmt::format("content: {}", why);
    return;
  }
  if (frame.base.type != SLP_ACK) return;
  for (size_t at = 0; at + 4 <= frame.payload.size(); at += 4) {
    frame.pairs.emplace_back(slp_load16(frame.payload.data() + at),
                             slp_load16(frame.payload.data() + at + 2));
  }
}

// A whole record; false: there is none like it.
bool read_record(unsigned stream, uint32_t kind, std::span<const uint8_t> body,
                 std::vector<Record>& out) {
  size_t least = 0;
  switch (kind) {
    case SLP_RECORD_MESSAGE: break;
    case SLP_RECORD_RTS: least = SLP_RTS_BYTES; break;
    case SLP_RECORD_PULL:
    case SLP_RECORD_PUSH: least = SLP_PULL_BYTES; break;
    case SLP_RECORD_GRANT: least = SLP_GRANT_BYTES; break;
    case SLP_RECORD_DONE: least = SLP_DONE_BYTES; break;
    default: return false;
  }
  bool of_messages = kind == SLP_RECORD_MESSAGE || kind == SLP_RECORD_RTS;
  if (of_messages != (stream == SLP_MESSAGES) || body.size() < least ||
      (!of_messages && body.size() != least))
    return false;
  switch (kind) {
    case SLP_RECORD_MESSAGE: out.push_back({"MESSAGE", {{"bytes", body.size()}}}); break;
    case SLP_RECORD_RTS:
      out.push_back({"RTS",
                     {{"handle", word(body, 0)},
                      {"length", long_word(body, 8)},
                      {"bytes", body.size() - SLP_RTS_BYTES}}});
      break;
    case SLP_RECORD_PULL:
      out.push_back({"PULL",
                     {{"transfer", word(body, 0)},
                      {"handle", word(body, 4)},
                      {"offset", long_word(body, 8)},
                      {"length", long_word(body, 16)},
                      {"limit", long_word(body, 24)}}});
      break;
    case SLP_RECORD_PUSH:
      out.push_back({"PUSH",
                     {{"transfer", word(body, 0)},
                      {"handle", word(body, 4)},
                      {"offset", long_word(body, 8)},
                      {"length", long_word(body, 16)},
                      {"notice", word(body, 24)},
                      {"noticed", word(body, 28)}}});
      break;
    case SLP_RECORD_GRANT:
      out.push_back({"GRANT", {{"transfer", word(body, 0)}, {"limit", long_word(body, 8)}}});
      break;
    default:
      out.push_back({"DONE", {{"transfer", word(body, 0)}, {"status", word(body, 4)}}});
      break;
  }
  return true;
}

}  // namespace

bool is_find(uint8_t type) { return type == SLP_FIND || type == SLP_FOUND; }

std::string_view type_name(uint8_t type) {
  if (is_find(type)) return type == SLP_FIND ? "FIND" : "FOUND";
  static constexpr std::string_view kNames[SLP_TYPES] = {
      "none", "HELLO", "HELLO_ACK", "RETRY", "NACK", "BYE", "ACK", "PING", "EAGER", "DATA"};
  return type < SLP_TYPES ? kNames[type] : "unknown";
}

std::string status_name(uint32_t status) {
  static constexpr std::string_view kNames[] = {
      "ok",        "no session", "no listener", "bad handle",    "bad range", "no right",
      "cancelled", "busy",       "bad version", "not authentic", "refused",   "silent",
      "closed",    "restarted",  "broken",      "local"};
  return status < std::size(kNames) ? std::string(kNames[status])
                                    : fmt::format("status {}", status);
}

Frame decode_frame(std::span<const uint8_t> bytes, uint64_t length) {
  Frame frame;
  length = std::max<uint64_t>(length, bytes.size());
  frame.cut = bytes.size() < length;
  bool find = is_of_find(bytes);
  frame.drop = find ? read_find(bytes, length, frame.base)
                    : slp_decode_base(bytes.data(), bytes.size(), length, &frame.base);
  if (frame.drop == SLP_DROP_RUNT && frame.cut) {
    // Not a runt on the wire: the capture alone is short.
    bool short_there = length < (find ? SLP_FIND_FRAME : SLP_BASE_BYTES);
    frame.problem = fmt::format("{} of {} bytes were captured: {}", bytes.size(), length,
                                short_there ? "a runt" : "its header is not whole");
    if (!short_there) frame.drop = SLP_TAKEN;
    return frame;
  }
  frame.decoded = frame.drop == SLP_TAKEN;
  if (!frame.decoded) {
    frame.problem = find && frame.drop == SLP_DROP_CONTENT
                        ? "content: no name, or zeros that are none"
                        : explain(frame.drop, bytes, length);
    return frame;
  }
  frame.extension_bytes = slp_extension_bytes(frame.base.type);
  size_t tag = (frame.base.flags & SLP_FLAG_SEALED) != 0 ? SLP_TAG_BYTES : 0;
  size_t header = SLP_BASE_BYTES + frame.extension_bytes;
  frame.frame_bytes = header + frame.base.payload_bytes + tag;
  frame.cut = bytes.size() < frame.frame_bytes;
  frame.extension = bytes.subspan(SLP_BASE_BYTES, frame.extension_bytes);
  frame.payload =
      bytes.subspan(header, std::min<size_t>(frame.base.payload_bytes, bytes.size() - header));
  read_payload(frame);
  return frame;
}

void Streams::append(Stream& stream, unsigned number, std::span<const uint8_t> bytes,
                     std::vector<Record>& out) {
  stream.next += static_cast<uint32_t>(bytes.size());
  stream.begun.insert(stream.begun.end(), bytes.begin(), bytes.end());
  size_t at = 0;
  while (stream.begun.size() - at >= SLP_RECORD_BYTES) {
    uint32_t head = slp_load32(stream.begun.data() + at), length = head & 0xffffff;
    size_t left = stream.begun.size() - at - SLP_RECORD_BYTES;
    bool good = length <= kMostRecordBytes;
    if (good && left < length) break;
    good = good && read_record(number, head >> 24,
                               {stream.begun.data() + at + SLP_RECORD_BYTES, length}, out);
    if (!good) {
      out.push_back({"NONSENSE", {{"kind", head >> 24}, {"bytes", length}}});
      stream.lost = true;
      stream.begun.clear();
      return;
    }
    at += SLP_RECORD_BYTES + length;
  }
  stream.begun.erase(stream.begun.begin(), stream.begun.begin() + static_cast<std::ptrdiff_t>(at));
}

void Streams::catch_up(Stream& stream, unsigned number, std::vector<Record>& out) {
  for (auto it = stream.early.begin(); it != stream.early.end() && !stream.lost;) {
    auto ahead = static_cast<int32_t>(it->first - stream.next);
    if (ahead > 0) {
      ++it;
      continue;
    }
    std::vector<uint8_t> bytes = std::move(it->second);
    stream.early_bytes -= bytes.size();
    stream.early.erase(it);
    auto known = static_cast<uint32_t>(-static_cast<int64_t>(ahead));
    if (known < bytes.size()) append(stream, number, std::span(bytes).subspan(known), out);
    it = stream.early.begin();  // what was too early before may not be now
  }
}

void Streams::take(const std::string& flow, Frame& frame) {
  bool piece = frame.decoded && frame.problem.empty() && !frame.cut &&
               frame.base.type == SLP_EAGER && (frame.base.flags & SLP_FLAG_SEALED) == 0;
  if (!piece) return;
  if (streams_.size() >= kMostStreams) streams_.clear();
  unsigned number = frame.extension[4];
  Stream& stream =
      streams_[fmt::format("{} {} {} {} {}", flow, frame.base.source_port,
                           frame.base.destination_port, frame.base.connection, number)];
  if (stream.lost) return;
  auto offset = static_cast<uint32_t>(word(frame.extension, 0));
  auto ahead = static_cast<int32_t>(offset - stream.next);
  if (ahead > 0 && stream.early_bytes + frame.payload.size() > kMostEarlyBytes) {
    stream.lost = true;
    stream.early.clear();
    stream.begun.clear();
    return;
  }
  if (ahead > 0 && stream.early.contains(offset)) return;
  stream.early_bytes += frame.payload.size();
  stream.early[offset].assign(frame.payload.begin(), frame.payload.end());
  catch_up(stream, number, frame.records);
}

}  // namespace sluice::tools::dump
