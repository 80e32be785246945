// The table of settings: typed values, what code says over the environment, names that nothing
// reads.
#include <catch2/catch.hpp>
#include <cstdlib>

#include <sluice/base/log.h>
#include <sluice/base/settings.h>

namespace sluice {
namespace {

struct Variable {
  Variable(const char* name, const char* value) : name(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name); }
  const char* name;
};
struct InCode {
  InCode(const char* name, std::optional<std::string> value) : name(name) {
    REQUIRE(set_setting(name, std::move(value)).ok());
  }
  // As good as not set: the tests set every variable that they ask for.
  ~InCode() { (void)set_setting(name, std::nullopt); }
  const char* name;
};

SettingSource source(const char* name) { return source_of(*find_setting(name)); }

TEST_CASE("each setting has a type that its row agrees with", "[settings]") {
  std::string_view before;
  SettingOf of = SettingOf::kLibrary;
  for (const Setting& each : settings()) {
    INFO(each.name);
    CHECK(each.name.starts_with("SLUICE_"));
    CHECK((each.of != of || each.name > before));  // sorted, and none twice
    before = each.name, of = each.of;
    const bool words = each.type == SettingType::kFlag || each.type == SettingType::kWord;
    CHECK(words == !each.words.empty());
    CHECK((each.type == SettingType::kNumber) == (each.most > 0));
    CHECK_FALSE(each.meaning.empty());
  }
}

TEST_CASE("the environment is read, and code goes before it", "[settings]") {
  CHECK_FALSE(setting_text("SLUICE_L2_BROKER"));
  CHECK(source("SLUICE_L2_BROKER") == SettingSource::kDefault);
  Variable variable("SLUICE_L2_BROKER", "/run/here");
  CHECK(setting_text("SLUICE_L2_BROKER") == "/run/here");
  CHECK(source("SLUICE_L2_BROKER") == SettingSource::kEnvironment);
  {
    InCode code("SLUICE_L2_BROKER", "/run/there");
    CHECK(setting_text("SLUICE_L2_BROKER") == "/run/there");
    CHECK(source("SLUICE_L2_BROKER") == SettingSource::kCode);
  }
  CHECK_FALSE(setting_text("SLUICE_L2_BROKER"));
  CHECK(source("SLUICE_L2_BROKER") == SettingSource::kDefault);
}

TEST_CASE("a switch is on for its word alone", "[settings]") {
  {
    Variable variable("SLUICE_L2_QDISC_BYPASS", "1");
    CHECK(setting_is("SLUICE_L2_QDISC_BYPASS", "1"));
  }
  Variable variable("SLUICE_L2_QDISC_BYPASS", "yes");
  CHECK_FALSE(setting_is("SLUICE_L2_QDISC_BYPASS", "1"));
}

TEST_CASE("a number outside its range is as if it were not set", "[settings]") {
  for (const char* wrong : {"0", "9", "-1", "4x", "", "99999999999999999999999"}) {
    Variable variable("SLUICE_RDMA_QUEUE_PAIRS", wrong);
    INFO(wrong);
    CHECK_FALSE(setting_number("SLUICE_RDMA_QUEUE_PAIRS"));
  }
  Variable variable("SLUICE_RDMA_QUEUE_PAIRS", "8");
  CHECK(setting_number("SLUICE_RDMA_QUEUE_PAIRS") == 8u);
}

TEST_CASE("code cannot set what is no setting, or what it cannot be", "[settings]") {
  Status unknown = set_setting("SLUICE_L2_BROKR", "x");
  CHECK(unknown == Code::kInvalidArgument);
  CHECK(unknown.detail().find("SLUICE_L2_BROKER") != std::string_view::npos);
  Status command = set_setting("SLUICE_LAB_CACHE", "x");
  CHECK(command == Code::kInvalidArgument);
  CHECK(command.detail().find("commands and tests") != std::string_view::npos);
  Status pairs = set_setting("SLUICE_RDMA_QUEUE_PAIRS", "9");
  CHECK(pairs == Code::kInvalidArgument);
  CHECK(pairs.detail().find("1 to 8") != std::string_view::npos);
  Status size = set_setting("SLUICE_ARENA_LIMIT", "much");
  CHECK(size.code() == Code::kInvalidArgument);
  CHECK(size.detail().find("it can be a size such as 8G") != std::string_view::npos);
  Status word = set_setting("SLUICE_ETHERNET", "on");
  CHECK(word == Code::kInvalidArgument);
  CHECK(source("SLUICE_ETHERNET") == SettingSource::kDefault);
}

TEST_CASE("the level of the log is set by its name", "[settings]") {
  InCode code("SLUICE_LOG", "debug");
  CHECK(log_enabled(LogLevel::kDebug));
  REQUIRE(set_setting("SLUICE_LOG", "error").ok());
  CHECK_FALSE(log_enabled(LogLevel::kWarning));
  REQUIRE(set_setting("SLUICE_LOG", "warning").ok());
  CHECK(log_enabled(LogLevel::kWarning));
  CHECK_FALSE(log_enabled(LogLevel::kInfo));
  REQUIRE(set_setting("SLUICE_LOG", "info").ok());
  REQUIRE(set_setting("SLUICE_LOG", std::nullopt).ok());
  CHECK_FALSE(log_enabled(LogLevel::kInfo));
}

TEST_CASE("a variable that nothing reads is found, with the name that was meant", "[settings]") {
  const char* environment[] = {
      "SLUICE_ARENA_LIMT=8G", "SLUICE_PEERS=/x",  "PATH=/bin", "SLUICE_FROBNICATOR",
      "SLUICE_CONTRACT_X=1",  "SLUICE_LGO=debug", nullptr};
  auto unknown = unknown_settings(environment);
  REQUIRE(unknown.size() == 3);
  CHECK(unknown[0].name == "SLUICE_ARENA_LIMT");
  CHECK(unknown[0].nearest == "SLUICE_ARENA_LIMIT");
  CHECK(unknown[1].name == "SLUICE_FROBNICATOR");
  CHECK(unknown[1].nearest.empty());
  CHECK(unknown[2].nearest == "SLUICE_LOG");
  CHECK(unknown_settings(nullptr).empty());
}

TEST_CASE("a folder that is to be absolute is", "[settings]") {
  const Setting* folder = find_setting("SLUICE_CACHE_DIR");
  REQUIRE(folder != nullptr);
  CHECK(unfit(*folder, "/var/cache").empty());
  CHECK(unfit(*folder, "cache").find("it can be an absolute path") != std::string::npos);
}

TEST_CASE("sizes are read with binary multiples", "[settings]") {
  CHECK(parse_bytes("1048576") == 1048576);
  CHECK(parse_bytes("4K") == 4096);
  CHECK(parse_bytes("512M") == uint64_t{512} << 20);
  CHECK(parse_bytes("8G") == uint64_t{8} << 30);
  CHECK(parse_bytes("8GB") == uint64_t{8} << 30);
  CHECK(parse_bytes("8GiB") == uint64_t{8} << 30);
  CHECK(parse_bytes("2t") == uint64_t{2} << 40);
  for (const char* bad : {"", "0", "0G", " 8G", "8G ", "8 G", "G", "-1", "+1", "8X", "8Gx", "8.5G",
                          "0x10", "18446744073709551616", "16777216T"}) {
    INFO(bad);
    CHECK_FALSE(parse_bytes(bad));
  }
}

}  // namespace
}  // namespace sluice
