// Packet sockets' two ends (see frame_ends.h).
#include "benchmarks/bare/frame_ends.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

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
    messages[count].msg_hdr = {.msg_name = &end.to,
                               .msg_namelen = sizeof end.to,
                               .msg_iov = &places[count],
                               .msg_iovlen = 1,
                               .msg_control = nullptr,
                               .msg_controllen = 0,
                               .msg_flags = 0};
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
  const int came =
      recvmmsg(end.socket, messages.data(), static_cast<unsigned>(count), MSG_DONTWAIT, nullptr);
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

DatagramEnds frame_ends(bool ring) {
  const size_t frame = mtu_of(End::kFar);
  auto far = std::make_shared<PacketEnd>(packet_end(End::kFar)),
       near = std::make_shared<PacketEnd>(packet_end(End::kNear));
  auto send = [=](const unsigned char* data, size_t bytes) {
    return send_some(*far, frame, data, bytes);
  };
  if (!ring)
    return {send, [=](unsigned char* data, size_t bytes) {
              return receive_some(*near, frame, data, bytes);
            }};
  // Places of a power of two that hold a frame and the kernel's header; 4 MiB, twice what comes at
  // once.
  const unsigned place = frame + 128 <= 2048 ? 2048 : frame + 128 <= 16384 ? 16384 : 131072;
  auto places = std::make_shared<ReceiveRing>(near->socket, place, (8u << 20) / place);
  return {send,
          [=](unsigned char* data, size_t bytes) { return receive_from(*places, data, bytes); }};
}

}  // namespace bare
