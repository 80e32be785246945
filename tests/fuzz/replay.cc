// Runs a fuzz target over the files and folders named, without libFuzzer: the corpora
// as ordinary tests, under any compiler. Also every file cut at each length and with
// each byte changed, so that a small corpus still says something.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "tests/fuzz/target.h"

namespace {

// Copied to a block of exactly that size: a sanitizer sees a read beyond it.
void run(const std::vector<uint8_t>& input, size_t length) {
  std::vector<uint8_t> exact(input.begin(), input.begin() + static_cast<std::ptrdiff_t>(length));
  exact.shrink_to_fit();
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

// `places`: at most so many of a file's bytes are changed, evenly spread.
size_t replay(const std::filesystem::path& path, size_t places) {
  std::ifstream in(path, std::ios::binary);
  std::vector<uint8_t> input((std::istreambuf_iterator<char>(in)),
                             std::istreambuf_iterator<char>());
  run(input, input.size());
  size_t executions = 1;
  size_t step = 1 + input.size() / places;
  for (size_t i = 0; i < input.size(); i += step, executions += 3) {
    run(input, i);
    input[i] ^= 0xff;
    run(input, input.size());
    input[i] ^= 0xfe;
    run(input, input.size());
    input[i] ^= 0x01;
  }
  return executions;
}

}  // namespace

int main(int argc, char** argv) {
  size_t files = 0, executions = 0;
  for (int i = 1; i < argc; ++i) {
    std::vector<std::filesystem::path> paths;
    if (std::filesystem::is_directory(argv[i])) {
      for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i])) {
        if (entry.is_regular_file()) paths.push_back(entry.path());
      }
    } else {
      paths.emplace_back(argv[i]);
    }
    std::ranges::sort(paths);
    size_t places = std::clamp<size_t>(8000 / std::max<size_t>(paths.size(), 1), 8, 128);
    for (const auto& path : paths) executions += replay(path, places);
    files += paths.size();
  }
  std::printf("%zu files, %zu executions\n", files, executions);
  if (files == 0) std::fprintf(stderr, "no corpus: nothing was replayed\n");
  return files == 0 ? 1 : 0;
}
