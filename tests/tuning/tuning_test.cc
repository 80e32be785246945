#include <catch2/catch.hpp>

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include <sluice/base/log.h>
#include <sluice/tuning/cache_file.h>
#include <sluice/tuning/knobs.h>
#include <sluice/tuning/machine.h>
#include <sluice/tuning/tuning.h>

namespace sluice::tuning {
namespace {

// A cache of its own, the environment as it was afterwards, and what was logged meanwhile.
class World {
 public:
  World() {
    const char* base = ::getenv("TEST_TMPDIR");
    std::string name = std::string(base == nullptr ? "/tmp" : base) + "/tuning.XXXXXX";
    folder_ = ::mkdtemp(name.data());
    ::setenv("SLUICE_CACHE_DIR", folder_.c_str(), 1);
    ::unsetenv("SLUICE_TUNING");
    set_log_sink([](LogLevel, std::string_view line,
                    void* world) { static_cast<World*>(world)->log_ += std::string(line) + "\n"; },
                 this);
  }
  ~World() {
    set_log_sink(nullptr, nullptr);
    ::unsetenv("SLUICE_CACHE_DIR");
    ::unsetenv("SLUICE_TUNING");
    std::filesystem::remove_all(folder_);
  }
  const std::string& folder() const { return folder_; }
  std::string path() const { return cache_path(folder_, machine_key()); }
  const std::string& log() const { return log_; }
  void write(const std::string& text, mode_t mode = 0600) {
    std::ofstream(path()) << text;
    ::chmod(path().c_str(), mode);
  }

 private:
  std::string folder_, log_;
};

Record record() {
  return {.machine = machine_key(),
          .probed_at = "2026-01-02T03:04:05Z",
          .knobs = {{{8192, "eager won"},
                     {16384, "by far"},
                     {32768, "so did tcp"},
                     {35'000, "14 us"},
                     {4 << 20, "past"},
                     {32, "as fast"}}}};
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

Tuned read() {
  Result<Tuned> tuned = read_tuning();
  REQUIRE(tuned.ok());
  return std::move(tuned).value();
}

void is_usual(const Tuned& tuned) {
  Tuning usual;
  for (size_t i = 0; i < kKnobCount; ++i) {
    CHECK(tuned.knobs[i].source == Source::kDefault);
    CHECK(tuned.values.*knobs()[i].value == usual.*knobs()[i].value);
  }
}

TEST_CASE("without a file the usual thresholds are used, in silence", "[tuning]") {
  World world;
  Tuned tuned = read();
  is_usual(tuned);
  CHECK(tuned.file_state == "none");
  CHECK(world.log().empty());
}

TEST_CASE("what was measured is used, with its date and reason", "[tuning]") {
  World world;
  REQUIRE(write_record(world.path(), record()).ok());
  Tuned tuned = read();
  CHECK(tuned.values.shm_eager_bytes == 8192);
  CHECK(tuned.values.shm_eager_sleeping_bytes == 16384);
  CHECK(tuned.values.tcp_eager_bytes == 32768);
  CHECK(tuned.values.spin_ns == 35'000);
  CHECK(tuned.values.stream_copy_bytes == 4 << 20);
  CHECK(tuned.values.l2_batch_frames == 32);
  CHECK(tuned.knobs[0].source == Source::kProbe);
  CHECK(tuned.knobs[0].why == "eager won");
  CHECK(tuned.probed_at == "2026-01-02T03:04:05Z");
  CHECK(world.log().empty());
}

TEST_CASE("the file is this user's alone, and nothing is left beside it", "[tuning]") {
  World world;
  std::string path = cache_path(world.folder() + "/deeper/still", machine_key());
  REQUIRE(write_record(path, record()).ok());
  REQUIRE(write_record(path, record()).ok());
  struct stat facts {};
  REQUIRE(::stat(path.c_str(), &facts) == 0);
  CHECK((facts.st_mode & 0777) == 0600);
  size_t files = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(path).parent_path()))
    files += entry.is_regular_file();
  CHECK(files == 1);
}

TEST_CASE(
    "a file that cannot be trusted is refused with one line, and the usual thresholds are used",
    "[tuning]") {
  World world;
  std::string good = encode(record());
  auto [text, mode, reason] = GENERATE_COPY(table<std::string, mode_t, std::string>({
      {"", 0600, "begins with"},
      {std::string(3000, '\xFF'), 0600, "no text"},
      {std::string(40'000, 'a'), 0600, "16 KiB"},
      {replaced(good, "sluice.tuning/3", "sluice.tuning/2"), 0600, "begins with"},
      {replaced(good, "machine ", "machine an abacus; "), 0600, "another machine"},
      {replaced(good, "spin_ns 35000", "spin_ns soon"), 0600, "no number"},
      {replaced(good, "spin_ns 35000", "spin_ns -1"), 0600, "no number"},
      {replaced(good, "spin_ns 35000", "spin_ns 99999999999999999999999"), 0600, "no number"},
      {replaced(good, "tcp_eager_bytes", "tcp_eager_byte"), 0600, "should be"},
      {good.substr(0, good.size() - 4), 0600, "does not end"},
      {good + "more\n", 0600, "does not end"},
      {good, 0620, "others"},
      {good, 0604, "others"},
  }));
  CAPTURE(reason);
  world.write(text, mode);
  Tuned tuned = read();
  is_usual(tuned);
  CHECK(tuned.file_state.find(reason) != std::string::npos);
  CHECK(world.log().find(world.path()) != std::string::npos);
  CHECK(world.log().find("sluice tune") != std::string::npos);
  CHECK(std::count(world.log().begin(), world.log().end(), '\n') == 1);
}

TEST_CASE("a link, a folder or a pipe in the file's place is not followed, and not waited for",
          "[tuning]") {
  World world;
  std::string path = world.path(), reason = "it is no file";
  SECTION("a link, though it leads to a good file") {
    REQUIRE(write_record(world.folder() + "/good", record()).ok());
    REQUIRE(::symlink("good", path.c_str()) == 0);
    reason = "cannot be opened";
  }
  SECTION("a folder") { REQUIRE(::mkdir(path.c_str(), 0700) == 0); }
  SECTION("a pipe") { REQUIRE(::mkfifo(path.c_str(), 0600) == 0); }
  Tuned tuned = read();
  is_usual(tuned);
  CHECK(tuned.file_state.find(reason) != std::string::npos);
}

TEST_CASE("values out of range are brought into it", "[tuning]") {
  World world;
  Record wild = record();
  for (Measurement& one : wild.knobs) one.value = UINT64_MAX;
  REQUIRE(write_record(world.path(), wild).ok());
  Tuned tuned = read();
  for (const Knob& knob : knobs()) CHECK(tuned.values.*knob.value == knob.most);
  for (Measurement& one : wild.knobs) one.value = 0;
  REQUIRE(write_record(world.path(), wild).ok());
  tuned = read();
  for (const Knob& knob : knobs()) CHECK(tuned.values.*knob.value == knob.least);
}

TEST_CASE("the environment decides over the file", "[tuning]") {
  World world;
  REQUIRE(write_record(world.path(), record()).ok());
  ::setenv("SLUICE_TUNING", "spin_ns=7us,stream_copy_bytes=never", 1);
  Tuned tuned = read();
  CHECK(tuned.values.spin_ns == 7000);
  CHECK(tuned.values.stream_copy_bytes == kNeverBytes);
  CHECK(tuned.knobs[3].source == Source::kEnvironment);
  CHECK(tuned.values.shm_eager_bytes == 8192);
  ::setenv("SLUICE_TUNING", "defaults", 1);
  tuned = read();
  is_usual(tuned);
  CHECK(tuned.file_state == "not asked");
  ::setenv("SLUICE_TUNING", "defaults,tcp_eager_bytes=1K,shm_eager_sleeping_bytes=48K", 1);
  tuned = read();
  CHECK(tuned.values.tcp_eager_bytes == 1024);
  CHECK(tuned.values.shm_eager_sleeping_bytes == 49152);
  CHECK(tuned.knobs[0].source == Source::kDefault);
}

TEST_CASE("an environment that makes no sense is an error with an example", "[tuning]") {
  World world;
  auto text =
      GENERATE(as<std::string>(), "spin", "spin_ns", "spins=3", "spin_ns=", "spin_ns=soon",
               "spin_ns=3K", "shm_eager_bytes=8Q", "shm_eager_bytes=-1",
               "tcp_eager_bytes=99999999999999999999", "tcp_eager_bytes=18446744073709551615K", ",",
               "spin_ns=1,,", "l2_batch_frames=4K", "l2_batch_frames=never", "l2_batch_frames=few");
  ::setenv("SLUICE_TUNING", text.c_str(), 1);
  Result<Tuned> tuned = read_tuning();
  CAPTURE(text);
  REQUIRE_FALSE(tuned.ok());
  CHECK(tuned.code() == Code::kInvalidArgument);
  CHECK(std::string(tuned.status().detail()).find("SLUICE_TUNING") == 0);
  CHECK(std::string(tuned.status().detail()).find("for example") != std::string::npos);
}

TEST_CASE("values are written as people write them", "[tuning]") {
  const Knob& bytes = *find_knob("stream_copy_bytes");
  const Knob& time = *find_knob("spin_ns");
  CHECK(value_text(bytes, 4 << 20) == "4 MiB");
  CHECK(value_text(bytes, 300'000) == "300000 B");
  CHECK(value_text(bytes, kNeverBytes) == "never");
  CHECK(value_text(time, 60'000) == "60 us");
  CHECK(value_text(time, 0) == "0 ns");
  const Knob& frames = *find_knob("l2_batch_frames");
  CHECK(value_text(frames, 32) == "32 frames");
  CHECK(parse_value(frames, "32").value() == 32);
  CHECK(parse_value(frames, "0").value() == 1);
  CHECK(parse_value(frames, "10000").value() == kMostBatchFrames);
}

TEST_CASE("folders that are no absolute paths are not used", "[tuning]") {
  World world;
  ::setenv("SLUICE_CACHE_DIR", "here", 1);
  ::setenv("XDG_CACHE_HOME", "/caches", 1);
  CHECK(cache_folder() == "/caches/sluice");
  ::unsetenv("XDG_CACHE_HOME");
}

TEST_CASE("each machine has a file of its own", "[tuning]") {
  CHECK(cache_path("/c", "one") != cache_path("/c", "two"));
  CHECK(cache_path("/c", "one") == cache_path("/c", "one"));
  CHECK(machine_key() == machine_key());
  CHECK(machine_key().find("CPUs") != std::string::npos);
}

}  // namespace
}  // namespace sluice::tuning
