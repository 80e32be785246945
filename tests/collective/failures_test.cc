// Ranks that disagree, die, are late or never come: every rank is told, and nobody hangs.
#include <catch2/catch.hpp>

#include <array>
#include <atomic>
#include <thread>

#include <sluice/select/open.h>

#include "tests/collective/ranks.h"

namespace sluice::test {
namespace {
constexpr size_t kSmall = 800, kLarge = 800'000;
const RunOptions kBroken{.closes = false};
}  // namespace

TEST_CASE("ranks that disagree about an allreduce are all told") {
  for (size_t bytes : {kSmall, kLarge}) {
    std::atomic<int> left{3};
    auto failures = run_ranks(
        3,
        [&](Rank& self) {
          Buffer data = self.allocate(kLarge + 8);
          const size_t mine = bytes + (self.rank() == 1 ? 8 : 0);
          auto done =
              self.group.allreduce_and_wait(Region(data, 0, mine), float64, ReduceOp::kSum, soon());
          // Or it was told before it began.
          self.check(done.code() == Code::kInvalidArgument || done.code() == Code::kWrongState,
                     done.status().to_string());
          self.check(done.status().detail().find("bytes") != std::string_view::npos,
                     done.status().to_string());
          self.fails(self.group.barrier_and_wait(soon()).status(), Code::kWrongState,
                     "the group is broken");
          --left;
          self.await([&] { return left == 0; });
        },
        kBroken);
    INFO(joined(failures));
    CHECK(failures.empty());
  }
}

TEST_CASE("a dtype, an operation, a root or a collective that differs is told by rank") {
  struct Case {
    const char* text;
    std::function<Group::Outcome(Rank&, Region)> odd;
  };
  const Case cases[] = {
      {"dtype",
       [](Rank& s, Region r) {
         return s.group.allreduce_and_wait(r, int64, ReduceOp::kSum, soon());
       }},
      {"reduction",
       [](Rank& s, Region r) {
         return s.group.allreduce_and_wait(r, float64, ReduceOp::kMax, soon());
       }},
      {"calls", [](Rank& s, Region) { return s.group.barrier_and_wait(soon()); }},
      {"calls",
       [](Rank& s, Region r) {
         return s.group.reduce_and_wait(r, float64, ReduceOp::kSum, 0, soon());
       }},
  };
  for (const Case& one : cases) {
    auto failures = run_ranks(
        2,
        [&](Rank& self) {
          Buffer data = self.allocate(kSmall);
          const Region region(data, 0, kSmall);
          auto done = self.rank() == 1
                          ? one.odd(self, region)
                          : self.group.allreduce_and_wait(region, float64, ReduceOp::kSum, soon());
          if (self.rank() == 0)
            self.check(done.code() == Code::kInvalidArgument &&
                           done.status().detail().find("rank 1") != std::string_view::npos,
                       done.status().to_string());
          // The other may have been done before it was told.
          self.await([&] { return !self.group.broken().ok(); });
          self.check(!self.group.broken().ok(), "not broken");
        },
        kBroken);
    INFO(one.text << "\n" << joined(failures));
    CHECK(failures.empty());
  }
}

TEST_CASE("two ranks that are both root learn it from the next collective") {
  for (bool closes : {false, true}) {
    std::atomic<int> left{2};
    auto failures = run_ranks(
        2,
        [&](Rank& self) {
          Buffer data = self.allocate(kSmall);
          self.ok(self.group.barrier_and_wait(soon()), "barrier");
          // Each only sends: nobody has a header to compare.
          self.ok(self.group.broadcast_and_wait(Region(data), self.rank(), soon()), "broadcast");
          const Status next =
              closes ? self.group.close(soon())
                     : self.group.allreduce_and_wait(Region(data), float64, ReduceOp::kSum, soon())
                           .status();
          self.fails(next, Code::kInvalidArgument, "an earlier collective had another");
          --left;
          self.await([&] { return left == 0; });
        },
        kBroken);
    INFO(joined(failures));
    CHECK(failures.empty());
  }
}

TEST_CASE("parts of an alltoallv that differ are told with both sizes") {
  // The larger one goes by itself, the smaller one with its header; each is asked for once.
  for (uint64_t sent : {uint64_t{1000}, uint64_t{65536}}) {
    const uint64_t wanted = sent == 1000 ? 65536 : 1000;
    auto failures = run_ranks(
        2,
        [&](Rank& self) {
          Buffer out = self.allocate(65536), in = self.allocate(65536);
          const bool sender = self.rank() == 0;
          const std::vector<uint64_t> none{0, 0}, sends{0, sent}, receives{wanted, 0};
          auto done = self.group.alltoallv_and_wait(
              Region(out, 0, sender ? sent : 0), sender ? sends : none,
              Region(in, 0, sender ? 0 : wanted), sender ? none : receives, soon());
          if (!sender) {
            self.fails(done.status(), Code::kInvalidArgument, "rank 0 disagrees");
            // 1000 bytes are told with the 32 of their header.
            for (const char* size : {sent == 1000 ? "1032" : "1000", "65536"})
              self.fails(done.status(), Code::kInvalidArgument, size);
          }
          self.await([&] { return !self.group.broken().ok(); });
          self.check(!self.group.broken().ok(), "not broken");
        },
        kBroken);
    INFO(sent << " bytes\n" << joined(failures));
    CHECK(failures.empty());
  }
}

TEST_CASE("wrong arguments of one rank are refused before anything is sent") {
  auto failures = run_ranks(2, [](Rank& self) {
    Buffer data = self.allocate(64);
    auto refused = [&](const Group::Outcome& done, Code code, const std::string& text) {
      self.fails(done.status(), code, text);
    };
    Group& group = self.group;
    refused(group.allreduce_and_wait(Region(data, 0, 65), uint8, ReduceOp::kSum, soon()),
            Code::kInvalidArgument, "outside its buffer");
    refused(group.allreduce_and_wait(Region(data, 0, 7), float32, ReduceOp::kSum, soon()),
            Code::kInvalidArgument, "no whole number");
    refused(group.allreduce_and_wait(Region(data, 2, 8), float32, ReduceOp::kSum, soon()),
            Code::kInvalidArgument, "aligned");
    refused(group.allreduce_and_wait(Region(data, 0, 8), bfloat16, ReduceOp::kSum, soon()),
            Code::kUnsupported, "bfloat16");
    refused(group.allreduce_and_wait(Region(data, 0, 16), complex128, ReduceOp::kMax, soon()),
            Code::kUnsupported, "no order");
    refused(group.broadcast_and_wait(Region(data), 2, soon()), Code::kInvalidArgument, "root 2");
    refused(group.broadcast_and_wait(Region(data), -1, soon()), Code::kInvalidArgument, "root -1");
    refused(group.allgather_and_wait(Region(data, 0, 8), Region(data, 0, 24), soon()),
            Code::kInvalidArgument, "2 times");
    refused(group.alltoall_and_wait(Region(data, 0, 16), Region(data, 8, 16), soon()),
            Code::kInvalidArgument, "overlap");
    const std::vector<uint64_t> sizes{8, 9};
    refused(
        group.alltoallv_and_wait(Region(data, 0, 16), sizes, Region(data, 32, 16), sizes, soon()),
        Code::kInvalidArgument, "add up");
    refused(group.send_and_wait(self.rank(), 1, Region(data), soon()), Code::kInvalidArgument,
            "itself");
    refused(group.receive_and_wait(9, 1, Region(data), soon()), Code::kInvalidArgument, "peer 9");
    self.ok(group.barrier_and_wait(soon()), "nothing was broken");
  });
  INFO(joined(failures));
  CHECK(failures.empty());
}

TEST_CASE("a rank that leaves in the middle is named to every other rank") {
  for (size_t bytes : {kSmall, kLarge}) {
    std::atomic<int> before{4};
    auto failures = run_ranks(
        4,
        [&](Rank& self) {
          Buffer data = self.allocate(bytes);
          self.ok(self.group.barrier_and_wait(soon()), "barrier");
          --before;
          self.await([&] { return before == 0; });
          if (self.rank() == 2) return;  // its group and context end
          auto done = self.group.allreduce_and_wait(Region(data), float64, ReduceOp::kSum, soon());
          // Or it was told before it began.
          self.check((done.code() == Code::kUnreachable || done.code() == Code::kWrongState) &&
                         done.status().detail().find("rank 2") != std::string_view::npos,
                     done.status().to_string());
          self.fails(self.group.barrier_and_wait(soon()).status(), Code::kWrongState, "broken");
        },
        kBroken);
    INFO(joined(failures));
    CHECK(failures.empty());
  }
}

TEST_CASE("a rank that does not take part is named when the deadline passes") {
  std::atomic<int> left{2};
  auto failures = run_ranks(
      3,
      [&](Rank& self) {
        Buffer data = self.allocate(kLarge);
        self.ok(self.group.barrier_and_wait(soon()), "barrier");
        if (self.rank() == 1) {
          // Alive, progressing, and elsewhere.
          self.await([&] { return left == 0; });
          return;
        }
        auto done = self.group.allreduce_and_wait(Region(data), float64, ReduceOp::kSum,
                                                  after(now(), std::chrono::seconds(1)));
        self.fails(done.status(), Code::kTimedOut, "rank 1");
        --left;
        self.await([&] { return left == 0; });
      },
      kBroken);
  INFO(joined(failures));
  CHECK(failures.empty());
}

TEST_CASE("a collective that is dropped breaks the group for all") {
  std::atomic<bool> told{false};
  auto failures = run_ranks(
      2,
      [&](Rank& self) {
        Buffer data = self.allocate(kLarge);
        if (self.rank() == 0) {
          { auto task = self.group.allreduce(Region(data), float64, ReduceOp::kSum, soon()); }
          self.await([&] { return !self.group.broken().ok(); });
          self.fails(self.group.barrier_and_wait(soon()).status(), Code::kWrongState, "dropped");
          self.await([&] { return told.load(); });
        } else {
          auto done = self.group.allreduce_and_wait(Region(data), float64, ReduceOp::kSum, soon());
          self.check(!done.ok() && done.status().detail().find("rank 0") != std::string_view::npos,
                     done.status().to_string());
          told = true;
        }
      },
      kBroken);
  INFO(joined(failures));
  CHECK(failures.empty());
}

TEST_CASE("a large reduction that is dropped while it waits for memory breaks the group") {
  if (collective_path() == "tcp") return;  // between hosts it has no such wait
  std::atomic<bool> begun{false}, dropped{false}, told{false};
  auto failures = run_ranks(
      2,
      [&](Rank& self) {
        Buffer data = self.allocate(kLarge);
        auto turns = [&] {
          for (int i = 0; i < 1000; ++i) self.context.progress();
        };
        if (self.rank() == 0) {
          self.await([&] { return begun.load(); });
          {
            auto task = self.group.allreduce(Region(data), float64, ReduceOp::kSum, soon());
            turns();  // rank 1 has agreed, and lends nothing before it goes on
          }
          dropped = true;
          self.await([&] { return told.load(); });
          self.fails(self.group.broken(), Code::kCancelled, "was dropped on rank 0");
        } else {
          auto task = self.group.allreduce(Region(data), float64, ReduceOp::kSum, soon());
          turns();
          begun = true;
          while (!dropped) std::this_thread::yield();
          auto done = self.context.run_until(std::move(task));
          self.fails(done.status(), Code::kCancelled, "was dropped on rank 0");
          told = true;
        }
      },
      kBroken);
  INFO(joined(failures));
  CHECK(failures.empty());
}

TEST_CASE("a rank that has messages which it does not receive is told that the group broke") {
  std::atomic<int> left{2};
  auto failures = run_ranks(
      2,
      [&](Rank& self) {
        Buffer word = self.allocate(8);
        if (self.rank() == 0) {
          // More than rank 1 may leave unreceived: what follows waits behind them, alarms too.
          for (int i = 0; i < 300; ++i)
            self.ok(self.group.post(1, 3, Region(word).as_tensor(), soon()), "post");
          self.fails(self.group.barrier_and_wait(after(now(), std::chrono::seconds(1))).status(),
                     Code::kTimedOut, "rank 1");
        } else {
          self.fails(self.group.barrier_and_wait(soon()).status(), Code::kUnreachable,
                     "lost rank 0");
        }
        --left;
        self.await([&] { return left == 0; });
      },
      kBroken);
  INFO(joined(failures));
  CHECK(failures.empty());
}

TEST_CASE("a collective that the path has no room for ends by its deadline") {
  std::atomic<int> left{2};
  auto failures = run_ranks(
      2,
      [&](Rank& self) {
        if (self.rank() == 1) {
          self.await([&] { return !self.group.broken().ok(); });
          self.check(!self.group.broken().ok(), "not told");
        } else {
          // An endpoint has 4096 operations; these want two each, and only 256 sends can leave.
          std::vector<Task<Group::Outcome>> tasks;
          for (int i = 0; i < 3000; ++i) tasks.push_back(self.group.barrier(soon()));
          auto last = self.group.barrier_and_wait(after(now(), std::chrono::seconds(1)));
          self.fails(last.status(), Code::kTimedOut, "barrier 3001: rank 1 did not take part");
          for (auto& task : tasks)
            self.check(!self.context.run_until(std::move(task)).ok(), "no barrier can end well");
        }
        --left;
        self.await([&] { return left == 0; });
      },
      kBroken);
  INFO(joined(failures));
  CHECK(failures.empty());
}

TEST_CASE("a rank that never comes is named by those who wait for it") {
  const auto addresses = fresh_addresses(3);
  // Rank 1 gives up first; rank 0 still waits for rank 2 then.
  auto open = [&](int rank, int milliseconds) {
    auto context = open_context().value();
    auto group = Group::open(*context, {.rank = rank, .size = 3, .addresses = addresses},
                             after(now(), std::chrono::milliseconds(milliseconds)));
    return group.status();
  };
  Status other;
  std::thread thread([&] { other = open(0, 3000); });
  const Status status = open(1, 1000);
  thread.join();
  for (const Status& told : {status, other}) {
    INFO(told.to_string());
    CHECK(told == Code::kTimedOut);
    CHECK(told.detail().find("never came") != std::string_view::npos);
  }
  CHECK(other.detail().ends_with("2"));
}

TEST_CASE("with bootstrap all ranks that came are told who did not") {
  const auto addresses = fresh_addresses(3);
  auto open = [&](int rank) {
    auto context = open_context().value();
    auto group =
        Group::open(*context,
                    {.rank = rank,
                     .size = 4,
                     .bootstrap = addresses[0],
                     .listen = rank > 0 ? addresses[static_cast<size_t>(rank)] : std::string()},
                    after(now(), std::chrono::seconds(2)));
    return group.status();
  };
  std::array<Status, 3> told;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank)
    threads.emplace_back([&, rank] { told[static_cast<size_t>(rank)] = open(rank); });
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : told) {
    INFO(status.to_string());
    CHECK(status == Code::kTimedOut);
    CHECK(status.detail().find("never came") != std::string_view::npos);
    CHECK(status.detail().ends_with(": 3"));
  }
}

TEST_CASE("a rank that does not call progress is named, not the one before it in the ring") {
  if (collective_path() != "tcp") return;  // one host has no ring
  std::atomic<int> left{3};
  auto failures = run_ranks(
      4,
      [&](Rank& self) {
        if (self.rank() == 2) {
          for (int now = left; now > 0; now = left) left.wait(now);
          return;
        }
        Buffer data = self.allocate(kLarge);
        // A peer counts as silent after some 4 s.
        auto done = self.group.allreduce_and_wait(Region(data), float64, ReduceOp::kSum,
                                                  after(now(), std::chrono::seconds(10)));
        // Or it was told by another rank, which says the same.
        self.fails(done.status(), Code::kTimedOut, "rank 2 did not call progress()");
        --left;
        left.notify_all();
        self.await([&] { return left == 0; });
      },
      kBroken);
  INFO(joined(failures));
  CHECK(failures.empty());
}

TEST_CASE("options that contradict are refused with the reason") {
  auto context = open_context().value();
  auto refused = [&](const GroupOptions& options, const char* text) {
    const Status status = Group::open(*context, options, soon()).status();
    INFO(status.to_string());
    CHECK(status == Code::kInvalidArgument);
    CHECK(status.detail().find(text) != std::string_view::npos);
  };
  refused({.rank = 0, .size = 0}, "1 to 1024");
  refused({.rank = 2, .size = 2, .addresses = {"shm:a", "shm:b"}}, "rank 2");
  refused({.rank = 0, .size = 2, .addresses = {"shm:a"}}, "1 addresses for 2 ranks");
  refused({.rank = 1, .size = 3, .addresses = {"shm:a", "shm:b", "shm:a"}},
          "ranks 0 and 2 have the same address, shm:a");
  refused({.rank = 0, .size = 2}, "either addresses");
  refused({.rank = 1, .size = 2, .bootstrap = "shm:a"}, "listen");
}

TEST_CASE("a group of one needs nobody") {
  auto context = open_context().value();
  auto group = Group::open(*context, {}, soon()).value();
  Buffer data = context->arena().allocate(kLarge).value();
  CHECK(group->allreduce_and_wait(Region(data), float64, ReduceOp::kSum, soon()).ok());
  CHECK(group->alltoall_and_wait(Region(data, 0, 8), Region(data, 8, 8), soon()).ok());
  CHECK(group->close(soon()).ok());
}

}  // namespace sluice::test
