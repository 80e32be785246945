#include "tests/module/wire.h"

#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace sluice::module_test {
namespace {

// For another kernel, or with its own tests, where that is what the test was given.
constexpr const char* kModules[] = {
    "kernel_compat/module/selftest/sluice.ko",  "kernel_compat/module/debug/sluice.ko",
    "kernel_compat/module/smp_debug/sluice.ko", "kernel_compat/module/next/sluice.ko",
    "kernel_compat/module/uml/sluice.ko",       "kernel_compat/module/sluice.ko"};

void must(bool good, const std::string& what) {
  if (!good) throw std::runtime_error(what + ": " + std::strerror(errno));
}

void shell(const std::string& command) {
  if (std::system(command.c_str()) != 0) throw std::runtime_error("failed: " + command);
}

}  // namespace

std::string module_file() {
  for (const char* path : kModules)
    if (::access(path, R_OK) == 0) return path;
  return {};
}

int load_module(const char* parameters) {
  Fd file(::open(module_file().c_str(), O_RDONLY | O_CLOEXEC));
  if (file.value() < 0) return errno;
  return ::syscall(SYS_finit_module, file.value(), parameters, 0) == 0 ? 0 : errno;
}

int unload_module() { return ::syscall(SYS_delete_module, "sluice", O_NONBLOCK) == 0 ? 0 : errno; }

Module::Module(const char* parameters) {
  // The guest loads none by itself; a kernel that was built for tests has it built in.
  shell("/sbin/modprobe veth 2>/dev/null || true");
  int error = load_module(parameters);
  if (error == 0) return;
  utsname kernel;
  ::uname(&kernel);
  throw std::runtime_error(std::string("the module does not load: ") + std::strerror(error) +
                           "; was it built for this kernel? apt-get install linux-headers-" +
                           kernel.release);
}

Module::~Module() {
  // A socket that was just closed may still be sending for a second.
  int error = EBUSY;
  for (int tries = 0; tries < 3000 && (error = unload_module()) != 0; ++tries)
    ::poll(nullptr, 0, 1);
  if (error != 0) {
    std::fprintf(stderr, "the module does not unload: %s\n", std::strerror(error));
    std::abort();
  }
}

Fd& Fd::operator=(Fd&& other) noexcept {
  reset();
  fd_ = std::exchange(other.fd_, -1);
  return *this;
}

void Fd::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Namespace::Namespace() : home_(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC)) {
  must(home_.value() >= 0 && ::unshare(CLONE_NEWNET) == 0, "unshare");
  fd_ = Fd(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  must(fd_.value() >= 0 && ::setns(home_.value(), CLONE_NEWNET) == 0, "setns");
}

void Namespace::enter(int fd) { must(::setns(fd, CLONE_NEWNET) == 0, "setns"); }

void Namespace::ip(const std::string& arguments) const {
  run([&] { shell("ip " + arguments); });
}

Wire::Wire(int mtu) {
  // A descriptor's number is a name for `ip`, too.
  std::string peer = "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(b.space.fd());
  a.space.ip("link add end0 type veth peer name end0 netns " + peer);
  for (End* end : {&a, &b}) {
    end->space.ip("link set end0 mtu " + std::to_string(mtu) + " up");
    end->space.run([&] {
      Fd any(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
      ifreq request{};
      std::strcpy(request.ifr_name, "end0");
      must(::ioctl(any.value(), SIOCGIFHWADDR, &request) == 0, "SIOCGIFHWADDR");
      std::memcpy(end->mac, request.ifr_hwaddr.sa_data, 6);
      end->ifindex = ::if_nametoindex("end0");
    });
  }
}

sockaddr_sluice End::local(uint16_t port) const {
  sockaddr_sluice out{};
  out.family = SLUICE_FAMILY;
  out.port = port;
  out.ifindex = ifindex;
  return out;
}

sockaddr_sluice seen_from(const End& from, const End& to, uint16_t port) {
  sockaddr_sluice out = from.local(port);
  std::memcpy(out.mac, to.mac, 6);
  return out;
}

Fd open_socket(const Namespace& space, int flags) {
  return space.run([&] {
    Fd made(::socket(SLUICE_FAMILY, SOCK_RDM | SOCK_CLOEXEC | flags, 0));
    must(made.value() >= 0, "socket");
    set_timeout(made.value(), 20000);  // a bound on a hang
    return made;
  });
}

Fd bound_socket(const End& end, uint16_t port, int flags) {
  Fd made = open_socket(end.space, flags);
  int error = bind_to(made.value(), end.local(port));
  errno = error;
  must(error == 0, "bind");
  return made;
}

int bind_to(int fd, const sockaddr_sluice& address) {
  return ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ? 0 : errno;
}

int connect_to(int fd, const sockaddr_sluice& address) {
  return ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ? 0
                                                                                          : errno;
}

int send_to(int fd, const std::string& text, const sockaddr_sluice& address, int flags) {
  ssize_t sent = ::sendto(fd, text.data(), text.size(), flags,
                          reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  return sent < 0 ? -errno : static_cast<int>(sent);
}

int send_on(int fd, const std::string& text, int flags) {
  ssize_t sent = ::send(fd, text.data(), text.size(), flags);
  return sent < 0 ? -errno : static_cast<int>(sent);
}

Received receive(int fd, int flags, size_t room) {
  Received out;
  std::string place(room, '\0');
  iovec piece{place.data(), place.size()};
  msghdr header{};
  header.msg_name = &out.from;
  header.msg_namelen = sizeof(out.from);
  header.msg_iov = &piece;
  header.msg_iovlen = 1;
  ssize_t came = ::recvmsg(fd, &header, flags);
  out.result = came < 0 ? -errno : static_cast<int>(came);
  out.flags = header.msg_flags;
  if (came > 0) out.text = place.substr(0, std::min(static_cast<size_t>(came), room));
  return out;
}

void set_timeout(int fd, int milliseconds) {
  timeval limit{.tv_sec = milliseconds / 1000, .tv_usec = milliseconds % 1000 * 1000};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

void let_everybody_in(const Namespace& space, bool in) {
  space.run([&] {
    std::ofstream file("/proc/sys/net/sluice/unprivileged");
    file << (in ? "1" : "0") << std::flush;
    must(file.good(), "net.sluice.unprivileged");
  });
}

std::string sockets(const Namespace& space) {
  return space.run([] {
    std::ifstream file("/proc/thread-self/net/sluice");
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  });
}

uint64_t counter(const Namespace& space, const std::string& name) {
  std::istringstream text(sockets(space));
  std::string word;
  uint64_t value;
  while (text >> word >> value)
    if (word == name) return value;
  throw std::runtime_error("no counter " + name);
}

}  // namespace sluice::module_test
