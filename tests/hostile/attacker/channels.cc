// Which path a siege's conversations take.
#include "tests/hostile/attacker/shm.h"
#include "tests/hostile/attacker/slp.h"
#include "tests/hostile/attacker/tcp.h"

namespace hostile {
namespace {

template <typename Peer>
std::unique_ptr<Channel> greeted(Siege& siege) {
  auto peer = std::make_unique<Peer>(siege);
  if (!peer->greet()) return nullptr;
  return peer;
}

}  // namespace

std::unique_ptr<Channel> open_channel(Siege& siege) {
  if (siege.path == "tcp") return greeted<TcpPeer>(siege);
  if (siege.path == "shm") return greeted<ShmPeer>(siege);
  return greeted<SlpPeer>(siege);
}

}  // namespace hostile
