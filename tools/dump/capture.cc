#include "tools/dump/capture.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace sluice::tools::dump {
namespace {

// pcap: draft-ietf-opsawg-pcap, section 4; pcapng: draft-ietf-opsawg-pcapng, section 4.
constexpr uint32_t kMicroseconds = 0xa1b2c3d4, kNanoseconds = 0xa1b23c4d;
constexpr uint32_t kSection = 0x0a0d0d0a, kByteOrder = 0x1a2b3c4d;
constexpr uint32_t kInterface = 1, kOldPacket = 2, kSimplePacket = 3, kPacket = 6;
constexpr size_t kClassicHeader = 24, kClassicRecord = 16, kBlockHead = 8;
constexpr uint16_t kResolutionOption = 9, kOffsetOption = 14;
// Blocks that are looked into; others may have any length.
constexpr size_t kMostBlockBytes = kMostFrameBytes + 65'536;
constexpr size_t kMostInterfaces = 4096;
// Read at once: what a length claims is believed only as far as bytes come.
constexpr size_t kPiece = 65'536;
constexpr uint64_t kBillion = 1'000'000'000;

uint32_t swap32(uint32_t v) { return __builtin_bswap32(v); }

// Ticks of an if_tsresol to nanoseconds; what does not fit is as large as can be.
uint64_t nanoseconds_of(uint64_t ticks, uint8_t resolution, int64_t offset_seconds) {
  using Wide = unsigned __int128;
  Wide ns = 0;
  if ((resolution & 0x80) != 0) {
    unsigned bits = std::min(resolution & 0x7f, 63);
    ns = static_cast<Wide>(ticks) * kBillion >> bits;
  } else {
    Wide per_tick = kBillion, divide = 1;
    for (unsigned i = 0; i < std::min<unsigned>(resolution, 19); ++i) divide *= 10;
    ns = static_cast<Wide>(ticks) * per_tick / divide;
  }
  auto whole = static_cast<__int128>(std::min<Wide>(ns, UINT64_MAX)) +
               static_cast<__int128>(offset_seconds) * kBillion;
  return static_cast<uint64_t>(std::clamp<__int128>(whole, 0, UINT64_MAX));
}

}  // namespace

uint16_t CaptureReader::get16(size_t at) const {
  uint16_t v;
  std::memcpy(&v, block_.data() + at, sizeof(v));
  return swapped_ ? __builtin_bswap16(v) : v;
}

uint32_t CaptureReader::get32(size_t at) const {
  uint32_t v;
  std::memcpy(&v, block_.data() + at, sizeof(v));
  return swapped_ ? swap32(v) : v;
}

Status CaptureReader::corrupt(const std::string& what) const {
  return Status(Code::kCorrupt, Scope::kOperation, "dump/capture",
                "after " + std::to_string(packets_) + " packets, at byte " +
                    std::to_string(offset_) + ": " + what);
}

bool CaptureReader::fetch(size_t at, size_t size) {
  for (size_t done = 0; done < size;) {
    size_t piece = std::min(size - done, kPiece);
    if (block_.size() < at + done + piece) block_.resize(at + done + piece);
    size_t came = source_.read({block_.data() + at + done, piece});
    offset_ += came;
    done += came;
    if (came < piece) return false;
  }
  return true;
}

bool CaptureReader::skip(uint64_t size) {
  while (size > 0) {
    size_t piece = std::min<uint64_t>(size, kPiece);
    if (!fetch(0, piece)) return false;
    size -= piece;
  }
  return true;
}

Result<std::optional<Captured>> CaptureReader::next() {
  if (over_) return std::optional<Captured>();
  Status status = form_ == Form::kUnknown ? begin() : Status();
  Result<std::optional<Captured>> found = status;
  if (status.ok()) found = form_ == Form::kClassic ? next_classic() : next_block();
  over_ = !found.ok() || !found->has_value();
  if (!over_) ++packets_;
  return found;
}

Status CaptureReader::begin() {
  if (!fetch(0, 4))
    return corrupt(offset_ == 0 ? "the file is empty"
                                : "the file ends within its first four bytes");
  uint32_t magic = get32(0);
  if (magic == kSection) {  // the same in both byte orders
    form_ = Form::kBlocks;
    return Status();
  }
  for (bool swapped : {false, true}) {
    uint32_t seen = swapped ? swap32(magic) : magic;
    if (seen != kMicroseconds && seen != kNanoseconds) continue;
    swapped_ = swapped;
    nanoseconds_ = seen == kNanoseconds;
    form_ = Form::kClassic;
    return begin_classic();
  }
  return corrupt(
      "this is neither pcap nor pcapng; give a file that tcpdump -w wrote, or an interface");
}

Status CaptureReader::begin_classic() {
  if (!fetch(4, kClassicHeader - 4)) return corrupt("the file ends within its header");
  if (get16(4) != 2)
    return corrupt("pcap version " + std::to_string(get16(4)) + ", and only 2 is known");
  link_type_ = static_cast<uint16_t>(get32(20));  // above are facts about the frames' checksums
  return Status();
}

Result<std::optional<Captured>> CaptureReader::next_classic() {
  uint64_t start = offset_;
  if (!fetch(0, kClassicRecord)) {
    if (offset_ == start) return std::optional<Captured>();
    return corrupt("the file ends within a packet's header");
  }
  Captured packet;
  uint32_t seconds = get32(0), fraction = get32(4), kept = get32(8);
  packet.original_bytes = get32(12);
  if (fraction >= (nanoseconds_ ? kBillion : 1'000'000))
    return corrupt("a packet's time has " + std::to_string(fraction) + " parts of a second");
  if (kept > kMostFrameBytes) return corrupt("a packet of " + std::to_string(kept) + " bytes");
  if (!fetch(0, kept))
    return corrupt("the file ends within a packet of " + std::to_string(kept) + " bytes");
  packet.time_ns = seconds * kBillion + fraction * (nanoseconds_ ? 1 : 1000);
  packet.link_type = link_type_;
  packet.original_bytes = std::max<uint64_t>(packet.original_bytes, kept);
  packet.bytes = {block_.data(), kept};
  return std::optional<Captured>(packet);
}

// One block after the other, until one is a packet. block_ holds the body, without the lengths
// around it.
Result<std::optional<Captured>> CaptureReader::next_block() {
  // The first section's type was read already.
  bool first = offset_ == 4;
  while (true) {
    uint64_t start = offset_;
    if (!first && !fetch(0, 4)) {
      if (offset_ == start) return std::optional<Captured>();
      return corrupt("the file ends within a block's type");
    }
    uint32_t type = get32(0);
    if (!fetch(4, 4)) return corrupt("the file ends within a block's length");
    if (first && type != kSection) return corrupt("no section");
    first = false;
    if (type == kSection) {
      SLUICE_RETURN_IF_ERROR(section(get32(4)));
      continue;
    }
    uint32_t length = get32(4);
    if (length < kBlockHead + 4 || length % 4 != 0)
      return corrupt("a block of " + std::to_string(length) + " bytes");
    uint32_t body = length - kBlockHead - 4;
    bool known =
        type == kInterface || type == kOldPacket || type == kSimplePacket || type == kPacket;
    if (known && body > kMostBlockBytes)
      return corrupt("a block of " + std::to_string(length) + " bytes");
    block_.clear();
    if (!(known ? fetch(0, body + 4) : skip(body) && fetch(0, 4)))
      return corrupt("the file ends within a block of " + std::to_string(length) + " bytes");
    if (get32(known ? body : 0) != length) return corrupt("a block's two lengths differ");
    if (!known) continue;
    block_.resize(body);
    SLUICE_TRY(std::optional<Captured> found, in_block(type));
    if (found) return found;
  }
}

Result<std::optional<Captured>> CaptureReader::in_block(uint32_t type) {
  if (type == kInterface) {
    SLUICE_RETURN_IF_ERROR(interface_block());
    return std::optional<Captured>();
  }
  return type == kSimplePacket ? simple_packet_block() : packet_block(type);
}

Status CaptureReader::section(uint32_t length_as_read) {
  if (!fetch(0, 16)) return corrupt("the file ends within a section's header");
  bool was = std::exchange(swapped_, false);
  uint32_t order = get32(0);
  if (order != kByteOrder && swap32(order) != kByteOrder)
    return corrupt("a section without byte order");
  swapped_ = order != kByteOrder;
  uint32_t length = was == swapped_ ? length_as_read : swap32(length_as_read);
  if (get16(4) != 1)
    return corrupt("pcapng version " + std::to_string(get16(4)) + ", and only 1 is known");
  // Type, length, the 16 bytes above, and the length again.
  if (length < 28 || length % 4 != 0 || length > kMostBlockBytes)
    return corrupt("a section's header of " + std::to_string(length) + " bytes");
  if (!skip(length - 28) || !fetch(0, 4)) return corrupt("the file ends within a section's header");
  if (get32(0) != length) return corrupt("a section's two lengths differ");
  interfaces_.clear();
  return Status();
}

Status CaptureReader::interface_block() {
  if (block_.size() < 8)
    return corrupt("an interface's block of " + std::to_string(block_.size()) + " bytes");
  if (interfaces_.size() == kMostInterfaces)
    return corrupt("more than 4096 interfaces in a section");
  Interface made{.link_type = get16(0), .snapshot = get32(4)};
  for (size_t at = 8; at + 4 <= block_.size();) {
    uint16_t code = get16(at), length = get16(at + 2);
    if (code == 0) break;
    size_t padded = (size_t{length} + 3) & ~size_t{3};
    if (padded > block_.size() - at - 4)
      return corrupt("an interface's option that goes beyond its block");
    if (code == kResolutionOption && length == 1) made.resolution = block_[at + 4];
    if (code == kOffsetOption && length == 8) {
      uint64_t low = get32(at + (swapped_ ? 8 : 4)), high = get32(at + (swapped_ ? 4 : 8));
      made.offset_seconds = static_cast<int64_t>(high << 32 | low);
    }
    at += 4 + padded;
  }
  interfaces_.push_back(made);
  return Status();
}

Result<std::optional<Captured>> CaptureReader::packet_block(uint32_t type) {
  if (block_.size() < 20)
    return corrupt("a packet's block of " + std::to_string(block_.size()) + " bytes");
  uint32_t interface = type == kPacket ? get32(0) : get16(0);
  uint64_t ticks = uint64_t{get32(4)} << 32 | get32(8);
  return packet(interface, ticks, get32(12), get32(16), 20);
}

Result<std::optional<Captured>> CaptureReader::simple_packet_block() {
  if (block_.size() < 4)
    return corrupt("a packet's block of " + std::to_string(block_.size()) + " bytes");
  uint32_t original = get32(0);
  auto kept = static_cast<uint32_t>(std::min<size_t>(original, block_.size() - 4));
  if (!interfaces_.empty() && interfaces_[0].snapshot != 0)
    kept = std::min(kept, interfaces_[0].snapshot);
  return packet(0, 0, kept, original, 4);
}

Result<std::optional<Captured>> CaptureReader::packet(uint32_t interface, uint64_t ticks,
                                                      uint32_t kept, uint32_t original, size_t at) {
  if (interface >= interfaces_.size())
    return corrupt("a packet of interface " + std::to_string(interface) +
                   ", of which nothing was said");
  if (kept > kMostFrameBytes || kept > block_.size() - at)
    return corrupt("a packet of " + std::to_string(kept) + " bytes in a smaller block");
  const Interface& from = interfaces_[interface];
  Captured packet;
  packet.time_ns = nanoseconds_of(ticks, from.resolution, from.offset_seconds);
  packet.link_type = from.link_type;
  packet.original_bytes = std::max(kept, original);
  packet.bytes = {block_.data() + at, kept};
  return std::optional<Captured>(packet);
}

namespace {

void put(std::vector<uint8_t>& out, uint32_t v, size_t bytes = 4) {
  uint8_t raw[4];
  auto half = static_cast<uint16_t>(v);
  if (bytes == 2)
    std::memcpy(raw, &half, 2);
  else
    std::memcpy(raw, &v, 4);
  out.insert(out.end(), raw, raw + bytes);
}

}  // namespace

std::vector<uint8_t> CaptureWriter::header(uint16_t link_type) {
  std::vector<uint8_t> out;
  put(out, kNanoseconds);
  put(out, 2, 2);
  put(out, 4, 2);
  put(out, 0);
  put(out, 0);
  put(out, kMostFrameBytes);
  put(out, link_type);
  return out;
}

std::vector<uint8_t> CaptureWriter::record(const Captured& packet) {
  std::vector<uint8_t> out;
  put(out, static_cast<uint32_t>(packet.time_ns / kBillion));
  put(out, static_cast<uint32_t>(packet.time_ns % kBillion));
  put(out, static_cast<uint32_t>(packet.bytes.size()));
  put(out, static_cast<uint32_t>(std::min<uint64_t>(packet.original_bytes, UINT32_MAX)));
  out.insert(out.end(), packet.bytes.begin(), packet.bytes.end());
  return out;
}

}  // namespace sluice::tools::dump
