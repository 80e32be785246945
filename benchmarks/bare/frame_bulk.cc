// Question: how fast do large messages go as raw Ethernet frames, 64 in one call on either side
// (mmsg), or out of a ring that the kernel fills (ring)? Over the wire of benchmarks/wire.py.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "benchmarks/bare/datagram_bulk.h"
#include "benchmarks/bare/packet_socket.h"

namespace bare {
namespace {

constexpr size_t kFrames = 64;

size_t send_some(PacketEnd& end, size_t frame, const unsigned char* data, size_t bytes) {
  std::array<mmsghdr, kFrames> messages{};
  std::array<iovec, kFrames> places;
  size_t count = 0;
  for (size_t at = 0; at < bytes && count < kFrames; at += frame, ++count) {
    places[count] = {const_cast<unsigned char*>(data) + at, std::min(frame, bytes - at)};
    messages[count].msg_hdr = {.msg_name = &end.to, .msg_namelen = sizeof end.to, .msg_iov = &places[count], .msg_iovlen = 1, .msg_control = nullptr, .msg_controllen = 0, .msg_flags = 0};
  }
  const int sent = sendmmsg(end.socket, messages.data(), static_cast<unsigned>(count), 0);
  if (sent < 0 && errno != EAGAIN && errno != ENOBUFS) die("sendmmsg");
  size_t done = 0;
  for (int i = 0; i < sent; ++i) done += places[static_cast<size_t>(i)].iov_len;
  return done;
}

// Frames are whole but for the last of a message: each lies where it belongs.
size_t receive_some(const PacketEnd& end, size_t frame, unsigned char* data, size_t bytes) {
  std::array<mmsghdr, kFrames> messages{};
  std::array<iovec, kFrames> places;
  size_t count = 0;
  for (size_t at = 0; at < bytes && count < kFrames; at += frame, ++count) {
    places[count] = {data + at, std::min(frame, bytes - at)};
    messages[count].msg_hdr.msg_iov = &places[count];
    messages[count].msg_hdr.msg_iovlen = 1;
  }
  const int came = recvmmsg(end.socket, messages.data(), static_cast<unsigned>(count), MSG_DONTWAIT, nullptr);
  if (came < 0 && errno != EAGAIN) die("recvmmsg");
  size_t got = 0;
  for (int i = 0; i < came; ++i) got += messages[static_cast<size_t>(i)].msg_len;
  return got;
}

size_t receive_from(ReceiveRing& ring, unsigned char* data, size_t bytes) {
  size_t got = 0, frame_bytes = 0;
  for (size_t i = 0; i < kFrames && got < bytes; ++i) {
    const unsigned char* frame = ring.next(frame_bytes);
    if (frame == nullptr) break;
    std::memcpy(data + got, frame, std::min(frame_bytes, bytes - got));
    got += frame_bytes;
    ring.release();
  }
  return got;
}

}  // namespace
}  // namespace bare

int main(int argc, char** argv) {
  using namespace bare;
  Options options;
  options.name = "frame_bulk";
  options.size = 64u << 20;
  options.iterations = 16;
  options.modes = {"mmsg", "ring"};
  options.mode = "mmsg";
  parse_or_exit(options, argc, argv);
  PacketEnd far = packet_end(End::kFar), near = packet_end(End::kNear);
  const size_t frame = mtu_of(End::kFar);
  std::unique_ptr<ReceiveRing> ring;
  // Places of a power of two that hold a frame and the kernel's header; 4 MiB, twice what comes at once.
  const unsigned place = frame + 128 <= 2048 ? 2048 : frame + 128 <= 16384 ? 16384 : 131072;
  if (options.mode == "ring") ring = std::make_unique<ReceiveRing>(near.socket, place, (8u << 20) / place);
  return datagram_bulk(options, {[&](const unsigned char* data, size_t bytes) { return send_some(far, frame, data, bytes); },
                                 [&](unsigned char* data, size_t bytes) {
                                   return ring != nullptr ? receive_from(*ring, data, bytes) : receive_some(near, frame, data, bytes);
                                 }});
}
