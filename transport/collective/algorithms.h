// The collectives as coroutines over a Mesh, one per way of moving the bytes. They check nothing:
// Group has done it.
#ifndef SLUICE_COLLECTIVE_ALGORITHMS_H_
#define SLUICE_COLLECTIVE_ALGORITHMS_H_

#include <vector>

#include <sluice/api/task.h>
#include "transport/collective/round.h"

namespace sluice::internal {

using Moved = Result<Receipt>;

// One host, up to kSlotBytes: everybody sends all to everybody (or to root) and reduces.
// root -1: every rank gets the result.
Task<Moved> reduce_in_slots(Mesh& mesh, Call call, Region data, int root);
// One host, more: each rank reduces its share straight out of the others' memory.
Task<Moved> reduce_in_place(Mesh& mesh, Call call, Region data, int root);
// Between hosts, up to kSlotBytes: recursive doubling; ranks beyond a power of two join one below.
Task<Moved> reduce_doubling(Mesh& mesh, Call call, Region data);
// Between hosts, more: a ring, size-1 steps to reduce and as many to gather.
Task<Moved> reduce_ring(Mesh& mesh, Call call, Region data);
// Between hosts: a binomial tree to root.
Task<Moved> reduce_tree(Mesh& mesh, Call call, Region data, int root);
// `direct`: root sends to all; else a binomial tree.
Task<Moved> broadcast_tree(Mesh& mesh, Call call, Region data, bool direct);
// Part r of `send` to rank r, part r of `receive` from it, all at once. An empty part is a header
// all the same, by which the ranks agree.
Task<Moved> exchange_parts(Mesh& mesh, Call call, std::vector<Region> send,
                           std::vector<Region> receive);
Task<Moved> dissemination(Mesh& mesh, Call call);
Task<Moved> failed(Status why);

// Begins a receipt: all but what rounds add.
Receipt receipt_of(Mesh& mesh);
inline Moved ended(Mesh& mesh, Receipt receipt) {
  receipt.completed = mesh.context().now();
  return receipt;
}

}  // namespace sluice::internal

#endif  // SLUICE_COLLECTIVE_ALGORITHMS_H_
