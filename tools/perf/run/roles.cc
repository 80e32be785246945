#include "tools/perf/run/roles.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <span>
#include <thread>

#include <sluice/runtime/identity.h>
#include <sluice/select/open.h>
#include <sluice/select/paths.h>
#include <sluice/verbs/devices.h>

#include "tools/info/machine.h"
#include "tools/perf/load/batch.h"
#include "tools/perf/run/local_run.h"
#include "tools/perf/report/output.h"
#include "tools/perf/report/perftest_json.h"
#include "tools/perf/report/plot_file.h"
#include "tools/perf/run/processes.h"
#include "tools/perf/run/progress.h"
#include "tools/perf/report/report.h"
#include "tools/perf/flags/size_text.h"
#include "tools/perf/run/thresholds.h"

namespace sluice::tools {
namespace {

// A client of all tests comes for the next one within this.
constexpr Duration kNextTestLimit = std::chrono::seconds(60);
// The other end of --self is ready, or gone, within this.
constexpr Duration kStartLimit = std::chrono::seconds(20);

int fail(const Status& status) {
  fmt::print(stderr, "sluice perf: {}\n", status.to_string());
  return kExitFailed;
}

Result<std::unique_ptr<Context>> open(const PerfOptions& options) {
  ContextOptions context;
  context.waiting = options.waiting;
  return open_context(context);
}

void pin(const PerfOptions& options, int index) {
  if (!options.pin || usable_cpus() < 2) return;
  if (!stay_on_cpu(index))
    fmt::print(stderr, "sluice perf: cannot stay on one CPU; figures will vary more\n");
}

std::string host_address(const std::string& transport, const std::string& host, uint16_t port) {
  bool ethernet = takes_interface(transport);
  bool brackets = !ethernet && host.find(':') != std::string::npos;
  if (transport == "udp")
    return fmt::format("l2://udp/{}:{}", brackets ? "[" + host + "]" : host, port);
  if (transport == "xdp") return fmt::format("l2://xdp/{}:{}", host, port);
  std::string scheme = transport == "tcp" || transport == "rdma" || ethernet ? transport : "sluice";
  return fmt::format("{}://{}:{}", scheme, brackets ? "[" + host + "]" : host, port);
}

// Where a server listens by itself.
std::string listen_address(const PerfOptions& options) {
  if (options.transport == "shm") return fmt::format("shm:sluice-perf-{}", options.port);
  return host_address(options.transport, options.bind, options.port);
}

// Where a client connects to: HOST is a host, or a whole address.
std::string connect_address(const PerfOptions& options) {
  const std::string& host = options.host;
  if (is_whole_address(host)) return host;
  PerfOptions there = options;
  there.bind = host;
  return listen_address(there);
}

// Where the ends of --self meet: a name or port nobody else has.
std::string private_address(const PerfOptions& options) {
  if (options.transport == "shm") {
    // Not the pid: in two pid namespaces it may be the same.
    uint64_t random = 0;
    fill_random(std::as_writable_bytes(std::span(&random, 1)));
    return fmt::format("shm:sluice-perf-self-{:016x}", random);
  }
  if (options.transport == "loopback") return "loopback:perf";
  if (takes_interface(options.transport)) return host_address(options.transport, options.bind, 0);
  if (options.transport != "rdma") return host_address(options.transport, "127.0.0.1", 0);
  // Loopback has no RDMA device behind it; an address of a device's own loops back in it.
  return host_address(
      "rdma", options.bind != kAnyAddress ? options.bind : verbs::survey_devices().first_address(),
      0);
}

struct ServerDuty {
  std::string address;
  Instant accept_deadline = kNever;
  int cpu = -1;  // to stay on
  bool one_process = false;
  bool forever = false;
  bool all = false;  // tests, as they are named by a client, which comes once for each
  std::function<void(const std::string& address)> on_listening;
  std::function<void(const EndpointInfo& peer, Duration took)> on_served = {};  // after each client
};

// One client after the other, or one only, or one for all of its tests. The exit code.
int serve(const PerfOptions& options, const ServerDuty& duty) {
  Result<std::unique_ptr<Context>> context = open(options);
  if (!context.ok()) return fail(context.status());
  Result<Listener> listener = (*context)->listen(duty.address);
  if (!listener.ok()) return fail(listener.status());
  if (duty.cpu >= 0) pin(options, duty.cpu);
  duty.on_listening(listener->address());
  RunOptions run{.perf = &options, .one_process = duty.one_process};
  run.next = [&listener] { return listener->accept(after(sluice::now(), kStartLimit)); };
  std::optional<uint64_t> runs_after;
  if (duty.all) run.runs_after = &runs_after;
  std::vector<int> codes;
  while (true) {
    bool between = !codes.empty() && !duty.forever;
    Result<Endpoint> endpoint =
        listener->accept(between ? after(sluice::now(), kNextTestLimit) : duty.accept_deadline);
    if (!endpoint.ok()) return fail(endpoint.status());
    runs_after.reset();
    const EndpointInfo peer = endpoint->info();
    const Instant begun = sluice::now();
    Result<bool> intact = run_server(**context, *endpoint, run);
    int code = intact.ok() ? (*intact ? kExitOk : kExitCorrupt) : fail(intact.status());
    if (duty.on_served && code == kExitOk) duty.on_served(peer, sluice::now() - begun);
    if (duty.forever) continue;
    codes.push_back(code);
    // Who left before he named a test found that the path has it not.
    bool others = duty.all && (!runs_after ? intact.ok() : *runs_after > 0);
    if (!others) return batch_exit_code(codes);
  }
}

// `cpu`: to be pinned to; below 0: none.
Surroundings look_around(const PerfOptions& options, int cpu) {
  return {.machine = read_machine(),
          .pinned = cpu >= 0 && options.pin && usable_cpus() >= 2,
          .steal_before_seconds = steal_seconds()};
}

// The exit code of a run that ended so; the figures of what was measured are written in any case.
int conclude(const PerfOptions& options, const Surroundings& surroundings, ClientRun& run,
             const Status& status, Output& output, const DocumentSink& on_document) {
  for (const std::string& warning : run.warnings) fmt::print(stderr, "sluice perf: {}\n", warning);
  int code = status.ok() ? kExitOk : fail(status);
  bool has_not =
      options.all && options.test->verb == Verb::kAtomic && status.code() == Code::kUnsupported;
  if (has_not) code = kExitNothingToRunOn;
  if (run.corrupt) {
    const Measurement& last = run.measurements.back();
    fmt::print(
        stderr, "sluice perf: {} bytes arrived {}; no figures\n", last.verdict.mismatched_bytes,
        carries_checksum(last.load) ? "in messages whose CRC32C is wrong" : "that were not sent");
    code = kExitCorrupt;
  }
  for (const Unhonoured& note : options.unhonoured)
    run.warnings.push_back(note.flag + " has no effect: " + note.why);
  if (!status.ok()) run.warnings.push_back(status.to_string());
  Json document = to_json(options, surroundings, run);
  bool missed = false;
  for (const std::string& line : judge(options, run, document, missed))
    fmt::print(stderr, "sluice perf: {}\n", line);
  if (missed && code == kExitOk) code = kExitMissed;
  if (Status written = output.end(document); !written.ok()) return fail(written);
  if (on_document) on_document(document);
  if (!options.plot_path.empty()) {
    if (Status drawn = draw(options, run); !drawn.ok()) return fail(drawn);
  }
  if (!options.histogram_path.empty()) {
    if (Status written = write_histograms(options, run); !written.ok()) return fail(written);
  }
  if (!options.perftest_json_path.empty()) {
    if (Status written = write_json(options.perftest_json_path, perftest_json(options, document));
        !written.ok())
      return fail(written);
  }
  if (options.json_path.empty()) return code;
  Status written = write_json(options.json_path, document);
  return written.ok() ? code : fail(written);
}

int be_client(const PerfOptions& options, const DocumentSink& on_document,
              const std::string& address, int cpu, bool one_process) {
  Surroundings surroundings = look_around(options, cpu);
  Result<std::unique_ptr<Context>> context = open(options);
  if (!context.ok()) return fail(context.status());
  if (cpu >= 0) pin(options, cpu);
  Result<Endpoint> endpoint = (*context)->connect(address);
  if (!endpoint.ok()) return fail(endpoint.status());
  Output output(options);
  output.begin(endpoint->info());
  ClientRun run;
  RunOptions how{.perf = &options, .one_process = one_process};
  how.next = [&] { return (*context)->connect(address); };
  Progress progress(options);
  how.on_interval = [&](const Load& load, const Interval& part) {
    progress.clear();
    output.add(load, part);
  };
  how.on_progress = [&progress](uint64_t size, double part) { progress.show(size, part); };
  Status status = run_client(**context, *endpoint, how, run, [&](const Measurement& m) {
    progress.clear();
    output.add(m);
  });
  progress.clear();
  return conclude(options, surroundings, run, status, output, on_document);
}

// A test that has no peer.
int be_alone(const PerfOptions& options, const DocumentSink& on_document) {
  Surroundings surroundings = look_around(options, 0);
  Result<std::unique_ptr<Context>> context = open(options);
  if (!context.ok()) return fail(context.status());
  pin(options, 0);
  Output output(options);
  ClientRun run;
  Progress progress(options);
  RunOptions how{.perf = &options, .one_process = true};
  how.on_progress = [&progress](uint64_t size, double part) { progress.show(size, part); };
  auto on_begin = [&output](const EndpointInfo& link) { output.begin(link); };
  Status status = run_local(**context, how, run, on_begin, [&](const Measurement& m) {
    progress.clear();
    output.add(m);
  });
  progress.clear();
  return conclude(options, surroundings, run, status, output, on_document);
}

// A damaged payload outweighs all else; then the client's word.
int joined(int client, int server) {
  if (client == kExitCorrupt || server == kExitCorrupt) return kExitCorrupt;
  return client != kExitOk ? client : (server == kExitOk ? kExitOk : kExitFailed);
}

int both_in_two_processes(const PerfOptions& options, const DocumentSink& on_document) {
  auto body = [&options](int pipe) {
    ServerDuty duty{.address = private_address(options),
                    .accept_deadline = after(sluice::now(), kStartLimit),
                    .cpu = 0};
    duty.on_listening = [pipe](const std::string& address) {
      std::string line = address + "\n";
      if (::write(pipe, line.data(), line.size()) != static_cast<ssize_t>(line.size()))
        ::_exit(kExitFailed);
    };
    return serve(options, duty);
  };
  Result<Child> server = Child::start(body);
  if (!server.ok()) return fail(server.status());
  Result<std::string> address = server->read_line(kStartLimit);
  if (!address.ok()) return fail(address.status());
  int client = be_client(options, on_document, *address, 1, false);
  // A failed run has ended the connection, and that ends the server.
  int code = server->reap(std::chrono::seconds(10));
  if (code > 128)
    fmt::print(stderr, "sluice perf: the server process was ended by signal {}\n", code - 128);
  return joined(client, code);
}

// Loopback is within one process: the server is a thread with a context of its own.
int both_in_one_process(const PerfOptions& options, const DocumentSink& on_document) {
  std::promise<std::string> listening;
  std::future<std::string> address = listening.get_future();
  int server_code = kExitFailed;
  std::thread server([&] {
    bool told = false;
    ServerDuty duty{.address = private_address(options),
                    .accept_deadline = after(sluice::now(), kStartLimit),
                    .cpu = 0,
                    .one_process = true};
    duty.on_listening = [&](const std::string& text) {
      told = true;
      listening.set_value(text);
    };
    server_code = serve(options, duty);
    if (!told) listening.set_value("");
  });
  std::string where = address.get();
  int client = where.empty() ? kExitFailed : be_client(options, on_document, where, 1, true);
  server.join();
  return joined(client, server_code);
}

// What this build or machine cannot do at all. Empty: it can.
std::string nothing_to_run_on(std::string_view transport) {
  const PathDescriptor* path = find_path(transport);
  if (path == nullptr || path->explain == nullptr) return "";
  PathState state = path->explain();
  return state.usable ? "" : state.why;
}

// What does not fit would be killed in the middle, or swap.
bool fits_in_memory(const PerfOptions& options) {
  uint64_t needed = 0;
  for (uint64_t size : options.sizes) {
    Load load = make_load(*options.test, size, options.tx_depth, options.qps, options.reply_bytes);
    load.into = options.into;
    load.bidirectional = options.bidirectional;
    needed = std::max(needed, memory_needed(load));
  }
  if (options.self && !is_local(*options.test)) needed *= 2;
  uint64_t available = read_machine().available_bytes;
  if (needed <= available - available / 10) return true;
  fmt::print(stderr,
             "sluice perf: --size: needs {} of memory, {} are available; use a smaller one, for "
             "example --size 64M\n",
             readable_size(needed), readable_size(available));
  return false;
}

// Of frames: an address names the interface of who connects. Empty: the address is the same there.
std::string seen_from_another_machine(const std::string& address) {
  const bool xdp = address.starts_with("l2://xdp/");
  const size_t begin = address.find("://") + (xdp ? 7 : 3), end = address.find('/', begin);
  const bool frames = address.starts_with("kmod://") ||
                      (address.starts_with("l2://") && !address.starts_with("l2://udp/"));
  if (!frames || end == std::string::npos || address.compare(begin, end - begin, "lo") == 0)
    return "";
  return address.substr(0, begin) + "INTERFACE" + address.substr(end);
}

}  // namespace

std::string meeting_address(const PerfOptions& options) {
  return options.host.empty() ? listen_address(options) : connect_address(options);
}

bool takes_interface(std::string_view transport) {
  return transport == "l2" || transport == "xdp" || transport == "kmod";
}

bool is_transport(std::string_view name) {
  if (name == "auto" || find_path(name) != nullptr) return true;
  for (const PathDescriptor* path : known_paths()) {
    if (to_string(path->path) == name) return true;
  }
  return false;
}

int run_perf(const PerfOptions& options, const DocumentSink& on_document) {
  SameCpus cpus;
  if (std::string why = nothing_to_run_on(options.transport); !why.empty()) {
    fmt::print(stderr, "sluice perf: --transport {}: {}\n", options.transport, why);
    return kExitNothingToRunOn;
  }
  bool alone = is_local(*options.test);
  if (options.self && !alone && options.transport == "kmod" && options.bind == kAnyAddress) {
    fmt::print(stderr,
               "sluice perf: --transport kmod --self: needs an interface whose frames come back "
               "(--bind), and the module has none on lo; "
               "run the two ends in two network namespaces, or on two machines\n");
    return kExitFailed;
  }
  if (!fits_in_memory(options)) return kExitFailed;
  for (const Unhonoured& note : options.unhonoured)
    fmt::print(stderr, "sluice perf: {} has no effect: {}\n", note.flag, note.why);
  if (alone) return be_alone(options, on_document);
  if (options.self)
    return options.transport == "loopback" ? both_in_one_process(options, on_document)
                                           : both_in_two_processes(options, on_document);
  if (!options.host.empty())
    return be_client(options, on_document, meeting_address(options), -1, false);
  ServerDuty duty{
      .address = meeting_address(options), .forever = options.forever, .all = options.all};
  duty.on_listening = [test = std::string(options.test->name)](const std::string& address) {
    fmt::print(stderr, "sluice perf: listening at {}\n", address);
    const std::string there = seen_from_another_machine(address);
    if (!there.empty())
      fmt::print(stderr,
                 "sluice perf: type on the other machine, with its own interface: sluice "
                 "perf {} {}\n",
                 test, there);
    std::fflush(stderr);
  };
  duty.on_served = [](const EndpointInfo& peer, Duration took) {
    fmt::print(stderr, "sluice perf: served {} by {} for {:.1f} s; the client has the figures\n",
               peer.peer, to_string(peer.path.path), std::chrono::duration<double>(took).count());
    std::fflush(stderr);
  };
  return serve(options, duty);
}

}  // namespace sluice::tools
