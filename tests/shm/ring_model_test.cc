// The ring, its sleep and its bell, and the gate by which revoke() stops copies: the very templates
// that run between processes, under a checker's atomics, in every order that C++ allows.
#include <sluice/shm/ring.h>

#include <catch2/catch.hpp>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/shm/model.h"

namespace sluice::shm {
namespace {

using test::model::Access;
using test::model::Kind;
using test::model::Program;
using test::model::Touched;
using test::model::Verdict;

template <typename T>
using Atomic = test::model::Atomic<T>;
// Few slots: the checker sees each. Four in the first place hold messages.
constexpr uint32_t kFirst = 5, kGrown = 6;
using ModelRegion = Region<Atomic, kFirst, kGrown>;
using Writer = RingWriter<Atomic, kFirst, kGrown>;
using Reader = RingReader<Atomic, kFirst, kGrown>;

constexpr uint32_t size_of(bool grown) { return grown ? kGrown : kFirst; }

// Slots that a side is about to give away, by its own account.
struct Run {
  bool grown = false;  // in the larger place
  uint32_t first = 0, count = 0;
  int message = -1;  // -1: the slot that says that the ring has grown

  std::vector<size_t> cells() const {
    std::vector<size_t> cells;
    for (uint32_t i = 0; i < count; ++i)
      cells.push_back((grown ? kFirst : 0) + (first + i) % size_of(grown));
    return cells;
  }
  void go_on(uint32_t slots, int next) {
    first = (first + count) % size_of(grown);
    count = slots;
    message = next;
  }
  void grow() { *this = {.grown = true}; }
};

std::vector<std::byte> bytes_of(size_t message, uint32_t slots) {
  std::vector<std::byte> bytes(size_t{slots} * kSlotDataBytes);
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(1 + (message * 7 + i) % 250);
  return bytes;
}

// As a link does (link.cc): a message that finds no room is tried again in a grown ring and then
// later, and so is a bell. Also a slot that says that the ring has grown is rung for: a message
// that needs all of the larger place waits until it was read.
void ring_for(Writer& writer, int& bells_without_room) {
  uint64_t sleep = writer.bell_due();
  while (sleep != 0 && bells_without_room > 0 && test::model::choose()) {
    --bells_without_room;
    sleep = writer.bell_due();
  }
  if (sleep == 0) return;
  test::model::ring();
  writer.rung(sleep);
}

void send(Writer& writer, const std::vector<std::byte>& message, Run& run,
          int& bells_without_room) {
  const Run before = run;
  const int number = run.message + 1;
  run.go_on(slots_for(message.size()), number);
  while (writer.write(message, {}) != Writer::Outcome::kWritten) {
    if (writer.grown()) {
      test::model::pause();
      continue;
    }
    run = before;
    run.go_on(1, -1);
    writer.grow();
    ring_for(writer, bells_without_room);
    run.grow();
    run.go_on(slots_for(message.size()), number);
  }
  ring_for(writer, bells_without_room);
}

// As a context does (context.cc): what is there is read, then the bell is armed, and only if
// nothing has come meanwhile it sleeps.
void receive(Reader& reader, const std::vector<uint32_t>& slots, Run& run, bool hears_awake) {
  for (size_t got = 0; got < slots.size();) {
    while (got < slots.size() && reader.ready()) {
      if (reader.at_growth()) {
        run.go_on(1, -1);
        reader.follow_growth();
        run.grow();
        continue;
      }
      run.go_on(slots[got], static_cast<int>(got));
      reader.pop(slots[got++]);
    }
    if (got == slots.size()) return;
    if (hears_awake && test::model::choose()) test::model::take_bells();
    if (reader.begin_sleep()) test::model::await_bell();
    reader.end_sleep();
  }
}

struct OneWay {
  std::vector<uint32_t> slots;
  int bells_without_room = 0;
  bool hears_awake = false;
};

// Whether the stamp that `next` stores is that of the first slot of `run`, with its message there.
std::string wrong_stamp(const ModelRegion& region, const Run& run, const Access& next,
                        const std::vector<std::vector<std::byte>>& messages) {
  const Slot<Atomic>* ring = run.grown ? region.grown : region.first;
  if (next.where != &ring[run.first].stamp) return "a stamp in a slot that no message begins in";
  if (run.message < 0) return {};
  const std::byte* expected = messages[static_cast<size_t>(run.message)].data();
  for (uint32_t i = 0; i < run.count; ++i, expected += kSlotDataBytes) {
    const auto& slot = ring[(run.first + i) % size_of(run.grown)];
    if (std::memcmp(slot.data, expected, kSlotDataBytes) != 0) return "a stamp before its message";
  }
  return {};
}

Verdict run(const OneWay& options) {
  auto mine = std::make_unique<ModelRegion>(), theirs = std::make_unique<ModelRegion>();
  std::vector<std::vector<std::byte>> messages;
  for (size_t i = 0; i < options.slots.size(); ++i)
    messages.push_back(bytes_of(i, options.slots[i]));
  Run written, read;  // by the thread that was run last, up to its next access
  Program program;
  program.cells = kFirst + kGrown;
  program.threads.push_back([&] {
    Writer writer(mine.get(), theirs.get());
    written = {};
    int bells_without_room = options.bells_without_room;
    for (const auto& message : messages) send(writer, message, written, bells_without_room);
  });
  program.threads.push_back([&] {
    Reader reader(theirs.get(), mine.get());
    read = {};
    receive(reader, options.slots, read, options.hears_awake);
  });
  program.reset = [&](size_t thread) {
    if (thread != 0) return;
    for (auto& slot : mine->first) std::memset(slot.data, 0, kSlotDataBytes);
    for (auto& slot : mine->grown) std::memset(slot.data, 0, kSlotDataBytes);
  };
  // The bytes of a message are written before its stamp, and read before the position that gives
  // them back.
  program.touched = [&](size_t thread, const Access& next) {
    Touched touched;
    if (next.kind != Kind::kStore) return touched;
    auto at = static_cast<const std::byte*>(next.where);
    auto slots = reinterpret_cast<const std::byte*>(mine->first);
    if (thread == 0 && at >= slots && at < reinterpret_cast<const std::byte*>(mine.get() + 1)) {
      touched.wrong = wrong_stamp(*mine, written, next, messages);
      if (touched.wrong.empty()) touched.written = written.cells();
    } else if (thread == 1 && next.where == &theirs->consumed) {
      touched.read = read.cells();
    }
    return touched;
  };
  return test::model::explore(program);
}

void check(const Verdict& verdict) {
  INFO(verdict.wrong << "\n" << verdict.states << " states");
  CHECK(verdict.ok);
  CHECK(verdict.states > 20);
}

TEST_CASE("no message is left lying while its reader sleeps, in any order of both sides' accesses",
          "[shm][model]") {
  check(run({.slots = {1, 1, 1}}));
  check(run({.slots = {1, 1}, .bells_without_room = 1, .hears_awake = true}));
  check(run({.slots = {1, 2, 1}, .bells_without_room = 2}));
}

TEST_CASE("a slot is written again only after it was read, and a full ring empties",
          "[shm][model]") {
  check(run({.slots = {kGrown, 1}}));
  check(run({.slots = {kGrown - 1, 2}}));
  check(run({.slots = {1, kGrown, 1}}));
}

TEST_CASE("a ring that grows loses nothing and wakes its reader, wherever that stands",
          "[shm][model]") {
  check(run({.slots = {4, 1}}));  // or does not grow, if the reader is quick
  check(run({.slots = {2, 3, 1}}));
  check(run({.slots = {kGrown}, .bells_without_room = 1, .hears_awake = true}));
}

// Both directions at once, as between two who answer each other.
TEST_CASE("two who answer each other both wake", "[shm][model]") {
  auto left = std::make_unique<ModelRegion>(), right = std::make_unique<ModelRegion>();
  const std::vector<std::byte> message = bytes_of(0, 1);
  auto turn = [&](ModelRegion* mine, ModelRegion* theirs, bool first) {
    Writer writer(mine, theirs);
    Reader reader(mine, theirs);
    int none = 0;
    Run written, read;
    if (first) send(writer, message, written, none);
    receive(reader, {1}, read, false);
    if (!first) send(writer, message, written, none);
  };
  Program program;
  program.threads.push_back([&] { turn(left.get(), right.get(), true); });
  program.threads.push_back([&] { turn(right.get(), left.get(), false); });
  check(test::model::explore(program));
}

using Gate = CopyGate<Atomic>;
using GateRegion = Region<Atomic>;

// One side revokes `times` times, and each time writes to its memory afterwards. The other copies
// from it as often as it is let.
Verdict revoke(uint64_t times, int copies) {
  auto owner = std::make_unique<GateRegion>(), copier = std::make_unique<GateRegion>();
  Program program;
  program.cells = 1;
  program.threads.push_back([&, times] {
    Gate gate(owner.get(), copier.get());
    for (uint64_t total = 1; total <= times; ++total) {
      gate.count_withdrawals(total);
      while (gate.peer_is_copying()) test::model::pause();
      test::model::write(0);
    }
  });
  program.threads.push_back([&, copies] {
    Gate gate(copier.get(), owner.get());
    for (int i = 0; i < copies; ++i) {
      if (!gate.begin_copy(0)) continue;
      if (test::model::read(0) != 0) test::model::fail("bytes written after revoke() were copied");
      gate.end_copy();
    }
  });
  return test::model::explore(program);
}

TEST_CASE("what is written after a revoke() is never copied, in any order of both sides' accesses",
          "[shm][model]") {
  for (uint64_t times : {1, 2}) {
    for (int copies : {1, 2, 3}) check(revoke(times, copies));
  }
}

// A checker that finds nothing is worth nothing: it is shown what it has to find.
TEST_CASE("the checker finds a lost wakeup, a race and a store seen late", "[shm][model]") {
  using test::model::Atomic;
  auto both_zero = [](std::memory_order store, std::memory_order load) {
    Atomic<uint64_t> x, y;
    Program program;
    // Store buffering: each says that it was there and looks for the other.
    auto side = [&, store, load](Atomic<uint64_t>& mine, Atomic<uint64_t>& theirs) {
      mine.store(1, store);
      if (theirs.load(load) == 0) test::model::await_bell();  // waits for whoever came second
      test::model::ring();
    };
    program.threads.push_back([&] { side(x, y); });
    program.threads.push_back([&] { side(y, x); });
    return test::model::explore(program);
  };
  CHECK(both_zero(std::memory_order_seq_cst, std::memory_order_seq_cst).ok);
  CHECK(both_zero(std::memory_order_release, std::memory_order_acquire).wrong.find("wakeup") !=
        std::string::npos);
  CHECK_FALSE(both_zero(std::memory_order_seq_cst, std::memory_order_acquire).ok);
  CHECK_FALSE(both_zero(std::memory_order_release, std::memory_order_seq_cst).ok);

  auto handed_over = [](std::memory_order store, std::memory_order load) {
    Atomic<uint64_t> flag;
    Program program;
    program.cells = 1;
    program.threads.push_back([&] {
      test::model::write(0);
      flag.store(1, store);
    });
    program.threads.push_back([&] {
      if (flag.load(load) == 1 && test::model::read(0) != 1) test::model::fail("old bytes");
    });
    return test::model::explore(program);
  };
  CHECK(handed_over(std::memory_order_release, std::memory_order_acquire).ok);
  CHECK(handed_over(std::memory_order_relaxed, std::memory_order_acquire).wrong.find("race") !=
        std::string::npos);
  CHECK(handed_over(std::memory_order_release, std::memory_order_relaxed).wrong.find("race") !=
        std::string::npos);
}

}  // namespace
}  // namespace sluice::shm
