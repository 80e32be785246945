// The client's side of a run: plans rounds, times them, and adds up both sides' figures.
#include <algorithm>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include <sluice/runtime/identity.h>

#include "tools/perf/load/flow.h"
#include "tools/perf/load/pattern.h"
#include "tools/perf/run/amount.h"
#include "tools/perf/run/run.h"
#include "tools/perf/run/server_word.h"
#include "tools/perf/flags/size_text.h"
#include "tools/perf/run/system_calls.h"
#include "tools/version.h"

namespace sluice::tools {
namespace {

// A round in which system calls are counted: this long, and this many iterations, at most.
constexpr double kCountedSeconds = 0.25;
constexpr uint64_t kMostCounted = 10'000;

struct SideFigures {
  double cpu_ns = 0;
  Usage used_here;
  std::optional<Usage> used_there;
  Copies copied;  // both sides
  Copies copied_here;
  uint64_t flow_messages = 0;
};

class Client {
 public:
  Client(Context& context, Endpoint& endpoint, const RunOptions& options, ClientRun& out)
      : context_(context),
        endpoint_(endpoint),
        control_(context, endpoint),
        stripes_(context, endpoint, control_, Role::kClient),
        options_(options),
        perf_(*options.perf),
        out_(out) {}

  Status lead(const std::function<void(const Measurement&)>& on_result) {
    if (Status able = check_path(); !able.ok()) {
      (void)control_.send({{"do", "bye"}});  // the server has nothing to complain of
      return able;
    }
    SLUICE_RETURN_IF_ERROR(greet());
    for (uint64_t size : perf_.sizes) {
      Measurement m;
      SLUICE_RETURN_IF_ERROR(measure(size, m));
      out_.corrupt = m.verdict.mismatched_bytes > 0;
      out_.measurements.push_back(std::move(m));
      if (out_.corrupt) break;
      on_result(out_.measurements.back());
    }
    SLUICE_RETURN_IF_ERROR(control_.send({{"do", "bye"}}));
    flow_.reset();
    stripes_.drop();
    return Status();
  }
  void drop() {
    flow_.reset();
    stripes_.close_others();
    stripes_.drop();
  }

 private:
  Status check_path() const {
    PathProperties path = endpoint_.info().path;
    if (perf_.test->verb != Verb::kAtomic || path.capabilities.has(Capability::kAtomics))
      return Status();
    return Status(Code::kUnsupported, Scope::kEndpoint, "perf/client",
                  std::string(perf_.test->name) + ": path " + std::string(to_string(path.path)) +
                      " has no atomics; use --transport rdma and a device that has them (sluice "
                      "info --explain)");
  }

  // Says what is run, and makes the other connections: each says that it belongs here.
  Status greet() {
    uint64_t token = 0;
    fill_random(std::as_writable_bytes(std::span(&token, 1)));
    Json hello{{"do", "hello"},  {"test", perf_.test->name},  {"qps", perf_.qps},
               {"token", token}, {"protocol", kPerfProtocol}, {"version", kVersion}};
    if (perf_.under_load) hello["flow"] = 1u;
    if (perf_.all) hello["runs_after"] = perf_.runs_after;
    SLUICE_TRY(Json answer, ask(control_, hello));
    if (answer.contains("version")) {
      SLUICE_TRY(out_.server_version, text_field(answer, "version"));
    }
    SLUICE_TRY(uint64_t agreed, number_field(answer, "qps"));
    if (agreed != perf_.qps)
      return Status(Code::kUnsupported, Scope::kEndpoint, "perf/client",
                    "the server does not take --qps; run the same version on both sides");
    if (perf_.under_load && !answer.contains("flow")) {
      return Status(Code::kUnsupported, Scope::kEndpoint, "perf/client",
                    "the server does not take --under-load; run the same version on both sides");
    }
    while (stripes_.size() < perf_.qps) {
      SLUICE_TRY(Endpoint endpoint, join({{"do", "join"}, {"token", token}}));
      stripes_.add(std::move(endpoint));
    }
    if (!perf_.under_load) return Status();
    SLUICE_TRY(Endpoint endpoint, join({{"do", "join"}, {"token", token}, {"flow", 1u}}));
    flow_ = std::make_unique<Flow>(context_, std::move(endpoint), Flow::End::kSender);
    return Status();
  }

  Result<Endpoint> join(const Json& word) {
    SLUICE_TRY(Endpoint endpoint, options_.next());
    {
      ControlChannel control(context_, endpoint);
      SLUICE_RETURN_IF_ERROR(control.send(word));
    }
    return endpoint;
  }

  Status measure(uint64_t size, Measurement& m) {
    m.load = make_load(*perf_.test, size, perf_.tx_depth, perf_.qps, perf_.reply_bytes);
    m.load.into = perf_.into;
    m.load.subscribe = perf_.subscribe;
    if (!perf_.consume.empty())
      m.load.consume_stride = perf_.consume == "page" ? Load::kPageBytes : Load::kLineBytes;
    m.load.default_options = perf_.default_options;
    if (perf_.tensors) m.load.tensors = *perf_.tensors;
    m.load.verify = perf_.verify;
    m.load.checksum = perf_.checksum;
    m.load.corrupt = perf_.corrupt;
    m.load.compare = perf_.compare;
    m.load.bidirectional = perf_.bidirectional;
    m.load.post_list = std::min(perf_.post_list, m.load.depth);
    m.load.seed = mixed(static_cast<uint64_t>(sluice::now().time_since_epoch().count()));
    m.load.cold = perf_.cold;
    m.load.source_offset = perf_.source_offset;
    m.load.destination_offset = perf_.destination_offset;
    m.load.pause_ns = perf_.pause_ns;
    m.load.pause_seed =
        perf_.seed.value_or(m.load.seed >> 32);  // of a length that a person can repeat
    EndpointInfo link = endpoint_.info();
    m.path = to_string(link.path.path);
    if (link.bulk_path != link.path.path) m.path += "+" + std::string(to_string(link.bulk_path));
    if (perf_.tx_depth > m.load.depth && !perf_.test->latency) {
      out_.warnings.push_back("-t cut to " + std::to_string(m.load.depth) + " at " +
                              readable_size(size) + ": a window is at most " +
                              readable_size(Load::kWindowBytes));
    }
    if (perf_.checksum && !carries_checksum(m.load)) note_without_checksum(size);
    bool small_answers = perf_.test->verb == Verb::kRpc && m.load.reply_bytes != size &&
                         !carries_checksum(answers_of(m.load));
    if (perf_.checksum && small_answers) note_without_checksum(m.load.reply_bytes);
    step_ = 1;
    tell(m, 0);
    SLUICE_RETURN_IF_ERROR(prepare(m.load));
    SLUICE_RETURN_IF_ERROR(first_handovers(m));
    Round::Mode before = perf_.verify ? Round::Mode::kCheck : Round::Mode::kTouch;
    SLUICE_RETURN_IF_ERROR(play(before, check_iterations(m.load), nullptr, m));
    if (m.verdict.mismatched_bytes > 0) return Status();
    SLUICE_RETURN_IF_ERROR(timed(m));
    if (flow_ == nullptr || m.verdict.mismatched_bytes > 0) return Status();
    return under_load(m);
  }

  void tell(const Measurement& m, double part) const {
    if (options_.on_progress) options_.on_progress(m.load.size_bytes, part);
  }

  void note_without_checksum(uint64_t size) {
    out_.warnings.push_back("--verify=crc32c: " + readable_size(size) +
                            " have no room for a checksum; all bytes are compared");
  }

  // What was just timed once more, beside the flow.
  Status under_load(Measurement& m) {
    Loaded& loaded = m.loaded.emplace(Loaded{.flow = *perf_.under_load});
    const FlowLoad& flow = loaded.flow;
    SLUICE_RETURN_IF_ERROR(ask(
        control_, {{"do", "flow"}, {"on", 1u}, {"size", flow.size_bytes}, {"depth", flow.depth}}));
    SLUICE_RETURN_IF_ERROR(flow_->start(flow));
    // It has found its pace when its first window is over.
    SLUICE_RETURN_IF_ERROR(context_.wait_until(
        [&] { return flow_->messages() >= flow.depth || !flow_->failure().ok(); },
        after(sluice::now(), kStallLimit)));
    double per_iteration = m.seconds / static_cast<double>(m.iterations);
    uint64_t wanted = perf_.iterations.value_or(default_iterations(m.load));
    Samples samples;
    do {
      uint64_t count =
          perf_.seconds ? round_length(*perf_.seconds - loaded.seconds, per_iteration) : wanted;
      SLUICE_RETURN_IF_ERROR(play(Round::Mode::kPlain, count, &samples, m));
      SLUICE_RETURN_IF_ERROR(flow_->failure());
      loaded.iterations += count;
      loaded.seconds += last_seconds_;
      loaded.flow_messages += last_.flow_messages;
      per_iteration = last_seconds_ / static_cast<double>(count);
    } while (perf_.seconds && loaded.seconds < *perf_.seconds && samples.size() < kMostSamples &&
             m.verdict.mismatched_bytes == 0);
    SLUICE_RETURN_IF_ERROR(flow_->stop());
    SLUICE_RETURN_IF_ERROR(ask(control_, {{"do", "flow"}, {"on", 0u}}));
    std::vector<double> ns = in_nanoseconds(samples);
    loaded.latency_ns = summarize(ns);
    for (const Rank& rank : perf_.percentiles)
      loaded.percentiles_ns.push_back(percentile(ns, rank));
    return Status();
  }

  Status prepare(const Load& load) {
    for (size_t i = 0; i < stripes_.size(); ++i) {
      Load part = load;
      part.seed =
          i == 0
              ? load.seed
              : mixed(load.seed + i);  // what strays to another connection is not what it expects
      Workload& workload = stripes_.make(i, part);
      SLUICE_TRY(Json request, workload.prepare());
      request["do"] = "prepare";
      request["stripe"] = i;
      request["size"] = part.size_bytes;
      request["depth"] = part.depth;
      request["tensors"] = part.tensors;
      // What the server would have no part in is not asked of it: one of an older version follows,
      // too.
      bool server_fetches = part.test->verb == Verb::kExchange && part.test->latency,
           server_posts = part.bidirectional;
      request["flags"] =
          (part.into ? 1u : 0u) | (part.verify ? 2u : 0u) | (part.corrupt ? 4u : 0u) |
          (part.compare ? 8u : 0u) | (part.bidirectional ? 16u : 0u) | (part.cold ? 32u : 0u) |
          (part.source_offset ? 64u : 0u) | (part.destination_offset ? 128u : 0u) |
          (server_fetches && part.consume_stride != 0 ? 256u : 0u) |
          (server_posts && part.post_list > 1 ? 512u : 0u) | (part.checksum ? 1024u : 0u) |
          (server_fetches && part.consume_stride == Load::kPageBytes ? 2048u : 0u) |
          (part.default_options ? 4096u : 0u);
      if (server_posts && part.post_list > 1) request["post_list"] = part.post_list;
      if (part.test->verb == Verb::kRpc) request["reply_size"] = part.reply_bytes;
      if (part.source_offset) request["source_offset"] = *part.source_offset;
      if (part.destination_offset) request["destination_offset"] = *part.destination_offset;
      request["seed"] = part.seed;
      SLUICE_TRY(Json answer, ask(control_, request));
      SLUICE_RETURN_IF_ERROR(workload.adopt(answer));
    }
    return Status();
  }

  // exchange_lat: what the first tensor of an extent costs, mapping and page faults included.
  Status first_handovers(Measurement& m) {
    if (perf_.test->verb != Verb::kExchange || !perf_.test->latency) return Status();
    Samples samples;
    SLUICE_RETURN_IF_ERROR(play(Round::Mode::kPlain, m.load.tensors, &samples, m));
    std::vector<double> one_way = samples.nanoseconds(0.5);
    for (uint32_t at : stripes_.first().first_of_extent())
      m.first_handover_ns.push_back(one_way[at]);
    return Status();
  }

  Status timed(Measurement& m) {
    uint64_t wanted = perf_.iterations.value_or(default_iterations(m.load));
    uint64_t warmup = perf_.warmup.value_or(std::clamp<uint64_t>(wanted / 10, 1, 1000));
    double per_iteration = 0;
    if (warmup > 0) {
      SLUICE_RETURN_IF_ERROR(play(Round::Mode::kPlain, warmup, nullptr, m));
      per_iteration = last_seconds_ / static_cast<double>(warmup);
    }
    Samples samples;
    m.iterations = 0;
    m.seconds = m.cpu_ns = 0;
    m.used_here = {};
    m.used_there = Usage();
    m.copied = m.copied_here = {};
    std::vector<uint64_t> before = stripes_.bytes_carried();
    uint64_t paused_before = stripes_.first().paused_ns();
    do {
      SLUICE_RETURN_IF_ERROR(run_once(wanted, per_iteration, samples, m));
    } while (perf_.confidence && !known_well_enough(samples, m) && samples.size() < kMostSamples &&
             m.verdict.mismatched_bytes == 0);
    return finish(samples, before, paused_before, per_iteration, m);
  }

  // A number of iterations, or a time.
  Status run_once(uint64_t wanted, double& per_iteration, Samples& samples, Measurement& m) {
    run_ = {.iterations = m.iterations, .seconds = m.seconds, .samples = samples.size()};
    do {
      uint64_t count = perf_.seconds ? round_length(seconds_to_next(m), per_iteration) : wanted;
      SLUICE_RETURN_IF_ERROR(play(Round::Mode::kPlain, count, &samples, m));
      m.iterations += count;
      m.seconds += last_seconds_;
      m.cpu_ns += last_.cpu_ns;
      m.used_here += last_.used_here;
      if (!last_.used_there) m.used_there.reset();
      if (m.used_there) *m.used_there += *last_.used_there;
      note_interval(count, m);
      tell(m, perf_.seconds ? (m.seconds - run_.seconds) / *perf_.seconds : 1);
      m.copied += last_.copied;
      m.copied_here += last_.copied_here;
      per_iteration = last_seconds_ / static_cast<double>(count);
      if (samples.size() >= kMostSamples) {
        out_.warnings.push_back("stopped after " + std::to_string(samples.size()) +
                                " iterations: no more samples are kept");
        break;
      }
    } while (perf_.seconds && m.seconds - run_.seconds < *perf_.seconds &&
             m.verdict.mismatched_bytes == 0);
    return Status();
  }

  // After a run.
  bool known_well_enough(const Samples& samples, Measurement& m) {
    const Confidence& wanted = *perf_.confidence;
    if (!m.repeated) m.repeated.emplace();
    RepeatedFigure& figure = *m.repeated;
    if (perf_.test->latency) {
      std::vector<double> own = in_nanoseconds(samples);
      own.erase(own.begin(), own.begin() + static_cast<std::ptrdiff_t>(run_.samples));
      figure.values.push_back(summarize(own).p50);
    } else {
      double seconds = m.seconds - run_.seconds;
      figure.values.push_back(static_cast<double>(payload(m.iterations - run_.iterations, m.load)) /
                              std::max(seconds, 1e-9));
    }
    if (figure.values.size() < 2) return false;
    figure.interval = interval_of_mean(figure.values, wanted.level_percent / 100);
    if (figure.values.size() < Confidence::kFewestRuns) return false;
    figure.reached = figure.interval.half_width_percent() <= wanted.percent;
    return figure.reached || figure.values.size() >= wanted.most_runs;
  }

  // What follows from all runs of a size together.
  Status finish(Samples& samples, const std::vector<uint64_t>& before, uint64_t paused_before,
                double per_iteration, Measurement& m) {
    if (m.repeated && !m.repeated->reached) {
      out_.warnings.push_back("--confidence: " + readable_size(m.load.size_bytes) + ": known to " +
                              fmt::format("{:.1f}", m.repeated->interval.half_width_percent()) +
                              " % after " + std::to_string(m.repeated->values.size()) + " runs");
    }
    m.bytes_by_qp = stripes_.bytes_carried();
    m.paused_seconds = static_cast<double>(stripes_.first().paused_ns() - paused_before) / 1e9;
    m.buffers_here = stripes_.first().buffers();
    if (perf_.system_calls && m.verdict.mismatched_bytes == 0)
      SLUICE_RETURN_IF_ERROR(count_system_calls(per_iteration, m));
    for (size_t i = 0; i < before.size(); ++i) m.bytes_by_qp[i] -= before[i];
    m.messages = messages(m.iterations, m.load);
    m.payload_bytes = payload(m.iterations, m.load);
    std::vector<double> ns = in_nanoseconds(samples);
    m.latency_ns = summarize(ns);
    for (const Rank& rank : perf_.percentiles) m.percentiles_ns.push_back(percentile(ns, rank));
    if (perf_.wants_bins()) m.histogram_ns = histogram(ns);
    if (perf_.histogram && perf_.format == Format::kPerftest) m.sorted_ns = std::move(ns);
    return Status();
  }

  // Not while anything is timed: counting slows every system call of the machine.
  Status count_system_calls(double seconds_per_iteration, Measurement& m) {
    auto fitting =
        static_cast<uint64_t>(std::min(kCountedSeconds / std::max(seconds_per_iteration, 1e-9),
                                       static_cast<double>(kMostCounted)));
    uint64_t iterations = std::clamp<uint64_t>(fitting, 1, m.iterations);
    Result<SystemCallCounter> counter = SystemCallCounter::open();
    counted_ = SystemCalls{.messages = messages(iterations, m.load)};
    if (!counter.ok()) counted_->why_not_here = counter.status().detail();
    counter_ = counter.ok() ? &*counter : nullptr;
    Status played = play(Round::Mode::kPlain, iterations, nullptr, m);
    counter_ = nullptr;
    m.system_calls = std::exchange(counted_, std::nullopt);
    SLUICE_RETURN_IF_ERROR(played);
    std::string why = !m.system_calls->here    ? m.system_calls->why_not_here
                      : !m.system_calls->there ? m.system_calls->why_not_there
                                               : "";
    if (why.empty() || options_.one_process) return Status();
    std::string end = m.system_calls->here ? "the server's " : "";
    if (perf_.strict)
      return Status(Code::kUnsupported, Scope::kEndpoint, "perf/client",
                    "--system-calls: " + end + why);
    if (out_.measurements.empty()) out_.warnings.push_back("--system-calls: " + end + why);  // once
    return Status();
  }

  // A message there and one back is an iteration of most latency tests, and half of the time is one
  // way.
  std::vector<double> in_nanoseconds(const Samples& samples) const {
    return samples.nanoseconds(is_ping_pong(*perf_.test) ? 0.5 : 1.0);
  }
  uint64_t messages(uint64_t iterations, const Load& load) const {
    return iterations * (is_ping_pong(*perf_.test) || load.bidirectional ? 2 : 1);
  }
  uint64_t payload(uint64_t iterations, const Load& load) const {
    return messages(iterations, load) * bytes_of_operation(load);
  }

  // To the end of the run, or of the interval before it. Four rounds to an interval, at
  // least: the time that a round will take is a guess.
  double seconds_to_next(const Measurement& m) const {
    if (!perf_.interval) return *perf_.seconds - (m.seconds - run_.seconds);
    double end = std::min(*perf_.seconds, part_.from_seconds + *perf_.interval);
    return std::min(end - m.seconds, *perf_.interval / 4);
  }
  // After a round of the timed part, whose seconds are in `m`.
  void note_interval(uint64_t iterations, Measurement& m) {
    if (!perf_.interval) return;
    if (m.intervals.empty() && m.iterations == iterations) part_ = {};
    part_.iterations += iterations;
    part_.to_seconds = m.seconds;
    if (part_.seconds() < *perf_.interval && m.seconds < *perf_.seconds) return;
    part_.messages = messages(part_.iterations, m.load);
    part_.payload_bytes = payload(part_.iterations, m.load);
    m.intervals.push_back(part_);
    if (options_.on_interval) options_.on_interval(m.load, part_);
    part_ = {.from_seconds = m.seconds, .to_seconds = m.seconds};
  }

  Status play(Round::Mode mode, uint64_t iterations, Samples* samples, Measurement& m) {
    Round round{.mode = mode, .first_step = step_, .iterations = iterations};
    step_ += iterations;
    SLUICE_RETURN_IF_ERROR(stripes_.arm(round));
    if (samples != nullptr) samples->make_room(iterations);
    Json request{{"do", "round"},
                 {"mode", static_cast<unsigned>(mode)},
                 {"first_step", round.first_step},
                 {"iterations", iterations}};
    Copies copied_before = stripes_.payload_copies();
    if (counted_) request["system_calls"] = 1u;
    SLUICE_RETURN_IF_ERROR(ask(control_, request));
    if (counter_ != nullptr) counter_->start();
    Duration cpu = process_cpu_time();
    Usage used = process_usage();
    uint64_t flowed = flow_ != nullptr ? flow_->messages() : 0;
    Instant start = sluice::now();
    SLUICE_RETURN_IF_ERROR(stripes_.run(round, samples));
    last_seconds_ = std::chrono::duration<double>(sluice::now() - start).count();
    last_.cpu_ns = static_cast<double>((process_cpu_time() - cpu).count());
    last_.used_here = process_usage() - used;
    if (counter_ != nullptr) counted_->here = counter_->stop();
    last_.flow_messages = flow_ != nullptr ? flow_->messages() - flowed : 0;
    last_.copied = last_.copied_here = stripes_.payload_copies() - copied_before;
    return add_report(round, m);
  }

  Status add_report(const Round& round, Measurement& m) {
    SLUICE_TRY(Json report, ask(control_, {{"do", "report"}}));
    if (perf_.verify) stripes_.inspect(round);
    SLUICE_TRY(uint64_t cpu_ns, number_field(report, "cpu_ns"));
    Copies copied;
    SLUICE_TRY(copied.user, number_field(report, "copied"));
    SLUICE_TRY(copied.kernel, number_field(report, "kernel_copied"));
    if (perf_.bidirectional) {
      // Both have begun together, and the later one ends it.
      SLUICE_TRY(uint64_t run_ns, number_field(report, "run_ns"));
      last_seconds_ = std::max(last_seconds_, static_cast<double>(run_ns) / 1e9);
    }
    SLUICE_TRY(last_.used_there, decode_usage(report));
    if (counted_) SLUICE_RETURN_IF_ERROR(decode_system_calls(report, *counted_));
    SLUICE_TRY(m.buffers_there, decode_buffers(report));
    SLUICE_TRY(uint64_t verified, number_field(report, "verified"));
    SLUICE_TRY(uint64_t mismatched, number_field(report, "mismatched"));
    last_.cpu_ns += static_cast<double>(cpu_ns);
    last_.copied += copied;
    Verdict ours = stripes_.verdict();
    m.verdict.verified_bytes = perf_.verify ? ours.verified_bytes + verified : 0;
    m.verdict.mismatched_bytes = ours.mismatched_bytes + mismatched;
    return Status();
  }

  Context& context_;
  Endpoint& endpoint_;
  ControlChannel control_;
  Stripes stripes_;
  std::unique_ptr<Flow> flow_;  // beside the measured connections, where asked for
  const RunOptions& options_;
  const PerfOptions& perf_;
  ClientRun& out_;
  uint64_t step_ = 1;
  double last_seconds_ = 0;
  SideFigures last_;
  Interval part_;  // the one that has begun
  struct RunStart {
    uint64_t iterations = 0;
    double seconds = 0;
    uint64_t samples = 0;
  };
  RunStart run_;                        // the sums at its beginning
  std::optional<SystemCalls> counted_;  // in the round in which they are
  SystemCallCounter* counter_ = nullptr;
};

}  // namespace

Status run_client(Context& context, Endpoint& endpoint, const RunOptions& options, ClientRun& out,
                  const std::function<void(const Measurement&)>& on_result) {
  out.link = endpoint.info();
  Client client(context, endpoint, options, out);
  Status status = client.lead(on_result);
  // Ends every operation before what it refers to.
  Status closed = endpoint.close(after(sluice::now(), std::chrono::seconds(5)));
  client.drop();
  (void)closed;  // the server may have closed first
  return status;
}

}  // namespace sluice::tools
