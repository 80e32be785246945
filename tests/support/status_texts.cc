// Looks at the text of each Status that is made while a suite runs, and fails the run if one does
// not say what happened and what to do. Linked in: nothing has to be called.
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include <catch2/catch.hpp>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

#include <sluice/base/status_watch.h>

#include "tests/support/status_rule.h"

namespace sluice::test {
namespace {

struct Texts {
  std::mutex mutex;                            // contexts on several threads
  std::map<std::string, std::string> lacking;  // text -> what it lacks
  size_t seen = 0;
};
Texts& texts() {
  static Texts* all = new Texts;  // the last Status may be made at exit
  return *all;
}

void look_at(const Status& status) {
  std::string lacks = what_lacks(status);
  Texts& all = texts();
  std::lock_guard lock(all.mutex);
  ++all.seen;
  if (!lacks.empty()) all.lacking.emplace(status.to_string(), std::move(lacks));
}

struct Listener : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;
  void testRunStarting(const Catch::TestRunInfo&) override { watch_statuses(look_at); }
  void testRunEnded(const Catch::TestRunStats&) override {
    watch_statuses(nullptr);
    Texts& all = texts();
    std::lock_guard lock(all.mutex);
    for (const auto& [text, lacks] : all.lacking)
      std::fprintf(stderr, "a text without %s: %s\n", lacks.c_str(), text.c_str());
    if (all.lacking.empty()) return;
    std::fprintf(stderr,
                 "%zu of %zu texts: name the cause, then \"; \" and what to do; or add them to "
                 "tests/support/status_rule.cc with the reason\n",
                 all.lacking.size(), all.seen);
    std::fflush(nullptr);
    std::_Exit(1);
  }
};
CATCH_REGISTER_LISTENER(Listener)

}  // namespace
}  // namespace sluice::test
