// The ring, its sleep and its bell, and the gate by which revoke() stops copies: the very templates
// that run between processes, under a checker's atomics, in every order that C++ allows.
#include <sluice/shm/ring.h>

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
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
using ModelRegion = Region<Atomic>;
using Writer = RingWriter<Atomic>;
using Reader = RingReader<Atomic>;

// What one side sends, and what of it lies where in the ring.
class Traffic {
 public:
  // Messages of so many slots each.
  explicit Traffic(std::vector<uint32_t> slots) : slots_(std::move(slots)) {
    std::set<uint64_t> edges = {0, kSlotCount};
    uint64_t at = 0;
    for (uint32_t count : slots_) {
      start_.push_back(at);
      edges.insert(at % kSlotCount);
      at += count;
      edges.insert(at % kSlotCount);
    }
    edges_.assign(edges.begin(), edges.end());
  }
  size_t count() const { return slots_.size(); }
  uint32_t slots(size_t message) const { return slots_[message]; }
  // Runs of slots that are always written together.
  size_t cells() const { return edges_.size() - 1; }
  std::vector<size_t> cells_of(size_t message) const {
    std::vector<size_t> cells;
    for (size_t i = 0; i + 1 < edges_.size(); ++i) {
      uint64_t into = (edges_[i] + kSlotCount - start_[message] % kSlotCount) % kSlotCount;
      if (into < slots_[message]) cells.push_back(i);
    }
    return cells;
  }
  // The message that begins, or ends, at that position; count(): none.
  size_t beginning_at(uint64_t position) const {
    return static_cast<size_t>(std::find(start_.begin(), start_.end(), position) - start_.begin());
  }
  size_t ending_at(uint64_t position) const {
    size_t i = 0;
    while (i < count() && start_[i] + slots_[i] != position) ++i;
    return i;
  }
  std::vector<std::byte> bytes(size_t message) const {
    std::vector<std::byte> bytes(size_t{slots_[message]} * kSlotDataBytes);
    for (size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<std::byte>(1 + (message * 7 + i) % 250);
    return bytes;
  }
  // Whether the ring has all of the message.
  bool lies_in(const ModelRegion& region, size_t message,
               const std::vector<std::byte>& expected) const {
    for (uint32_t i = 0; i < slots_[message]; ++i) {
      const auto& slot = region.slots[(start_[message] + i) % kSlotCount];
      if (std::memcmp(slot.data, expected.data() + size_t{i} * kSlotDataBytes, kSlotDataBytes) != 0)
        return false;
    }
    return true;
  }
  void wipe(ModelRegion& region) const {
    for (size_t message = 0; message < count(); ++message) {
      for (uint32_t i = 0; i < slots_[message]; ++i) {
        std::memset(region.slots[(start_[message] + i) % kSlotCount].data, 0, kSlotDataBytes);
      }
    }
  }

 private:
  std::vector<uint32_t> slots_;
  std::vector<uint64_t> start_;
  std::vector<uint64_t> edges_;
};

// As a link does (link.cc): a message that finds no room is tried again later, and so is a bell.
void send(Writer& writer, const std::vector<std::byte>& message, int& bells_without_room) {
  while (writer.write(message, {}) != Writer::Outcome::kWritten) test::model::pause();
  uint64_t sleep = writer.bell_due();
  while (sleep != 0 && bells_without_room > 0 && test::model::choose()) {
    --bells_without_room;
    sleep = writer.bell_due();
  }
  if (sleep == 0) return;
  test::model::ring();
  writer.rung(sleep);
}

// As a context does (context.cc): what is there is read, then the bell is armed, and only if
// nothing has come meanwhile it sleeps.
void receive(Reader& reader, const Traffic& traffic, bool hears_awake) {
  for (size_t got = 0; got < traffic.count();) {
    while (got < traffic.count() && reader.ready()) reader.pop(traffic.slots(got++));
    if (got == traffic.count()) return;
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

Verdict run(const OneWay& options) {
  auto mine = std::make_unique<ModelRegion>(), theirs = std::make_unique<ModelRegion>();
  Traffic traffic(options.slots);
  std::vector<std::vector<std::byte>> messages;
  for (size_t i = 0; i < traffic.count(); ++i) messages.push_back(traffic.bytes(i));
  Program program;
  program.cells = traffic.cells();
  program.threads.push_back([&] {
    Writer writer(mine.get(), theirs.get());
    int bells_without_room = options.bells_without_room;
    for (const auto& message : messages) send(writer, message, bells_without_room);
  });
  program.threads.push_back([&] {
    Reader reader(theirs.get(), mine.get());
    receive(reader, traffic, options.hears_awake);
  });
  program.reset = [&](size_t thread) {
    if (thread == 0) traffic.wipe(*mine);
  };
  // The bytes of a message are written before its stamp, and read before the position that gives
  // them back.
  program.touched = [&](size_t thread, const Access& next) {
    Touched touched;
    if (next.kind != Kind::kStore) return touched;
    auto at = static_cast<const std::byte*>(next.where);
    auto slots = reinterpret_cast<const std::byte*>(mine->slots);
    if (thread == 0 && at >= slots && at < slots + sizeof(mine->slots)) {
      size_t message = traffic.beginning_at(next.value - 1);
      if (message == traffic.count()) touched.wrong = "a stamp that no message has";
      if (touched.wrong.empty() && !traffic.lies_in(*mine, message, messages[message]))
        touched.wrong = "a stamp before its message";
      if (touched.wrong.empty()) touched.written = traffic.cells_of(message);
    } else if (thread == 1 && next.where == &theirs->consumed) {
      size_t message = traffic.ending_at(next.value);
      if (message == traffic.count()) touched.wrong = "a position where no message ends";
      if (touched.wrong.empty()) touched.read = traffic.cells_of(message);
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
  check(run({.slots = {kSlotCount, 1}}));
  check(run({.slots = {kSlotCount - 1, 2, 1}}));
  check(run({.slots = {1, kSlotCount, 1}}));
}

// Both directions at once, as between two who answer each other.
TEST_CASE("two who answer each other both wake", "[shm][model]") {
  auto left = std::make_unique<ModelRegion>(), right = std::make_unique<ModelRegion>();
  Traffic traffic({1});
  const std::vector<std::byte> message = traffic.bytes(0);
  auto turn = [&](ModelRegion* mine, ModelRegion* theirs, bool first) {
    Writer writer(mine, theirs);
    Reader reader(mine, theirs);
    int none = 0;
    if (first) send(writer, message, none);
    receive(reader, traffic, false);
    if (!first) send(writer, message, none);
  };
  Program program;
  program.threads.push_back([&] { turn(left.get(), right.get(), true); });
  program.threads.push_back([&] { turn(right.get(), left.get(), false); });
  check(test::model::explore(program));
}

using Gate = CopyGate<Atomic>;

// One side revokes `times` times, and each time writes to its memory afterwards. The other copies
// from it as often as it is let.
Verdict revoke(uint64_t times, int copies) {
  auto owner = std::make_unique<ModelRegion>(), copier = std::make_unique<ModelRegion>();
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
