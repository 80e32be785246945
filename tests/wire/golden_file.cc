#include "tests/wire/golden_file.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>

namespace sluice::wire::test {
namespace {

[[noreturn]] void malformed(const std::string& path, const std::string& line) {
  std::fprintf(stderr, "golden file %s: missing or malformed at '%s'\n", path.c_str(),
               line.c_str());
  std::exit(1);
}

int digit(char c) {
  return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool append_hex(const std::string& line, Bytes& out) {
  for (size_t i = 0; i < line.size();) {
    if (line[i] == ' ') {
      ++i;
      continue;
    }
    if (i + 1 >= line.size() || digit(line[i]) < 0 || digit(line[i + 1]) < 0) return false;
    out.push_back(static_cast<std::byte>(digit(line[i]) << 4 | digit(line[i + 1])));
    i += 2;
  }
  return true;
}

}  // namespace

std::vector<GoldenVariant> read_golden(const std::string& path) {
  std::ifstream in(path);
  if (!in) malformed(path, "");
  std::vector<GoldenVariant> variants;
  bool in_bytes = false;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    if (line.starts_with("variant ")) {
      variants.push_back({line.substr(8), "", {}});
      in_bytes = false;
    } else if (variants.empty()) {
      malformed(path, line);
    } else if (line == "bytes") {
      in_bytes = true;
    } else if (!in_bytes) {
      variants.back().text += line + "\n";
    } else if (!append_hex(line, variants.back().bytes)) {
      malformed(path, line);
    }
  }
  if (variants.empty()) malformed(path, "end");
  return variants;
}

std::string format_golden(const GoldenVariant& variant) {
  std::string text = "variant " + variant.name + "\n" + variant.text + "bytes\n";
  std::string hex = to_hex(variant.bytes);
  for (size_t i = 0; i < hex.size(); i += 2) {
    text += hex.substr(i, 2);
    text += i % 32 == 30 || i + 2 == hex.size() ? "\n" : i % 16 == 14 ? "  " : " ";
  }
  return text;
}

std::vector<std::string> golden_paths() {
  std::vector<std::string> paths;
  for (const char* name : {"hello", "offer", "want", "data", "done", "release", "cancel", "credit",
                           "ping", "bye", "handshake"}) {
    paths.push_back(std::string("tests/wire/golden/") + name + ".txt");
  }
  return paths;
}

}  // namespace sluice::wire::test
