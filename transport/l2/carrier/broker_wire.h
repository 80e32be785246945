// What a broker and its borrowers say to each other: one packet each way over SOCK_SEQPACKET, the
// answer with descriptors. Knows neither what is lent nor to whom.
#ifndef SLUICE_L2_CARRIER_BROKER_WIRE_H_
#define SLUICE_L2_CARRIER_BROKER_WIRE_H_

#include <net/if.h>
#include <sys/un.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include <sluice/base/clock.h>
#include <sluice/base/descriptor.h>
#include <sluice/base/result.h>

namespace sluice::l2 {

inline constexpr uint32_t kBrokerMagic = 0x42504c53;  // "SLPB"
inline constexpr uint16_t kBrokerVersion = 1;

enum class Ask : uint16_t {
  kPacketSocket = 1,  // of that port; answered with the socket and the port's claim
  kXdp,               // with the base socket and the queue's claim; the connection stays, and is
                      // the loan: when it closes, so does the loan. Over it:
  kXdpSockets,        // with two sockets of that number, which the answer repeats: the next or one
                      // without a port, whose sockets before get no frames any more
  kXdpOpen,           // frames to that port come to the sockets of that number; with its claim
  kXdpClose,          // that port's no more
};

struct BrokerRequest {
  uint32_t magic = kBrokerMagic;
  Ask what = Ask::kPacketSocket;
  uint16_t port = 0;
  union {
    char interface[IFNAMSIZ] = {};
    uint32_t number;
  };
};
static_assert(sizeof(BrokerRequest) == 24);

struct BrokerAnswer {
  uint32_t magic = kBrokerMagic;
  uint16_t version = kBrokerVersion, port = 0;
  uint32_t code = 0;
  char detail[240] = {};
  uint32_t number = 0;
};
static_assert(sizeof(BrokerAnswer) == 256);

// What an answer brings when it is ok.
struct Loan {
  std::array<Descriptor, 2> fds;
  uint16_t port = 0;
  uint32_t number = 0;
};

Status broker_failed(Code code, std::string why, int error = 0);
Result<sockaddr_un> broker_address(const std::string& path);
Descriptor broker_socket();
// Of a client that is there: what it asks of a broker at that interface. Does not wait. Errors:
// kCorrupt, kInvalidArgument (it asks for another interface).
Result<BrokerRequest> receive_request(int client, const std::string& interface);
// Does not wait. False: the client is gone, or does not read.
bool send_answer(int peer, const Result<Loan>& loan);

// SLUICE_L2_BROKER, or /run/sluice-l2-INTERFACE.
std::string broker_path(const std::string& interface);
bool broker_is_there(const std::string& interface);

// A borrower's connection to a broker that is root's or its own user's.
class BrokerConnection {
 public:
  // No answer takes longer than the limit. Errors: kUnreachable (no broker), kAccessDenied (another
  // user's).
  static Result<BrokerConnection> to(const std::string& interface, Duration limit);
  // One that is connected, to whom it trusts.
  BrokerConnection(std::string path, Descriptor fd, Duration limit)
      : path_(std::move(path)), fd_(std::move(fd)), limit_(limit) {}
  // Blocks. The answer must have so many descriptors. Requires: no ask has found it gone. Errors:
  // those that the broker answers; kNoMemory (this process has no room for the descriptors; the
  // broker has lent them); kUnreachable without a valid answer, after which the connection is gone.
  Result<Loan> ask(const BrokerRequest& request, size_t descriptors);
  // Of later asks.
  void set_limit(Duration limit) { limit_ = limit; }
  // The broker closed it, or it broke. Thread: any.
  bool gone() const;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  Descriptor fd_;
  Duration limit_;
};

}  // namespace sluice::l2

#endif  // SLUICE_L2_CARRIER_BROKER_WIRE_H_
