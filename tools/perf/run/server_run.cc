// The server's side of a run: does what the client asks for, and reports.
#include <memory>
#include <optional>
#include <utility>

#include "tools/perf/load/flow.h"
#include "tools/perf/run/run.h"
#include "tools/perf/run/system_calls.h"
#include "tools/version.h"

namespace sluice::tools {
namespace {

constexpr const char* kOrigin = "perf/server";
// A client that prepares or checks many GiB says nothing for a while.
constexpr Duration kQuietClientLimit = std::chrono::minutes(5);
// A connection of the same client says so at once.
constexpr Duration kJoinLimit = std::chrono::seconds(5);
// Longest version of a peer that is printed.
constexpr size_t kLongestVersion = 40;

Result<uint64_t> bounded(const Json& message, const char* name, uint64_t most) {
  SLUICE_TRY(uint64_t value, number_field(message, name));
  if (value <= most) return value;
  return Status(Code::kInvalidArgument, Scope::kEndpoint, kOrigin,
                std::string("'") + name + "' of " + std::to_string(value) + " is above " +
                    std::to_string(most));
}

// What a load may ask for, as client_run.cc puts it together.
constexpr uint64_t kKnownFlags = 8191;
// Steps of a run: sums of two of them are no tag of the control channel.
constexpr uint64_t kMostSteps = uint64_t{1} << 48;

Result<Load> decode_load(const Json& message, const TestKind& test) {
  Load load;
  load.test = &test;
  SLUICE_TRY(load.size_bytes, bounded(message, "size", uint64_t{1} << 40));
  SLUICE_TRY(uint64_t depth, bounded(message, "depth", 1u << 16));
  SLUICE_TRY(uint64_t tensors, bounded(message, "tensors", 1u << 17));
  SLUICE_TRY(uint64_t flags, number_field(message, "flags"));
  if (flags > kKnownFlags) {
    return Status(
        Code::kUnsupported, Scope::kEndpoint, kOrigin,
        "the client asks for what this version does not do; run the same version on both sides");
  }
  SLUICE_TRY(load.seed, number_field(message, "seed"));
  if ((load.size_bytes == 0 && !may_be_empty(test)) || depth == 0 || tensors == 0) {
    return Status(Code::kInvalidArgument, Scope::kEndpoint, kOrigin,
                  "a load without bytes or operations");
  }
  load.depth = static_cast<uint32_t>(depth);
  load.tensors = static_cast<uint32_t>(tensors);
  load.into = (flags & 1) != 0;
  load.verify = (flags & 2) != 0;
  load.corrupt = (flags & 4) != 0;
  load.compare = (flags & 8) != 0;
  load.bidirectional = (flags & 16) != 0;
  load.cold = (flags & 32) != 0;
  if ((flags & 256) != 0)
    load.consume_stride = (flags & 2048) != 0 ? Load::kPageBytes : Load::kLineBytes;
  load.default_options = (flags & 4096) != 0;
  load.checksum = (flags & 1024) != 0;
  if ((flags & 512) != 0) {
    SLUICE_TRY(uint64_t list, bounded(message, "post_list", depth));
    load.post_list = static_cast<uint32_t>(std::max<uint64_t>(list, 1));
  }
  if ((flags & 64) != 0) {
    SLUICE_TRY(load.source_offset, bounded(message, "source_offset", kPageBytes - 1));
  }
  if ((flags & 128) != 0) {
    SLUICE_TRY(load.destination_offset, bounded(message, "destination_offset", kPageBytes - 1));
  }
  if (test.verb == Verb::kRpc) {
    SLUICE_TRY(load.reply_bytes, bounded(message, "reply_size", uint64_t{1} << 40));
  }
  if (load.bidirectional && !can_be_bidirectional(test)) {
    return Status(Code::kInvalidArgument, Scope::kEndpoint, kOrigin,
                  "both directions of " + std::string(test.name));
  }
  return load;
}

class Server {
 public:
  Server(Context& context, Endpoint& endpoint, const RunOptions& options)
      : context_(context),
        control_(context, endpoint),
        stripes_(context, endpoint, control_, Role::kServer),
        options_(options) {}

  Status follow() {
    for (Duration limit = options_.first_word_limit;; limit = kQuietClientLimit) {
      Result<Json> heard = control_.receive(limit);
      if (heard.code() == Code::kTimedOut)
        return Status(Code::kTimedOut, Scope::kEndpoint, kOrigin,
                      "the client is connected and says nothing; see that it is `sluice perf`, and "
                      "runs");
      SLUICE_TRY(Json request, std::move(heard));
      SLUICE_TRY(std::string what, text_field(request, "do"));
      if (what == "bye") {
        flow_.reset();
        stripes_.drop();
        return Status();
      }
      Result<Json> answer = handle(what, request);
      if (!answer.ok()) {
        (void)control_.send({{"error", answer.status().to_string()}});
        return answer.status();
      }
      SLUICE_RETURN_IF_ERROR(control_.send(*answer));
      if (what == "hello") SLUICE_RETURN_IF_ERROR(accept_others(request));
      if (what == "round") SLUICE_RETURN_IF_ERROR(play());
    }
  }
  // What posted operations refer to goes after the endpoint's end.
  void drop() {
    flow_.reset();
    stripes_.close_others();
    stripes_.drop();
  }
  bool intact() const { return mismatched_ == 0; }

 private:
  Result<Json> handle(const std::string& what, const Json& request) {
    if (what == "hello") return hello(request);
    if (what == "prepare") return prepare(request);
    if (what == "round") return arm(request);
    if (what == "report") return report();
    if (what == "flow") return flow(request);
    return Status(Code::kInvalidArgument, Scope::kEndpoint, kOrigin,
                  "unknown request '" + what + "'; run the same version on both sides");
  }

  // A client that is older, or says nothing, is followed.
  static Status check_protocol(const Json& request) {
    if (!request.contains("protocol")) return Status();
    SLUICE_TRY(uint64_t protocol, number_field(request, "protocol"));
    if (protocol <= kPerfProtocol) return Status();
    SLUICE_TRY(std::string version, text_field(request, "version"));
    return Status(Code::kUnsupported, Scope::kEndpoint, kOrigin,
                  "the client is sluice " + version.substr(0, kLongestVersion) +
                      " and talks protocol " + std::to_string(protocol) + ", this side is sluice " +
                      kVersion + " and knows " + std::to_string(kPerfProtocol) +
                      "; run the same version on both sides");
  }

  Result<Json> hello(const Json& request) {
    SLUICE_RETURN_IF_ERROR(check_protocol(request));
    SLUICE_TRY(std::string test, text_field(request, "test"));
    SLUICE_TRY(uint64_t qps, bounded(request, "qps", kMostQps));
    SLUICE_RETURN_IF_ERROR(number_field(request, "token"));
    if (qps == 0 || stripes_.size() > 1)
      return Status(Code::kInvalidArgument, Scope::kEndpoint, kOrigin,
                    "a run without connections, or two runs in one");
    Json answer{{"qps", qps}, {"protocol", kPerfProtocol}, {"version", kVersion}};
    if (request.contains("flow")) answer["flow"] = 1u;
    if (options_.runs_after != nullptr) SLUICE_RETURN_IF_ERROR(follow_another(request, test));
    if (test != test_->name)
      return Status(Code::kInvalidArgument, Scope::kEndpoint, kOrigin,
                    "this side runs " + std::string(test_->name) + ", the client " +
                        test.substr(0, 40) + "; start both with the same test");
    if (qps == 1 || can_be_striped(*test_)) return answer;
    return Status(Code::kInvalidArgument, Scope::kEndpoint, kOrigin,
                  test + " over several connections; run the same version on both sides");
  }

  // A server of all tests.
  Status follow_another(const Json& request, const std::string& name) {
    const TestKind* wanted = find_test(name);
    if (wanted == nullptr || is_local(*wanted)) {
      return Status(Code::kUnsupported, Scope::kEndpoint, kOrigin,
                    "this version has no test " + name.substr(0, 40) +
                        " of two ends; run the same version on both sides");
    }
    test_ = wanted;
    *options_.runs_after = 0;
    if (!request.contains("runs_after")) return Status();
    SLUICE_TRY(*options_.runs_after, bounded(request, "runs_after", kTests.size()));
    return Status();
  }

  // Requires: hello() took the request.
  Status accept_others(const Json& request) {
    uint64_t wanted = *number_field(request, "qps"), token = *number_field(request, "token");
    bool with_flow = request.contains("flow");
    while (stripes_.size() < wanted || (with_flow && flow_ == nullptr)) {
      SLUICE_TRY(Endpoint endpoint, options_.next());
      Result<Json> word = ControlChannel(context_, endpoint).receive(kJoinLimit);
      bool ours =
          word.ok() && number_field(*word, "token").ok() && *number_field(*word, "token") == token;
      if (ours && word->contains("flow") && with_flow) {
        flow_ = std::make_unique<Flow>(context_, std::move(endpoint), Flow::End::kReceiver);
      } else if (ours && stripes_.size() < wanted) {
        stripes_.add(std::move(endpoint));
      } else {
        (void)endpoint.close(after(sluice::now(), kJoinLimit));  // another client, too early
      }
    }
    return Status();
  }

  Result<Json> prepare(const Json& request) {
    SLUICE_TRY(Load load, decode_load(request, *test_));
    SLUICE_TRY(uint64_t stripe, bounded(request, "stripe", stripes_.size() - 1));
    Workload& workload = stripes_.make(stripe, load);
    SLUICE_TRY(Json ours, workload.prepare());
    SLUICE_RETURN_IF_ERROR(workload.adopt(request));
    return ours;
  }

  Result<Json> flow(const Json& request) {
    if (flow_ == nullptr)
      return Status(Code::kInvalidArgument, Scope::kEndpoint, kOrigin,
                    "a flow without a connection for it");
    SLUICE_TRY(uint64_t on, bounded(request, "on", 1));
    if (on == 0) {
      SLUICE_RETURN_IF_ERROR(flow_->stop());
      return Json::object();
    }
    FlowLoad load;
    SLUICE_TRY(load.size_bytes, bounded(request, "size", Load::kWindowBytes));
    SLUICE_TRY(uint64_t depth, bounded(request, "depth", FlowLoad::kMostDepth));
    load.depth = static_cast<uint32_t>(depth);
    bool fits =
        load.size_bytes > 0 && load.depth > 0 && load.size_bytes <= Load::kWindowBytes / load.depth;
    if (!fits)
      return Status(Code::kInvalidArgument, Scope::kEndpoint, kOrigin,
                    "a flow of nothing, or of more than a window");
    SLUICE_RETURN_IF_ERROR(flow_->start(load));
    return Json::object();
  }

  Result<Json> arm(const Json& request) {
    if (!stripes_.complete())
      return Status(Code::kInvalidArgument, Scope::kEndpoint, kOrigin, "a round before any load");
    SLUICE_TRY(uint64_t mode, bounded(request, "mode", 2));
    round_.mode = static_cast<Round::Mode>(mode);
    SLUICE_TRY(round_.first_step, bounded(request, "first_step", kMostSteps));
    SLUICE_TRY(round_.iterations, bounded(request, "iterations", kMostSteps));
    // What is posted for a step that is never taken would outlive its workload.
    if (round_.first_step == 0 || round_.iterations == 0)
      return Status(Code::kInvalidArgument, Scope::kEndpoint, kOrigin,
                    "a round without steps; run the same version on both sides");
    SLUICE_RETURN_IF_ERROR(stripes_.arm(round_));
    // A client in the same process counts for both.
    counter_.reset();
    if (request.contains("system_calls") && !options_.one_process)
      counter_.emplace(SystemCallCounter::open());
    // The payload may start to move before the client's answer to our answer is here.
    copied_before_ = stripes_.payload_copies();
    return Json::object();
  }

  Status play() {
    bool counting = counter_ && counter_->ok();
    if (counting) (*counter_)->start();
    Duration cpu = process_cpu_time();
    Usage used = process_usage();
    Instant start = sluice::now();
    SLUICE_RETURN_IF_ERROR(stripes_.run(round_, nullptr));
    ran_ = sluice::now() - start;
    cpu_ = process_cpu_time() - cpu;
    used_ = process_usage() - used;
    if (counting) system_calls_ = (*counter_)->stop();
    return Status();
  }

  Result<Json> report() {
    if (!stripes_.complete())
      return Status(Code::kInvalidArgument, Scope::kEndpoint, kOrigin, "a report before any load");
    Copies copied = stripes_.payload_copies() - copied_before_;
    if (stripes_.first().load().verify) stripes_.inspect(round_);
    Verdict verdict = stripes_.verdict();
    mismatched_ += verdict.mismatched_bytes;
    Json out{{"cpu_ns", options_.one_process ? uint64_t{0} : static_cast<uint64_t>(cpu_.count())},
             {"copied", copied.user},
             {"kernel_copied", copied.kernel},
             {"verified", verdict.verified_bytes},
             {"mismatched", verdict.mismatched_bytes},
             {"run_ns", static_cast<uint64_t>(ran_.count())}};
    if (!options_.one_process) {
      out.update({{"user_ns", used_.user_ns},
                  {"system_ns", used_.system_ns},
                  {"voluntary_switches", used_.voluntary_switches},
                  {"involuntary_switches", used_.involuntary_switches},
                  {"page_faults", used_.page_faults}});
    }
    const Buffers& buffers = stripes_.first().buffers();
    out["evicted"] = buffers.evicted_bytes;
    if (buffers.source_at) out["source_at"] = *buffers.source_at;
    if (buffers.destination_at) out["destination_at"] = *buffers.destination_at;
    if (counter_ && counter_->ok()) out["system_calls"] = system_calls_;
    if (counter_ && !counter_->ok()) out["system_calls_why_not"] = counter_->status().detail();
    counter_.reset();
    return out;
  }

  Context& context_;
  ControlChannel control_;
  Stripes stripes_;
  std::unique_ptr<Flow> flow_;
  RunOptions options_;
  const TestKind* test_ = options_.perf->test;
  Round round_;
  Copies copied_before_;
  Duration cpu_{0}, ran_{0};
  Usage used_;
  std::optional<Result<SystemCallCounter>> counter_;  // in a round in which they are counted
  uint64_t system_calls_ = 0;
  uint64_t mismatched_ = 0;
};

}  // namespace

Result<bool> run_server(Context& context, Endpoint& endpoint, const RunOptions& options) {
  Server server(context, endpoint, options);
  Status status = server.follow();
  // Ends every operation before what it refers to.
  Status closed = endpoint.close(after(sluice::now(), std::chrono::seconds(5)));
  server.drop();
  SLUICE_RETURN_IF_ERROR(status);
  (void)closed;  // the client may have closed first
  return server.intact();
}

}  // namespace sluice::tools
