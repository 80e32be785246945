#include <sluice/kmod/socket.h>

#include <fcntl.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/proto/payload_checksums.h>

#include "kernel_compat/slp/slp.h"
#include "kernel_compat/uapi/sluice.h"

namespace sluice::kmod {
namespace {

constexpr const char* kOrigin = "kmod/socket";
constexpr const char* kParameterFile = "/sys/module/sluice/parameters/family";
constexpr const char* kDevice = "/dev/sluice";
constexpr const char* kRemedy =
    "sudo modprobe sluice; kernel_compat/README.md says how to build and install it";

Counter by_device_count("kmod.sockets_by_device");

Status refused(Code code, std::string why, int error) {
  return Status(code, Scope::kOperation, kOrigin, std::move(why), error);
}

int done(int result) { return result == 0 ? 0 : errno; }

// The number, and whether the module itself told it.
std::pair<int, bool> family() {
  std::ifstream file(kParameterFile);
  std::string text;
  std::getline(file, text);
  std::optional<int> told = family_of(text);
  return {told.value_or(SLUICE_FAMILY), told.has_value()};
}

// Another protocol may have the number where the module is not loaded.
bool is_ours(int fd) {
  int value = 0;
  socklen_t length = sizeof(value);
  return ::getsockopt(fd, SOL_SLUICE, SLUICE_PEERS, &value, &length) == 0 && value >= 1 &&
         value <= SLUICE_MAX_PEERS;
}

// Opens a socket of the family. Returns 0 or errno.
int by_family(KmodDoor& door, Descriptor& out) {
  out = Descriptor(::socket(door.family, SOCK_RDM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (out.value() < 0) return errno;
  return is_ours(out.value()) ? 0 : EPROTONOSUPPORT;
}

// Opens a socket by the device. Returns 0 or errno; ENOENT: there is no device.
int by_device(Descriptor& out) {
  Descriptor device(::open(kDevice, O_RDWR | O_CLOEXEC));
  if (device.value() < 0) return errno == ENXIO || errno == ENODEV ? ENOENT : errno;
  out = Descriptor(::ioctl(device.value(), SLUICE_SOCKET, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (out.value() < 0) return errno == ENOTTY ? ENOENT : errno;
  return is_ours(out.value()) ? 0 : ENOENT;
}

bool is_refusal(int error) { return error == EPERM || error == EACCES; }

bool is_shortage(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

Result<Descriptor> any_socket(KmodDoor& door) {
  Descriptor made;
  bool told = false;
  std::tie(door.family, told) = family();
  int error = by_family(door, made);
  if (error == 0) return made;
  if (is_shortage(error)) return no_kmod_socket(error, door.family, told);
  int other = by_device(made);
  if (other == 0) {
    door.refused = error;
    by_device_count.add();
    return made;
  }
  if (other == EACCES && !is_refusal(error)) {
    return refused(Code::kAccessDenied,
                   "socket family " + std::to_string(door.family) + " is filtered here, and " +
                       kDevice +
                       " is not open to this user; to let every user make the module's sockets: "
                       "sudo chmod 666 " +
                       kDevice,
                   other);
  }
  return no_kmod_socket(is_shortage(other) || other == EPERM ? other : error, door.family, told);
}

Status unbound(int error, const std::string& interface, uint16_t port) {
  std::string at = interface + ":" + std::to_string(port);
  switch (error) {
    case EADDRINUSE:
      return refused(
          Code::kInvalidArgument,
          "port " + at + " is taken by another socket of the kernel module; choose another", error);
    case EACCES:
      return refused(
          Code::kAccessDenied,
          "ports under 1024, as " + at + ", need CAP_NET_BIND_SERVICE; choose a higher one", error);
    case EPFNOSUPPORT:
      return refused(Code::kUnsupported,
                     interface +
                         " is no Ethernet interface with an MTU of 1232 or more: the kernel module "
                         "cannot use it",
                     error);
    case ENODEV:
      return refused(Code::kInvalidArgument,
                     "no interface is called " + interface + "; `ip link` lists them", error);
    default: return refused(Code::kInternal, "bind() to " + at + " over the kernel module", error);
  }
}

}  // namespace

std::optional<int> family_of(const std::string& text) {
  int number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  bool rest = end == text.data() + text.size() || *end == '\n';
  if (error != std::errc() || !rest || number <= 0 || number >= AF_MAX) return std::nullopt;
  return number;
}

Status no_kmod_socket(int error, int family, bool told) {
  std::string number = std::to_string(family);
  switch (error) {
    case EPERM:
    case EACCES:
      return refused(
          Code::kAccessDenied,
          "sockets of the kernel module need CAP_NET_RAW in this network namespace: sudo setcap "
          "cap_net_raw+ep PROGRAM, or let every user in: "
          "sudo sysctl net.sluice.unprivileged=1; a program that has the one or the other is kept "
          "out by a filter (seccomp, a security module) of socket family " +
              number,
          error);
    case EMFILE:
    case ENFILE: return no_descriptor(error);
    case ENOBUFS:
    case ENOMEM:
      return refused(Code::kNoMemory, "the kernel has no memory for a socket of its module", error);
    default: break;
  }
  if (told)
    return refused(Code::kUnsupported,
                   "the kernel module says that it is family " + number +
                       ", and this kernel opens no socket of it",
                   error);
  if (error == EAFNOSUPPORT)
    return refused(Code::kUnsupported,
                   std::string("the kernel module `sluice` is not loaded; ") + kRemedy, error);
  return refused(Code::kUnsupported,
                 "socket family " + number +
                     " is another protocol's here, and the kernel module `sluice` is not loaded; " +
                     kRemedy,
                 error);
}

Result<KmodDoor> kmod_usable() {
  KmodDoor door;
  SLUICE_RETURN_IF_ERROR(any_socket(door).status());
  return door;
}

std::string KmodDoor::text() const {
  std::string number = "socket family " + std::to_string(family);
  switch (refused) {
    case 0: return "by " + number;
    case EAFNOSUPPORT: return std::string("by ") + kDevice + ", since the kernel has no " + number;
    case EACCES:
    case EPERM: return std::string("by ") + kDevice + ", since this process may not use " + number;
    default:
      return std::string("by ") + kDevice + ", since " + number + " is another protocol's here";
  }
}

KmodSocket::KmodSocket(KmodSocket&& other) noexcept { *this = std::move(other); }

KmodSocket& KmodSocket::operator=(KmodSocket&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(interface_, other.interface_);
  std::swap(door_, other.door_);
  std::swap(ifindex_, other.ifindex_);
  std::swap(own_, other.own_);
  std::swap(ring_, other.ring_);
  std::swap(ring_bytes_, other.ring_bytes_);
  return *this;
}

// The mapping holds the socket.
KmodSocket::~KmodSocket() {
  if (ring_ != nullptr) ::munmap(ring_, ring_bytes_);
}

Result<KmodSocket> KmodSocket::open(const std::string& interface, uint16_t port) {
  KmodSocket made;
  SLUICE_TRY(made.fd_, any_socket(made.door_));
  if (int error = proto::payload_checksums_wanted() ? made.set(SLUICE_CHECKSUMS, 1) : 0;
      error != 0) {
    return refused(Code::kUnsupported,
                   "SLUICE_L2_CHECKSUMS is set, and the kernel module that is loaded computes no "
                   "payload checksums; load the one of this release, or unset it",
                   error);
  }
  made.interface_ = interface;
  made.ifindex_ = ::if_nametoindex(interface.c_str());
  if (made.ifindex_ == 0) return unbound(ENODEV, interface, port);
  sockaddr_sluice at = made.address_of({.mac = {}, .port = port});
  socklen_t length = sizeof(at);
  bool bound = ::bind(made.fd(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)) == 0 &&
               ::getsockname(made.fd(), reinterpret_cast<sockaddr*>(&at), &length) == 0;
  if (!bound) return unbound(errno, interface, port);
  std::memcpy(made.own_.mac.data(), at.mac, sizeof(at.mac));
  made.own_.port = at.port;
  return made;
}

std::string KmodSocket::text_of(const KmodPlace& place) const {
  char text[18];
  const auto& m = place.mac;
  std::snprintf(text, sizeof(text), "%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4],
                m[5]);
  return "kmod://" + interface_ + "/" + text + ":" + std::to_string(place.port);
}

sockaddr_sluice KmodSocket::address_of(const KmodPlace& place) const {
  sockaddr_sluice out{};
  out.family = static_cast<uint16_t>(door_.family);
  out.ifindex = ifindex_;
  out.port = place.port;
  std::memcpy(out.mac, place.mac.data(), place.mac.size());
  return out;
}

int KmodSocket::connect(const KmodPlace& peer) {
  sockaddr_sluice to = address_of(peer);
  int error = done(::connect(fd(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)));
  return error == EINPROGRESS ? 0 : error;
}

int KmodSocket::disconnect() {
  sockaddr none{};
  none.sa_family = AF_UNSPEC;
  return done(::connect(fd(), &none, sizeof(none)));
}

int KmodSocket::send(std::span<const iovec> pieces, const KmodPlace* to) {
  msghdr message{};
  sockaddr_sluice name{};
  if (to != nullptr) {
    name = address_of(*to);
    message.msg_name = &name;
    message.msg_namelen = sizeof(name);
  }
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = pieces.size();
  ssize_t sent;
  do {
    sent = ::sendmsg(fd(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent < 0 ? errno : 0;
}

ssize_t KmodSocket::receive(MutableBytes room, KmodPlace& from) {
  iovec piece{room.data(), room.size()};
  msghdr message{};
  sockaddr_sluice name{};
  message.msg_name = &name;
  message.msg_namelen = sizeof(name);
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  ssize_t came;
  do {
    came = ::recvmsg(fd(), &message, MSG_DONTWAIT);
  } while (came < 0 && errno == EINTR);
  if (came > 0 && (message.msg_flags & MSG_TRUNC) != 0) return -EMSGSIZE;
  std::memcpy(from.mac.data(), name.mac, sizeof(name.mac));
  from.port = name.port;
  return came < 0 ? -errno : came;
}

int KmodSocket::hang_up(const KmodPlace& peer) {
  sockaddr_sluice name = address_of(peer);
  return done(::ioctl(fd(), SLUICE_HANG_UP, &name));
}

void KmodSocket::allow_most_peers() { (void)set(SLUICE_PEERS, SLUICE_MAX_PEERS); }

int KmodSocket::error() {
  int error = 0;
  socklen_t length = sizeof(error);
  return ::getsockopt(fd(), SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

bool KmodSocket::up() const {
  sluice_status status{};
  socklen_t length = sizeof(status);
  return ::getsockopt(fd(), SOL_SLUICE, SLUICE_STATUS, &status, &length) == 0 &&
         status.state == SLP_UP;
}

int KmodSocket::set(int option, int value) {
  return done(::setsockopt(fd(), SOL_SLUICE, option, &value, sizeof(value)));
}

int KmodSocket::register_memory(const void* data, uint64_t length, uint32_t& region) {
  sluice_register request{
      .address = reinterpret_cast<uintptr_t>(data), .length = length, .region = 0, .zero = 0};
  int error;
  do {
    error = done(::ioctl(fd(), SLUICE_REGISTER, &request));
  } while (error == EINTR);
  region = request.region;
  return error;
}

void KmodSocket::unregister_memory(uint32_t region) {
  (void)::ioctl(fd(), SLUICE_UNREGISTER, &region);
}

int KmodSocket::open_handle(uint32_t region, uint64_t length, Right rights, uint64_t base,
                            uint32_t& handle) {
  sluice_open request{};
  request.base = base;
  request.length = length;
  request.region = region;
  if (has_right(rights, Right::kRead)) request.rights |= SLUICE_MAY_READ;
  if (has_right(rights, Right::kWrite)) request.rights |= SLUICE_MAY_WRITE;
  int error = done(::ioctl(fd(), SLUICE_OPEN, &request));
  handle = request.handle;
  return error;
}

void KmodSocket::close_handle(uint32_t handle) {
  sluice_close request{};
  request.handle = handle;
  (void)::ioctl(fd(), SLUICE_CLOSE, &request);
}

int KmodSocket::transfer(const KmodTransfer& wanted) {
  sluice_transfer request{};
  request.user_data = wanted.user_data;
  request.length = wanted.length;
  request.peer_offset = wanted.peer_offset;
  request.region = wanted.region;
  request.handle = wanted.handle;
  request.kind = wanted.kind == KmodMove::kPull   ? SLUICE_PULL
                 : wanted.kind == KmodMove::kPush ? SLUICE_PUSH
                                                  : SLUICE_PUSH_NOTICE;
  request.notice = wanted.notice;
  return done(::ioctl(fd(), SLUICE_TRANSFER, &request));
}

int KmodSocket::cancel(uint64_t user_data) {
  __u64 name = user_data;
  return done(::ioctl(fd(), SLUICE_CANCEL, &name));
}

uint64_t KmodSocket::copied_out() const {
  uint64_t bytes = 0;
  socklen_t length = sizeof(bytes);
  return ::getsockopt(fd(), SOL_SLUICE, SLUICE_COPIED_OUT, &bytes, &length) == 0 ? bytes
                                                                                 : UINT64_MAX;
}

Status KmodSocket::open_ring(uint32_t entries) {
  int error = set(SLUICE_RING, static_cast<int>(entries));
  size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  ring_bytes_ =
      (sizeof(sluice_ring) + entries * sizeof(sluice_completion) + page - 1) / page * page;
  void* at = error == 0 ? ::mmap(nullptr, ring_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd(), 0)
                        : MAP_FAILED;
  if (at == MAP_FAILED)
    return refused(Code::kNoMemory, "no memory for the completion ring of a connection",
                   error != 0 ? error : errno);
  ring_ = static_cast<sluice_ring*>(at);
  (void)::madvise(ring_, ring_bytes_, MADV_DONTFORK);
  return Status();
}

bool KmodSocket::has_completions() const {
  return ring_ != nullptr &&
         std::atomic_ref<uint32_t>(ring_->head).load(std::memory_order_acquire) != ring_->tail;
}

std::optional<KmodCompletion> KmodSocket::take() {
  if (!has_completions()) return std::nullopt;
  uint32_t tail = ring_->tail;
  const auto* entries = reinterpret_cast<const sluice_completion*>(
      reinterpret_cast<const char*>(ring_) + ring_->entries_at);
  const sluice_completion& entry = entries[tail & ring_->mask];
  KmodCompletion out{.user_data = entry.user_data,
                     .status = entry.status,
                     .notice = entry.notice,
                     .noticed = entry.kind == SLUICE_PUSH_NOTICE,
                     .window_gone = entry.kind == SLUICE_HANDLE_GONE};
  std::atomic_ref<uint32_t>(ring_->tail).store(tail + 1, std::memory_order_release);
  return out;
}

}  // namespace sluice::kmod
