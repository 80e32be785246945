// allreduce and reduce.
#include <algorithm>
#include <array>

#include "transport/collective/algorithms.h"

namespace sluice::internal {
namespace {

// Part `index` of `parts` equal ones, in whole elements.
Region share(const Region& data, size_t element, int index, int parts) {
  const size_t count = data.bytes() / element;
  const auto first = [&](int i) {
    return count * static_cast<size_t>(i) / static_cast<size_t>(parts) * element;
  };
  return data.part(first(index), first(index + 1) - first(index));
}

void fold(const Call& call, const Region& into, const std::byte* other) {
  const std::array<const std::byte*, 2> sources{into.data(), other};
  reduce(call.dtype, call.op, into.data(), sources, into.bytes() / call.dtype.size_bytes());
}

bool lendable(Mesh& mesh, const Region& data) {
  const auto place = mesh.context().arena().locate(data.data(), data.bytes());
  return place && place->first.audience == Audience::kSameUser;
}

// Without this a publication outlives the collective that failed, and keeps its argument.
struct EndOfLoan {
  Publication& publication;
  ~EndOfLoan() {
    if (publication.ready()) {
      (void)publication.take();
    } else {
      publication.retire();
    }
  }
};

std::string name_of(int rank) { return "rank " + std::to_string(rank); }

}  // namespace

Task<Moved> failed(Status why) { co_return why; }

Receipt receipt_of(Mesh& mesh) {
  Receipt receipt;
  receipt.path = mesh.path();
  receipt.posted = mesh.context().now();
  return receipt;
}

Task<Moved> reduce_in_slots(Mesh& mesh, Call call, Region data, int root) {
  Receipt receipt = receipt_of(mesh);
  const bool mine = root < 0 || root == mesh.rank();
  std::array<size_t, 64> few;
  std::vector<size_t> many;
  if (mesh.size() > static_cast<int>(few.size())) many.resize(static_cast<size_t>(mesh.size()));
  size_t* slots = many.empty() ? few.data() : many.data();
  Round round(mesh, call);
  for (int rank = 0; rank < mesh.size(); ++rank) {
    if (rank == mesh.rank()) continue;
    if (mine) slots[rank] = round.receive_in_slot(rank, data.bytes());
    if (root < 0 || root == rank) round.send(rank, data);
  }
  if (Status status = co_await round; !status.ok()) co_return status;
  round.add_to(receipt);
  if (mine) {
    std::array<const std::byte*, 64> few_sources;
    std::vector<const std::byte*> many_sources(many.size());
    const std::byte** sources = many.empty() ? few_sources.data() : many_sources.data();
    for (int rank = 0; rank < mesh.size(); ++rank)
      sources[rank] = rank == mesh.rank() ? data.data() : round.payload(slots[rank]);
    reduce(call.dtype, call.op, data.data(), {sources, static_cast<size_t>(mesh.size())},
           data.bytes() / call.dtype.size_bytes());
  }
  co_return ended(mesh, receipt);
}

// Messages may not carry what only one host's memory can: some rank's argument cannot be lent.
static Task<Moved> reduce_by_messages(Mesh& mesh, Call call, Region data, int root) {
  return root < 0 ? reduce_ring(mesh, call, std::move(data))
                  : reduce_tree(mesh, call, std::move(data), root);
}

Task<Moved> reduce_in_place(Mesh& mesh, Call call, Region data, int root) {
  Receipt receipt = receipt_of(mesh);
  const int size = mesh.size(), self = mesh.rank();
  if (size == 1) co_return ended(mesh, receipt);
  bool all_lend = lendable(mesh, data);
  {
    Round agree(mesh, call);
    std::vector<size_t> answers;
    for (int rank = 0; rank < size; ++rank) {
      if (rank == self) continue;
      answers.push_back(agree.receive_in_slot(rank, 0));
      agree.send(rank, Region(), all_lend ? kLendable : 0);
    }
    if (Status status = co_await agree; !status.ok()) co_return status;
    for (size_t answer : answers) all_lend = all_lend && (agree.flags(answer) & kLendable) != 0;
  }
  if (!all_lend) co_return co_await reduce_by_messages(mesh, call, data, root);

  // Everybody lends its whole argument once. Share r of all of them is read by rank r alone until
  // rank r says that it is reduced, so rank r may write it in place.
  Exchange& exchange = mesh.exchange();
  Result<Publication> lent = exchange.publish({name_of(self), call.number}, data.as_tensor(),
                                              {.readers = size - 1, .deadline = call.deadline});
  if (!lent.ok()) {
    mesh.fail(lent.status());
    co_return lent.status();
  }
  const EndOfLoan loan{*lent};
  std::vector<Tensor> views(static_cast<size_t>(size));
  {
    std::vector<Fetch> fetches;
    for (int rank = 0; rank < size; ++rank)
      if (rank != self)
        fetches.push_back(exchange.fetch({name_of(rank), call.number}, call.deadline,
                                         {.from = &mesh.peer(rank)}));
    (void)co_await Until(
        mesh, call,
        [&] {
          return std::all_of(fetches.begin(), fetches.end(),
                             [](const Fetch& fetch) { return fetch.ready(); });
        },
        kNever);
    if (!mesh.broken().ok()) co_return mesh.broken();
    size_t next = 0;
    for (int rank = 0; rank < size; ++rank) {
      if (rank == self) continue;
      Result<Delivery<Tensor>> delivery = fetches[next++].take();
      Status status = delivery.status();
      if (status.ok() &&
          (!delivery->value.owned_by_peer() || delivery->value.size_bytes() != data.bytes()))
        status = Status(Code::kInternal, Scope::kContext, "collective/reductions",
                        "a view of another rank's memory was promised and did not come");
      if (!status.ok()) {
        mesh.fail(mesh.blame(rank, status, call.name()));
        co_return mesh.broken();
      }
      views[static_cast<size_t>(rank)] = std::move(delivery->value);
    }
  }
  const size_t element = call.dtype.size_bytes();
  const Region own = share(data, element, self, size);
  const auto offset = static_cast<size_t>(own.data() - data.data());
  std::vector<const std::byte*> sources;
  for (int rank = 0; rank < size; ++rank)
    sources.push_back(rank == self ? own.data() : views[static_cast<size_t>(rank)].data() + offset);
  // Root alone gets the result, but shares are written in place: other ranks keep theirs aside.
  Region result = own;
  Buffer aside;
  if (root >= 0 && root != self) {
    Result<Buffer> room = mesh.context().arena().allocate(std::max<size_t>(own.bytes(), 1));
    if (!room.ok()) {
      mesh.fail(room.status());
      co_return mesh.broken();
    }
    aside = std::move(*room);
    result = Region(aside, 0, own.bytes());
  }
  reduce(call.dtype, call.op, result.data(), sources, own.bytes() / element);
  receipt.bytes += data.bytes();
  if (root < 0) {
    // Ready: a header says so, in order with what was written.
    Round ready(mesh, call);
    for (int rank = 0; rank < size; ++rank) {
      if (rank == self) continue;
      ready.receive_in_slot(rank, 0);
      ready.send(rank, Region());
    }
    if (Status status = co_await ready; !status.ok()) co_return status;
    for (int rank = 0; rank < size; ++rank) {
      if (rank == self) continue;
      const Region part = share(data, element, rank, size);
      std::memcpy(part.data(),
                  views[static_cast<size_t>(rank)].data() + (part.data() - data.data()),
                  part.bytes());
      receipt.copied_bytes += part.bytes();
    }
  } else {
    Round collect(mesh, call);
    for (int rank = 0; rank < size; ++rank) {
      if (rank == self) continue;
      if (self == root) collect.receive(rank, share(data, element, rank, size));
    }
    if (self != root) collect.send(root, result);
    if (Status status = co_await collect; !status.ok()) co_return status;
    collect.add_to(receipt);
  }
  views.clear();  // the others may write theirs again
  if (!co_await Until(
          mesh, call, [&] { return lent->ready(); }, call.deadline)) {
    if (mesh.broken().ok())
      mesh.fail(Status(Code::kTimedOut, Scope::kContext, "collective/reductions",
                       call.name() + ": only " + std::to_string(lent->readers_done()) + " of " +
                           std::to_string(size - 1) + " ranks gave back rank " +
                           std::to_string(self) + "'s memory before the deadline"));
    co_return mesh.broken();
  }
  co_return ended(mesh, receipt);
}

Task<Moved> reduce_doubling(Mesh& mesh, Call call, Region data) {
  Receipt receipt = receipt_of(mesh);
  const int size = mesh.size(), self = mesh.rank();
  int power = 1;
  while (power * 2 <= size) power *= 2;
  const int extra = size - power;  // ranks from `power` on fold into those `power` below
  auto exchange = [&](int peer, bool sends, bool receives, bool folds) -> Task<Status> {
    Round round(mesh, call);
    const size_t slot = receives ? round.receive_in_slot(peer, data.bytes()) : 0;
    if (sends) round.send(peer, data);
    Status status = co_await round;
    if (!status.ok()) co_return status;
    round.add_to(receipt);
    if (receives && folds) {
      // The lower rank's value first on both sides, so that both get the same bits.
      const std::byte* other = round.payload(slot);
      std::array<const std::byte*, 2> sources{data.data(), other};
      if (peer < self) std::swap(sources[0], sources[1]);
      reduce(call.dtype, call.op, data.data(), sources, data.bytes() / call.dtype.size_bytes());
    } else if (receives && data.bytes() > 0) {
      std::memcpy(data.data(), round.payload(slot), data.bytes());
    }
    co_return Status();
  };
  if (self >= power) {
    if (Status status = co_await exchange(self - power, true, false, true); !status.ok())
      co_return status;
    if (Status status = co_await exchange(self - power, false, true, false); !status.ok())
      co_return status;
    co_return ended(mesh, receipt);
  }
  if (self < extra)
    if (Status status = co_await exchange(self + power, false, true, true); !status.ok())
      co_return status;
  for (int distance = 1; distance < power; distance *= 2)
    if (Status status = co_await exchange(self ^ distance, true, true, true); !status.ok())
      co_return status;
  if (self < extra)
    if (Status status = co_await exchange(self + power, true, false, false); !status.ok())
      co_return status;
  co_return ended(mesh, receipt);
}

Task<Moved> reduce_ring(Mesh& mesh, Call call, Region data) {
  Receipt receipt = receipt_of(mesh);
  const int size = mesh.size(), self = mesh.rank();
  const int right = (self + 1) % size, left = (self + size - 1) % size;
  const size_t element = call.dtype.size_bytes();
  auto part = [&](int index) { return share(data, element, (index + 2 * size) % size, size); };
  size_t largest = 1;
  for (int i = 0; i < size; ++i) largest = std::max(largest, part(i).bytes());
  Result<Buffer> room = mesh.context().arena().allocate(largest);
  if (!room.ok()) {
    mesh.fail(room.status());
    co_return mesh.broken();
  }
  for (int step = 0; step < 2 * (size - 1); ++step) {
    const bool reducing = step < size - 1;
    const int sent = self - step + (reducing ? 0 : size);
    const Region received = part(sent - 1);
    const Region into = reducing ? Region(*room, 0, received.bytes()) : received;
    Round round(mesh, call);
    round.receive(left, into);
    round.send(right, part(sent));
    if (Status status = co_await round; !status.ok()) co_return status;
    round.add_to(receipt);
    if (reducing) fold(call, received, room->data());
  }
  co_return ended(mesh, receipt);
}

Task<Moved> reduce_tree(Mesh& mesh, Call call, Region data, int root) {
  Receipt receipt = receipt_of(mesh);
  const int size = mesh.size();
  const int self = (mesh.rank() - root + size) % size;  // as if root were rank 0
  auto rank_of = [&](int relative) { return (relative + root) % size; };
  Result<Buffer> room = mesh.context().arena().allocate(std::max<size_t>(data.bytes(), 1));
  Result<Buffer> sum = mesh.context().arena().allocate(std::max<size_t>(data.bytes(), 1));
  if (!room.ok() || !sum.ok()) {
    mesh.fail(room.ok() ? sum.status() : room.status());
    co_return mesh.broken();
  }
  const Region partial = self == 0 ? data : Region(*sum, 0, data.bytes());
  if (self != 0 && data.bytes() > 0) {
    std::memcpy(partial.data(), data.data(), data.bytes());
    receipt.copied_bytes += data.bytes();
  }
  for (int distance = 1; distance < size; distance *= 2) {
    Round round(mesh, call);
    if ((self & distance) != 0) {
      round.send(rank_of(self - distance), partial);
      if (Status status = co_await round; !status.ok()) co_return status;
      round.add_to(receipt);
      break;
    }
    if (self + distance >= size) continue;
    const Region into(*room, 0, data.bytes());
    round.receive(rank_of(self + distance), into);
    if (Status status = co_await round; !status.ok()) co_return status;
    round.add_to(receipt);
    fold(call, partial, into.data());
  }
  co_return ended(mesh, receipt);
}

}  // namespace sluice::internal
