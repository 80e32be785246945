// What tests of the kernel module share: the module itself, two network namespaces with a veth
// pair between them, and sockets in either. Runs as root in a guest of the lab.
#ifndef SLUICE_TESTS_MODULE_WIRE_H_
#define SLUICE_TESTS_MODULE_WIRE_H_

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernel_compat/uapi/sluice.h"

namespace sluice::module_test {

// The module that was built for the guest's kernel; loaded while this lives.
class Module {
 public:
  explicit Module(const char* parameters = "");
  ~Module();
};
std::string module_file();                     // its path
int load_module(const char* parameters = "");  // 0 or errno
int unload_module();                           // 0 or errno

class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd() { reset(); }
  void reset();
  int value() const { return fd_; }

 private:
  int fd_;
};

// A network namespace that lives as long as something uses it.
class Namespace {
 public:
  Namespace();
  // Runs an `ip` command in it.
  void ip(const std::string& arguments) const;
  // Makes it this thread's until `call` returns.
  template <typename Call>
  auto run(Call call) const {
    enter(fd_.value());
    struct Back {
      int home;
      ~Back() { enter(home); }
    } back{home_.value()};
    return call();
  }
  int fd() const { return fd_.value(); }

 private:
  static void enter(int fd);
  Fd home_, fd_;
};

// One end of the wire.
struct End {
  Namespace space;
  std::string interface = "end0";
  sockaddr_sluice address(uint16_t port) const;  // as the other end sends to it
  sockaddr_sluice local(uint16_t port) const;
  uint32_t ifindex = 0;
  uint8_t mac[6] = {};
};

struct Wire {
  explicit Wire(int mtu = 1500);
  End a, b;
};

// `to` as `from`'s sockets name it.
sockaddr_sluice seen_from(const End& from, const End& to, uint16_t port);

Fd open_socket(const Namespace& space, int flags = 0);
Fd bound_socket(const End& end, uint16_t port, int flags = 0);
int bind_to(int fd, const sockaddr_sluice& address);     // 0 or errno
int connect_to(int fd, const sockaddr_sluice& address);  // 0 or errno
int send_to(int fd, const std::string& text, const sockaddr_sluice& address,
            int flags = 0);  // bytes or -errno
int send_on(int fd, const std::string& text, int flags = 0);
struct Received {
  int result;  // bytes or -errno
  std::string text;
  sockaddr_sluice from{};
  int flags = 0;
};
Received receive(int fd, int flags = 0, size_t room = 8192);
void set_timeout(int fd, int milliseconds);  // of both directions
// net.sluice.unprivileged of that namespace.
void let_everybody_in(const Namespace& space, bool in = true);
// A line of /proc/net/sluice of that namespace.
uint64_t counter(const Namespace& space, const std::string& name);
std::string sockets(const Namespace& space);

}  // namespace sluice::module_test

#endif  // SLUICE_TESTS_MODULE_WIRE_H_
