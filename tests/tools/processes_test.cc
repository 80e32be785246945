#include <catch2/catch.hpp>

#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "tools/perf/run/processes.h"

namespace sluice::tools {
namespace {

using std::chrono::seconds;

bool has_children() { return ::waitpid(-1, nullptr, WNOHANG) != -1 || errno != ECHILD; }

TEST_CASE("a child's line and exit code come to the parent", "[processes]") {
  auto child = Child::start([](int pipe) {
    std::string text = "ready at 7\nmore";
    return ::write(pipe, text.data(), text.size()) > 0 ? 3 : 1;
  });
  REQUIRE(child.ok());
  auto line = child->read_line(seconds(60));
  REQUIRE(line.ok());
  CHECK(*line == "ready at 7");
  CHECK(child->reap(seconds(60)) == 3);
  CHECK_FALSE(has_children());
}

TEST_CASE("a child that ends before it is ready is an error, not a wait", "[processes]") {
  auto child = Child::start([](int) { return 1; });
  REQUIRE(child.ok());
  CHECK(child->read_line(seconds(60)).code() == Code::kUnreachable);
  CHECK(child->reap(seconds(60)) == 1);
}

TEST_CASE("a child that does not end is killed and reaped, also when its handle is dropped",
          "[processes]") {
  auto sleeper = [](int) {
    ::pause();
    return 0;
  };
  {
    auto child = Child::start(sleeper);
    REQUIRE(child.ok());
    CHECK(child->read_line(std::chrono::milliseconds(1)).code() == Code::kTimedOut);
    CHECK(child->reap(std::chrono::milliseconds(1)) == 128 + 9);
  }
  CHECK_FALSE(has_children());
  { auto dropped = Child::start(sleeper); }
  CHECK_FALSE(has_children());
}

TEST_CASE("staying on one CPU leaves one usable", "[processes]") {
  auto child = Child::start([](int) {
    if (!stay_on_cpu(usable_cpus() - 1)) return 1;
    return usable_cpus() == 1 ? 0 : 2;
  });
  REQUIRE(child.ok());
  CHECK(child->reap(seconds(60)) == 0);
  CHECK_FALSE(stay_on_cpu(usable_cpus()));
}

}  // namespace
}  // namespace sluice::tools
