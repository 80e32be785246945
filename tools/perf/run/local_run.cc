#include "tools/perf/run/local_run.h"

#include <algorithm>
#include <string>
#include <utility>

#include <sluice/base/copy.h>

#include "tools/perf/run/conditions.h"
#include "tools/perf/load/pattern.h"
#include "tools/perf/load/registration.h"
#include "tools/perf/report/samples.h"

namespace sluice::tools {
namespace {

// Samples of one size that are kept at most.
constexpr uint64_t kMostSamples = uint64_t{1} << 26;
// Room is made for so many at once, outside of what is timed.
constexpr uint64_t kChunk = 1024;
// Copies of fewer bytes than these are timed several at a time: reading the clock takes as long as
// one of them.
constexpr uint64_t kBytesOfSample = uint64_t{16} << 10;
// Without -n and -D.
constexpr uint64_t kBytesOfRun = uint64_t{2} << 30;
constexpr uint64_t kMostCopies = 10'000, kMostRegistrations = 1000, kLeastIterations = 10;

// What a number of iterations came to.
struct Part {
  Samples samples;
  uint64_t iterations = 0;
  double cpu_ns = 0;
  Usage used;
};

// As many as -n says, or for as long as -D says. `each` takes its own samples: one, of each list.
template <typename Each>
Status repeat(const PerfOptions& perf, uint64_t iterations, std::initializer_list<Samples*> lists,
              Part& part, Each&& each) {
  Duration cpu = process_cpu_time();
  Usage used = process_usage();
  uint64_t begin = ticks(),
           limit = perf.seconds
                       ? static_cast<uint64_t>(*perf.seconds * 1e9 / nanoseconds_per_tick())
                       : 0;
  auto more = [&] {
    return perf.seconds ? ticks() - begin < limit && part.iterations < kMostSamples
                        : part.iterations < iterations;
  };
  for (; more(); ++part.iterations) {
    if (part.iterations % kChunk == 0) {
      for (Samples* list : lists) list->make_room(kChunk);
    }
    SLUICE_RETURN_IF_ERROR(each());
  }
  part.cpu_ns = static_cast<double>((process_cpu_time() - cpu).count());
  part.used = process_usage() - used;
  return Status();
}

double sum_of(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value;
  return sum;
}

class LocalRun {
 public:
  LocalRun(Context& context, const PerfOptions& options, ClientRun& out)
      : context_(context), perf_(options), out_(out) {}

  Status open() {
    if (perf_.test->verb == Verb::kCopy) return Status();
    SLUICE_TRY(way_, open_registration(context_, perf_));
    out_.link.path.path = out_.link.bulk_path = way_.path;
    out_.link.local = way_.with;
    out_.link.reason = perf_.transport == "auto"
                           ? "the best path here on which memory is registered"
                           : "as asked for";
    return Status();
  }

  Status measure(uint64_t size, Measurement& m) {
    m.load = make_load(*perf_.test, size, 1);
    m.load.seed = mixed(static_cast<uint64_t>(sluice::now().time_since_epoch().count()));
    m.load.verify = perf_.verify && perf_.test->verb == Verb::kCopy;
    m.load.source_offset = perf_.source_offset;
    m.load.destination_offset = perf_.destination_offset;
    m.path = perf_.test->verb == Verb::kCopy ? "memory" : std::string(to_string(way_.path));
    return perf_.test->verb == Verb::kCopy ? copies(m) : registrations(m);
  }

 private:
  uint64_t iterations_of(uint64_t bytes, uint64_t most) const {
    return std::min(perf_.iterations.value_or(std::clamp<uint64_t>(
                        kBytesOfRun / std::max<uint64_t>(bytes, 1), kLeastIterations, most)),
                    kMostSamples);
  }
  uint64_t warmup_of(uint64_t iterations) const {
    return perf_.warmup.value_or(std::clamp<uint64_t>(iterations / 10, 1, 1000));
  }

  // `share`: of a sample, one operation.
  void summarize_into(Samples& samples, double share, Distribution& distribution,
                      std::vector<double>& percentiles, double& seconds,
                      std::vector<Bin>* bins) const {
    std::vector<double> ns = samples.nanoseconds(share);
    seconds = sum_of(ns) / share / 1e9;
    distribution = summarize(ns);
    for (const Rank& rank : perf_.percentiles) percentiles.push_back(percentile(ns, rank));
    if (bins != nullptr) *bins = histogram(ns);
  }

  void note_main(Part& part, uint64_t operations, Measurement& m) const {
    m.iterations = part.iterations;
    m.messages = part.iterations * operations;
    m.payload_bytes = m.messages * m.load.size_bytes;
    m.cpu_ns = part.cpu_ns;
    m.used_here = part.used;
    summarize_into(part.samples, 1.0 / static_cast<double>(operations), m.latency_ns,
                   m.percentiles_ns, m.seconds, perf_.wants_bins() ? &m.histogram_ns : nullptr);
  }
  void note_companion(Part& part, uint64_t operations, Measurement& m) const {
    Companion& companion = m.companion.emplace(Companion{.name = companion_of(*perf_.test)});
    companion.iterations = part.iterations;
    companion.payload_bytes = part.iterations * operations * m.load.size_bytes;
    summarize_into(part.samples, 1.0 / static_cast<double>(operations), companion.latency_ns,
                   companion.percentiles_ns, companion.seconds, nullptr);
  }

  // One after the other, not in turns: what one leaves in the caches is part of its figure.
  Status copies(Measurement& m) {
    uint64_t size = m.load.size_bytes;
    SLUICE_TRY(Buffer from, allocate_at(context_.arena(), size, m.load.source_offset));
    SLUICE_TRY(Buffer to, allocate_at(context_.arena(), size, m.load.destination_offset));
    m.copies_per_iteration = std::max<uint64_t>(kBytesOfSample / size, 1);
    if (m.load.source_offset)
      m.buffers_here.source_at = reinterpret_cast<uintptr_t>(from.data()) % kPageBytes;
    if (m.load.destination_offset)
      m.buffers_here.destination_at = reinterpret_cast<uintptr_t>(to.data()) % kPageBytes;
    uint64_t iterations = iterations_of(size * m.copies_per_iteration, kMostCopies);
    Part plain, past_caches;
    for (auto [part, past] : {std::pair(&plain, false), std::pair(&past_caches, true)}) {
      fill_pattern({from.data(), size}, m.load.seed, past ? 2 : 1);
      fill_pattern({to.data(), size}, ~m.load.seed, 0);  // no copy must not pass for one
      auto copy = [&, past = past] {
        for (uint64_t i = 0; i < m.copies_per_iteration; ++i) {
          copy_bytes(to.data(), from.data(), size, past);
          asm volatile("" : : "r"(to.data()) : "memory");  // each of them is seen
        }
      };
      for (uint64_t i = warmup_of(iterations); i > 0; --i) copy();
      SLUICE_RETURN_IF_ERROR(repeat(perf_, iterations, {&part->samples}, *part, [&, part = part] {
        Laps lap(&part->samples);
        lap.start();
        copy();
        lap.lap();
        return Status();
      }));
      if (!m.load.verify) continue;
      if (perf_.corrupt) to.data()[size / 2] ^= std::byte{0x10};
      m.verdict.verified_bytes += size;
      m.verdict.mismatched_bytes += count_mismatches({to.data(), size}, m.load.seed, past ? 2 : 1);
    }
    note_main(plain, m.copies_per_iteration, m);
    note_companion(past_caches, m.copies_per_iteration, m);
    m.copied.user = m.copied_here.user = m.payload_bytes;
    return Status();
  }

  Status registrations(Measurement& m) {
    SLUICE_RETURN_IF_ERROR(way_.registration->prepare(m.load.size_bytes));
    uint64_t iterations = iterations_of(m.load.size_bytes, kMostRegistrations);
    for (uint64_t i = warmup_of(iterations); i > 0; --i) {
      SLUICE_RETURN_IF_ERROR(way_.registration->enter());
      way_.registration->leave();
    }
    Part entered, left;
    Status status = repeat(perf_, iterations, {&entered.samples, &left.samples}, entered, [&] {
      uint64_t begin = ticks();
      SLUICE_RETURN_IF_ERROR(way_.registration->enter());
      uint64_t between = ticks();
      way_.registration->leave();
      entered.samples.add(between - begin);
      left.samples.add(ticks() - between);
      return Status();
    });
    SLUICE_RETURN_IF_ERROR(status);
    left.iterations = entered.iterations;
    note_main(entered, 1, m);
    note_companion(left, 1, m);
    return Status();
  }

  Context& context_;
  const PerfOptions& perf_;
  ClientRun& out_;
  RegistrationWay way_;
};

}  // namespace

Status run_local(Context& context, const RunOptions& options, ClientRun& out,
                 const std::function<void(const EndpointInfo&)>& on_begin,
                 const std::function<void(const Measurement&)>& on_result) {
  LocalRun run(context, *options.perf, out);
  SLUICE_RETURN_IF_ERROR(run.open());
  on_begin(out.link);
  for (uint64_t size : options.perf->sizes) {
    if (options.on_progress) options.on_progress(size, 0);
    Measurement m;
    SLUICE_RETURN_IF_ERROR(run.measure(size, m));
    out.corrupt = m.verdict.mismatched_bytes > 0;
    out.measurements.push_back(std::move(m));
    if (out.corrupt) break;
    on_result(out.measurements.back());
  }
  return Status();
}

}  // namespace sluice::tools
