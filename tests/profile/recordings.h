// Recordings made up for tests, as files and as they are read.
#ifndef SLUICE_TESTS_PROFILE_RECORDINGS_H_
#define SLUICE_TESTS_PROFILE_RECORDINGS_H_

#include <stdlib.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include <sluice/recording/file.h>
#include <sluice/recording/format.h>

namespace sluice::test {

// Removed with all that is in it.
struct Folder {
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "sluice-profile-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string path;
};

inline recording::FileHeader header_of_test(uint64_t pid = 7) {
  recording::FileHeader header;
  header.processors = 2;
  header.pid = pid;
  header.started_ns = 1000;
  header.usable_cpus[0] = 3;
  std::strcpy(header.program, "test");
  return header;
}

template <size_t kLength>
void put_text(char (&out)[kLength], const std::string& text) {
  std::copy_n(text.begin(), std::min(text.size(), kLength - 1), out);
}

struct Written {
  uint32_t messages = 0;
  bool ended = false;
  uint64_t ns_apart = 10;
  uint64_t slept_ns = 0;  // before each
};
// The path of a file with one connection. Message i has i bytes; sent and received take turns.
inline std::string written(const Folder& folder, const Written& what) {
  auto file = recording::File::open(folder.path, header_of_test(), 1);
  REQUIRE(file.ok());
  recording::Connection connection{.number = 0, .path = 2};
  put_text(connection.local, "pid 7");
  put_text(connection.peer, "pid 8");
  file->append(recording::BlockKind::kConnections, 0,
               std::span<const recording::Connection>(&connection, 1));
  std::vector<recording::Event> events;
  for (uint32_t i = 0; i < what.messages; ++i) {
    events.push_back(
        {.at_ns = 2000 + what.ns_apart * i,
         .bytes = i,
         .slept_ns = what.slept_ns,
         .kind = i % 2 == 0 ? recording::EventKind::kSent : recording::EventKind::kReceived});
    if (events.size() < 128 && i + 1 < what.messages) continue;
    file->append(recording::BlockKind::kEvents, 0, std::span<const recording::Event>(events));
    events.clear();
  }
  const recording::End end{.events = what.messages,
                           .ended_ns = 2000 + what.ns_apart * what.messages};
  if (what.ended)
    file->append(recording::BlockKind::kEnd, 0, std::span<const recording::End>(&end, 1));
  return file->path();
}

}  // namespace sluice::test

#endif  // SLUICE_TESTS_PROFILE_RECORDINGS_H_
