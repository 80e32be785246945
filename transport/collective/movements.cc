// The collectives that only move bytes: broadcast, allgather, alltoall, alltoallv, barrier.
#include <cstring>

#include "transport/collective/algorithms.h"

namespace sluice::internal {

Task<Moved> broadcast_tree(Mesh& mesh, Call call, Region data, bool direct) {
  Receipt receipt = receipt_of(mesh);
  const int size = mesh.size();
  const int self = (mesh.rank() - call.root + size) % size;
  auto rank_of = [&](int relative) { return (relative + call.root) % size; };
  int below = 1;  // distance to the first rank that this one sends to
  if (self != 0) {
    int parent = 0;
    if (!direct) {
      while (below * 2 <= self) below *= 2;
      parent = self - below;
      below *= 2;
    }
    Round round(mesh, call);
    round.receive(rank_of(parent), data);
    if (Status status = co_await round; !status.ok()) co_return status;
    round.add_to(receipt);
  }
  Round round(mesh, call);
  if (direct) {
    for (int child = 1; self == 0 && child < size; ++child) round.send(rank_of(child), data);
  } else {
    for (; self + below < size; below *= 2) round.send(rank_of(self + below), data);
  }
  if (Status status = co_await round; !status.ok()) co_return status;
  round.add_to(receipt);
  co_return ended(mesh, receipt);
}

Task<Moved> exchange_parts(Mesh& mesh, Call call, std::vector<Region> send,
                           std::vector<Region> receive) {
  Receipt receipt = receipt_of(mesh);
  const int size = mesh.size(), self = mesh.rank();
  const Region& from = send[static_cast<size_t>(self)];
  const Region& to = receive[static_cast<size_t>(self)];
  Round round(mesh, call);
  for (int distance = 1; distance < size; ++distance) {
    const int peer = (self + size - distance) % size;
    round.receive(peer, receive[static_cast<size_t>(peer)]);
  }
  for (int distance = 1; distance < size; ++distance) {
    const int peer = (self + distance) % size;
    round.send(peer, send[static_cast<size_t>(peer)]);
  }
  if (to.bytes() > 0 && from.data() != to.data()) {
    std::memmove(to.data(), from.data(), to.bytes());
    receipt.copied_bytes += to.bytes();
  }
  if (Status status = co_await round; !status.ok()) co_return status;
  round.add_to(receipt);
  co_return ended(mesh, receipt);
}

Task<Moved> dissemination(Mesh& mesh, Call call) {
  Receipt receipt = receipt_of(mesh);
  const int size = mesh.size(), self = mesh.rank();
  for (int distance = 1; distance < size; distance *= 2) {
    Round round(mesh, call);
    round.receive((self + size - distance) % size, Region());
    round.send((self + distance) % size, Region());
    if (Status status = co_await round; !status.ok()) co_return status;
    round.add_to(receipt);
  }
  co_return ended(mesh, receipt);
}

}  // namespace sluice::internal
