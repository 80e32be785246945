// Packet sockets for programs without CAP_NET_RAW: a process that has it opens them, at one
// interface, and passes them over a Unix socket to the users on its list. What a borrower gets is
// bound and filtered to one port, and the filter is locked: it cannot be made to see anything
// else. (It can send any frame: the kernel has no filter for that.) AF_XDP sockets likewise, to one
// process at a time (lent_xdp.h). Knows no session.
#ifndef SLUICE_L2_CARRIER_BROKER_H_
#define SLUICE_L2_CARRIER_BROKER_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <sluice/base/clock.h>
#include <sluice/base/descriptor.h>
#include <sluice/base/result.h>
#include <sluice/base/unix_socket_file.h>
#include <sluice/l2/carrier/broker_wire.h>
#include <sluice/l2/carrier/lent_sockets.h>
#include <sluice/l2/carrier/lent_xdp.h>
#include <sluice/l2/carrier/packet_socket.h>
#include <sluice/l2/carrier/xdp_attacher.h>

namespace sluice::l2 {

// As open_packet_socket(), from the broker, if it is root's or this user's own. Blocks: until it
// answers, 2 s at most. Errors: also kAccessDenied (the user is not on its list; the broker is
// another user's), kTryAgain (too many are lent), kUnreachable (it does not answer).
Result<PacketSocket> borrow_packet_socket(const std::string& interface, uint16_t port);

struct BrokerOptions {
  std::string interface;
  std::string path;          // of its Unix socket; a file that nobody listens at is replaced
  std::vector<uid_t> users;  // besides root
  // Lent at once: each costs the kernel some MB of buffers when frames come.
  size_t most_sockets = 1024, most_sockets_by_user = 256;
  // Lends AF_XDP as well: a borrower then has a queue of the interface, as long as it likes.
  bool xdp = false;
};

class Broker {
 public:
  // With AF_XDP it has a second thread. Errors: kInvalidArgument (no such interface; the path
  // cannot be bound), kWrongState (another broker listens there), kAccessDenied; of AF_XDP those of
  // OwnXdp::attach(), but for a process that has it now, and kNoMemory.
  static Result<Broker> open(const BrokerOptions& options);
  Broker(Broker&&) noexcept = default;
  ~Broker();

  int fd() const { return listener_.value(); }
  // Serves clients that ask. A client that connects and is silent delays nobody, and is sent away
  // after a second; nor does a card that is slow to take or to lose an XDP program. A port that was
  // lent to one user is lent to no other while any copy of its socket is open. AF_XDP is one
  // process's until its connection closes. Blocks: until somebody asks, or a signal comes. Errors:
  // the first refusal of each user and cause, which he has been told; later ones only count
  // (l2.sockets_refused). None of them is a reason to end.
  Status serve_one();

 private:
  struct Asker {
    Descriptor fd;
    uid_t user;
    pid_t process;
    Instant expires;
  };
  // Who has AF_XDP, or will have it: its connection is the loan.
  struct XdpBorrower {
    Asker asker;
    std::unique_ptr<LentXdp> loan;  // null: the card is not ready yet
  };
  Broker(BrokerOptions options, Descriptor listener, UnixSocketFile file,
         std::unique_ptr<XdpAttacher> attacher)
      : options_(std::move(options)),
        listener_(std::move(listener)),
        file_(std::move(file)),
        lent_(std::make_unique<LentSockets>(options_.most_sockets, options_.most_sockets_by_user)),
        attacher_(std::move(attacher)) {}
  bool listed(uid_t user) const;
  Status let_in();
  void make_room();
  Status serve(Asker& asker);
  Status serve_xdp_borrower();
  Status answer(const Asker& asker, const Result<Loan>& loan);
  Result<Loan> lend(uid_t user, uint16_t port);
  Status ask_for_xdp(Asker& asker);
  Status go_on_with_xdp();
  Status begin_xdp(std::unique_ptr<OwnXdp> own);
  void end_xdp();

  BrokerOptions options_;
  Descriptor listener_;
  UnixSocketFile file_;        // of the listener: goes before it is closed
  std::vector<Asker> askers_;  // who have not asked yet, oldest first
  std::unique_ptr<LentSockets> lent_;
  std::optional<XdpBorrower> xdp_;
  std::unique_ptr<XdpAttacher> attacher_;  // null: it lends no AF_XDP
  std::set<std::pair<uid_t, Code>> told_;  // refusals that were reported
};

}  // namespace sluice::l2

#endif  // SLUICE_L2_CARRIER_BROKER_H_
