// Reads messages as lines of hex, says what the C++ decoders make of each: a line
// "ok field value;...", "refused" or "incomplete". For decode_golden.py.
#include <algorithm>
#include <cstdio>
#include <iostream>

#include "tests/wire/oracle.h"

int main() {
  using namespace sluice::wire::test;
  for (std::string line; std::getline(std::cin, line);) {
    Bytes bytes;
    for (size_t i = 0; i + 1 < line.size(); i += 2) {
      bytes.push_back(static_cast<std::byte>(std::stoi(line.substr(i, 2), nullptr, 16)));
    }
    Verdict v = judge(bytes);
    if (!v.problem.empty()) {
      std::fprintf(stderr, "%s: %s\n", line.c_str(), v.problem.c_str());
      return 1;
    }
    std::replace(v.text.begin(), v.text.end(), '\n', ';');
    if (v.accepted) v.text.pop_back();
    std::puts(v.accepted               ? ("ok " + v.text).c_str()
              : v.text == "incomplete" ? "incomplete"
                                       : "refused");
  }
  return 0;
}
