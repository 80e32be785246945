// Packet sockets for programs without CAP_NET_RAW: a process that has it opens them, at one
// interface, and passes them over a Unix socket to the users on its list. What a borrower gets is
// bound and filtered to one port, and the filter is locked: it cannot be made to see anything
// else. (It can send any frame: the kernel has no filter for that.) Knows no session.
#ifndef SLUICE_L2_BROKER_H_
#define SLUICE_L2_BROKER_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <sluice/base/result.h>
#include <sluice/l2/packet_socket.h>
#include <sluice/l2/socket.h>

namespace sluice::l2 {

// SLUICE_L2_BROKER, or /run/sluice-l2-INTERFACE.
std::string broker_path(const std::string& interface);
bool broker_is_there(const std::string& interface);

// As open_packet_socket(), from the broker. Blocks: until it answers, 2 s at most. Errors: also
// kAccessDenied (the user is not on its list), kUnreachable (it does not answer).
Result<PacketSocket> borrow_packet_socket(const std::string& interface, uint16_t port);

struct BrokerOptions {
  std::string interface;
  std::string path;           // of its Unix socket; made anew
  std::vector<uid_t> users;   // besides root
};

class Broker {
 public:
  // Errors: kInvalidArgument (no such interface; the path cannot be bound), kAccessDenied.
  static Result<Broker> open(const BrokerOptions& options);
  Broker(Broker&&) noexcept = default;
  ~Broker();

  int fd() const { return listener_.value(); }
  // Serves the next who asks. A port that was lent to one user is lent to no other while this
  // lives: the first may have kept its socket. Blocks: until somebody asks, and then until he
  // has, for a second at most. Errors: what was refused to him, which he has been told.
  Status serve_one();

 private:
  Broker(BrokerOptions options, Fd listener) : options_(std::move(options)), listener_(std::move(listener)) {}
  Result<PacketSocket> lend(int peer);

  BrokerOptions options_;
  Fd listener_;
  std::map<uint16_t, uid_t> lent_;
};

}  // namespace sluice::l2

#endif  // SLUICE_L2_BROKER_H_
