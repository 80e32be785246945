#include "tools/demo_job/report.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "tools/demo_job/model.h"

namespace sluice::tools::demo {
namespace {

constexpr double kGb = 1e9;

template <typename Field>
Spread spread(const std::vector<Sample>& samples, Field field) {
  std::vector<double> values;
  for (const Sample& sample : samples) values.push_back(sample.*field);
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return {(values[(n - 1) / 2] + values[n / 2]) / 2, values.front(), values.back()};
}

// The fastest median pull of the modes that `counts` on that path.
template <typename Counts>
std::optional<double> best_pull(const std::vector<Series>& all,
                                const std::vector<std::optional<Figures>>& figures, Route route,
                                Counts counts) {
  std::optional<double> best;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!figures[i] || all[i].route != route || !counts(all[i].mode)) continue;
    best = std::min(best.value_or(1e300), figures[i]->pull_seconds.median);
  }
  return best;
}

// The hand-written job's median step on the path of series `i` over its own.
std::optional<double> by_hand(const std::vector<Series>& all,
                              const std::vector<std::optional<Figures>>& figures, size_t i) {
  for (size_t other = 0; other < all.size(); ++other) {
    if (all[other].mode == Mode::kZerocopy && all[other].route == all[i].route && figures[other])
      return figures[other]->step_seconds.median / figures[i]->step_seconds.median;
  }
  return std::nullopt;
}

// The medians of the visits, for comparison of what ran side by side.
std::vector<double> round_medians(const Series& series) {
  std::vector<double> medians;
  auto at = series.samples.begin();
  for (size_t length : series.rounds) {
    const std::vector<Sample> samples(at, at + static_cast<ptrdiff_t>(length));
    if (length > 0) medians.push_back(spread(samples, &Sample::step_seconds).median);
    at += static_cast<ptrdiff_t>(length);
  }
  return medians;
}

std::string ratio_cell(const std::optional<double>& ratio) {
  return ratio ? fmt::format("{:.2f}", *ratio) : "-";
}

template <typename T>
nlohmann::json or_null(const std::optional<T>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json(nullptr);
}

nlohmann::json to_json(const Spread& spread) {
  return {{"median", spread.median}, {"min", spread.min}, {"max", spread.max}};
}

// Which part of the weights each server has.
nlohmann::json bytes_of_servers(const JobOptions& options) {
  nlohmann::json bytes = nlohmann::json::array();
  const Model model = spread_model(model_named(options.model), options.spreading);
  for (const Model& shard : place_tensors(model, options.spreading.servers).shards)
    bytes.push_back(shard.bytes());
  return bytes;
}

nlohmann::json environment() {
  utsname name{};
  (void)::uname(&name);
  return {{"kernel", name.release},
          {"machine", name.machine},
          {"cpus", ::sysconf(_SC_NPROCESSORS_ONLN)}};
}

}  // namespace

std::vector<std::optional<Figures>> figures_of(const std::vector<Series>& all,
                                               const JobOptions& options) {
  const uint64_t model_bytes = model_named(options.model).bytes();
  const uint64_t workers = static_cast<uint64_t>(options.workers);
  std::vector<std::optional<Figures>> figures(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    const std::vector<Sample>& samples = all[i].samples;
    if (!all[i].verified()) continue;
    Figures& f = figures[i].emplace();
    f.step_seconds = spread(samples, &Sample::step_seconds);
    f.pull_seconds = spread(samples, &Sample::pull_seconds);
    f.bytes_per_step = 2 * workers * model_bytes;
    f.bytes_per_second = static_cast<double>(f.bytes_per_step) / f.step_seconds.median;
    f.pull_bytes_per_second = static_cast<double>(workers * model_bytes) / f.pull_seconds.median;
    double cpu = 0;
    uint64_t copied = 0;
    for (const Sample& sample : samples) {
      cpu += sample.cpu_seconds;
      copied += sample.copied_bytes;
      f.arena_bytes = std::max(f.arena_bytes, sample.arena_bytes);
      f.fetches += sample.fetches;
      f.views += sample.views;
    }
    const double moved =
        static_cast<double>(f.bytes_per_step) * static_cast<double>(samples.size());
    f.cpu_seconds_per_gb = cpu / (moved / kGb);
    if (!is_grpc(all[i].mode)) f.copied_bytes_per_byte = static_cast<double>(copied) / moved;
  }
  for (size_t i = 0; i < all.size(); ++i) {
    if (!figures[i]) continue;
    const double own = figures[i]->pull_seconds.median;
    if (auto best = best_pull(all, figures, all[i].route, is_plain_grpc))
      figures[i]->ratio_to_grpc = *best / own;
    auto unary =
        best_pull(all, figures, all[i].route, [](Mode mode) { return mode == Mode::kGrpcUnary; });
    if (unary) figures[i]->ratio_to_grpc_unary = *unary / own;
    if (all[i].mode == Mode::kGraph) figures[i]->ratio_to_by_hand = by_hand(all, figures, i);
  }
  return figures;
}

std::string table(const std::vector<Series>& all,
                  const std::vector<std::optional<Figures>>& figures,
                  const std::vector<Missing>& missing) {
  std::string text =
      fmt::format("{:<5}{:<18}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}  {}\n", "path",
                  "mode", "step ms", "pull ms", "step GB/s", "pull GB/s", "x gRPC", "x unary",
                  "CPU s/GB", "copies/B", "verified");
  for (size_t i = 0; i < all.size(); ++i) {
    text += fmt::format("{:<5}{:<18}", to_string(all[i].route), to_string(all[i].mode));
    if (!figures[i]) {
      text += !all[i].corruption.empty() ? "CORRUPT: " + all[i].corruption + "\n"
                                         : "FAILED: " + all[i].failure + "\n";
      continue;
    }
    const Figures& f = *figures[i];
    text += fmt::format(
        "{:>10.2f}{:>10.3f}{:>10.2f}{:>10.2f}{:>10}{:>10}{:>10.3f}{:>10}  yes\n",
        f.step_seconds.median * 1e3, f.pull_seconds.median * 1e3, f.bytes_per_second / kGb,
        f.pull_bytes_per_second / kGb, ratio_cell(f.ratio_to_grpc),
        ratio_cell(f.ratio_to_grpc_unary), f.cpu_seconds_per_gb,
        f.copied_bytes_per_byte ? fmt::format("{:.2f}", *f.copied_bytes_per_byte) : "unknown");
  }
  for (size_t i = 0; i < all.size(); ++i) {
    if (!figures[i] || all[i].mode != Mode::kGraph) continue;
    const Figures& f = *figures[i];
    text += fmt::format(
        "{}: the plan moves {} tensors a step, {} of them views by their receipts; "
        "arenas {:.1f} MiB",
        to_string(all[i].route), f.fetches / all[i].samples.size(), f.views / all[i].samples.size(),
        static_cast<double>(f.arena_bytes) / (1 << 20));
    if (f.ratio_to_by_hand)
      text += fmt::format("; the hand-written step takes {:.3f} of its time", *f.ratio_to_by_hand);
    text += "\n";
  }
  for (const Missing& path : missing) {
    const std::string mode = path.mode ? std::string(to_string(*path.mode)) + " " : "";
    text += fmt::format("{:<5}{}not available: {}\n", to_string(path.route), mode, path.reason);
  }
  return text;
}

std::string json(const std::vector<Series>& all, const std::vector<std::optional<Figures>>& figures,
                 const JobOptions& options, int rounds, const std::vector<Missing>& missing) {
  nlohmann::json results = nlohmann::json::array();
  for (size_t i = 0; i < all.size(); ++i) {
    nlohmann::json entry = {
        {"mode", to_string(all[i].mode)}, {"path", to_string(all[i].route)},
        {"workers", options.workers},     {"servers", options.spreading.servers},
        {"steps", all[i].samples.size()}, {"verified", all[i].verified()},
        {"restarts", all[i].restarts}};
    if (all[i].chunk_bytes != 0) entry["grpc_chunk_bytes"] = all[i].chunk_bytes;
    if (!all[i].failure.empty()) entry["failure"] = all[i].failure;
    if (!all[i].corruption.empty()) entry["corruption"] = all[i].corruption;
    if (figures[i]) {
      const Figures& f = *figures[i];
      entry["step_seconds"] = to_json(f.step_seconds);
      entry["pull_seconds"] = to_json(f.pull_seconds);
      entry["bytes_per_step"] = f.bytes_per_step;
      entry["bytes_per_second"] = f.bytes_per_second;
      entry["pull_bytes_per_second"] = f.pull_bytes_per_second;
      entry["cpu_seconds_per_gb"] = f.cpu_seconds_per_gb;
      entry["copied_bytes_per_byte"] = or_null(f.copied_bytes_per_byte);
      entry["ratio_to_grpc"] = or_null(f.ratio_to_grpc);
      entry["ratio_to_grpc_unary"] = or_null(f.ratio_to_grpc_unary);
      entry["round_step_seconds"] = round_medians(all[i]);
      if (!is_grpc(all[i].mode)) entry["arena_bytes"] = f.arena_bytes;
      if (all[i].mode == Mode::kGraph) {
        entry["ratio_to_by_hand"] = or_null(f.ratio_to_by_hand);
        entry["fetches"] = f.fetches;
        entry["views"] = f.views;
      }
    } else {
      // Nothing that was not verified is told as a figure.
      for (const char* name : {"step_seconds", "pull_seconds", "bytes_per_step", "bytes_per_second",
                               "pull_bytes_per_second", "cpu_seconds_per_gb",
                               "copied_bytes_per_byte", "ratio_to_grpc", "ratio_to_grpc_unary"}) {
        entry[name] = nullptr;
      }
    }
    results.push_back(std::move(entry));
  }
  nlohmann::json unavailable = nlohmann::json::array();
  for (const Missing& path : missing) {
    unavailable.push_back({{"path", to_string(path.route)}, {"reason", path.reason}});
    if (path.mode) unavailable.back()["mode"] = to_string(*path.mode);
  }
  const nlohmann::json document = {
      {"schema", "sluice.demo/1"}, {"environment", environment()},
      {"model", options.model},    {"compute_us", options.compute_us},
      {"rounds", rounds},          {"bytes_of_servers", bytes_of_servers(options)},
      {"results", results},        {"unavailable", unavailable}};
  return document.dump(2) + "\n";
}

ProgressBar::ProgressBar(int64_t steps) : steps_(steps), visible_(::isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (visible_) std::fputs("\r\033[K", stderr);
}

void ProgressBar::step_done(const std::string& what) {
  ++done_;
  if (!visible_) return;
  constexpr int64_t kWidth = 30;
  const int64_t filled = std::min(kWidth, done_ * kWidth / std::max<int64_t>(steps_, 1));
  const std::string bar = std::string(static_cast<size_t>(filled), '#') +
                          std::string(static_cast<size_t>(kWidth - filled), '.');
  std::fputs(fmt::format("\r\033[K[{}] {}/{} {}", bar, done_, steps_, what).c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace sluice::tools::demo
