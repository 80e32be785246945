// The one Catch2 main of the house: runs the tests, then says on a line of its
// own how many were skipped, so that tools/test can add them up.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/support/skip.h"

namespace sluice::test {
namespace {

int skipped_count = 0;

bool required(std::string_view feature) {
  const char* list = std::getenv("SLUICE_REQUIRE");
  if (list == nullptr) return false;
  std::string padded = "," + std::string(list) + ",";
  return padded.find("," + std::string(feature) + ",") != std::string::npos;
}

}  // namespace

void skip(std::string_view feature, std::string_view reason) {
  std::string text = std::string(feature) + ": " + std::string(reason);
  if (required(feature)) {
    FAIL("required by SLUICE_REQUIRE but cannot run: " << text);
  }
  ++skipped_count;
  std::fprintf(stderr, "SKIPPED %s\n", text.c_str());
  SUCCEED("skipped: " << text);
}

}  // namespace sluice::test

int main(int argc, char** argv) {
  int failed = Catch::Session().run(argc, argv);
  if (sluice::test::skipped_count > 0) {
    std::fprintf(stderr, "sluice-skips %d\n", sluice::test::skipped_count);
  }
  return failed == 0 ? 0 : 1;
}
