// Reading recordings: those that a recorder wrote, those that were cut short, and what is none.
#include <sluice/recording/format.h>

#include <catch2/catch.hpp>

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include <sluice/recording/file.h>

#include "tests/profile/recordings.h"

namespace sluice::recording {
namespace {

using test::Folder;
using test::header_of_test;
using test::written;

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void put(const std::string& path, const std::string& bytes) {
  // Some file systems write at once what replaces a file that was cut to nothing.
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}
size_t kept(const Recording& recording) {
  size_t messages = 0;
  for (const auto& [number, context] : recording.contexts) messages += context.events.size();
  return messages;
}

TEST_CASE("what a recorder wrote is read as it was") {
  Folder folder;
  const std::string path = written(folder, {.messages = 300, .ended = true});
  auto read = read_recording(path);
  REQUIRE(read.ok());
  CHECK(read->missing.empty());
  CHECK(std::string(read->header.program) == "test");
  REQUIRE(read->contexts.size() == 1);
  const ContextRecording& context = read->contexts.at(0);
  REQUIRE(context.events.size() == 300);
  CHECK(context.connections.size() == 1);
  CHECK(context.events[299].bytes == 299);
  CHECK(context.events[299].kind == EventKind::kReceived);
  CHECK(context.end.events == 300);
  struct stat facts {};
  REQUIRE(::stat(path.c_str(), &facts) == 0);
  CHECK((facts.st_mode & 0777) == 0600);
}

TEST_CASE("of a recording that is cut short anywhere the whole messages are kept, and it is said") {
  Folder folder;
  const std::string path = written(folder, {.messages = 40, .ended = true});
  const std::string whole = bytes_of(path);
  size_t before = 0;
  for (size_t length = 1; length < whole.size(); ++length) {
    put(path, whole.substr(0, length));
    auto read = read_recording(path);
    if (length < sizeof(FileHeader)) {
      REQUIRE_FALSE(read.ok());
      CHECK(read.code() == Code::kInvalidArgument);
      CHECK_FALSE(read.status().detail().empty());
      continue;
    }
    REQUIRE(read.ok());
    CHECK(kept(*read) >= before);
    before = kept(*read);
    REQUIRE_FALSE(read->missing.empty());
    CHECK(read->missing[0].find(std::to_string(before) + " messages were kept") !=
          std::string::npos);
  }
  CHECK(before == 40);
}

TEST_CASE("what is no recording, of another version, empty or too large is refused with a reason") {
  Folder folder;
  const std::string path = written(folder, {.messages = 1, .ended = true});
  const std::string whole = bytes_of(path);
  auto refusal = [&](const std::string& bytes) {
    put(path, bytes);
    auto read = read_recording(path);
    REQUIRE_FALSE(read.ok());
    CHECK(read.code() == Code::kInvalidArgument);
    return std::string(read.status().detail());
  };
  CHECK(refusal("").find("is empty") != std::string::npos);
  CHECK(refusal("#!/bin/sh\nexit 0\n").find("is no recording") != std::string::npos);
  CHECK(refusal("SL").find("is no recording") != std::string::npos);
  std::string newer = whole;
  newer[offsetof(FileHeader, version)] = 2;
  CHECK(refusal(newer).find("version 2") != std::string::npos);
  std::filesystem::resize_file(path, 100 << 20);
  auto large = read_recording(path);
  REQUIRE_FALSE(large.ok());
  CHECK(large.status().detail().find("100 MiB") != std::string::npos);
  CHECK_FALSE(read_recording(folder.path + "/none").ok());
  CHECK_FALSE(read_recording(folder.path).ok());
}

TEST_CASE("a recording of weeks is read, one whose times cannot be added is refused") {
  constexpr uint64_t kDay = uint64_t{86'400} * 1'000'000'000;
  Folder folder;
  const std::string long_one =
      written(folder, {.messages = 30, .ended = true, .ns_apart = kDay, .slept_ns = kDay});
  auto read = read_recording(long_one);
  INFO(read.status().to_string());
  REQUIRE(read.ok());
  CHECK(read->contexts.at(0).events[29].at_ns == 2000 + 29 * kDay);
  std::filesystem::remove(long_one);
  auto refused = read_recording(
      written(folder, {.messages = 300, .ended = true, .slept_ns = uint64_t{1} << 54}));
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.status().detail().find("record anew") != std::string::npos);
}

TEST_CASE("no change of one byte makes a recording that reads beyond itself") {
  Folder folder;
  const std::string path = written(folder, {.messages = 3, .ended = true});
  const std::string whole = bytes_of(path);
  for (size_t i = 0; i < whole.size(); ++i) {
    for (unsigned char flip : {0x01, 0x80, 0xff}) {
      std::string changed = whole;
      changed[i] = static_cast<char>(static_cast<unsigned char>(changed[i]) ^ flip);
      put(path, changed);
      auto read = read_recording(path);
      if (!read.ok()) {
        CHECK_FALSE(read.status().detail().empty());
        continue;
      }
      CHECK(kept(*read) <= 3);
      for (const auto& [number, context] : read->contexts)
        for (const Event& event : context.events)
          CHECK(context.connections.contains(event.connection));
    }
  }
}

TEST_CASE("a file takes no more than its limit, and says what is missing") {
  Folder folder;
  const uint64_t most = kMostFileBytes / sizeof(Event);
  const std::string path =
      written(folder, {.messages = static_cast<uint32_t>(most + 5000), .ended = true});
  struct stat facts {};
  REQUIRE(::stat(path.c_str(), &facts) == 0);
  CHECK(static_cast<uint64_t>(facts.st_size) <= kMostFileBytes);
  auto read = read_recording(path);
  REQUIRE(read.ok());
  CHECK(kept(*read) < most);
  CHECK(kept(*read) > most - 2000);
  REQUIRE(read->missing.size() == 1);
  CHECK(read->missing[0].find("of " + std::to_string(most + 5000) + " messages") !=
        std::string::npos);
}

// Blocks of 128 messages until the file takes no more; how many messages it took.
uint64_t fill(File& file) {
  const Connection connection;
  REQUIRE(file.append(BlockKind::kConnections, 0, std::span(&connection, 1)));
  uint64_t taken = 0;
  while (true) {
    const std::vector<Event> events(128, Event{.at_ns = 2000 + taken});
    if (!file.append(BlockKind::kEvents, 0, std::span<const Event>(events))) return taken;
    taken += events.size();
  }
}

// Of the messages that are there no time is missing before one, and no connection.
TEST_CASE("behind messages that did not fit comes nothing but the end, although it would fit") {
  Folder folder;
  auto file = File::open(folder.path, header_of_test(), 1);
  REQUIRE(file.ok());
  const uint64_t taken = fill(*file);
  const Event small{.at_ns = 1'000'000};
  CHECK_FALSE(file->append(BlockKind::kEvents, 0, std::span(&small, 1)));
  const Connection next{.number = 1};
  CHECK_FALSE(file->append(BlockKind::kConnections, 0, std::span(&next, 1)));
  const End end{.events = taken + 129};
  CHECK(file->append(BlockKind::kEnd, 0, std::span(&end, 1)));
  auto read = read_recording(file->path());
  REQUIRE(read.ok());
  CHECK(kept(*read) == taken);
  CHECK(read->contexts.at(0).connections.size() == 1);
  CHECK(read->contexts.at(0).ended);
  REQUIRE(read->missing.size() == 1);
  CHECK(read->missing[0].find("the first " + std::to_string(taken) + " of") != std::string::npos);
}

TEST_CASE("a program whose files may not be large is recorded as far as they may") {
  Folder folder;
  rlimit before;
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  auto limit_files = [&](rlim_t bytes) {
    const rlimit limit{.rlim_cur = bytes, .rlim_max = before.rlim_max};
    return ::setrlimit(RLIMIT_FSIZE, &limit) == 0;
  };
  auto file = File::open(folder.path, header_of_test(), 1);
  REQUIRE(file.ok());
  // What is more ends the program by SIGXFSZ.
  REQUIRE(limit_files(100'000));
  const uint64_t taken = fill(*file);
  const End end{.events = taken + 128};
  const bool ended = file->append(BlockKind::kEnd, 0, std::span(&end, 1));
  REQUIRE(limit_files(100));
  auto none = File::open(folder.path, header_of_test(), 2);
  REQUIRE(limit_files(before.rlim_cur));
  CHECK(ended);
  CHECK(std::filesystem::file_size(file->path()) <= 100'000);
  CHECK(read_recording(file->path()).ok());
  REQUIRE_FALSE(none.ok());
  CHECK(none.status().detail().find("; raise `ulimit -f`") != std::string::npos);
}

TEST_CASE("a file that cannot be made is an error with the remedy, and links are not followed") {
  Folder folder;
  auto missing = File::open(folder.path + "/none", header_of_test(), 1);
  REQUIRE_FALSE(missing.ok());
  CHECK(missing.code() == Code::kAccessDenied);
  CHECK(missing.status().detail().find("SLUICE_RECORD") != std::string::npos);
  auto file = File::open(folder.path, header_of_test(), 1);
  REQUIRE(file.ok());
  const std::string path = file->path();
  std::filesystem::rename(path, folder.path + "/other");
  std::filesystem::create_symlink(folder.path + "/other", path);
  CHECK_FALSE(File::open(folder.path, header_of_test(), 1).ok());
}

}  // namespace
}  // namespace sluice::recording
