#include "tests/hostile/attacker/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <utility>

namespace hostile {
namespace {

constexpr size_t kMostAnswers = 20'000;
constexpr size_t kMostPages = 64 << 20;
constexpr size_t kMostDescriptors = 253;  // SCM_MAX_FD

}  // namespace

int usual_seals() { return F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL; }

int sealed_memory(const char* name, size_t bytes, int seals) {
  int fd = ::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(bytes)) != 0) return fd;
  // With its pages: memory with holes is refused. What is larger than any machine stays without.
  if (bytes > 0 && bytes <= kMostPages) (void)::fallocate(fd, 0, 0, static_cast<off_t>(bytes));
  if (seals != 0) ::fcntl(fd, F_ADD_SEALS, seals);
  return fd;
}

Bytes own_host() {
  Bytes id;
  char text[64] = {};
  FILE* file = ::fopen("/proc/sys/kernel/random/boot_id", "r");
  if (file == nullptr) return Bytes(16);
  size_t got = ::fread(text, 1, sizeof(text) - 1, file);
  ::fclose(file);
  int high = -1;
  for (size_t i = 0; i < got && id.size() < 16; ++i) {
    char c = text[i];
    int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) continue;
    if (high < 0) {
      high = digit;
    } else {
      id.push_back(static_cast<uint8_t>(high << 4 | digit));
      high = -1;
    }
  }
  id.resize(16);
  return id;
}

ShmPeer::~ShmPeer() { close(); }

void ShmPeer::close() {
  for (int* fd : {&fd_, &region_fd_}) {
    if (*fd >= 0) ::close(std::exchange(*fd, -1));
  }
  if (own_ != nullptr) ::munmap(std::exchange(own_, nullptr), sizeof(Region));
  if (peer_ != nullptr)
    ::munmap(const_cast<Region*>(std::exchange(peer_, nullptr)), sizeof(Region));
}

void ShmPeer::note_end() {
  if (ended_) return;
  ended_ = true;
  ++(greeted_ ? siege_.seen.cut_off : siege_.seen.turned_away);
}

bool ShmPeer::connect() {
  fd_ = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd_ < 0) return false;
  ++siege_.seen.connections;
  std::string name = "sluice/name/" + siege_.address.substr(siege_.address.find(':') + 1);
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  std::memcpy(to.sun_path + 1, name.data(), std::min(name.size(), sizeof(to.sun_path) - 1));
  auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  auto end = std::min(siege_.end, Siege::Clock::now() + std::chrono::seconds(2));
  while (::connect(fd_, reinterpret_cast<sockaddr*>(&to), length) != 0) {
    if (errno != EAGAIN || Siege::Clock::now() >= end) return note_end(), false;
    ::poll(nullptr, 0, 1);  // its backlog is full
  }
  return true;
}

HelloFields ShmPeer::fields() const {
  HelloFields f;
  f.host = own_host();
  f.uid = ::getuid();
  f.pid = static_cast<uint32_t>(::getpid());
  f.incarnation = incarnation_;
  return f;
}

bool ShmPeer::say_hello(const HelloFields& fields, const std::vector<int>& descriptors) {
  if (own_ == nullptr) {
    region_fd_ = sealed_memory("attack", small_ ? 0 : sizeof(Region), 0);
    if (small_ && (::ftruncate(region_fd_, sizeof(Region)) != 0 ||
                   ::fallocate(region_fd_, 0, 0, kFirstBytes) != 0))
      return false;
    void* at = ::mmap(nullptr, sizeof(Region), PROT_READ | PROT_WRITE, MAP_SHARED, region_fd_, 0);
    if (region_fd_ < 0 || at == MAP_FAILED) return false;
    own_ = static_cast<Region*>(at);
    ::fcntl(region_fd_, F_ADD_SEALS, usual_seals());
    own_->layout = kRegionLayout;
    own_->probe = fields.incarnation;
    if (!small_) {
      std::memset(own_->first[0].data, 0xFF, kSlotData);
      own_->grown_at.store(1);
      own_->first[0].stamp.store(1);
      position_ = 1;
    }
  }
  std::vector<int> passed = descriptors;
  for (int& fd : passed) {
    if (fd == -1) fd = region_fd_;
  }
  bool sent = packet(hello(fields).whole(), passed);
  if (!sent) note_end();
  return sent;
}

bool ShmPeer::hear_hello() {
  auto end = std::min(siege_.end, Siege::Clock::now() + std::chrono::seconds(5));
  while (alive() && Siege::Clock::now() < end) {
    uint8_t room[1024];
    iovec part{room, sizeof(room)};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    ssize_t got = ::recvmsg(fd_, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
      pollfd wait{.fd = fd_, .events = POLLIN, .revents = 0};
      ::poll(&wait, 1, 20);
      continue;
    }
    if (got < 16) break;
    siege_.seen.bytes_in += static_cast<uint64_t>(got);
    ++siege_.seen.answers[room[0] < kTypes ? room[0] : 0];
    if (room[0] == kBye) ++siege_.seen.codes[static_cast<uint32_t>(take<uint64_t>(room + 16))];
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    if (room[0] != kHello || header == nullptr) break;
    int region = -1;
    std::memcpy(&region, CMSG_DATA(header), sizeof(int));
    void* at = ::mmap(nullptr, sizeof(Region), PROT_READ, MAP_SHARED, region, 0);
    ::close(region);
    if (at == MAP_FAILED) break;
    peer_ = static_cast<const Region*>(at);
    peer.incarnation = take<uint64_t>(room + 8);
    peer.host.assign(room + 24, room + 40);
    peer.network_namespace = take<uint64_t>(room + 40);
    peer.user_namespace = take<uint64_t>(room + 48);
    peer.uid = take<uint32_t>(room + 56);
    peer.pid = take<uint32_t>(room + 60);
    peer.arena_bytes = take<uint64_t>(room + 64);
    greeted_ = true;
    ++siege_.seen.greeted;
    return true;
  }
  note_end();
  return false;
}

bool ShmPeer::greet() {
  incarnation_ = siege_.random();
  return connect() && say_hello(fields(), {-1}) && hear_hello();
}

bool ShmPeer::packet(const Bytes& bytes, const std::vector<int>& descriptors) {
  iovec part{const_cast<uint8_t*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMostDescriptors)] = {};
  if (!descriptors.empty()) {
    size_t count = std::min(descriptors.size(), kMostDescriptors);
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * count);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * count);
    std::memcpy(CMSG_DATA(header), descriptors.data(), sizeof(int) * count);
  }
  auto end = std::min(siege_.end, Siege::Clock::now() + std::chrono::seconds(1));
  while (alive()) {
    if (::sendmsg(fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) {
      siege_.seen.descriptors_out += descriptors.size();
      ++siege_.seen.frames_out;
      siege_.seen.bytes_out += bytes.size();
      return true;
    }
    if (errno != EAGAIN && errno != ENOBUFS && errno != ETOOMANYREFS && errno != EINTR)
      return note_end(), false;
    if (Siege::Clock::now() >= end) return false;
    pollfd wait{.fd = fd_, .events = POLLOUT, .revents = 0};
    ::poll(&wait, 1, 5);
  }
  return false;
}

bool ShmPeer::announce(uint32_t id, uint64_t offset, uint64_t length, int fd) {
  Bytes bytes;
  put<uint32_t>(bytes, 0x45585431);
  put(bytes, id);
  put(bytes, offset);
  put(bytes, length);
  return packet(bytes, {fd});
}

void ShmPeer::ring_bell() {
  uint8_t bell = 1;
  if (::send(fd_, &bell, 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno != EAGAIN && errno != ENOBUFS)
    note_end();
}

bool ShmPeer::send(const Bytes& message) {
  uint64_t count = (message.size() + kSlotData - 1) / kSlotData;
  if (message.empty() || count > kSlots || small_) return false;
  auto end = std::min(siege_.end, Siege::Clock::now() + std::chrono::seconds(4));
  while (position_ + count - peer_->consumed.load() > kSlots) {
    if (!alive() || Siege::Clock::now() >= end || !listen(1)) return false;
    ring_bell();
  }
  for (uint64_t i = 0; i < count; ++i) {
    size_t part = std::min<size_t>(kSlotData, message.size() - i * kSlotData);
    std::memcpy(own_->slots[(position_ - 1 + i) % kSlots].data, message.data() + i * kSlotData,
                part);
  }
  own_->slots[(position_ - 1) % kSlots].stamp.store(position_ + 1);
  position_ += count;
  ++siege_.seen.messages_out;
  siege_.seen.bytes_out += message.size();
  if ((peer_->sleeping.load() & 1) != 0) ring_bell();
  return alive();
}

bool ShmPeer::read_socket() {
  uint8_t room[256];
  while (alive()) {
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 8)];
    iovec part{room, sizeof(room)};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    ssize_t got = ::recvmsg(fd_, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (got <= 0 || (got == 1 && room[0] == 2)) return note_end(), false;
    ++siege_.seen.frames_in;
    siege_.seen.bytes_in += static_cast<uint64_t>(got);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    if (header == nullptr || header->cmsg_type != SCM_RIGHTS) continue;
    int fd;
    std::memcpy(&fd, CMSG_DATA(header), sizeof(int));
    ::close(fd);
  }
  return false;
}

// Of the other end's ring, as far as we have seen it grow.
const Slot& ShmPeer::front(uint64_t further) const {
  const uint64_t at = read_ + further;
  return peer_grew_at_ == 0 ? peer_->first[at % kFirstSlots]
                            : peer_->slots[(at - peer_grew_at_) % kSlots];
}

void ShmPeer::take_messages() {
  while (front(0).stamp.load() == read_ + 1) {
    if (peer_grew_at_ == 0 && peer_->grown_at.load() == read_ + 1) {
      peer_grew_at_ = ++read_;
      own_->consumed.store(read_);
      continue;
    }
    auto copy = [&](uint8_t* out, size_t bytes) {
      for (size_t at = 0; at < bytes; at += kSlotData) {
        std::memcpy(out + at, front(at / kSlotData).data, std::min(kSlotData, bytes - at));
      }
    };
    uint8_t common[16];
    copy(common, 16);
    Answer answer{.type = common[0],
                  .flags = common[1],
                  .header_bytes = take<uint16_t>(common + 2),
                  .payload_bytes = take<uint32_t>(common + 4),
                  .id = take<uint64_t>(common + 8),
                  .bytes = {}};
    size_t whole = answer.header_bytes + size_t{answer.payload_bytes};
    if (whole < 16 || whole > kSlots * kSlotData) return note_end();
    answer.bytes.resize(whole);
    copy(answer.bytes.data(), whole);
    read_ += (whole + kSlotData - 1) / kSlotData;
    own_->consumed.store(read_);
    siege_.seen.bytes_in += whole;
    ++siege_.seen.answers[answer.type < kTypes ? answer.type : 0];
    if (answer.type == kDone) ++siege_.seen.codes[answer.at<uint32_t>(16)];
    if (answer.type == kBye) ++siege_.seen.codes[static_cast<uint32_t>(answer.at<uint64_t>(16))];
    if (answers.size() < kMostAnswers) answers.push_back(std::move(answer));
  }
}

bool ShmPeer::listen(int milliseconds) {
  if (!alive()) return false;
  if (unread_) {
    ::poll(nullptr, 0, milliseconds);
    return true;
  }
  auto end = Siege::Clock::now() + std::chrono::milliseconds(milliseconds);
  size_t before = answers.size();
  while (true) {
    take_messages();
    if (!read_socket()) {
      take_messages();  // what it said last
      return false;
    }
    if (answers.size() > before || Siege::Clock::now() >= end) return true;
    // Always asleep, as far as the other end can see: it rings.
    own_->sleeping.store((own_->sleeping.load() + 2) | 1);
    pollfd wait{.fd = fd_, .events = POLLIN, .revents = 0};
    ::poll(&wait, 1, 1);
  }
}

}  // namespace hostile
