// What the kernels ask of a message-passing library; one file per library implements it. Every call
// is timed, so that a kernel can say which share of its time it communicated. A failed call ends
// the program with its reason: a kernel without a rank has no result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace npb {

// Memory that a channel can send from and receive into.
struct Block {
  std::byte* data = nullptr;
  size_t bytes = 0;
  std::shared_ptr<void> keep;

  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
};

// `bytes` from `offset` of a block.
struct Part {
  const Block* block = nullptr;
  size_t offset = 0;
  size_t bytes = 0;
};
inline Part whole(const Block& block) { return {&block, 0, block.bytes}; }
inline Part part(const Block& block, size_t offset, size_t bytes) {
  return {&block, offset, bytes};
}

enum class Type : uint8_t { kFloat, kDouble, kInt32, kInt64 };
enum class Op : uint8_t { kSum, kMax };

class Channel {
 public:
  virtual ~Channel() = default;
  int rank() const { return rank_; }
  int size() const { return size_; }
  // Which library and path, for the result.
  virtual std::string name() const = 0;
  virtual Block allocate(size_t bytes) = 0;

  void allreduce(Part data, Type type, Op op);
  void allgather(Part mine, Part all);
  void alltoall(Part send, Part receive);
  // Sizes in bytes, by rank; the parts lie one after the other.
  void alltoallv(Part send, const std::vector<uint64_t>& send_bytes, Part receive,
                 const std::vector<uint64_t>& receive_bytes);
  void broadcast(Part data, int root);
  void barrier();
  // Returns when the memory may be written again.
  void send(int to, uint32_t tag, Part data);
  // Returns at once. The memory is left alone until the peer is known to have received it.
  void post(int to, uint32_t tag, Part data);
  void receive(int from, uint32_t tag, Part into);
  // Both at once; -1: nobody.
  void send_receive(int to, Part data, int from, Part into, uint32_t tag);

  // Of one value.
  double sum(double value) { return reduced(value, Op::kSum); }
  double max(double value) { return reduced(value, Op::kMax); }

  double communicating_seconds() const { return communicating_; }
  void reset_clock() { communicating_ = 0; }

 protected:
  Channel(int rank, int size) : rank_(rank), size_(size) {}
  virtual void do_allreduce(Part data, Type type, Op op) = 0;
  virtual void do_allgather(Part mine, Part all) = 0;
  virtual void do_alltoall(Part send, Part receive) = 0;
  virtual void do_alltoallv(Part send, const std::vector<uint64_t>& send_bytes, Part receive,
                            const std::vector<uint64_t>& receive_bytes) = 0;
  virtual void do_broadcast(Part data, int root) = 0;
  virtual void do_barrier() = 0;
  virtual void do_send_receive(int to, Part data, int from, Part into, uint32_t tag) = 0;
  virtual void do_post(int to, uint32_t tag, Part data) = 0;

 private:
  double reduced(double value, Op op);

  int rank_, size_;
  double communicating_ = 0;
  Block one_;
};

double seconds_now();

struct Arguments {
  std::string kernel, problem_class = "S", path = "shm";
  int ranks = 2;
  // hpl
  int order = 1024, block = 64, rows = 0;
  // allreduce
  size_t bytes = 0;
  uint64_t iterations = 0;
  uint64_t limit_seconds = 600;
  bool corrupt = false;  // breaks one value, to see that verification notices
};

// The problem of --class.
template <typename Problem>
const Problem& of_class(const Arguments& arguments, const Problem& s, const Problem& w,
                        const Problem& a) {
  return arguments.problem_class == "S" ? s : (arguments.problem_class == "W" ? w : a);
}

// Runs `kernel` on one rank; the exit code. Rank 0 prints one JSON line if the result verified.
int run_kernel(Channel& channel, const Arguments& arguments);

// What a kernel found.
struct Outcome {
  bool verified = false;
  std::string wrong;   // if not: what
  double seconds = 0;  // of the timed part, the slowest rank's
  double mops = 0;     // million operations a second as NPB counts them; hpl: Gflop/s * 1000
  double share = 0;    // of the time spent communicating, mean over the ranks
  std::string more;    // further JSON fields, each with a comma in front
};
// Of flags that parse() takes and a kernel cannot run with: usage().
void check_cg(const Arguments& arguments, int ranks);
void check_ft(const Arguments& arguments, int ranks);
void check_lu(const Arguments& arguments, int ranks);
void check_hpl(const Arguments& arguments, int ranks);
void check_allreduce(const Arguments& arguments, int ranks);
Outcome run_is(Channel& channel, const Arguments& arguments);
Outcome run_cg(Channel& channel, const Arguments& arguments);
Outcome run_ft(Channel& channel, const Arguments& arguments);
Outcome run_lu(Channel& channel, const Arguments& arguments);
Outcome run_hpl(Channel& channel, const Arguments& arguments);
Outcome run_allreduce(Channel& channel, const Arguments& arguments);

// Between start() and finish() lies the timed part.
class Timer {
 public:
  explicit Timer(Channel& channel) : channel_(channel) {}
  void start();
  void finish(Outcome& outcome);

 private:
  Channel& channel_;
  double start_ = 0;
};

[[noreturn]] void usage(const std::string& what);
[[noreturn]] void die(const std::string& what);
// Whether the kernel can run so; otherwise usage(). Called before ranks meet: one that left then
// would be a lost rank. (With MPI they have met, and each of them says it.)
void check(const Arguments& arguments, int ranks);
// Errors: exits with 2 and a message naming the flag.
Arguments parse(int argc, char** argv);

}  // namespace npb
