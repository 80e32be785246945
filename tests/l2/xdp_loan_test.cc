// What goes wrong in one ask of a borrower of AF_XDP, and leaves the others be.
#include <catch2/catch.hpp>

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sluice/base/descriptor.h>
#include <sluice/l2/carrier/borrowed_xdp.h>
#include <sluice/l2/carrier/broker.h>
#include <sluice/l2/carrier/broker_wire.h>
#include <sluice/l2/carrier/frames.h>
#include <sluice/l2/carrier/xdp_carrier.h>

#include "tests/l2/lending.h"
#include "tests/l2/xdp_cable.h"
#include "tests/l2/xdp_lending.h"
#include "tests/support/audit.h"
#include "tests/support/skip.h"

namespace sluice::test {
namespace {

// Takes all descriptors of this process but so many.
std::vector<Descriptor> all_descriptors_but(size_t left) {
  std::vector<Descriptor> taken;
  for (int fd; (fd = ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0)) >= 0;) taken.emplace_back(fd);
  taken.resize(taken.size() - left);
  return taken;
}

// Opens ports with so few descriptors that one ask of the broker fails after the other.
int open_with_few_descriptors() {
  if (!become_nobody()) return 1;
  const rlimit limit{128, 128};
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 2;
  auto first = l2::open_xdp_carrier("left", 0);
  if (!first.ok()) return 3;
  std::vector<l2::OpenedCarrier> ports;
  struct Try {
    size_t descriptors;
    Code code;
  };
  // Tries that fail use no port up, but a loan has 36 pairs of sockets besides those that it uses.
  for (size_t i = 0; i < l2::kMostXdpPorts - 2; ++i) {
    auto taken = all_descriptors_but(1);
    if (l2::open_xdp_carrier("left", 0).code() != Code::kNoMemory) return 7;
  }
  // One of the two sockets is missing, then the port's claim; the sockets are there then.
  for (const Try& t :
       {Try{1, Code::kNoMemory}, {2, Code::kNoMemory}, {2, Code::kOk}, {4, Code::kOk}}) {
    auto taken = all_descriptors_but(t.descriptors);
    auto opened = l2::open_xdp_carrier("left", 0);
    if (!first->carrier->look().ok()) return 4;
    if (opened.code() != t.code) {
      std::fprintf(stderr, "%zu: %s\n", t.descriptors, opened.status().to_string().c_str());
      return 5;
    }
    if (opened.ok()) ports.push_back(std::move(*opened));
  }
  return 0;
}

TEST_CASE("a borrower without descriptors for one more port keeps those that it has",
          "[l2][xdp][broker]") {
  NEEDS_BORROWERS();
  NothingLeftBehind audit;
  Broking broker(lends_xdp());
  CHECK(exit_code(start(open_with_few_descriptors)) == 0);
  CHECK(gone());
}

// What a program without privileges is told there.
std::string told_to_borrower() {
  int told[2];
  REQUIRE(::pipe(told) == 0);
  pid_t borrower = start([&] {
    if (!become_nobody()) return 1;
    const std::string text = l2::open_xdp_carrier("left", 0).status().to_string();
    return ::write(told[1], text.data(), text.size()) > 0 ? 0 : 2;
  });
  ::close(told[1]);
  char text[1024];
  const ssize_t bytes = ::read(told[0], text, sizeof(text));
  ::close(told[0]);
  CHECK(exit_code(borrower) == 0);
  return std::string(text, bytes > 0 ? static_cast<size_t>(bytes) : 0);
}

TEST_CASE("a borrower is told what to do where an older broker, or one that must be set, refuses",
          "[l2][xdp][broker]") {
  NEEDS_BORROWERS();
  NothingLeftBehind audit;
  {
    PretendedBroker older(
        [](int) { return l2::broker_failed(Code::kCorrupt, "no request that it understands"); });
    CHECK(told_to_borrower().find("understands; it is older than this program: restart it with "
                                  "this version and --xdp") != std::string::npos);
  }
  PretendedBroker unset([](int) {
    return l2::broker_failed(Code::kUnsupported, "two queues; set SLUICE_L2_XDP_QUEUE=0");
  });
  CHECK(told_to_borrower().find("; SLUICE_L2_XDP_QUEUE is the broker's: set it there and restart "
                                "it") != std::string::npos);
}

// What a broker answers that numbers pairs of sockets by itself.
Result<l2::Loan> numbers_by_itself(int asked) {
  l2::Loan loan;
  loan.fds = {Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)),
              Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0))};
  const sa_family_t any = AF_UNIX;
  (void)::bind(loan.fds[1].value(), reinterpret_cast<const sockaddr*>(&any), sizeof(any));
  if (asked > 0) loan.number = static_cast<uint32_t>(asked) - 1;
  return loan;
}

TEST_CASE("sockets of another number than asked for are refused", "[l2][xdp][broker]") {
  NEEDS_BORROWERS();
  NothingLeftBehind audit;
  PretendedBroker older(numbers_by_itself);
  auto borrowed = l2::borrow_xdp("left");
  INFO(borrowed.status().to_string());
  REQUIRE(borrowed.ok());
  CHECK((*borrowed)->sockets(0).ok());
  const Status refused = (*borrowed)->sockets(0).status();  // again, as its rings failed
  CHECK(refused == Code::kCorrupt);
  CHECK(refused.detail().find("it is older than this program: restart it") !=
        std::string_view::npos);
}

std::atomic<bool> first_is_over{false};

// One thread waits for a broker that is silent to it, until this process ends.
int open_two_interfaces(int asked) {
  if (!become_nobody()) return 1;
  std::thread([] {
    (void)l2::open_xdp_carrier("one", 0);
    first_is_over = true;
  }).detach();
  char byte;
  if (::read(asked, &byte, 1) != 1) return 2;
  if (l2::open_xdp_carrier("two", 0).code() != Code::kInvalidArgument) return 3;
  // Nor a child, which has no such thread, from the same one.
  const pid_t child = start([] {
    ::alarm(20);
    return l2::open_xdp_carrier("one", 0).code() == Code::kInvalidArgument ? 0 : 1;
  });
  if (exit_code(child) != 0) return 5;
  return first_is_over ? 4 : 0;
}

TEST_CASE("who waits for a broker keeps nobody from another interface, nor a child",
          "[l2][xdp][broker]") {
  NEEDS_BORROWERS();
  NothingLeftBehind audit;
  int asked[2];
  REQUIRE(::pipe(asked) == 0);
  PretendedBroker slow([&](int n) -> Result<l2::Loan> {
    if (n > 0) return l2::broker_failed(Code::kInvalidArgument, "not there");
    return l2::broker_failed(::write(asked[1], "a", 1) == 1 ? Code::kCancelled : Code::kInternal,
                             "");
  });
  CHECK(exit_code(start([&] { return open_two_interfaces(asked[0]); })) == 0);
  for (int fd : asked) ::close(fd);
}

}  // namespace
}  // namespace sluice::test
