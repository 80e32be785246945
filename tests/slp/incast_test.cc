// How full the switch's queue gets, how fair the shares are, and how much of the link is used.
#include <catch2/catch.hpp>

#include <cstdio>
#include <string>

#include "tests/slp/incast.h"

namespace sluice::slp {
namespace {

Result measure(const char* name, const Setting& setting) {
  Result result = incast(setting);
  std::printf(
      "%-32s used %.2f, Jain %.3f, at most %llu KiB queued, %llu dropped, %llu marked, %llu "
      "resent, %llu probes\n",
      name, result.used, result.jain, static_cast<unsigned long long>(result.most_queued >> 10),
      static_cast<unsigned long long>(result.dropped),
      static_cast<unsigned long long>(result.marked),
      static_cast<unsigned long long>(result.resent),
      static_cast<unsigned long long>(result.probes));
  return result;
}

constexpr uint64_t kMicrosecond = 1000;

}  // namespace

TEST_CASE("one sender has the link", "[slp][incast]") {
  for (bool pull : {true, false}) {
    Result result = measure(pull ? "1 -> 1, pull" : "1 -> 1, push",
                            {.senders = 1, .pull = pull, .bytes_each = 16 << 20});
    CHECK(result.used > 0.85);
    CHECK(result.dropped == 0);
  }
}

TEST_CASE("eight and sixty-four senders share it, and the queue stays bounded", "[slp][incast]") {
  for (size_t senders : {8, 64}) {
    for (bool pull : {true, false}) {
      std::string name = std::to_string(senders) + " -> 1, " + (pull ? "pull" : "push");
      Result result = measure(
          name.c_str(),
          {.senders = senders, .pull = pull, .bytes_each = uint64_t{senders == 8 ? 8u : 2u} << 20});
      CHECK(result.used > 0.8);
      CHECK(result.jain >= 0.9);
      CHECK(result.dropped == 0);
      CHECK(result.used >= 0.98);
      // Twice the mark, but for 64 that push: a frame of each is more.
      CHECK(result.most_queued <= (pull || senders == 8 ? 200u : 600u) << 10);
    }
  }
}

TEST_CASE("without marks pulls alone keep the queue short", "[slp][incast]") {
  Result result = measure("64 -> 1, pull, no marks",
                          {.senders = 64, .pull = true, .marks = false, .bytes_each = 2 << 20});
  CHECK(result.used > 0.8);
  CHECK(result.jain >= 0.9);
  CHECK(result.dropped == 0);
  CHECK(result.most_queued < (512u << 10));
}

TEST_CASE("whatever the round trip and the frames, pulls lose nothing, and all have their turn",
          "[slp][incast]") {
  for (uint64_t round_trip : {10, 50, 200}) {
    for (uint16_t mtu : {uint16_t{1500}, uint16_t{9000}}) {
      for (bool marks : {true, false}) {
        std::string name = "64 -> 1, pull, " + std::to_string(round_trip) + " us, " +
                           std::to_string(mtu) + (marks ? "" : ", no marks");
        Result result = measure(name.c_str(), {.senders = 64,
                                               .marks = marks,
                                               .bytes_each = 1 << 20,
                                               .queue_bytes = 256 << 10,
                                               .delay = round_trip * kMicrosecond / 4,
                                               .mtu = mtu});
        CHECK(result.dropped == 0);
        CHECK(result.jain >= 0.9);
        CHECK(result.used >= 0.85);
        if (marks) CHECK(result.most_queued <= 200 << 10);
      }
    }
  }
}

// The contrast is as good as it can be (incast.h), and still loses a round trip for each frame.
TEST_CASE(
    "one frame in a hundred lost at random costs a tenth at most; going back to it costs more",
    "[slp][loss]") {
  for (uint16_t mtu : {uint16_t{1500}, uint16_t{9000}}) {
    for (uint64_t round_trip : {20, 50, 200}) {
      Setting setting{.senders = 1,
                      .bytes_each = 32 << 20,
                      .delay = round_trip * kMicrosecond / 4,
                      .pull_budget = 2 << 20,
                      .mtu = mtu};
      std::string name = "MTU " + std::to_string(mtu) + ", " + std::to_string(round_trip) + " us";
      double back_whole = go_back_n(setting);
      setting.lost_per_mille = 10;
      double back = go_back_n(setting) / back_whole;
      for (bool pull : {true, false}) {
        setting.pull = pull;
        setting.lost_per_mille = 0;
        double whole = measure((name + (pull ? ", pull" : ", push")).c_str(), setting).used;
        setting.lost_per_mille = 10;
        Result lossy =
            measure((name + (pull ? ", pull" : ", push") + ", 1 % lost").c_str(), setting);
        std::printf("%-32s goodput %.2f of loss-free; go-back-N %.2f\n", name.c_str(),
                    lossy.used / whole, back);
        CHECK(whole > 0.85);
        CHECK(lossy.used >= 0.9 * whole);
        CHECK(lossy.resent > 0);
        CHECK(lossy.used / whole > back);
      }
    }
  }
}

// As many lost frames as no queue would lose without filling first.
TEST_CASE("five and ten frames in a hundred lost at random cost less than going back to them",
          "[slp][loss]") {
  for (uint16_t mtu : {uint16_t{1500}, uint16_t{9000}}) {
    for (uint64_t round_trip : {10, 50, 200, 1000}) {
      for (uint32_t lost : {50, 100}) {
        Setting setting{.senders = 1,
                        .bytes_each = 32 << 20,
                        .delay = round_trip * kMicrosecond / 4,
                        .pull_budget = 2 << 20,
                        .mtu = mtu,
                        .lost_per_mille = lost};
        std::string name = "MTU " + std::to_string(mtu) + ", " + std::to_string(round_trip) +
                           " us, " + std::to_string(lost / 10) + " % lost";
        double back = go_back_n(setting);
        for (bool pull : {true, false}) {
          setting.pull = pull;
          Result lossy = measure((name + (pull ? ", pull" : ", push")).c_str(), setting);
          std::printf("%-32s go-back-N %.2f\n", "", back);
          CHECK(lossy.used > back);
        }
      }
    }
  }
}

// The first probes leave before the first answer can be here.
TEST_CASE("a round trip that is longer than was assumed does not end the doubling of the window",
          "[slp][loss]") {
  for (bool pull : {true, false}) {
    Result result = measure(pull ? "20 ms, pull" : "20 ms, push", {.senders = 1,
                                                                   .pull = pull,
                                                                   .bytes_each = 32 << 20,
                                                                   .delay = 5000 * kMicrosecond,
                                                                   .pull_budget = 2 << 20});
    CHECK(result.probes > 4);
    CHECK(result.used > 0.03);
  }
}

}  // namespace sluice::slp
