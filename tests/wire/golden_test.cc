// The bytes on the wire are those that are committed: a change of them is a change of
// the protocol. decode_golden.py reads the same files without this code.
#include <catch2/catch.hpp>

#include <map>

#include "tests/wire/golden_file.h"
#include "tests/wire/golden_variants.h"

namespace sluice::wire::test {
namespace {

std::map<std::string, GoldenVariant> committed() {
  std::map<std::string, GoldenVariant> all;
  for (const std::string& path : golden_paths()) {
    std::string file = path.substr(path.rfind('/') + 1);
    for (GoldenVariant& v : read_golden(path))
      all[file.substr(0, file.size() - 4) + "/" + v.name] = std::move(v);
  }
  return all;
}

TEST_CASE("every message encodes to its committed bytes", "[wire][golden]") {
  auto files = committed();
  auto variants = golden_variants();
  CHECK(files.size() == variants.size());
  for (const NamedMessage& v : variants) {
    GoldenVariant now{v.name, describe(v.message), encode_any(v.message)};
    const GoldenVariant& then = files[v.file + "/" + v.name];
    if (then.bytes == now.bytes && then.text == now.text) continue;
    FAIL_CHECK("golden/" << v.file << ".txt has for " << v.name << "\n"
                         << format_golden(then) << "but now it is\n"
                         << format_golden(now));
  }
}

TEST_CASE("committed bytes decode to the values listed beside them", "[wire][golden]") {
  for (const auto& [name, golden] : committed()) {
    INFO(name);
    Verdict v = judge(golden.bytes);
    CHECK(v.accepted);
    CHECK(v.problem == "");
    CHECK(v.text == golden.text);
    CHECK(v.header_bytes == golden.bytes.size());
  }
}

}  // namespace
}  // namespace sluice::wire::test
