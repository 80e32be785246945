// The rule that moderates completion events, on a queue in virtual time: known loads, and what it
// must make of each.
#include <sluice/verbs/moderation.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include <catch2/catch.hpp>

namespace sluice::verbs {
namespace {

constexpr size_t kTop = EventModerator::kProfiles.size() - 1;
constexpr double kWakeUs = 20,
                 kHandleUs = 0.2;  // docs/performance.md: a wake; a message of a busy queue

// A queue whose waiter sleeps, and a device that holds its events back as it is told. Times in us.
class SleepingQueue {
 public:
  explicit SleepingQueue(bool moderated = true) : moderated_(moderated) {}

  std::multiset<double> coming;
  // What taking a completion brings about.
  std::function<void(SleepingQueue&, double taken)> answer;

  // Until everything has been taken, or so much has.
  void run(uint64_t most = UINT64_MAX) {
    const uint64_t end = most == UINT64_MAX ? most : totals.completions + most;
    while (!coming.empty() && totals.completions < end) turn();
  }
  // It looks although nothing has come.
  void look(double at) {
    now = std::max(now, at);
    ask();
  }
  void steady(double every, size_t count, double pause_before = 0) {
    double at = std::max(now, coming.empty() ? 0 : *coming.rbegin()) + pause_before;
    for (size_t i = 0; i < count; ++i) coming.insert(at += every);
  }

  EventTotals totals;
  EventModerator moderator;
  Moderation set = EventModerator::kProfiles[0];
  std::vector<Moderation> changes;
  double now = 0;
  double held = 0;  // us that events came later than the first of their completions

 private:
  void ask() {
    if (!moderated_) return;
    std::optional<Moderation> wanted =
        moderator.before_sleep(totals, Instant(Duration(static_cast<int64_t>(now * 1000))));
    if (!wanted) return;
    changes.push_back(*wanted);
    set = *wanted;
  }
  void turn() {
    ask();
    double first = *coming.begin();
    if (first > now) {
      double event = first;
      if (set.count > 1) {
        event = first + set.period_us;
        auto filled = coming.begin();
        for (uint16_t i = 1; i < set.count && filled != coming.end(); ++i) ++filled;
        if (filled != coming.end()) event = std::min(event, *filled);
      }
      held += event - first;
      now = event + kWakeUs;
      ++totals.events;
    }
    while (!coming.empty() && *coming.begin() <= now) {
      coming.erase(coming.begin());
      ++totals.completions;
      totals.bytes += 64;
      now += kHandleUs;
      if (answer) answer(*this, now);
    }
  }
  const bool moderated_;
};

double per_event(const SleepingQueue& queue) {
  return static_cast<double>(queue.totals.completions) / static_cast<double>(queue.totals.events);
}

// A window of 64 events, `each` us apart.
std::optional<Moderation> window(EventModerator& moderator, EventTotals& totals, Instant& now,
                                 uint64_t completions, uint64_t bytes, double each = 20) {
  std::optional<Moderation> wanted;
  for (int i = 0; i < 64; ++i) {
    ++totals.events;
    totals.completions += completions;
    totals.bytes += bytes;
    now += Duration(static_cast<int64_t>(each * 1000));
    if (auto one = moderator.before_sleep(totals, now)) wanted = one;
  }
  return wanted;
}

TEST_CASE("a dense stream is gathered step by step, and the steps end", "[verbs][moderation]") {
  SleepingQueue plain(false), queue;
  for (SleepingQueue* each : {&plain, &queue}) {
    each->steady(5, 40'000);
    each->run();
  }
  CHECK(queue.changes == std::vector<Moderation>(EventModerator::kProfiles.begin() + 1,
                                                 EventModerator::kProfiles.end()));
  CHECK(queue.moderator.profile() == kTop);
  CHECK(per_event(queue) > 2 * per_event(plain));
}

TEST_CASE("two who answer each other are never held back", "[verbs][moderation]") {
  SleepingQueue queue;
  queue.answer = [](SleepingQueue& q, double taken) { q.coming.insert(taken + 30); };
  queue.coming.insert(1);
  queue.run(10'000);
  CHECK(queue.changes.empty());
  CHECK(queue.held == 0);
}

TEST_CASE("what is answered together gains nothing by waiting: one try, then rest",
          "[verbs][moderation]") {
  SleepingQueue plain(false), queue;
  for (SleepingQueue* each : {&plain, &queue}) {
    // Eight under way; an answer comes 30 us after it was asked for, 1 us behind the one before it.
    each->answer = [last = 0.0](SleepingQueue& q, double taken) mutable {
      q.coming.insert(last = std::max(last + 1, taken + 30));
    };
    for (int i = 0; i < 8; ++i) each->coming.insert(1 + i);
    each->run(200'000);
  }
  CHECK(queue.changes ==
        std::vector<Moderation>{EventModerator::kProfiles[1], EventModerator::kProfiles[0]});
  CHECK(queue.now < 1.005 * plain.now);
}

TEST_CASE("short bursts far apart are gathered as far as that saves events",
          "[verbs][moderation]") {
  SleepingQueue plain(false), queue;
  for (SleepingQueue* each : {&plain, &queue}) {
    for (int burst = 0; burst < 4000; ++burst) each->steady(8, 8, 1000);
    each->run();
  }
  CHECK(queue.moderator.profile() > 0);
  CHECK(queue.moderator.profile() < kTop);
  CHECK(per_event(queue) > 1.3 * per_event(plain));
  CHECK(queue.changes.size() < 10);
}

TEST_CASE("when a stream ends in lone messages no more than two are held back",
          "[verbs][moderation]") {
  // Far apart one, or none where somebody looked in between; nearer together two.
  for (auto [apart, looks, held] :
       {std::tuple(5000.0, false, 1), std::tuple(5000.0, true, 0), std::tuple(300.0, false, 2)}) {
    INFO(apart << " us apart, looks " << looks);
    SleepingQueue queue;
    queue.steady(5, 40'000);
    queue.run();
    REQUIRE(queue.moderator.profile() == kTop);
    const double before = queue.held, period = queue.set.period_us;
    queue.look(queue.now);  // as it falls asleep
    for (int i = 0; i < 50; ++i) {
      if (looks) queue.look(queue.now + 2000);
      queue.steady(apart, 1);
      queue.run();
    }
    CHECK(queue.moderator.profile() == 0);
    CHECK(queue.set == EventModerator::kProfiles[0]);
    CHECK(queue.held - before <= held * period);
  }
}

TEST_CASE("a stream by chance stays moderated, and settles", "[verbs][moderation]") {
  for (unsigned seed : {1u, 2u, 3u, 4u, 5u}) {
    INFO("seed " << seed);
    std::mt19937_64 random(seed);
    SleepingQueue plain(false), queue;
    double at = 0;
    for (int i = 0; i < 200'000; ++i) {
      // Exponential, mean 8 us. std::exponential_distribution differs between libraries.
      at -= 8 * std::log(1 - static_cast<double>(random() >> 11) * 0x1p-53);
      plain.coming.insert(at);
      queue.coming.insert(at);
    }
    plain.run();
    queue.run();
    CHECK(per_event(queue) > 1.5 * per_event(plain));
    // Of some 400 windows.
    CHECK(queue.changes.size() < 60);
  }
}

TEST_CASE("a load that comes and goes is followed", "[verbs][moderation]") {
  SleepingQueue queue;
  for (int round = 0; round < 5; ++round) {
    queue.steady(5, 20'000);
    queue.run();
    CHECK(queue.moderator.profile() == kTop);
    queue.steady(30, 3'000);  // fewer than two in a wake
    queue.run();
    CHECK(queue.moderator.profile() < kTop);
    queue.steady(100, 300);
    queue.run();
    CHECK(queue.moderator.profile() == 0);
  }
}

TEST_CASE("a step is kept only if it gathers a tenth more and nothing is slower for it",
          "[verbs][moderation]") {
  struct Case {
    const char* what;
    uint64_t completions, bytes;
    double each;
    bool kept;
  };
  // Before: 20 completions and 20,000 bytes with an event, every 20 us.
  for (const Case& c :
       {Case{"as before", 20, 20'000, 20, false}, Case{"a twentieth more", 21, 21'000, 21, false},
        Case{"a fifth more in as much more time", 24, 24'000, 24, true},
        Case{"a fifth more, but late", 24, 24'000, 28, false},
        Case{"a fifth more of half the bytes", 24, 12'000, 24, false},
        Case{"more of both", 30, 30'000, 24, true}}) {
    INFO(c.what);
    EventModerator moderator;
    EventTotals totals;
    Instant now(Duration(1));
    REQUIRE(window(moderator, totals, now, 20, 20'000) == EventModerator::kProfiles[1]);
    CHECK(window(moderator, totals, now, c.completions, c.bytes, c.each) ==
          EventModerator::kProfiles[c.kept ? 2 : 0]);
  }
}

TEST_CASE("what was tried in vain is tried ever more seldom, though the load wavers",
          "[verbs][moderation]") {
  EventModerator moderator;
  EventTotals totals;
  Instant now(Duration(1));
  size_t changes = 0, late = 0;
  for (int i = 0; i < 2000; ++i) {
    uint64_t bytes = i % 2 == 0 ? 20'000 : 16'000;
    bool changed = window(moderator, totals, now, 20, bytes).has_value();
    changes += changed;
    late += changed && i >= 1000;
  }
  CHECK(changes > 2);
  CHECK(late <= 2 * 1000 / 60);
}

TEST_CASE("without events nothing is ever changed", "[verbs][moderation]") {
  EventModerator moderator;
  EventTotals totals;
  for (int i = 0; i < 10'000; ++i) {
    totals.completions += 32;
    totals.bytes += 4096;
    REQUIRE_FALSE(moderator.before_sleep(totals, Instant(Duration(i * 1000))));
  }
}

TEST_CASE("a clock that stands still decides nothing wrong", "[verbs][moderation]") {
  EventModerator moderator;
  EventTotals totals;
  Instant now(Duration(1));
  for (int i = 0; i < 100; ++i) (void)window(moderator, totals, now, 3, 100, 0);
  CHECK(moderator.profile() == 0);
}

TEST_CASE("a wish is auto, or completions and microseconds", "[verbs][moderation]") {
  REQUIRE(moderation_wish("auto").has_value());
  CHECK(moderation_wish("auto")->automatic);
  CHECK(moderation_wish("auto")->any());
  REQUIRE(moderation_wish("16/8").has_value());
  CHECK_FALSE(moderation_wish("16/8")->automatic);
  CHECK(moderation_wish("16/8")->fixed == Moderation{16, 8});
  CHECK(moderation_wish("65535/1000")->fixed == Moderation{65535, 1000});
  CHECK_FALSE(ModerationWish{}.any());
  for (const char* text : {"", "16", "16/", "/8", "16/8x", "0/8", "16/0", "-1/8", "70000/8",
                           "16/1001", "16 / 8", "Auto", "auto ", "auto/8", "automatic", "off"}) {
    INFO(text);
    CHECK_FALSE(moderation_wish(text).has_value());
  }
}

}  // namespace
}  // namespace sluice::verbs
