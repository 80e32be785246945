#include "tests/fuzz/broker_judge.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <set>
#include <utility>

#include <sluice/base/descriptor.h>
#include <sluice/l2/carrier/broker_wire.h>
#include <sluice/l2/carrier/lent_sockets.h>
#include <sluice/l2/carrier/lent_xdp.h>
#include <sluice/l2/carrier/xdp_source.h>

namespace sluice::fuzz {
namespace {

using namespace l2;

constexpr uid_t kUser = 1000, kOther = 1001;
constexpr uint16_t kOthersPort = 7777, kTakenPort = 13, kFirstFree = 40'000;
constexpr size_t kMostLent = 20;
constexpr size_t kMostPassed = 8;

Descriptor any_descriptor() {
  static const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  return Descriptor(::fcntl(null, F_DUPFD_CLOEXEC, 0));
}
// Of so many numbers from the lowest free one on: whether others are open than at the beginning.
class Watched {
 public:
  explicit Watched(int most) : first_(any_descriptor().value()), most_(most), before_(open()) {}
  bool left() const { return open() != before_; }

 private:
  int open() const {
    int count = 0;
    for (int fd = first_; fd < first_ + most_; ++fd) count += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
    return count;
  }
  int first_, most_, before_;
};

// In the card's place: which ports come to a socket.
struct Card {
  std::set<uint16_t> open;
  uint16_t next = kFirstFree;
  size_t pairs = 0;
  std::string problem;
};

class PretendedXdp final : public XdpSource {
 public:
  explicit PretendedXdp(Card& card) : card_(card) {
    place_.interface = "eth0";
    claim_ = any_descriptor();
    base_ = any_descriptor();
  }
  Result<XdpSockets> sockets(uint32_t number) override {
    if (number >= kMostXdpPorts) card_.problem = "more sockets than an interface has";
    if (++card_.pairs > 2 * kMostXdpPorts) card_.problem = "sockets without bound";
    return XdpSockets{any_descriptor(), any_descriptor()};
  }
  Result<PortClaim> open(uint32_t number, int receive, uint16_t port) override {
    if (number >= kMostXdpPorts || ::fcntl(receive, F_GETFD) < 0)
      card_.problem = "a port of sockets that are not there";
    // Any may be another user's packet socket's, whose claim has gone.
    if (port == 0) port = card_.next % 2 == 0 ? card_.next++ : (card_.next++, kOthersPort);
    if (port == kTakenPort || !card_.open.insert(port).second)
      return broker_failed(Code::kInvalidArgument, "the port is taken");
    return PortClaim{any_descriptor(), port};
  }
  void close(uint16_t port) override {
    if (card_.open.erase(port) == 0) card_.problem = "a port was closed that is not open";
  }

 private:
  Card& card_;
};

// Of the client's end: the packet that came, whose descriptors are closed.
struct Came {
  ssize_t bytes;
  BrokerAnswer answer;
  size_t descriptors = 0;
};
Came receive(int fd) {
  Came came{};
  iovec piece{&came.answer, sizeof(came.answer)};
  union {
    cmsghdr header;
    char bytes[CMSG_SPACE(kMostPassed * sizeof(int))];
  } passed{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = passed.bytes;
  message.msg_controllen = sizeof(passed.bytes);
  came.bytes = ::recvmsg(fd, &message, MSG_DONTWAIT | MSG_TRUNC | MSG_CMSG_CLOEXEC);
  const cmsghdr* header = came.bytes > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header == nullptr) return came;
  came.descriptors = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
  for (size_t i = 0; i < came.descriptors; ++i) {
    int number;
    std::memcpy(&number, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
    Descriptor closes(number);
  }
  return came;
}

std::string problem_of(const Came& came, const Result<Loan>& loan) {
  if (came.bytes != sizeof(BrokerAnswer)) return "no answer, or one of another size";
  const BrokerAnswer& answer = came.answer;
  if (answer.magic != kBrokerMagic || answer.version != kBrokerVersion)
    return "an answer without its marks";
  if (answer.code != static_cast<uint32_t>(loan.code())) return "an answer with another code";
  if (answer.detail[sizeof(answer.detail) - 1] != '\0') return "a text without an end";
  if (!loan.ok() && came.descriptors != 0) return "a refusal with descriptors";
  if (!loan.ok() && answer.detail[0] == '\0') return "a refusal without a cause";
  return {};
}

std::string problem_after(const Card& card, const LentSockets& lent) {
  if (!card.problem.empty()) return card.problem;
  if (card.open.count(kOthersPort) != 0) return "another user's port was lent";
  if (lent.count() != card.open.size() + 1) return "ports are counted that are not lent";
  if (card.open.size() > kMostLent) return "more ports than the user may have";
  return {};
}

std::string judge_loan(std::span<const Bytes> packets, size_t& served) {
  std::array<int, 2> ends;
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0)
    return "no socket pair";
  const Descriptor broker(ends[0]), client(ends[1]);
  LentSockets lent(1024, kMostLent);
  lent.hold(kOther, kOthersPort);
  Card card;
  LentXdp loan(std::make_unique<PretendedXdp>(card), kUser, lent);
  if (!loan.first().ok()) return "nothing is lent";
  for (const Bytes& packet : packets) {
    if (::send(client.value(), packet.data(), packet.size(), MSG_NOSIGNAL) < 0) return "not sent";
    const Result<BrokerRequest> request = receive_request(broker.value(), "eth0");
    const Result<Loan> lends = request.ok() ? loan.serve(*request) : Result<Loan>(request.status());
    if (packet.size() != sizeof(BrokerRequest) && lends.code() != Code::kCorrupt)
      return "a packet of another size was taken";
    if (!send_answer(broker.value(), lends)) return "the answer was not sent";
    const Came came = receive(client.value());
    std::string problem = problem_of(came, lends);
    if (lends.ok() && request->what == Ask::kXdpSockets && came.answer.number != request->number)
      return "sockets of another number";
    served += lends.ok() ? 1 : 0;
    if (problem.empty()) problem = problem_after(card, lent);
    if (!problem.empty()) return problem;
    if (lends.code() == Code::kCorrupt) break;
  }
  loan.end();
  return card.open.empty() ? problem_after(card, lent) : "a port is open after the loan";
}

bool pass(int fd, const Bytes& packet, size_t descriptors) {
  iovec piece{const_cast<uint8_t*>(packet.data()), packet.size()};
  union {
    cmsghdr header;
    char bytes[CMSG_SPACE(kMostPassed * sizeof(int))];
  } passed{};
  std::vector<Descriptor> all(std::min(descriptors, kMostPassed));
  std::vector<int> numbers;
  for (Descriptor& one : all) numbers.push_back((one = any_descriptor()).value());
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (!all.empty()) {
    const size_t bytes = all.size() * sizeof(int);
    message.msg_control = passed.bytes;
    message.msg_controllen = CMSG_SPACE(bytes);
    passed.header = {
        .cmsg_len = CMSG_LEN(bytes), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    std::memcpy(CMSG_DATA(&passed.header), numbers.data(), bytes);
  }
  return ::sendmsg(fd, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(packet.size());
}

std::string judge_borrower(const Bytes& packet, size_t descriptors, size_t expected) {
  std::array<int, 2> ends;
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return "no socket pair";
  const Descriptor broker(ends[0]);
  BrokerConnection borrower("/run/pretended", Descriptor(ends[1]), Duration(0));
  if (!pass(broker.value(), packet, descriptors)) return "not sent";
  const Result<Loan> loan = borrower.ask({.what = Ask::kXdpSockets}, expected);
  BrokerAnswer answer;
  const bool whole = packet.size() == sizeof(answer);
  if (whole) std::memcpy(&answer, packet.data(), sizeof(answer));
  const bool valid = whole && answer.magic == kBrokerMagic && answer.version == kBrokerVersion &&
                     answer.code < kCodeCount;
  if (borrower.gone() == valid) return "an answer is valid and ends the connection, or neither";
  if (!valid) return loan.code() == Code::kUnreachable ? "" : "an invalid answer has another code";
  if (answer.code != 0)
    return static_cast<uint32_t>(loan.code()) == answer.code ? "" : "a refusal became another";
  if (descriptors < expected)
    return loan.code() == Code::kNoMemory ? "" : "descriptors are missing, and it is not said";
  if (!loan.ok()) return "a valid answer was refused";
  if (loan->port != answer.port || loan->number != answer.number) return "other numbers came";
  for (size_t i = 0; i < std::min<size_t>(descriptors, loan->fds.size()); ++i)
    if (::fcntl(loan->fds[i].value(), F_GETFD) < 0) return "a descriptor did not come";
  return {};
}

}  // namespace

std::string judge_requests(std::span<const Bytes> packets, size_t* served) {
  const Watched descriptors(160);
  size_t count = 0;
  std::string problem = judge_loan(packets, count);
  if (served != nullptr) *served = count;
  if (problem.empty() && descriptors.left()) problem = "a descriptor of the broker's is left";
  return problem;
}

std::string judge_answer(const Bytes& packet, size_t descriptors, size_t expected) {
  const Watched watched(16);
  std::string problem = judge_borrower(packet, descriptors, expected);
  if (problem.empty() && watched.left()) problem = "a descriptor of the borrower's is left";
  return problem;
}

}  // namespace sluice::fuzz
