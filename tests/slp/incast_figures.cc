// E18 in figures: one setting of incast.h, as a line of JSON for benchmarks/questions/incast.json.
// Virtual time, so the figures are the same in each round and on every machine. Must not judge.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "tests/slp/incast.h"
#include "tests/slp/judge.h"

int main(int argc, char** argv) {
  using namespace sluice::slp;
  constexpr double kSharesAreEqual = 1;
  Setting setting;
  std::string mode = "pull";
  CLI::App app{"one receiver, many senders and a switch in virtual time"};
  app.add_option("--mode", mode, "go_back_n and equal are what the others are compared with")
      ->check(CLI::IsMember({"pull", "push", "go_back_n", "equal"}));
  app.add_option("--senders", setting.senders)->check(CLI::Range(1, 64));
  app.add_option("--bytes-each", setting.bytes_each)->check(CLI::Range(1u << 10, 1u << 30));
  app.add_option("--lost-per-mille", setting.lost_per_mille)->check(CLI::Range(0, 200));
  app.add_option("--mtu", setting.mtu)->check(CLI::Range(256, 9000));
  app.add_option("--hop-ns", setting.delay)->check(CLI::Range(0, 1'000'000));
  app.add_option("--pull-budget", setting.pull_budget)->check(CLI::Range(1u << 12, 1u << 26));
  CLI11_PARSE(app, argc, argv);
  setting.pull = mode == "pull";
  Result result;
  try {
    if (mode == "go_back_n")
      result.used = go_back_n(setting);
    else if (mode != "equal")
      result = incast(setting);
  } catch (const Wrong& wrong) {
    std::fprintf(stderr, "incast_figures: %s\n", wrong.what());
    return 4;  // as the other programs of a question: did not verify
  }
  // "equal": what fair shares and a queue of twice the mark would be.
  if (mode == "equal")
    result = {.used = 1, .jain = kSharesAreEqual, .most_queued = 2 * setting.mark_above};
  std::printf(
      "{\"name\":\"incast\",\"mode\":\"%s\",\"link_share\":%.6f,\"jain_index\":%.6f,"
      "\"queued_bytes\":%llu,\"dropped\":%llu,\"marked\":%llu,\"resent\":%llu,\"verified\":true}\n",
      mode.c_str(), result.used, result.jain, static_cast<unsigned long long>(result.most_queued),
      static_cast<unsigned long long>(result.dropped),
      static_cast<unsigned long long>(result.marked),
      static_cast<unsigned long long>(result.resent));
  return 0;
}
