// Which profile is named, from the times of rounds.
#include "tools/profile/choose.h"

#include <catch2/catch.hpp>

#include <string>
#include <vector>

namespace sluice::tools::profile {
namespace {

Rounds rounds(std::string name, std::vector<double> seconds, double cpu) {
  Rounds made{.name = std::move(name), .seconds = seconds};
  made.cpu_seconds.assign(seconds.size(), cpu);
  return made;
}
constexpr size_t kUsual = 2;

TEST_CASE("the fastest profile is named, and how much longer the others take") {
  const Choice choice =
      choose({rounds("latency", {1.0, 1.1, 1.0}, 2), rounds("low-cpu", {1.4, 1.5, 1.4}, 1),
              rounds("automatic", {1.2, 1.3, 1.2}, 1.5)},
             kUsual);
  CHECK(choice.index == 0);
  CHECK(choice.reason.find("low-cpu takes 40 % longer") != std::string::npos);
  CHECK(choice.reason.find("automatic takes 20 % longer") != std::string::npos);
}

TEST_CASE("of profiles that take the same time the usual one is named") {
  const Choice choice =
      choose({rounds("latency", {1.0, 1.0, 1.0}, 2), rounds("low-cpu", {1.5, 1.5, 1.5}, 1),
              rounds("automatic", {1.01, 1.02, 1.01}, 1.9)},
             kUsual);
  CHECK(choice.index == kUsual);
}

TEST_CASE("of profiles that take the same time one with clearly less processor time is named") {
  const Choice choice =
      choose({rounds("latency", {1.0, 1.0, 1.0}, 2), rounds("low-cpu", {1.01, 1.01, 1.02}, 0.7),
              rounds("automatic", {1.01, 1.0, 1.01}, 1.0)},
             kUsual);
  CHECK(choice.index == 1);
  CHECK(choice.reason.find("processor time") != std::string::npos);
}

TEST_CASE("rounds are compared with themselves, so that a slow minute of the machine counts not") {
  const Choice choice =
      choose({rounds("latency", {1.0, 3.0, 9.0}, 2), rounds("low-cpu", {1.2, 3.6, 10.8}, 2),
              rounds("automatic", {1.1, 3.3, 9.9}, 2)},
             kUsual);
  CHECK(choice.index == 0);
  CHECK(choice.time_by_fastest[1] == Approx(1.2));
}

TEST_CASE("a profile that was given up after a round is never named") {
  Rounds spinning = rounds("latency", {90}, 0.001);
  spinning.dropped = true;
  const Choice choice = choose(
      {spinning, rounds("low-cpu", {1.0, 1.1}, 1), rounds("automatic", {1.2, 1.3}, 1)}, kUsual);
  CHECK(choice.index == 1);
  CHECK(choice.reason.find("latency takes 90.0 times as long") != std::string::npos);
}

TEST_CASE("another threshold is named only if it is clearly faster") {
  const Rounds own = rounds("4 KiB", {1.0, 1.0, 1.0, 1.0}, 1);
  CHECK(choose_value({own, rounds("16 KiB", {0.99, 0.98, 0.99, 0.98}, 1)}).index == 0);
  CHECK(choose_value({own, rounds("16 KiB", {0.5, 0.5, 1.1, 1.1}, 1)}).index == 0);
  const Choice choice = choose_value(
      {own, rounds("16 KiB", {0.9, 0.9, 0.9, 1.1}, 1), rounds("64 KiB", {0.8, 0.8, 0.8, 1.1}, 1)});
  CHECK(choice.index == 2);
  CHECK(choice.reason.find("0.80") != std::string::npos);
}

}  // namespace
}  // namespace sluice::tools::profile
