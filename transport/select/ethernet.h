// sluice:// over plain Ethernet, where both ends wish it: the kernel module if both have it, else
// raw frames. TCP has said where the peer is; the handshake of either proves both directions. Knows
// the two backends by connect() and listen() alone: no link, no frame.
#ifndef SLUICE_SELECT_ETHERNET_H_
#define SLUICE_SELECT_ETHERNET_H_

#include <memory>
#include <string>
#include <vector>

#include <sluice/api/context.h>
#include <sluice/kmod/provider.h>
#include <sluice/l2/provider.h>
#include <sluice/select/silences.h>
#include <sluice/wire/messages.h>

namespace sluice::select {

// By the option, or by SLUICE_ETHERNET=1 for a whole process.
bool ethernet_wanted(bool option);

// What a carrier can do at the least: with a secret frames are copied more often, which is found
// out when they meet. `sealed`: with a secret.
PathProperties ethernet_properties(Path path, bool sealed);

struct EthernetCarriers {
  kmod::KmodProvider& module;
  l2::L2Provider& packet;
};

// The client's side. Thread: the context's.
class EthernetCaller {
 public:
  explicit EthernetCaller(const EthernetCarriers& carriers) : carriers_(carriers) {}
  // An endpoint by the module (kModule) or raw frames (kPacket) with the peer of a TCP connection
  // that announced where it listens. Blocks: for `patience`, a second at most, and not at all where
  // that neighbour did not answer in the minute before; progresses the context. Errors:
  // kUnsupported, with the reason.
  Result<std::shared_ptr<EndpointCore>> connect(Path path, int fd, const wire::Hello& peer,
                                                Duration patience, const ConnectOptions& options,
                                                const proto::SessionOptions& session);

 private:
  EthernetCarriers carriers_;
  Silences silences_;
};

// The server's: listens on each interface by which somebody comes, from his greeting on until
// close. Thread: the context's.
class EthernetListeners {
 public:
  // The caller that asks it for endpoints counts them, and asks ListenOptions::accept.
  EthernetListeners(const EthernetCarriers& carriers, const ListenOptions& options)
      : carriers_(carriers), options_(options) {
    options_.max_connections = options_.max_connections_by_address = 0;
    options_.accept = nullptr;
  }
  // Says in `ours` where it listens on the interface of that connection. Nothing where it cannot,
  // with a line in the log.
  void announce(int fd, wire::Hello& ours);
  // Never blocks; null: nobody.
  std::shared_ptr<EndpointCore> accept();

 private:
  struct OnInterface {
    std::string name;
    unsigned index;  // another one: it was made anew, and nobody comes by the old one
    Instant opened;
    std::unique_ptr<ListenerCore> module, packet;  // null: could not be, then
  };
  OnInterface& on(const std::string& interface);

  EthernetCarriers carriers_;
  ListenOptions options_;
  std::vector<OnInterface> interfaces_;
};

}  // namespace sluice::select

#endif  // SLUICE_SELECT_ETHERNET_H_
