#include "transport/shm/handshake.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

#include <sluice/proto/bye.h>

#include "transport/shm/packet.h"

namespace sluice::shm {
namespace {

constexpr const char* kOrigin = "shm/handshake";

Status failure(Code code, const std::string& why) {
  return Status(code, Scope::kEndpoint, kOrigin, why);
}

Result<wire::Hello> read_hello(std::span<const std::byte> bytes, const wire::Hello& ours) {
  SLUICE_TRY(wire::Header header, wire::decode_header(bytes));
  if (header.header_bytes != bytes.size())
    return failure(Code::kCorrupt, "a handshake packet of the wrong length");
  if (header.type == wire::MessageType::kBye) {
    wire::Bye bye;
    SLUICE_RETURN_IF_ERROR(wire::decode(bytes, bye));
    return proto::refused_by("the peer", bye.code, Scope::kEndpoint, kOrigin);
  }
  if (header.type != wire::MessageType::kHello)
    return failure(Code::kCorrupt, "the peer did not begin with HELLO");
  wire::Hello hello;
  SLUICE_RETURN_IF_ERROR(wire::decode(bytes, hello));
  SLUICE_RETURN_IF_ERROR(wire::negotiate(ours, hello));
  if (hello.host != ours.host)
    return failure(Code::kCorrupt, "a peer on this socket claims another host");
  return hello;
}

Result<Greeting> read_greeting(const Packet& packet, std::span<const std::byte> bytes,
                               const wire::Hello& ours) {
  Greeting greeting;
  SLUICE_TRY(greeting.hello, read_hello(bytes, ours));
  if (!packet.fd) return failure(Code::kCorrupt, "HELLO without a control region");
  SLUICE_TRY(greeting.region, PeerRegion::map(packet.fd.value(), greeting.hello.incarnation));
  return greeting;
}

}  // namespace

sockaddr_un abstract_address(const std::string& name, socklen_t& length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  size_t n = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, name.data(), n);
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + n);
  return address;
}

std::string shown(const std::string& socket) {
  return socket.starts_with(kNamed) ? "shm:" + socket.substr(kNamed.size())
                                    : "the socket '" + socket + "'";
}

Status send_hello(int fd, const wire::Hello& hello, int region_fd) {
  std::byte bytes[wire::kMaxHeaderBytes];
  size_t length = wire::encode(hello, bytes);
  return send_packet(fd, std::span<const std::byte>(bytes, length), region_fd);
}

void send_bye(int fd, Code code) {
  std::byte bytes[wire::kMaxHeaderBytes];
  size_t length = wire::encode(wire::Bye{.code = code}, bytes);
  (void)send_packet(fd, std::span<const std::byte>(bytes, length), -1);
}

Result<std::optional<Greeting>> receive_hello(int fd, const wire::Hello& ours) {
  std::array<std::byte, wire::kMaxHeaderBytes> room;
  Result<Packet> packet = receive_packet(fd, room);
  if (!packet.ok() && packet.code() == Code::kTryAgain) return std::optional<Greeting>();
  if (!packet.ok()) return packet.status();
  if (packet->ended)
    return failure(Code::kUnreachable, "the peer ended the connection during the handshake");
  Result<Greeting> greeting =
      read_greeting(*packet, std::span<const std::byte>(room).first(packet->length), ours);
  if (greeting.ok()) return std::optional<Greeting>(std::move(greeting).value());
  if (packet->fd) close_refused(packet->fd.release());
  return greeting.status();
}

}  // namespace sluice::shm
