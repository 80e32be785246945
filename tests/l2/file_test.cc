// A large file from one node to another, and its hash: of 64 MiB, or SLUICE_FILE_MIB; the long tier
// sends 512.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/l2/two.h"
#include "tests/l2/wire.h"
#include "tests/support/audit.h"
#include "tests/support/skip.h"

namespace sluice::test {
namespace {

constexpr size_t kPiece = size_t{4} << 20;
constexpr int kAhead = 4;  // pieces under way

std::string folder() {
  const char* given = std::getenv("TEST_TMPDIR");
  return given != nullptr ? given : "/tmp";
}

class File {
 public:
  explicit File(const std::string& name)
      : path_(folder() + "/" + name),
        fd_(::open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)) {
    REQUIRE(fd_ >= 0);
  }
  ~File() {
    ::close(fd_);
    ::unlink(path_.c_str());
  }
  void write(uint64_t offset, std::span<const std::byte> bytes) {
    REQUIRE(::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset)) ==
            static_cast<ssize_t>(bytes.size()));
  }
  void read(uint64_t offset, std::span<std::byte> bytes) {
    REQUIRE(::pread(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset)) ==
            static_cast<ssize_t>(bytes.size()));
  }
  // As somebody else computes it.
  std::string hash() {
    std::string command = "sha256sum < " + path_;
    FILE* pipe = ::popen(command.c_str(), "r");
    char text[65] = {};
    REQUIRE(std::fread(text, 1, 64, pipe) == 64);
    ::pclose(pipe);
    return text;
  }

 private:
  std::string path_;
  int fd_;
};

TEST_CASE("a large file arrives with its hash", "[l2]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  NothingLeftBehind audit;
  const char* given = std::getenv("SLUICE_FILE_MIB");
  uint64_t size = (given != nullptr ? std::strtoull(given, nullptr, 10) : 64) << 20;
  REQUIRE(add_cable("left", 10, "right", 11, 9000));
  OtherNode node;
  REQUIRE(node.take("right"));
  {
    File here("sent"), there("received");
    Two two({.node = &node});
    for (uint64_t at = 0; at < size; at += kPiece)
      here.write(at, filled(*two.near, kPiece, at / kPiece + 1).bytes());
    Box sent, received;
    uint64_t posted = 0, taken = 0, pieces = size / kPiece;
    Instant limit = after(now(), std::chrono::seconds(240));
    auto turn = [&] {
      while (posted < pieces && posted < taken + kAhead) {
        Buffer piece = std::move(*two.near->allocate({kPiece}, uint8));
        here.read(posted * kPiece, piece.bytes());
        REQUIRE(two.server
                    .receive({.tag = posted}, std::move(*two.far->allocate({kPiece}, uint8)),
                             {.sink = &received, .deadline = limit})
                    .ok());
        REQUIRE(two.client
                    .send(posted, std::move(piece).freeze(),
                          {.sink = &sent, .deadline = limit, .level = Level::kPlaced})
                    .ok());
        ++posted;
      }
      for (Completion& completion : received.all) {
        REQUIRE(completion.status.ok());
        there.write(completion.tag * kPiece, completion.buffers[0].bytes());
        ++taken;
      }
      for (Completion& completion : sent.all) REQUIRE(completion.status.ok());
      received.all.clear();
      sent.all.clear();
      return taken == pieces;
    };
    Instant begin = now();
    REQUIRE(two.until(turn, limit));
    std::fprintf(stderr, "%llu MiB in %.1f s, with reading and writing\n",
                 static_cast<unsigned long long>(size >> 20),
                 std::chrono::duration<double>(now() - begin).count());
    CHECK(here.hash() == there.hash());
  }
  remove_cable("left");
}

}  // namespace
}  // namespace sluice::test
