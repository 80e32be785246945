// AF_XDP at one interface as a broker lends it, to one process: the program, sockets that the
// process binds to its own memory, and the program's map. It ends with the process's connection.
// Knows no other clients.
#ifndef SLUICE_L2_CARRIER_LENT_XDP_H_
#define SLUICE_L2_CARRIER_LENT_XDP_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <sluice/base/descriptor.h>
#include <sluice/base/result.h>
#include <sluice/l2/carrier/broker_wire.h>
#include <sluice/l2/carrier/lent_sockets.h>
#include <sluice/l2/carrier/xdp_source.h>

namespace sluice::l2 {

class LentXdp {
 public:
  // Descriptors that one takes of the broker's.
  static constexpr size_t kDescriptors = 8 + 2 * kMostXdpPorts;

  // Its ports count among `ports` until end().
  LentXdp(std::unique_ptr<XdpSource> own, uid_t user, LentSockets& ports)
      : own_(std::move(own)), user_(user), ports_(&ports) {}
  LentXdp(const LentXdp&) = delete;
  LentXdp& operator=(const LentXdp&) = delete;
  // Detaches the program, and closes the broker's copies of the sockets. Thread: any. Blocks: as
  // long as the card takes.
  ~LentXdp();

  uid_t user() const { return user_; }
  // For the borrower: the base socket and the claim. Once.
  Result<Loan> first();
  // Asks over the connection. Errors: kCorrupt (no such ask: the loan should end), those of
  // LentSockets::may_lend() and XdpSource.
  Result<Loan> serve(const BrokerRequest& request);
  // No frame is the borrower's any more, and its ports are free.
  void end();

 private:
  struct Pair {
    Descriptor receive;  // for the map
    Descriptor claim;    // of the port; the borrower has it too
    uint16_t port = 0;   // 0: none
  };
  Result<Loan> make_sockets(uint32_t number);
  Result<Loan> open(uint32_t number, uint16_t port);
  void close(Pair& pair);

  std::unique_ptr<XdpSource> own_;
  uid_t user_;
  LentSockets* ports_;
  std::vector<Pair> pairs_;
  size_t replaced_ = 0;
};

}  // namespace sluice::l2

#endif  // SLUICE_L2_CARRIER_LENT_XDP_H_
