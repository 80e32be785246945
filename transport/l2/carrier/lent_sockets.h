// Which sockets a broker has lent, to whom, and whether they are still open anywhere: of packet
// sockets the kernel's table tells, whatever a borrower says. Knows no asker.
#ifndef SLUICE_L2_CARRIER_LENT_SOCKETS_H_
#define SLUICE_L2_CARRIER_LENT_SOCKETS_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include <sluice/base/result.h>

namespace sluice::l2 {

class LentSockets {
 public:
  // At once, in all and of one user. The last quarter of all is for users who have less than a 16th
  // of all.
  LentSockets(size_t most, size_t most_by_user) : most_(most), most_by_user_(most_by_user) {}

  // Whether this user may have one more, at this port (0: any). Sockets that are closed everywhere
  // do not count. Errors: kTryAgain (too many; the detail says whose), kInvalidArgument (the port
  // was lent to another user, who may still have its socket).
  Status may_lend(uid_t user, uint16_t port);
  bool of_another(uid_t user, uint16_t port) const;
  // Requires: may_lend().
  void add(uid_t user, uint16_t port, int socket);
  // A port of AF_XDP, which counts as a socket until it is let go: the table does not tell.
  void hold(uid_t user, uint16_t port) { lent_.push_back({port, user, kHeld}); }
  void let_go(uint16_t port);
  size_t count() const { return lent_.size(); }

 private:
  static constexpr ino_t kHeld = 0;
  struct Lent {
    uint16_t port;
    uid_t user;
    ino_t inode;
  };
  Status limit(uid_t user) const;
  void take_back();

  size_t most_, most_by_user_;
  std::vector<Lent> lent_;
};

}  // namespace sluice::l2

#endif  // SLUICE_L2_CARRIER_LENT_SOCKETS_H_
