#include "tests/shm/raw_peer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cerrno>
#include <cstring>
#include <utility>
#include <new>

#include <sluice/runtime/identity.h>

namespace sluice::test {
namespace {

// Of the announcement of an extent (docs/design.md says what; transport/shm/packet.h how).
struct Announcement {
  uint32_t kind = 0x45585431;
  uint32_t id;
  uint64_t offset, length;
};

// Not libc's sendmsg(), which a test may have replaced for the library.
long send_message(int socket, const msghdr& message) {
  return ::syscall(SYS_sendmsg, socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace

int all_seals() { return F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL; }

int memfd(uint64_t bytes, int seals, bool populated) {
  int fd = ::memfd_create("sluice-raw-peer", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(fd >= 0);
  REQUIRE(::ftruncate(fd, static_cast<off_t>(bytes)) == 0);
  if (populated && bytes > 0) REQUIRE(::fallocate(fd, 0, 0, static_cast<off_t>(bytes)) == 0);
  if (seals != 0) REQUIRE(::fcntl(fd, F_ADD_SEALS, seals) == 0);
  return fd;
}

bool send_raw(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  std::vector<char> control(CMSG_SPACE(sizeof(int) * descriptors.size()));
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * descriptors.size());
    std::memcpy(CMSG_DATA(header), descriptors.data(), sizeof(int) * descriptors.size());
  }
  return send_message(socket, message) >= 0;
}

RawPeer::RawPeer(const std::string& name)
    : socket_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  REQUIRE(socket_ >= 0);
  std::string path = "sluice/name/" + name;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  REQUIRE(path.size() < sizeof(address.sun_path));
  std::memcpy(address.sun_path + 1, path.data(), path.size());
  auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + path.size());
  connected_ = ::connect(socket_, reinterpret_cast<sockaddr*>(&address), length) == 0;
}

RawPeer::~RawPeer() {
  if (region_ != nullptr) ::munmap(region_, sizeof(*region_));
  if (theirs_ != nullptr) ::munmap(const_cast<shm::SharedRegion*>(theirs_), sizeof(*theirs_));
  ::close(socket_);
}

bool RawPeer::say(uint8_t byte, std::span<const int> descriptors) {
  const std::byte bytes[] = {std::byte{byte}};
  return say(bytes, descriptors);
}

bool RawPeer::greet(uint64_t arena_bytes) {
  const wire::Hello before = std::exchange(hello, local_hello(arena_bytes));
  hello.has_rendezvous = before.has_rendezvous;
  hello.token = before.token;
  hello.credit_messages = 256;
  hello.credit_bytes = kMiB;
  int memory = ::memfd_create("sluice-raw-region", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(memory >= 0);
  REQUIRE(::ftruncate(memory, sizeof(shm::SharedRegion)) == 0);
  REQUIRE(::fallocate(memory, 0, 0, sizeof(shm::SharedRegion)) == 0);
  void* address =
      ::mmap(nullptr, sizeof(shm::SharedRegion), PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  REQUIRE(address != MAP_FAILED);
  region_ = new (address) shm::SharedRegion;
  region_->layout = shm::kRegionLayout;
  region_->probe = hello.incarnation;
  REQUIRE(::fcntl(memory, F_ADD_SEALS, all_seals()) == 0);
  std::array<std::byte, wire::kMaxHeaderBytes> bytes;
  size_t length = wire::encode(hello, bytes);
  bool sent = say(std::span(bytes).first(length), {&memory, 1});
  ::close(memory);
  return sent;
}

bool RawPeer::announce(uint32_t id, uint64_t offset, uint64_t length, int memory) {
  Announcement packet{.id = id, .offset = offset, .length = length};
  return say(std::as_bytes(std::span(&packet, 1)), {&memory, 1});
}

std::optional<std::vector<std::byte>> RawPeer::hear() {
  std::array<std::byte, 2048> room;
  iovec part{room.data(), room.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t length = ::recvmsg(socket_, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (length <= 0) {
    if (length == 0 || (errno != EAGAIN && errno != EINTR && errno != ECONNRESET)) ended_ = true;
    return std::nullopt;
  }
  int fd = -1;
  if (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr)
    std::memcpy(&fd, CMSG_DATA(header), sizeof(int));
  std::vector<std::byte> bytes(room.begin(), room.begin() + length);
  take_packet(bytes, fd);
  if (fd >= 0) ::close(fd);
  return bytes;
}

void RawPeer::take_packet(std::span<const std::byte> bytes, int fd) {
  if (bytes.size() == 1) {
    bell_ = bell_ || bytes[0] == std::byte{1};
    ended_ = ended_ || bytes[0] == std::byte{2};
    return;
  }
  auto header = wire::decode_header(bytes);
  if (!header.ok()) return;
  if (header->type == wire::MessageType::kBye) {
    wire::Bye bye;
    if (wire::decode(bytes, bye).ok()) bye_ = bye.code;
  }
  if (header->type != wire::MessageType::kHello || fd < 0 || theirs_ != nullptr) return;
  void* address = ::mmap(nullptr, sizeof(shm::SharedRegion), PROT_READ, MAP_SHARED, fd, 0);
  REQUIRE(address != MAP_FAILED);
  theirs_ = static_cast<const shm::SharedRegion*>(address);
  struct stat info;
  REQUIRE(::fstat(fd, &info) == 0);
  other_region_bytes_ = static_cast<uint64_t>(info.st_blocks) * 512;
  writer_ = std::make_unique<shm::RingWriter<std::atomic>>(region_, theirs_);
  reader_ = std::make_unique<shm::RingReader<std::atomic>>(region_, theirs_);
}

bool RawPeer::met() {
  while (theirs_ == nullptr && hear()) {}
  return theirs_ != nullptr;
}

bool RawPeer::ended() {
  while (!ended_ && hear()) {}
  return ended_;
}

bool RawPeer::has_bell() {
  while (!bell_ && hear()) {}
  return std::exchange(bell_, false);
}

bool RawPeer::write(std::span<const std::byte> header, std::span<const std::byte> payload) {
  const std::span<const std::byte> parts[] = {payload};
  const auto written = std::span(parts).first(payload.empty() ? 0 : 1);
  auto outcome = writer_->write(header, written);
  if (outcome == shm::RingWriter<std::atomic>::Outcome::kFull && !writer_->grown()) {
    writer_->grow();
    outcome = writer_->write(header, written);
  }
  return outcome == shm::RingWriter<std::atomic>::Outcome::kWritten;
}

bool RawPeer::write(const wire::Ping& message) {
  std::array<std::byte, wire::kMaxHeaderBytes> bytes;
  size_t length = wire::encode(message, bytes);
  return write(std::span(bytes).first(length));
}

std::optional<wire::Header> RawPeer::read() {
  if (!reader_->ready()) return std::nullopt;
  if (reader_->at_growth()) {
    reader_->follow_growth();
    return read();
  }
  std::array<std::byte, shm::kSlotDataBytes> front;
  reader_->copy(0, front);
  auto header = wire::decode_header(front);
  REQUIRE(header.ok());
  reader_->pop(shm::slots_for(uint64_t{header->header_bytes} + header->payload_bytes));
  return *header;
}

}  // namespace sluice::test
