// A group of ranks and its collectives: what c10d and the parallel benchmarks need. Knows
// endpoints and the exchange, not paths.
#ifndef SLUICE_COLLECTIVE_GROUP_H_
#define SLUICE_COLLECTIVE_GROUP_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <sluice/api/context.h>
#include <sluice/api/task.h>
#include <sluice/collective/reduce.h>
#include <sluice/collective/region.h>

namespace sluice {

namespace internal {
class Mesh;
struct Call;
}  // namespace internal

inline constexpr int kMostRanks = 1024;

struct GroupOptions {
  int rank = 0;
  int size = 1;
  // One per rank, no two alike: where each listens. Equal on all ranks. Or empty: the ranks meet at
  // `bootstrap`.
  std::vector<std::string> addresses = {};
  // Where rank 0 listens, and where the others ask it for all addresses.
  std::string bootstrap = {};
  // With `bootstrap`, ranks above 0: where this rank listens. The other ranks must be able to
  // connect to what Listener::address() then says.
  std::string listen = {};
  Requirements require = {};
};

// Every rank calls the same collectives in the same order with arguments that agree. Several may be
// under way at once.
//
// Each operation has two forms: one returns a Task to co_await or to pass to Context::run_until();
// the `_and_wait` twin progresses the context until it ended. Bytes of a Region are left alone from
// the call to the end. Receipts count this rank's side.
//
// Errors of all collectives: kInvalidArgument (this rank's arguments: nothing was done; or the
// ranks disagree: the text says how, and the group is broken), kTimedOut and kUnreachable (the text
// names the rank that did not come or was lost; the group is broken), kWrongState (the group was
// broken before, or is closed), kCancelled. What a region holds after a failure is not defined. A
// broken group tells every rank and stays broken: open a new one.
// Thread: the context's. Requires: the context outlives the group, the group its Tasks.
class Group {
 public:
  // Connects every pair of ranks. Blocks: until all ranks are there.
  // Errors: kInvalidArgument (options), kTimedOut (names the ranks that never came), and those of
  // Context::connect() and listen().
  static Result<std::unique_ptr<Group>> open(Context& context, const GroupOptions& options,
                                             Instant deadline);
  // Without close() the other ranks are told that this one is lost.
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const;
  int size() const;
  // The worst path between this rank and another; kNone for a group of one.
  Path path() const;
  // Every rank reads every other's memory in place: all are on one host.
  bool one_host() const;
  // Ok, or why the group is broken.
  Status broken() const;

  using Outcome = Result<Receipt>;

  // data[i] = op over all ranks, on every rank; in place. `data` holds elements of `dtype`.
  Task<Outcome> allreduce(Region data, DataType dtype, ReduceOp op, Instant deadline);
  // The same on `root` alone; the other ranks' data is not changed.
  Task<Outcome> reduce(Region data, DataType dtype, ReduceOp op, int root, Instant deadline);
  // Copies root's data to all ranks. Root may be done before the others have it.
  Task<Outcome> broadcast(Region data, int root, Instant deadline);
  // `all` holds size() parts of mine.bytes() by rank; `mine` may be this rank's part of it.
  Task<Outcome> allgather(Region mine, Region all, Instant deadline);
  // Both hold size() equal parts: part r of `send` goes to part rank() of rank r's `receive`. They
  // may not overlap.
  Task<Outcome> alltoall(Region send, Region receive, Instant deadline);
  // Parts of any size, one after the other without gaps; sizes in bytes, size() of each.
  Task<Outcome> alltoallv(Region send, std::span<const uint64_t> send_bytes, Region receive,
                          std::span<const uint64_t> receive_bytes, Instant deadline);
  Task<Outcome> barrier(Instant deadline);

  Outcome allreduce_and_wait(Region data, DataType dtype, ReduceOp op, Instant deadline);
  Outcome reduce_and_wait(Region data, DataType dtype, ReduceOp op, int root, Instant deadline);
  Outcome broadcast_and_wait(Region data, int root, Instant deadline);
  Outcome allgather_and_wait(Region mine, Region all, Instant deadline);
  Outcome alltoall_and_wait(Region send, Region receive, Instant deadline);
  Outcome alltoallv_and_wait(Region send, std::span<const uint64_t> send_bytes, Region receive,
                             std::span<const uint64_t> receive_bytes, Instant deadline);
  Outcome barrier_and_wait(Instant deadline);

  // Messages between two ranks, in order for each tag. They do not break the group.
  //
  // A rank may leave 256 messages, or 1 MiB of small ones, of another rank unreceived (over long
  // lines more). What that rank sends it beyond that waits, also the messages of collectives.
  // Errors: kInvalidArgument (rank, region, or the message has another size than `into`),
  // kTimedOut, kUnreachable, kWrongState, and why the group broke meanwhile.
  // Level::kSourceReusable: `data` may be written again; the peer need not have received it.
  Outcome send_and_wait(int to, uint32_t tag, Region data, Instant deadline);
  Outcome receive_and_wait(int from, uint32_t tag, Region into, Instant deadline);
  // Both at once, as two ranks that exchange data must. One of the ranks may be -1: nobody.
  Outcome send_receive_and_wait(int to, Region data, int from, Region into, uint32_t tag,
                                Instant deadline);
  // Gives a message away: returns once it is posted, which may be long before it leaves (see
  // above). If it is lost, later operations tell.
  Status post(int to, uint32_t tag, Tensor message, Instant deadline);

  // All ranks call it: waits until every rank has, and closes the connections. Errors: kTimedOut,
  // and why the group was broken.
  Status close(Instant deadline);

 private:
  explicit Group(std::unique_ptr<internal::Mesh> mesh);
  Result<internal::Call> begin(internal::Call call);
  Status check_rank(int rank, const char* what) const;
  Status check_elements(const Region& data, DataType dtype, ReduceOp op) const;

  std::unique_ptr<internal::Mesh> mesh_;
  uint64_t next_number_ = 1;
  uint64_t digest_ = 0;  // of the collectives so far
};

}  // namespace sluice

#endif  // SLUICE_COLLECTIVE_GROUP_H_
