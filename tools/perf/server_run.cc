// The server's side of a run: does what the client asks for, and reports.
#include <utility>

#include "tools/perf/run.h"

namespace sluice::tools {
namespace {

constexpr const char* kOrigin = "perf/server";
// A client that prepares or checks many GiB says nothing for a while.
constexpr Duration kQuietClientLimit = std::chrono::minutes(5);

Result<uint64_t> bounded(const Json& message, const char* name, uint64_t most) {
  SLUICE_TRY(uint64_t value, number_field(message, name));
  if (value <= most) return value;
  return Status(Code::kInvalidArgument, Scope::kEndpoint, kOrigin,
                std::string("'") + name + "' of " + std::to_string(value) + " is above " + std::to_string(most));
}

Result<Load> decode_load(const Json& message, const TestKind& test) {
  Load load;
  load.test = &test;
  SLUICE_TRY(load.size_bytes, bounded(message, "size", uint64_t{1} << 40));
  SLUICE_TRY(uint64_t depth, bounded(message, "depth", 1u << 16));
  SLUICE_TRY(uint64_t tensors, bounded(message, "tensors", 1u << 17));
  SLUICE_TRY(uint64_t flags, bounded(message, "flags", 15));
  SLUICE_TRY(load.seed, number_field(message, "seed"));
  if (load.size_bytes == 0 || depth == 0 || tensors == 0) {
    return Status(Code::kInvalidArgument, Scope::kEndpoint, kOrigin, "a load without bytes or operations");
  }
  load.depth = static_cast<uint32_t>(depth);
  load.tensors = static_cast<uint32_t>(tensors);
  load.into = (flags & 1) != 0;
  load.verify = (flags & 2) != 0;
  load.corrupt = (flags & 4) != 0;
  load.compare = (flags & 8) != 0;
  return load;
}

class Server {
 public:
  Server(Context& context, Endpoint& endpoint, const RunOptions& options)
      : context_(context), endpoint_(endpoint), control_(context, endpoint), options_(options) {}

  Status follow() {
    while (true) {
      SLUICE_TRY(Json request, control_.receive(kQuietClientLimit));
      SLUICE_TRY(std::string what, text_field(request, "do"));
      if (what == "bye") {
        workload_.reset();
        return Status();
      }
      Result<Json> answer = handle(what, request);
      if (!answer.ok()) {
        (void)control_.send({{"error", answer.status().to_string()}});
        return answer.status();
      }
      SLUICE_RETURN_IF_ERROR(control_.send(*answer));
      if (what == "round") SLUICE_RETURN_IF_ERROR(play());
    }
  }
  // What posted operations refer to goes after the endpoint's end.
  void drop() { workload_.reset(); }
  bool intact() const { return mismatched_ == 0; }

 private:
  Result<Json> handle(const std::string& what, const Json& request) {
    if (what == "hello") return hello(request);
    if (what == "prepare") return prepare(request);
    if (what == "round") return arm(request);
    if (what == "report") return report();
    return Status(Code::kInvalidArgument, Scope::kEndpoint, kOrigin, "unknown request '" + what + "'; run the same version on both sides");
  }

  Result<Json> hello(const Json& request) {
    SLUICE_TRY(std::string test, text_field(request, "test"));
    if (test == options_.perf->test->name) return Json::object();
    return Status(Code::kInvalidArgument, Scope::kEndpoint, kOrigin,
                  "this side runs " + std::string(options_.perf->test->name) + ", the client " + test.substr(0, 40) +
                      "; start both with the same test");
  }

  Result<Json> prepare(const Json& request) {
    SLUICE_TRY(Load load, decode_load(request, *options_.perf->test));
    workload_.reset();
    workload_ = make_workload({context_, endpoint_, control_, Role::kServer}, load);
    SLUICE_TRY(Json ours, workload_->prepare());
    SLUICE_RETURN_IF_ERROR(workload_->adopt(request));
    return ours;
  }

  Result<Json> arm(const Json& request) {
    if (!workload_) return Status(Code::kInvalidArgument, Scope::kEndpoint, kOrigin, "a round before any load");
    SLUICE_TRY(uint64_t mode, bounded(request, "mode", 2));
    round_.mode = static_cast<Round::Mode>(mode);
    SLUICE_TRY(round_.first_step, number_field(request, "first_step"));
    SLUICE_TRY(round_.iterations, bounded(request, "iterations", uint64_t{1} << 48));
    SLUICE_RETURN_IF_ERROR(workload_->arm(round_));
    // The payload may start to move before the client's answer to our answer is here.
    copied_before_ = payload_copies(endpoint_, control_);
    return Json::object();
  }

  Status play() {
    Duration cpu = process_cpu_time();
    SLUICE_RETURN_IF_ERROR(workload_->run(round_, nullptr));
    cpu_ = process_cpu_time() - cpu;
    return Status();
  }

  Result<Json> report() {
    if (!workload_) return Status(Code::kInvalidArgument, Scope::kEndpoint, kOrigin, "a report before any load");
    Copies copied = payload_copies(endpoint_, control_) - copied_before_;
    if (workload_->load().verify) workload_->inspect(round_);
    const Verdict& verdict = workload_->verdict();
    mismatched_ += verdict.mismatched_bytes;
    return Json{{"cpu_ns", options_.one_process ? uint64_t{0} : static_cast<uint64_t>(cpu_.count())},
                {"copied", copied.user},
                {"kernel_copied", copied.kernel},
                {"verified", verdict.verified_bytes},
                {"mismatched", verdict.mismatched_bytes}};
  }

  Context& context_;
  Endpoint& endpoint_;
  ControlChannel control_;
  RunOptions options_;
  std::unique_ptr<Workload> workload_;
  Round round_;
  Copies copied_before_;
  Duration cpu_{0};
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
