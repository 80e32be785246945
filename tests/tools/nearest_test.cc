#include <catch2/catch.hpp>

#include "tools/perf/flags/nearest.h"

namespace sluice::tools {
namespace {

const std::vector<std::string> kFlags = {"--iters", "--size", "--tx-depth", "--transport"};

TEST_CASE("a letter changed, left out, added or swapped still names the flag", "[nearest]") {
  CHECK(nearest("--itres", kFlags) == "--iters");
  CHECK(nearest("--iter", kFlags) == "--iters");
  CHECK(nearest("--sizes", kFlags) == "--size");
  CHECK(nearest("--tx_depth", kFlags) == "--tx-depth");
}

TEST_CASE("two letters swapped are one mistake, less than two left out", "[nearest]") {
  CHECK(nearest("--slef", {"--sl", "--self"}) == "--self");
  CHECK(nearest("esnd_lat", {"read_lat", "send_lat"}) == "send_lat");
}

TEST_CASE("what a flag begins with names it", "[nearest]") {
  CHECK(nearest("--tr", kFlags) == "--transport");
}

TEST_CASE("a flag's name that goes on names it, whatever else has more letters in common",
          "[nearest]") {
  CHECK(nearest("--iterations", {"--duration", "--iters"}) == "--iters");
  CHECK(nearest("--sizes", {"--sides", "--size"}) == "--size");
}

TEST_CASE("what is far from all names none", "[nearest]") {
  CHECK(nearest("--wholly-other", kFlags).empty());
  CHECK(nearest("", kFlags).empty());
  CHECK(nearest("--frob", {"--port", "--iters"}).empty());
  CHECK(nearest("--", kFlags).empty());
  CHECK(nearest("--size", {}).empty());
}

}  // namespace
}  // namespace sluice::tools
