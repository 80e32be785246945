#include <sluice/l2/carrier/xdp_interface.h>

#include <errno.h>
#include <net/if.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <utility>

#include <sluice/l2/carrier/borrowed_xdp.h>
#include <sluice/l2/carrier/broker_wire.h>
#include <sluice/l2/carrier/interfaces.h>

namespace sluice::l2 {
namespace {

constexpr const char* kOrigin = "l2/xdp";
// Places for frames are of a size that the kernel takes: 2048, or a page of 4096.
constexpr size_t kSmallPlace = 2048, kLargePlace = 4096;
constexpr uint32_t kReceivePlaces = XdpInterface::kLargePorts * XdpInterface::kLargeRing +
                                    XdpInterface::kSmallPorts * XdpInterface::kSmallRing;
constexpr uint32_t kSendPlaces = XdpInterface::kLargePorts * XdpInterface::kLargeSends +
                                 XdpInterface::kSmallPorts * XdpInterface::kSmallSends;
constexpr uint32_t kSentRing = 4096;
static_assert((kReceivePlaces & (kReceivePlaces - 1)) == 0, "the fill ring holds all of them");
static_assert(kSentRing >= kSendPlaces);
static_assert(XdpInterface::kLargePorts + XdpInterface::kSmallPorts == kMostXdpPorts);
constexpr uint32_t kBaseRing = 2;  // the least that the kernel makes
// Another thread's last steps with an interface, on a busy machine.
constexpr std::chrono::milliseconds kLetGo(500);

Status failed(Code code, std::string why, int error = 0) {
  return Status(code, Scope::kOperation, kOrigin, std::move(why), error);
}

template <typename Entry>
Status map_ring(int fd, int option, uint64_t offset, const xdp_ring_offset& at, uint32_t entries,
                XdpRing<Entry>& out) {
  if (::setsockopt(fd, SOL_XDP, option, &entries, sizeof(entries)) != 0)
    return failed(Code::kNoMemory, "the kernel makes no ring of AF_XDP; free memory", errno);
  out.size = entries;
  out.bytes = at.desc + entries * sizeof(Entry);
  void* memory = ::mmap(nullptr, out.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd,
                        static_cast<off_t>(offset));
  if (memory == MAP_FAILED)
    return failed(Code::kNoMemory, "a ring of AF_XDP cannot be mapped; free memory", errno);
  ::madvise(memory, out.bytes, MADV_DONTFORK);
  auto* bytes = static_cast<uint8_t*>(out.memory = memory);
  out.producer = reinterpret_cast<uint32_t*>(bytes + at.producer);
  out.consumer = reinterpret_cast<uint32_t*>(bytes + at.consumer);
  out.flags = reinterpret_cast<uint32_t*>(bytes + at.flags);
  out.entries = reinterpret_cast<Entry*>(bytes + at.desc);
  return Status();
}

template <typename Entry>
void unmap(XdpRing<Entry>& ring) {
  if (ring.memory != nullptr) ::munmap(std::exchange(ring.memory, nullptr), ring.bytes);
}

Result<xdp_mmap_offsets> offsets_of(int fd) {
  xdp_mmap_offsets offsets{};
  socklen_t length = sizeof(offsets);
  if (::getsockopt(fd, SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &length) == 0 &&
      length == sizeof(offsets))
    return offsets;
  return failed(Code::kUnsupported, "the AF_XDP of this kernel is too old; it takes Linux 5.4",
                errno);
}

uint64_t network_of(int socket) {
  uint64_t cookie = 0;
  socklen_t length = sizeof(cookie);
  (void)::getsockopt(socket, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &length);
  return cookie;
}

// The memory of a process that has just ended, or of ours from before, leaves the queue a little
// after its last socket.
bool bound(int fd, const sockaddr_xdp& own) {
  constexpr int kTries = 200, kPauseMs = 2;
  for (int tries = 0;; ++tries) {
    if (::bind(fd, reinterpret_cast<const sockaddr*>(&own), sizeof(own)) == 0) return true;
    if (errno != EBUSY || tries == kTries) return false;
    ::poll(nullptr, 0, kPauseMs);
    errno = EBUSY;
  }
}

// Where an interface is looked for: by network and index, and by broker and name.
struct Which {
  std::pair<uint64_t, int> own;  // index 0: it is not in this network
  std::pair<std::string, std::string> borrowed;
};
struct Known {
  std::mutex lock;
  std::map<std::pair<uint64_t, int>, std::weak_ptr<XdpInterface>> own;
  std::map<std::pair<std::string, std::string>, std::weak_ptr<XdpInterface>> borrowed;
  // Of whoever opens it in that process, or lets go of it; for an index of 0 by name. A child never
  // gets back one that another thread of its parent had.
  struct Opening {
    pid_t process;
    std::pair<uint64_t, int> own;
    std::string name;
    auto operator<=>(const Opening&) const = default;
  };
  std::map<Opening, std::shared_ptr<XdpDoor>> opening;
};
Known& known() {
  static auto* one = new Known();
  return *one;
}

// After fork() the parent's is not ours.
std::shared_ptr<XdpInterface> still(const std::weak_ptr<XdpInterface>& entry) {
  auto here = entry.lock();
  return here != nullptr && !here->forked() ? here : nullptr;
}

std::shared_ptr<XdpInterface> opened(const Which& which) {
  std::lock_guard guard(known().lock);
  if (which.own.second != 0) {
    if (auto here = still(known().own[which.own])) return here;
  }
  return still(known().borrowed[which.borrowed]);
}

// A card or a broker may take seconds: only who wants the same interface waits.
std::shared_ptr<XdpDoor> opening(const Which& which) {
  std::lock_guard guard(known().lock);
  const bool here = which.own.second != 0;
  auto& found =
      known().opening[{::getpid(), which.own, here ? std::string() : which.borrowed.second}];
  if (found == nullptr) found = std::make_shared<XdpDoor>();
  return found;
}

}  // namespace

Result<std::shared_ptr<XdpInterface>> XdpInterface::of(const std::string& interface) {
  Descriptor questions(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (questions.value() < 0) return no_descriptor(errno);
  ifreq request = request_for(interface);
  const bool here =
      interface.size() < IFNAMSIZ && ::ioctl(questions.value(), SIOCGIFINDEX, &request) == 0;
  const Which which{{network_of(questions.value()), here ? request.ifr_ifindex : 0},
                    {broker_path(interface), interface}};
  if (auto found = opened(which)) return found;
  const std::shared_ptr<XdpDoor> door = opening(which);
  std::unique_lock guard(door->one_at_a_time);
  // Its last user may have let go of it, and have yet to come for the lock: its claim is not free.
  std::shared_ptr<XdpInterface> found;
  door->freed.wait_for(guard, kLetGo, [&] {
    found = opened(which);
    return found != nullptr || !door->held;
  });
  if (found != nullptr) return found;
  Result<std::unique_ptr<OwnXdp>> own = OwnXdp::attach(interface);
  const bool borrows = own.code() == Code::kAccessDenied && broker_is_there(interface);
  if (!own.ok() && !borrows) return own.status();
  std::shared_ptr<XdpInterface> made(new XdpInterface());
  std::unique_ptr<XdpSource> source;
  if (own.ok()) {
    source = *std::move(own);
  } else {
    SLUICE_TRY(source, borrow_xdp(interface));
  }
  SLUICE_RETURN_IF_ERROR(made->begin(std::move(source)));
  std::lock_guard storing(known().lock);
  if (borrows)
    known().borrowed[which.borrowed] = made;
  else
    known().own[{which.own.first, made->place().index}] = made;
  made->door_ = door;  // last: a failure before ends it here, where the lock is held
  door->held = true;
  return made;
}

Status XdpInterface::begin(std::unique_ptr<XdpSource> source) {
  source_ = std::move(source);
  process_ = ::getpid();
  base_ = source_->take_base();
  SLUICE_RETURN_IF_ERROR(reserve());
  return bind_first();
}

Status XdpInterface::reserve() {
  const size_t whole = static_cast<size_t>(place().mtu) + kHeadroom + kEthernetHeader;
  const size_t place_bytes = whole <= kSmallPlace ? kSmallPlace : kLargePlace;
  const size_t bytes = place_bytes * (kReceivePlaces + kSendPlaces);
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED)
    return failed(Code::kNoMemory,
                  "no memory for frames of AF_XDP; free " + std::to_string(bytes >> 20) + " MiB",
                  errno);
  memory_ = static_cast<uint8_t*>(memory);
  places_.begin(memory_, {.receive = kReceivePlaces,
                          .send = kSendPlaces,
                          .group = kSmallSends,
                          .place_bytes = place_bytes});
  ::madvise(memory_, bytes, MADV_DONTFORK);
  xdp_umem_reg about{};
  about.addr = reinterpret_cast<uintptr_t>(memory_);
  about.len = bytes;
  about.chunk_size = static_cast<uint32_t>(place_bytes);
  if (::setsockopt(base_.value(), SOL_XDP, XDP_UMEM_REG, &about, sizeof(about)) == 0)
    return Status();
  const std::string kib = std::to_string(bytes >> 10);
  if (errno == ENOBUFS || errno == EPERM || errno == ENOMEM)
    return failed(Code::kNoMemory,
                  "the kernel does not pin the " + kib +
                      " KiB that AF_XDP receives into (RLIMIT_MEMLOCK); ulimit -l " + kib +
                      " or more, or sudo setcap cap_ipc_lock+ep on the program",
                  errno);
  return failed(Code::kUnsupported, "the kernel takes no memory for AF_XDP; use l2://INTERFACE",
                errno);
}

Status XdpInterface::bind_first() {
  const int fd = base_.value();
  SLUICE_TRY(xdp_mmap_offsets offsets, offsets_of(fd));
  SLUICE_RETURN_IF_ERROR(map_ring(fd, XDP_UMEM_FILL_RING, XDP_UMEM_PGOFF_FILL_RING, offsets.fr,
                                  kReceivePlaces, places_.fill));
  SLUICE_RETURN_IF_ERROR(map_ring(fd, XDP_UMEM_COMPLETION_RING, XDP_UMEM_PGOFF_COMPLETION_RING,
                                  offsets.cr, kSentRing, places_.sent));
  SLUICE_RETURN_IF_ERROR(
      map_ring(fd, XDP_RX_RING, XDP_PGOFF_RX_RING, offsets.rx, kBaseRing, base_rx_));
  sockaddr_xdp own{};
  own.sxdp_family = AF_XDP;
  own.sxdp_ifindex = static_cast<uint32_t>(place().index);
  own.sxdp_queue_id = place().queue;
  // Without XDP_COPY the kernel takes zero copy where the driver has it.
  own.sxdp_flags = XDP_USE_NEED_WAKEUP;
  if (!bound(fd, own)) {
    if (errno == EBUSY)
      return failed(Code::kTryAgain,
                    "another program has AF_XDP sockets at queue " + std::to_string(place().queue) +
                        " of " + place().interface + "; end it, or use l2://" + place().interface,
                    errno);
    return failed(Code::kUnsupported,
                  place().interface + " takes no AF_XDP socket; use l2://" + place().interface,
                  errno);
  }
  xdp_options options{};
  socklen_t length = sizeof(options);
  zero_copy_ = ::getsockopt(fd, SOL_XDP, XDP_OPTIONS, &options, &length) == 0 &&
               (options.flags & XDP_OPTIONS_ZEROCOPY) != 0;
  // A card without copies keeps hundreds of places in its own ring.
  if (zero_copy_) places_.offer(kReceivePlaces);
  return Status();
}

XdpInterface::~XdpInterface() {
  {
    // Who opens it anew meanwhile waits, as its claim is not free yet.
    std::unique_lock<std::mutex> guard;
    if (door_ != nullptr && !forked()) guard = std::unique_lock(door_->one_at_a_time);
    source_.reset();  // before its sockets go
    if (guard) door_->held = false;
  }
  // A child has no such memory (MADV_DONTFORK): what lies there is somebody else's.
  if (forked()) return;
  if (door_ != nullptr) door_->freed.notify_all();
  for (auto& socket : sockets_) {
    unmap(socket->rx);
    unmap(socket->tx);
  }
  sockets_.clear();
  unmap(places_.fill);
  unmap(places_.sent);
  unmap(base_rx_);
  base_.reset();
  if (memory_ != nullptr) ::munmap(memory_, places_.bytes());
}

Status XdpInterface::make_socket(bool large) {
  auto made = std::make_unique<XdpSocket>();
  made->number = static_cast<uint32_t>(sockets_.size());
  SLUICE_TRY(XdpSockets sockets, source_->sockets(made->number));
  made->fd = std::move(sockets.receive);
  made->send_fd = std::move(sockets.send);
  SLUICE_TRY(xdp_mmap_offsets offsets, offsets_of(made->fd.value()));
  const uint32_t sends = large ? kLargeSends : kSmallSends;
  Status status = map_ring(made->fd.value(), XDP_RX_RING, XDP_PGOFF_RX_RING, offsets.rx,
                           large ? kLargeRing : kSmallRing, made->rx);
  if (status.ok())
    status = map_ring(made->send_fd.value(), XDP_TX_RING, XDP_PGOFF_TX_RING, offsets.tx, sends,
                      made->tx);
  sockaddr_xdp own{};
  own.sxdp_family = AF_XDP;
  own.sxdp_flags = XDP_SHARED_UMEM;
  own.sxdp_ifindex = static_cast<uint32_t>(place().index);
  own.sxdp_queue_id = place().queue;
  own.sxdp_shared_umem_fd = static_cast<uint32_t>(base_.value());
  for (int fd : {made->fd.value(), made->send_fd.value()}) {
    if (status.ok() && ::bind(fd, reinterpret_cast<sockaddr*>(&own), sizeof(own)) != 0)
      status = failed(
          Code::kUnsupported,
          place().interface + " takes no further AF_XDP socket; use l2://" + place().interface,
          errno);
  }
  if (!status.ok()) {
    unmap(made->rx);
    unmap(made->tx);
    return status;
  }
  std::lock_guard guard(lock_);
  places_.own(made->sends, sends);
  // What it can hold, and no more: the kernel takes places in turn, and few of them stay in caches.
  if (!zero_copy_) places_.offer(made->rx.size);
  large_ += large ? 1 : 0;
  sockets_.push_back(std::move(made));
  return Status();
}

Result<XdpInterface::Port> XdpInterface::open(uint16_t port) {
  std::lock_guard opening(ports_lock_);
  auto idle = [](const auto& socket) { return !socket->taken; };
  auto found = std::find_if(sockets_.begin(), sockets_.end(), idle);
  if (found == sockets_.end()) {
    if (sockets_.size() == kLargePorts + kSmallPorts)
      return failed(Code::kTryAgain, std::to_string(sockets_.size()) + " ports of l2://xdp/ at " +
                                         place().interface +
                                         " are open; close connections, or use l2://" +
                                         place().interface);
    SLUICE_RETURN_IF_ERROR(make_socket(large_ < kLargePorts));
    found = sockets_.end() - 1;
  }
  XdpSocket& socket = **found;
  take_back_late(socket);
  SLUICE_TRY(PortClaim claimed, source_->open(socket.number, socket.fd.value(), port));
  socket.taken = true;
  return Port{&socket, std::move(claimed)};
}

// What came late to the port before.
void XdpInterface::take_back_late(XdpSocket& socket) {
  std::lock_guard guard(lock_);
  const uint32_t first = *socket.rx.consumer, count = socket.rx.waiting(first);
  std::vector<uint64_t> late;
  for (uint32_t i = 0; i < count; ++i) late.push_back(socket.rx.read(first + i).addr);
  places_.give_back(late);
  socket.rx.store(socket.rx.consumer, first + count);
}

void XdpInterface::close(XdpSocket& socket, uint16_t port) {
  std::lock_guard opening(ports_lock_);
  source_->close(port);
  socket.taken = false;
}

bool XdpInterface::forked() const { return process_ != ::getpid(); }

size_t XdpInterface::take_places(XdpSocket& socket, std::span<uint64_t> out) {
  std::lock_guard guard(lock_);
  if (socket.sends.free.size() < out.size()) places_.take_back_sent();
  const size_t count = std::min(out.size(), socket.sends.free.size());
  std::copy_n(socket.sends.free.end() - static_cast<ptrdiff_t>(count), count, out.begin());
  socket.sends.free.resize(socket.sends.free.size() - count);
  return count;
}

void XdpInterface::return_places(XdpSocket& socket, std::span<const uint64_t> places) {
  std::lock_guard guard(lock_);
  socket.sends.free.insert(socket.sends.free.end(), places.begin(), places.end());
}

void XdpInterface::give_back(std::span<const uint64_t> places) {
  std::lock_guard guard(lock_);
  places_.give_back(places);
}

void XdpInterface::wake_if_asked(const XdpSocket& socket) const {
  if (zero_copy_ && places_.fill.wants_wakeup())
    (void)::recvfrom(socket.fd.value(), nullptr, 0, MSG_DONTWAIT, nullptr, nullptr);
}

}  // namespace sluice::l2
