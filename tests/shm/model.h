// A checker for code that is a template over its atomics: runs a few threads of it through every
// interleaving, with every value that each load may have by the memory model of C++. Knows nothing
// of what the threads do.
//
// The model. Each location has a list of messages, one for each store, in the order of its one
// writer. A thread has a view: for each location the oldest message that it may still read. A load
// takes any message from there on, which is how a store may be seen late (a store buffer, a queue
// of invalidations), and loads out of order. A store with release carries its thread's view, which
// a load with acquire takes over. A seq_cst access also goes by one view that all such accesses
// share, in the order in which they are run: a load takes nothing older than what a seq_cst access
// to the same location has read or written before. So every execution of C++20 is here, but those
// in which a relaxed load sees what depends on itself; x86's (stores delayed, nothing else) are
// among them. Plain memory is not delayed: two accesses of which one is a write must be ordered by
// views, or the program is wrong (a race), whatever it read.
//
// The search. A thread's state is what its loads have given it so far: it is run again from its
// beginning with those answers, and stopped at its next access. States that were seen are not
// looked at again. It ends when every state has been, so the number of accesses must be bounded.
#ifndef SLUICE_TESTS_SHM_MODEL_H_
#define SLUICE_TESTS_SHM_MODEL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace sluice::test::model {

enum class Kind : uint8_t {
  kLoad,
  kStore,
  kRing,       // a bell to the other thread; what the kernel does orders memory
  kAwaitBell,  // sleeps until one has come, and takes all
  kTakeBells,  // takes what has come, awake
  kPause,  // until something was written that this thread has not read; then it reads nothing older
  kChoose,  // 0 or 1: something outside decides
  kRead,    // plain memory: the version that lies in a cell
  kWrite,   // the next version
  kFail,    // the thread itself has found something wrong
};

struct Access {
  Kind kind = Kind::kLoad;
  const void* where = nullptr;  // kLoad, kStore: the atomic; kRead, kWrite: a cell's number
  uint64_t value = 0;
  std::memory_order order = std::memory_order_seq_cst;
  std::string text;  // kFail
};

// Of the thread that is being run.
uint64_t perform(Access access);

template <typename T>
class Atomic {
 public:
  void store(T value, std::memory_order order) {
    perform({.kind = Kind::kStore,
             .where = this,
             .value = static_cast<uint64_t>(value),
             .order = order,
             .text = {}});
  }
  T load(std::memory_order order) const {
    return static_cast<T>(
        perform({.kind = Kind::kLoad, .where = this, .value = 0, .order = order, .text = {}}));
  }
};

inline void ring() { perform({.kind = Kind::kRing}); }
inline void await_bell() { perform({.kind = Kind::kAwaitBell}); }
inline void take_bells() { perform({.kind = Kind::kTakeBells}); }
inline void pause() { perform({.kind = Kind::kPause}); }
inline bool choose() { return perform({.kind = Kind::kChoose}) != 0; }
inline uint64_t read(size_t cell) {
  return perform({.kind = Kind::kRead, .where = nullptr, .value = cell});
}
inline void write(size_t cell) { perform({.kind = Kind::kWrite, .where = nullptr, .value = cell}); }
inline void fail(std::string text) {
  perform({.kind = Kind::kFail,
           .where = nullptr,
           .value = 0,
           .order = std::memory_order_relaxed,
           .text = std::move(text)});
}

// Plain memory that an access says has been read or written, between the thread's last access and
// this one.
struct Touched {
  std::vector<size_t> read, written;
  std::string wrong;  // not as it should be
};

struct Program {
  std::vector<std::function<void()>> threads;  // deterministic but for what perform() gives
  size_t cells = 0;
  // Before a thread runs again from its beginning.
  std::function<void(size_t thread)> reset = {};
  std::function<Touched(size_t thread, const Access& next)> touched = {};
};

struct Verdict {
  bool ok = true;
  std::string wrong;  // of the first execution that is
  size_t states = 0;
};
Verdict explore(const Program& program);

}  // namespace sluice::test::model

#endif  // SLUICE_TESTS_SHM_MODEL_H_
