#include "tools/perf/flags/condition_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "tools/perf/run/conditions.h"
#include "tools/perf/flags/refusal.h"
#include "tools/perf/flags/size_text.h"

namespace sluice::tools {
namespace {

constexpr uint64_t kMostPauseNs = 1'000'000'000;
constexpr uint64_t kMostPerturbBytes = 65536;

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin <= text.size();) {
    size_t end = std::min(text.find(',', begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

// "20us" as nanoseconds; 0 for anything that is no time.
uint64_t parse_time_ns(const std::string& text) {
  size_t digits = 0;
  while (digits < text.size() && std::isdigit(static_cast<unsigned char>(text[digits]))) ++digits;
  const std::string unit = text.substr(digits);
  uint64_t factor = unit == "ns"   ? 1
                    : unit == "us" ? 1'000
                    : unit == "ms" ? 1'000'000
                    : unit == "s"  ? 1'000'000'000
                                   : 0;
  if (digits == 0 || digits > 10 || factor == 0) return 0;
  uint64_t value = std::stoull(text.substr(0, digits));
  return value > kMostPauseNs / factor ? 0 : value * factor;
}

void set_perturb(PerfOptions& o, const std::string& text) {
  const std::string example = "--perturb 3, --perturb 20us or --perturb 3,20us";
  for (const std::string& word : split(text)) {
    bool number_only = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
      return std::isdigit(c) != 0;
    });
    if (number_only) {
      if (o.perturb_bytes > 0) refuse("--perturb", text, "has two numbers of bytes", example);
      o.perturb_bytes = number<uint64_t>("--perturb", word, 1, kMostPerturbBytes, example);
      continue;
    }
    uint64_t ns = parse_time_ns(word);
    if (ns == 0)
      refuse("--perturb", word, "is neither bytes (3) nor a time above nothing and up to 1s (20us)",
             example);
    if (o.pause_ns > 0) refuse("--perturb", text, "has two times", example);
    o.pause_ns = ns;
  }
}

void set_offset(PerfOptions& o, const std::string& text) {
  const std::string example = "--offset 1, or --offset 0,64 (of the source and of the destination)";
  std::vector<std::string> words = split(text);
  if (words.size() > 2)
    refuse("--offset", text, "is more than a source's and a destination's", example);
  constexpr auto kMost = static_cast<uint32_t>(kPageBytes - 1);
  o.source_offset = number<uint32_t>("--offset", words.front(), 0, kMost, example);
  o.destination_offset = number<uint32_t>("--offset", words.back(), 0, kMost, example);
}

void check_flow(PerfOptions& o, const std::string& test) {
  const std::string example = "sluice perf send_lat --self --under-load 64K";
  const std::string size = readable_size(o.under_load->size_bytes);
  if (!o.test->latency)
    refuse("--under-load", test, "is a load itself; it is for _lat tests", example);
  if (o.format == Format::kPerftest || o.format == Format::kOpenMetrics) {
    refuse("--under-load", std::string(to_string(o.format)),
           "has no place for it; text, json, ndjson and csv have", example);
  }
  uint64_t room = Load::kWindowBytes / o.under_load->size_bytes;
  uint32_t wanted = o.tx_depth > 0 ? o.tx_depth : FlowLoad::kDefaultDepth;
  if (room == 0 || wanted > FlowLoad::kMostDepth)
    refuse("--under-load", size, "is more than a flow's window holds, 1024 messages or 512 MiB",
           example);
  o.under_load->depth = static_cast<uint32_t>(std::min<uint64_t>(wanted, room));
}

void check_cold(PerfOptions& o, const std::string& test) {
  if (!is_ping_pong(*o.test)) {
    refuse(
        "--cold-cache", test,
        "has no moment in which both ends could do it; send_lat, write_lat and exchange_lat have",
        "sluice perf send_lat --self --cold-cache");
  }
  if (can_evict()) return;
  o.unhonoured.push_back(
      {"--cold-cache", "this processor has no instruction for it that a program may use"});
  o.cold = false;
}

void check_offset(PerfOptions& o, const std::string& test) {
  if (o.test->verb == Verb::kAtomic)
    refuse("--offset", test, "needs words that are aligned",
           "sluice perf write_lat --self --offset 1");
  if (o.test->verb != Verb::kExchange || o.into) return;
  // One number is of what there is.
  if (o.destination_offset != o.source_offset)
    o.unhonoured.push_back(
        {"--offset",
         "a fetch without --into has no destination of ours: the source's counts alone"});
  o.destination_offset.reset();
}

void add_neighbours(PerfOptions& o, const std::string& test) {
  if (o.test->verb == Verb::kAtomic)
    refuse("--perturb", std::to_string(o.perturb_bytes), test + " has one size, 8 bytes",
           "sluice perf send_lat --self --perturb 3");
  std::set<uint64_t> sizes;
  for (uint64_t size : o.sizes) {
    if (size > o.perturb_bytes) sizes.insert(size - o.perturb_bytes);
    sizes.insert(size);
    if (size + o.perturb_bytes <= kLargestSizeBytes) sizes.insert(size + o.perturb_bytes);
  }
  o.sizes.assign(sizes.begin(), sizes.end());
}

}  // namespace

void add_condition_flags(CLI::App& perf, PerfOptions& o) {
  perf.add_option_function<std::string>(
      "--perturb", [&o](const std::string& text) { set_perturb(o, text); },
      "what is too regular: bytes (3: each size is measured with the two that lie so far from it), "
      "a time (20us: in _lat tests the "
      "client computes for a random time up to that before each message, in no sample), or both "
      "(3,20us)");
  perf.add_option_function<std::string>(
      "--seed",
      [&o](const std::string& text) {
        o.seed = number<uint64_t>("--seed", text, 0, ~uint64_t{0}, "--seed 1");
      },
      "of the times of --perturb, which are the same for the same seed (default: another each "
      "time; the result has it)");
  perf.add_option_function<std::string>(
      "--offset", [&o](const std::string& text) { set_offset(o, text); },
      "bytes from a page's beginning (0 to 4095) at which the buffers of both ends lie: N, or "
      "SOURCE,DESTINATION");
  perf.add_option_function<std::string>(
      "--under-load",
      [&o](const std::string& text) {
        auto size = parse_size(text);
        if (!size) refuse("--under-load", text, "is no size of a message", "--under-load 64K");
        o.under_load = FlowLoad{.size_bytes = *size, .depth = 0};
      },
      "_lat tests: each size once more, while the client sends messages of this size on another "
      "connection of the two, as many as get through (16 under way, or -t)");
  perf.add_flag("--cold-cache", o.cold,
                "send_lat, write_lat, exchange_lat: both ends take their buffers out of the "
                "processor's caches before each message");
}

void check_conditions(PerfOptions& o) {
  if (o.under_load && !o.self && o.host.empty())
    refuse("--under-load", std::string(o.test->name),
           "has no use at a server, which follows its client",
           "sluice perf send_lat HOST --under-load 64K");
  const std::string test(o.test->name);
  bool any = o.perturb_bytes > 0 || o.pause_ns > 0 || o.source_offset || o.cold;
  const char* flag = o.cold ? "--cold-cache" : o.source_offset ? "--offset" : "--perturb";
  if (any && !o.self && o.host.empty())
    refuse(flag, test, "has no use at a server, which follows its client",
           "sluice perf send_lat HOST " + std::string(flag));
  if (o.seed && o.pause_ns == 0)
    refuse("--seed", std::to_string(*o.seed), "is of the times of --perturb",
           "--perturb 20us --seed 1");
  if (o.pause_ns > 0 && !o.test->latency)
    refuse(
        "--perturb", test,
        "has no moments between messages, of which a window is always under way; _lat tests have",
        "sluice perf send_lat --self --perturb 20us");
  if (o.under_load) check_flow(o, test);
  if (o.cold) check_cold(o, test);
  if (o.source_offset) check_offset(o, test);
  if (o.perturb_bytes > 0) add_neighbours(o, test);
}

}  // namespace sluice::tools
