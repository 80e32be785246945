#include "tools/dump/teller.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/dump/print.h"

namespace sluice::tools::dump {
namespace {

// Frames of one datagram: 64 KiB of the smallest, many times over.
constexpr int kMostFramesTogether = 2048;

}  // namespace

bool Teller::open(const Captured& packet, Envelope& envelope) {
  ++sums_.packets;
  if (!is_known_link(packet.link_type)) {
    ++sums_.other_links;
    return false;
  }
  Found found = find_frame(packet, wishes_.carriers, envelope);
  bool any_port = wishes_.carriers.udp_port == 0;
  if (found == Found::kFragment && !any_port) ++sums_.fragments;
  if (found == Found::kCut) ++sums_.untellable;
  return found == Found::kFrame;
}

bool Teller::wanted(const Frame& frame, std::span<const uint8_t> bytes) const {
  if (!wishes_.port || bytes.size() < 6) return !wishes_.port;
  // A damaged frame: the port that it claims.
  uint16_t source = frame.decoded ? frame.base.source_port : slp_load16(bytes.data() + 2);
  uint16_t destination = frame.decoded ? frame.base.destination_port : slp_load16(bytes.data() + 4);
  return source == *wishes_.port || destination == *wishes_.port;
}

std::vector<std::string> Teller::take(const Captured& packet) {
  std::vector<std::string> lines;
  Envelope envelope;
  if (!open(packet, envelope)) return lines;
  for (int i = 0; i < kMostFramesTogether && !full(); ++i) {
    Frame frame = decode_frame(envelope.bytes, envelope.length);
    // Any datagram may be anybody's: its header's checksum says that it is ours.
    if (i == 0 && envelope.udp && wishes_.carriers.udp_port == 0 && !frame.decoded) break;
    streams_.take(envelope.from + " " + envelope.to, frame);
    // Datagrams are captured together before they are cut up (UDP_SEGMENT), or after they were
    // joined.
    bool more = envelope.udp && frame.decoded && frame.frame_bytes < envelope.bytes.size();
    if (wanted(frame, envelope.bytes)) {
      ++sums_.frames;
      sums_.damaged += frame.drop != SLP_TAKEN;
      sums_.cut += frame.cut;
      Envelope own = envelope;
      if (more) {
        own.length = frame.frame_bytes;
        own.bytes = own.bytes.first(frame.frame_bytes);
      }
      Told told{packet, own, frame};
      lines.push_back(
          wishes_.json ? as_json(told, wishes_.payload)
                             .dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
                       : as_line(told, wishes_.payload));
    }
    if (!more) break;
    envelope.bytes = envelope.bytes.subspan(frame.frame_bytes);
    envelope.length -= frame.frame_bytes;
  }
  return lines;
}

std::string to_string(const Sums& sums) {
  std::string text = fmt::format("{} frames", sums.frames);
  if (sums.damaged > 0) text += fmt::format(", {} damaged", sums.damaged);
  if (sums.cut > 0) text += fmt::format(", {} cut by the capture", sums.cut);
  if (sums.fragments > 0) text += fmt::format(", {} IP fragments not put together", sums.fragments);
  if (sums.untellable > 0)
    text += fmt::format(", {} packets cut before it can be told what they are", sums.untellable);
  if (sums.other_links > 0) text += fmt::format(", {} packets of unknown links", sums.other_links);
  return text + fmt::format("; {} packets seen", sums.packets);
}

}  // namespace sluice::tools::dump
