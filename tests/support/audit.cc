#include "tests/support/audit.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>

namespace sluice::test {
namespace {

std::vector<std::string> names_in(const char* path) {
  std::vector<std::string> names;
  DIR* directory = ::opendir(path);
  if (directory == nullptr) return names;
  while (dirent* entry = ::readdir(directory)) {
    std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(std::move(name));
  }
  ::closedir(directory);
  return names;
}

std::string link_target(const std::string& fd) {
  std::array<char, 512> target{};
  ssize_t length = ::readlink(("/proc/self/fd/" + fd).c_str(), target.data(), target.size() - 1);
  if (length < 0) return "";
  std::string text(target.data(), static_cast<size_t>(length));
  // Inode numbers differ from one socket to the next; what counts is the kind.
  return text.substr(0, text.find(":["));
}

std::string difference(const char* what, const std::vector<std::string>& before,
                       const std::vector<std::string>& after) {
  std::vector<std::string> extra;
  std::set_difference(after.begin(), after.end(), before.begin(), before.end(),
                      std::back_inserter(extra));
  std::string text;
  for (const std::string& line : extra) text += std::string("  ") + what + " " + line + "\n";
  return text;
}

uint64_t kib_after(const char* path, const std::string& key) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    if (word != key) continue;
    uint64_t value = 0;
    file >> value;
    return value;
  }
  return 0;
}

}  // namespace

Holdings holdings() {
  Holdings now;
  for (const std::string& fd : names_in("/proc/self/fd")) {
    std::string target = link_target(fd);
    if (target.empty() || target.find("/fd") != std::string::npos)
      continue;  // the one we look with
    now.descriptors.push_back(fd + " " + target);
  }
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:sluice") != std::string::npos) now.mappings.push_back(line);
  }
  for (const std::string& name : names_in("/dev/shm")) {
    if (name.find("sluice") != std::string::npos) now.shm_files.push_back(name);
  }
  std::sort(now.descriptors.begin(), now.descriptors.end());
  std::sort(now.mappings.begin(), now.mappings.end());
  std::sort(now.shm_files.begin(), now.shm_files.end());
  return now;
}

std::string left_behind(const Holdings& before, const Holdings& after) {
  return difference("descriptor", before.descriptors, after.descriptors) +
         difference("mapping", before.mappings, after.mappings) +
         difference("file in /dev/shm", before.shm_files, after.shm_files);
}

uint64_t rss_anon_kib() { return kib_after("/proc/self/status", "RssAnon:"); }
uint64_t pss_kib() { return kib_after("/proc/self/smaps_rollup", "Pss:"); }

NothingLeftBehind::~NothingLeftBehind() {
  std::string left = left_behind(before_, holdings());
  INFO(left);
  CHECK(left.empty());
}

}  // namespace sluice::test
