// Which door of the module the library finds, and what it says where both are shut or the module is
// absent.
#include <catch2/catch.hpp>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>

#include <sluice/select/open.h>

#include "tests/module/carrier.h"
#include "tests/module/wire.h"

namespace sluice::module_test {
namespace {

// socket() of that family fails with `error` in this thread from here on; where a sandbox or
// another protocol is in the way.
void refuse_family(int family, int error) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(family), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog filter{.len = std::size(program), .filter = program};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
    throw std::runtime_error("seccomp");
}

// The guest has no program that makes it.
void make_device() {
  ::unlink("/dev/sluice");
  std::ifstream number("/sys/class/misc/sluice/dev");
  unsigned major = 0, minor = 0;
  char colon = 0;
  number >> major >> colon >> minor;
  if (::mknod("/dev/sluice", S_IFCHR | 0666, makedev(major, minor)) != 0)
    throw std::runtime_error("mknod");
}

// What a process of its own does; 0: all was as it should be.
int talk_by(const Wire& wire, int error, const char* says) try {
  if (error != 0) refuse_family(SLUICE_FAMILY, error);
  Echo echo(wire, "kmod://end0:7000", {1000, 300'000});
  std::string address = echo.address();
  std::string reason;
  wire.a.space.run([&] {
    auto context = small_context();
    auto server = context->connect(address);
    if (!server.ok()) throw std::runtime_error(server.status().to_string());
    reason = server->info().reason;
    exchange(*context, *server, 1000, 1);
    exchange(*context, *server, 300'000, 2);
    (void)server->close(soon());
  });
  if (!echo.wait().ok()) return 3;
  for (const PathReport& report : explain_paths()) {
    if (report.path == Path::kModule && report.why.find(says) == std::string::npos) return 4;
  }
  if (reason.find(says) != std::string::npos) return 0;
  std::fprintf(stderr, "%s\n", reason.c_str());
  return 5;
} catch (const std::exception& what) {
  std::fprintf(stderr, "%s\n", what.what());
  return 9;
}

TEST_CASE("where the family is refused, sockets come from /dev/sluice, and the reason says so") {
  struct Case {
    const char* parameters;
    int error;  // of socket(); 0: as it is
    const char* says;
  };
  Case c =
      GENERATE(Case{"", 0, "by socket family 19"},
               Case{"", EAFNOSUPPORT, "by /dev/sluice, since the kernel has no socket family 19"},
               Case{"", EPERM, "by /dev/sluice, since this process may not use socket family 19"},
               Case{"", ESOCKTNOSUPPORT,
                    "by /dev/sluice, since socket family 19 is another protocol's here"});
  INFO(c.parameters << " " << c.error);
  Module module(c.parameters);
  make_device();
  Wire wire;
  // The filter stays with its process.
  pid_t child = ::fork();
  if (child == 0) ::_exit(talk_by(wire, c.error, c.says));
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WEXITSTATUS(status) == 0);
  ::unlink("/dev/sluice");
}

TEST_CASE("where both doors are shut, the error names the one that can be opened") {
  bool filtered = GENERATE(true, false);
  INFO(filtered);
  Module module;
  make_device();
  ::chmod("/dev/sluice", 0600);
  pid_t child = ::fork();
  if (child == 0) {
    if (::setresuid(65534, 65534, 65534) != 0) ::_exit(1);
    if (filtered) refuse_family(SLUICE_FAMILY, EAFNOSUPPORT);
    auto ours = small_context();
    auto kept_out = ours->connect("kmod://lo/02:00:00:00:00:0b:7");
    auto says = [&](std::string_view text) {
      return kept_out.status().detail().find(text) != std::string_view::npos;
    };
    bool good = filtered ? says("chmod 666 /dev/sluice")
                         : says("CAP_NET_RAW") && says("sudo sysctl net.sluice.unprivileged=1");
    for (const PathReport& report : explain_paths()) {
      if (report.path == Path::kModule)
        good = good && !report.usable && report.why == kept_out.status().detail();
    }
    if (!good) std::fprintf(stderr, "%s\n", kept_out.status().to_string().c_str());
    ::_exit(good && kept_out.status() == Code::kAccessDenied ? 0 : 2);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WEXITSTATUS(status) == 0);
  ::unlink("/dev/sluice");
}

TEST_CASE("without the module, and where it keeps strangers out, the error says what to do") {
  auto context = small_context();
  auto absent = context->connect("kmod://lo/02:00:00:00:00:0b:7");
  CHECK(absent.status() == Code::kUnsupported);
  CHECK(absent.status().detail().find("modprobe sluice") != std::string_view::npos);
  CHECK(context->listen("kmod://lo:7000").status() == Code::kUnsupported);
  auto module_report = [] {
    for (const PathReport& report : explain_paths()) {
      if (report.path == Path::kModule) return report;
    }
    return PathReport{};
  };
  CHECK_FALSE(module_report().usable);
  CHECK(module_report().why.find("modprobe") != std::string::npos);

  // Of another number: found by what the module says of itself.
  Module module("family=27");
  CHECK(module_report().usable);
  auto nowhere = context->connect("kmod://none/02:00:00:00:00:0b:7");
  CHECK(nowhere.status() == Code::kInvalidArgument);
  CHECK(nowhere.status().detail().find("no interface") != std::string_view::npos);
  CHECK(context->listen("kmod://lo:7000").status() == Code::kUnsupported);  // no Ethernet
}

}  // namespace
}  // namespace sluice::module_test
