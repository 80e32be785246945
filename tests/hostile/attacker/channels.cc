// Which path a siege's conversations take.
#include "tests/hostile/attacker/tcp.h"

namespace hostile {

std::unique_ptr<Channel> open_channel(Siege& siege) {
  if (siege.path == "tcp") {
    auto peer = std::make_unique<TcpPeer>(siege);
    if (!peer->greet()) return nullptr;
    return peer;
  }
  return nullptr;
}

}  // namespace hostile
