// Moderated completion events: what SLUICE_RDMA_MODERATION asks for is what the device is told, of
// queues that live, and devices that refuse. What is right to ask for is in
// tests/verbs/backend/moderation_rule_test.cc.
#include <errno.h>
#include <stdlib.h>

#include <sluice/base/log.h>
#include <sluice/verbs/moderation.h>

#include "tests/verbs/backend/scene.h"

namespace sluice::verbs {
namespace {

using Values = std::vector<std::pair<uint16_t, uint16_t>>;

std::pair<uint16_t, uint16_t> profile(size_t number) {
  const Moderation& moderation = EventModerator::kProfiles[number];
  return {moderation.count, moderation.period_us};
}

// One that lasts as long as the case.
class Environment {
 public:
  explicit Environment(const char* moderation) {
    ::setenv("SLUICE_RDMA_MODERATION", moderation, 1);
  }
  ~Environment() { ::unsetenv("SLUICE_RDMA_MODERATION"); }
};

// What is logged of moderation meanwhile.
class Log {
 public:
  Log() { set_log_sink(collect, this); }
  ~Log() { set_log_sink(nullptr, nullptr); }
  std::vector<std::string> lines;

 private:
  static void collect(LogLevel, std::string_view line, void* log) {
    bool ours = line.find("moderat") != line.npos || line.find("MODERATION") != line.npos;
    if (ours) static_cast<Log*>(log)->lines.emplace_back(line);
  }
};

// How traffic went whose queues were to be moderated like that: four of them, of two contexts.
struct Moderated {
  Values values;
  uint64_t calls = 0, counted = 0, refused = 0;
  std::vector<std::string> log;
};
Moderated moderated(const char* text, int error = 0, bool offered = true) {
  Environment environment(text);
  FakeOptions options;
  options.devices[0].moderation = offered;
  Fabric fabric(options);
  Log log;
  if (error != 0) fabric.with_faults([=](FakeFaults& f) { f.fail("modify_cq", 1, error, 1000); });
  Gain counted("verbs.queues_moderated"), refused("verbs.moderation_refused");
  Duo duo;
  duo.sleeping = true;
  REQUIRE(duo.open().ok());
  {
    auto more = duo.connect();
    REQUIRE(more.ok());
    expect_traffic(duo, duo.client, duo.server);
    expect_traffic(duo, more->first, more->second);
  }
  duo.close();
  return {.values = fabric->moderations(),
          .calls = fabric->calls("modify_cq"),
          .counted = counted(),
          .refused = refused(),
          .log = log.lines};
}

TEST_CASE("events are moderated where the environment asks for it, with its values",
          "[verbs][moderation]") {
  Moderated how = moderated("16/8");
  CHECK(how.values == Values(4, {16, 8}));
  CHECK(how.counted == 4);
  CHECK(how.refused == 0);
  CHECK(how.log.empty());
}

TEST_CASE("a device that refuses is asked once, told once, and counted once for each context",
          "[verbs][moderation]") {
  for (const char* text : {"16/8", "auto"}) {
    for (auto [error, offered] : {std::pair(EOPNOTSUPP, true), std::pair(ENOSYS, true),
                                  std::pair(EINVAL, true), std::pair(0, false)}) {
      INFO(text << ", error " << error << ", offered " << offered);
      Moderated how = moderated(text, error, offered);
      CHECK(how.calls == 2);
      CHECK(how.counted == 0);
      CHECK(how.refused == 2);
      REQUIRE(how.log.size() == 2);
      for (const std::string& line : how.log) {
        CHECK(line.find("fake0 does not moderate") != std::string::npos);
        CHECK(line.find("errno " + std::to_string(error != 0 ? error : EOPNOTSUPP)) !=
              std::string::npos);
      }
    }
  }
}

TEST_CASE("a moderation that cannot be meant is refused with examples, and nothing is moderated",
          "[verbs][moderation]") {
  for (const char* text :
       {"", "16", "16/", "16/8x", "0/8", "16/0", "-1/8", "70000/8", "16/1001", "Auto", "auto/8"}) {
    INFO(text);
    Moderated how = moderated(text);
    CHECK(how.calls == 0);
    REQUIRE(how.log.size() == 2);
    CHECK(how.log[0].find("auto") != std::string::npos);
    CHECK(how.log[0].find("16/8") != std::string::npos);
  }
}

// As its thread does that has nothing to do.
void fall_asleep(Duo& duo, Context& context) {
  do duo.settle();
  while (!context.prepare_to_sleep());
}

// Messages to a server that sleeps, many at once: one event, and many completions with it.
void burst(Duo& duo) {
  constexpr uint64_t kMessages = 32;
  Tally sent, received;
  for (Tag tag = 1; tag <= kMessages; ++tag) {
    received.expect(duo.server.receive({.tag = tag}, test::room(*duo.far, 100), received.options()),
                    OperationKind::kReceive, 1, tag);
  }
  fall_asleep(duo, *duo.far);
  for (Tag tag = 1; tag <= kMessages; ++tag)
    sent.expect(duo.client.send(tag, test::tensor(*duo.near, 100, tag), sent.options()),
                OperationKind::kSend);
  REQUIRE(duo.until([&] { return sent.ended() && received.ended(); }));
  sent.check();
  received.check();
}

// Of 64 events and a few more: the first decides to try a step, the second judges it.
constexpr int kTwoWindows = 150;

TEST_CASE(
    "with auto a queue begins unmoderated, is raised under a stream, and is let go after a pause",
    "[verbs][moderation]") {
  Environment environment("auto");
  Fabric fabric;
  Log log;
  Gain counted("verbs.queues_moderated"), changes("verbs.moderation_changes");
  Duo duo;
  duo.sleeping = true;
  REQUIRE(duo.open().ok());
  CHECK(fabric->moderations() == Values(2, profile(0)));
  CHECK(counted() == 2);
  for (int i = 0; i < kTwoWindows && changes() == 0; ++i) burst(duo);
  CHECK(fabric->moderations() == Values{profile(0), profile(0), profile(1)});
  fall_asleep(duo, *duo.far);
  Instant until = in(2ms);
  while (now() < until) continue;
  fall_asleep(duo, *duo.far);
  CHECK(fabric->moderations() == Values{profile(0), profile(0), profile(1), profile(0)});
  CHECK(changes() == 2);
  expect_traffic(duo, duo.client, duo.server);
  CHECK(log.lines.empty());
}

TEST_CASE("without the switch a stream changes nothing at the device", "[verbs][moderation]") {
  Fabric fabric;
  Duo duo;
  duo.sleeping = true;
  REQUIRE(duo.open().ok());
  for (int i = 0; i < kTwoWindows; ++i) burst(duo);
  CHECK(fabric->calls("modify_cq") == 0);
}

TEST_CASE("a device that refuses in the middle is told once, and its queues stay as they are",
          "[verbs][moderation]") {
  Environment environment("auto");
  Fabric fabric;
  Log log;
  Gain refused("verbs.moderation_refused"), changes("verbs.moderation_changes");
  Duo duo;
  duo.sleeping = true;
  REQUIRE(duo.open().ok());
  fabric.with_faults([](FakeFaults& f) { f.fail("modify_cq", 1, EIO, 1000); });
  for (int i = 0; i < kTwoWindows; ++i) burst(duo);
  CHECK(fabric->moderations() == Values(2, profile(0)));
  CHECK(refused() == 1);  // the server's
  CHECK(fabric->calls("modify_cq") == 3);
  CHECK(log.lines.size() == refused());
  CHECK(changes() == 0);
  expect_traffic(duo, duo.client, duo.server);
}

}  // namespace
}  // namespace sluice::verbs
