#include "tools/profile/show.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <string_view>

#include <sluice/api/path_names.h>
#include <sluice/api/context.h>

namespace sluice::tools::profile {
namespace {

using recording::Event;
using recording::EventKind;

// Powers of four, which is as much as a page has room for.
class Histogram {
 public:
  void add(uint64_t value) {
    const auto bucket = static_cast<size_t>((std::bit_width(value) + 1) / 2);
    ++counts_[bucket];
    sums_[bucket] += value;
    ++all_;
    sum_ += value;
  }
  // `text` of a bucket's upper end, which is in it no more.
  template <typename Text>
  std::string lines(Text&& text) const {
    std::string out;
    for (size_t bucket = 0; bucket < counts_.size(); ++bucket) {
      if (counts_[bucket] == 0) continue;
      const double share = static_cast<double>(counts_[bucket]) / static_cast<double>(all_);
      const double of_sum =
          sum_ == 0 ? 0 : static_cast<double>(sums_[bucket]) / static_cast<double>(sum_);
      out += fmt::format(
          "    {:>12} {:>9} {:>5.1f} % {:>5.1f} %  {}\n",
          bucket == 0 ? "0" : "< " + text(uint64_t{1} << 2 * std::min<size_t>(bucket, 31)),
          counts_[bucket], share * 100, of_sum * 100,
          std::string(static_cast<size_t>(share * 40 + 0.5), '#'));
    }
    return out;
  }

 private:
  std::array<uint64_t, 33> counts_{}, sums_{};
  uint64_t all_ = 0, sum_ = 0;
};

std::string bytes_text(uint64_t bytes) {
  constexpr std::string_view kUnits[] = {"B", "KiB", "MiB", "GiB"};
  size_t unit = 0;
  while (bytes >= 1024 && bytes % 1024 == 0 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{} {}", bytes, kUnits[unit]);
}

std::string time_text(double ns) {
  if (ns < 1e3) return fmt::format("{:.0f} ns", ns);
  if (ns < 1e6) return fmt::format("{:.3g} us", ns / 1e3);
  if (ns < 1e9) return fmt::format("{:.3g} ms", ns / 1e6);
  return fmt::format("{:.3g} s", ns / 1e9);
}

std::string show_context(uint64_t started_ns, const recording::ContextRecording& context) {
  uint64_t computed = 0, paused = 0, polled = 0, slept = 0, moved = 0, sent = 0, received = 0;
  uint64_t sent_bytes = 0, received_bytes = 0;
  Histogram sizes, gaps, waits;
  for (const Event& event : context.events) {
    const bool out = event.kind == EventKind::kSent;
    (out ? sent : received) += 1;
    (out ? sent_bytes : received_bytes) += event.bytes;
    sizes.add(event.bytes);
    gaps.add(event.computed_ns + event.paused_ns);
    waits.add(event.polled_ns + event.slept_ns);
    computed += event.computed_ns;
    paused += event.paused_ns;
    polled += event.polled_ns;
    slept += event.slept_ns;
    moved += event.moved_ns;
  }
  const uint64_t end = context.ended            ? context.end.ended_ns
                       : context.events.empty() ? started_ns
                                                : context.events.back().at_ns;
  const double span = std::max<double>(1, static_cast<double>(end - std::min(started_ns, end)));
  auto share = [&](uint64_t part) { return 100 * static_cast<double>(part) / span; };
  std::string out = fmt::format(
      "  {} sent ({} bytes), {} received ({} bytes), {} connections, in {}\n"
      "  computed {:.1f} %, paused {:.1f} %, waited polling {:.1f} %, waited asleep {:.1f} %, "
      "moved "
      "bytes {:.1f} %\n",
      sent, sent_bytes, received, received_bytes, context.connections.size(), time_text(span),
      share(computed), share(paused), share(polled), share(slept), share(moved));
  if (context.events.empty()) return out;
  auto duration = [](uint64_t ns) { return time_text(static_cast<double>(ns)); };
  out += "  message size      messages   share  of bytes\n" + sizes.lines(bytes_text);
  out += "  computed before   messages   share  of time\n" + gaps.lines(duration);
  out += "  waited before     messages   share  of time\n" + waits.lines(duration);
  return out;
}

}  // namespace

std::string show(const std::vector<recording::Recording>& recordings) {
  constexpr std::string_view kWaiting[] = {"adaptive", "spin", "sleep"};
  std::string out;
  for (const recording::Recording& each : recordings) {
    const recording::FileHeader& header = each.header;
    size_t cpus = 0;
    for (uint64_t word : header.usable_cpus) cpus += static_cast<size_t>(std::popcount(word));
    out +=
        fmt::format("{}\n  {}, process {}, on {} of {} processors, waiting {}\n", each.file,
                    header.program, header.pid, cpus, header.processors, kWaiting[header.waiting]);
    for (const std::string& missing : each.missing) out += "  note: " + missing + "\n";
    for (const auto& [number, context] : each.contexts) {
      if (each.contexts.size() > 1) out += fmt::format("  context {}:\n", number);
      out += show_context(header.started_ns, context);
    }
  }
  return out;
}

}  // namespace sluice::tools::profile
