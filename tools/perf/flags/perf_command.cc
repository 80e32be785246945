#include "tools/perf/flags/perf_command.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include <sluice/api/address.h>
#include <sluice/l2/carrier/interfaces.h>

#include "tools/perf/run/all_tests.h"
#include "tools/perf/load/batch.h"
#include "tools/perf/flags/condition_flags.h"
#include "tools/perf/report/document_file.h"
#include "tools/perf/report/openmetrics.h"
#include "tools/perf/flags/plan.h"
#include "tools/perf/flags/refusal.h"
#include "tools/perf/load/registration.h"
#include "tools/perf/flags/report_flags.h"
#include "tools/perf/run/roles.h"
#include "tools/perf/flags/size_text.h"
#include "tools/version.h"

namespace sluice::tools {
namespace {

// Sizes of -a: 2 bytes to 8 MiB (perftest's range).
constexpr uint64_t kLargestOfAll = uint64_t{8} << 20;
// A huge page, and the least that an arena grows by.
constexpr uint64_t kDefaultRegistered = uint64_t{2} << 20;
constexpr uint64_t kMostIterations = 200'000'000;
constexpr uint64_t kMostDepth = 4000;  // a session has 4096 operations at once

std::string names_of_tests() {
  std::string names;
  for (const TestKind& test : kTests) names += (names.empty() ? "" : " ") + std::string(test.name);
  return names + " all";
}

// Names that people know from elsewhere.
void check_name(const std::string& text) {
  for (const char* stream : {"stream_bw", "stream_lat"}) {
    if (text != stream) continue;
    const std::string twin = text == "stream_bw" ? "send_bw" : "send_lat";
    refuse("TEST", text,
           "has no counterpart: sluice carries messages and tensors, no stream of bytes; " + twin +
               " sends messages one after the other, in order",
           "sluice perf " + twin + " --self");
  }
  if (text == "underload_lat")
    refuse("TEST", text, "is a flag of the latency tests",
           "sluice perf send_lat --self --under-load 64K");
}

// Or none at all.
uint64_t size_of(const std::string& flag, const std::string& text, const std::string& example) {
  std::optional<uint64_t> size = text == "0" ? 0 : parse_size(text);
  if (!size) refuse(flag, text, "is no size: bytes, or K, M, G (KiB, MiB, GiB) of 1024", example);
  return *size;
}

void add_load_flags(CLI::App& perf, PerfOptions& o) {
  perf.add_option_function<std::string>(
      "TEST",
      [&o](const std::string& text) {
        o.all = text == "all";
        check_name(text);
        o.test = o.all ? &kTests[0] : find_test(text);
        if (o.test == nullptr)
          refuse_word("TEST", text, names_of_tests(), "sluice perf send_lat --self");
      },
      names_of_tests() + " (each that the path has, in turn)");
  perf.add_option("HOST", o.host, "the server's host or address; none: be the server");
  perf.add_option_function<std::string>(
      "-s,--size",
      [&o](const std::string& text) { o.sizes = {size_of("--size", text, "--size 64K")}; },
      "bytes of one message or tensor: 64, 4K, 1M, 1G; send_lat and rpc tests also 0 (default 2 "
      "for _lat, 64K for _bw and memcpy, 2M for reg; atomics have 8)");
  perf.add_option_function<std::string>(
      "--reply-size",
      [&o](const std::string& text) {
        o.reply_bytes = size_of("--reply-size", text, "--reply-size 64");
      },
      "rpc tests: bytes of each answer, from 0 on (default as many as the request has, which is "
      "-s)");
  perf.add_flag_callback(
          "-a,--all",
          [&o] {
            o.sizes.clear();
            for (uint64_t size = 2; size <= kLargestOfAll; size *= 2) o.sizes.push_back(size);
          },
          "all sizes from 2 bytes to 8 MiB")
      ->excludes("--size");
  auto* n = perf.add_option_function<std::string>(
      "-n,--iters",
      [&o](const std::string& text) {
        o.iterations = number<uint64_t>("--iters", text, 1, kMostIterations, "--iters 10000");
      },
      "iterations of each size (default 10000, fewer above 100 KiB)");
  perf.add_option_function<std::string>(
          "-D,--duration",
          [&o](const std::string& text) {
            o.seconds = number<double>("--duration", text, 1e-6, 86400, "--duration 5");
          },
          "seconds of each size instead of a number of iterations")
      ->excludes(n);
  perf.add_option_function<std::string>(
      "--interval",
      [&o](const std::string& text) {
        o.interval = number<double>("--interval", text, 1e-3, 86400, "--interval 1");
      },
      "with -D: a line of what went through in each so many seconds (text, ndjson; json: a list in "
      "each result)");
  perf.add_option_function<std::string>(
      "-t,--tx-depth",
      [&o](const std::string& text) {
        o.tx_depth = static_cast<uint32_t>(
            number<uint64_t>("--tx-depth", text, 1, kMostDepth, "--tx-depth 16"));
      },
      "operations outstanding at once in _bw tests (default 128, at most 512 MiB of them)");
  perf.add_option_function<std::string>(
      "-l,--post_list",
      [&o](const std::string& text) {
        o.post_list = number<uint32_t>("--post_list", text, 1, kMostDepth, "--post_list 16");
      },
      "_bw tests but exchange_bw: post so many operations at once, each time that there is room "
      "for all of them within --tx-depth (default 1)");
  perf.add_option_function<std::string>(
      "-q,--qps,--qp",
      [&o](const std::string& text) {
        o.qps = number<uint32_t>("--qps", text, 1, kMostQps, "--qps 4");
      },
      "_bw tests but exchange_bw: connections (queue pairs, with --transport rdma) at once, each "
      "--tx-depth deep, that share the iterations (default 1; a server follows its client)");
  perf.add_option_function<std::string>(
      "--warmup",
      [&o](const std::string& text) {
        o.warmup = number<uint64_t>("--warmup", text, 0, kMostIterations, "--warmup 1000");
      },
      "iterations before the clock starts (default a tenth of -n, at most 1000)");
  perf.add_flag("-b,--bidirectional", o.bidirectional,
                "send_bw, write_bw, read_bw: in both directions at once, whose figures add up");
  perf.add_flag("--into", o.into, "exchange tests: fetch into preallocated memory");
  perf.add_flag(
      "--consume{line}", o.consume,
      "exchange tests: the end that fetched a tensor reads all of it, in the timed part, as "
      "programs do; with --consume=page a byte of each page of 4 KiB");
  perf.add_option_function<std::string>(
      "--tensors",
      [&o](const std::string& text) {
        o.tensors = number<uint32_t>("--tensors", text, 2, Load::kRotation, "--tensors 3");
      },
      "exchange_lat: tensors that each end publishes in turn, 2 to 8 (default 8)");
  perf.add_flag(
      "--default-options", o.default_options,
      "send_lat, exchange_lat: each operation has what a program gets that says nothing else, a "
      "deadline and a completion (without it there is no deadline, and nobody is told of a send)");
  perf.add_option_function<std::string>(
      "-A,--atomic_type",
      [&o](const std::string& text) {
        if (text != "CMP_AND_SWAP" && text != "FETCH_AND_ADD")
          refuse("--atomic_type", text, "is none of CMP_AND_SWAP FETCH_AND_ADD",
                 "-A FETCH_AND_ADD");
        o.atomic_type = text;
      },
      "atomic tests: CMP_AND_SWAP or FETCH_AND_ADD (default)");
  perf.add_flag("--verify{bytes},!--no-verify", o.verify_by,
                "check the payload, outside the timed part (on by default): all bytes, or with "
                "--verify=crc32c by a checksum that the sender puts into each message");
  perf.add_flag("--corrupt", o.corrupt, "")->group("");
}

void add_link_flags(CLI::App& perf, PerfOptions& o) {
  perf.add_option_function<std::string>(
      "--transport",
      [&o](const std::string& text) {
        if (!is_transport(text))
          refuse_word("--transport", text, "auto shm rdma kmod l2 udp tcp loopback",
                      "--transport shm");
        o.transport = text == "verbs"    ? "rdma"
                      : text == "packet" ? "l2"
                      : text == "module" ? "kmod"
                                         : text;  // the path's own name
      },
      "auto, shm, rdma, kmod (plain Ethernet by the kernel module), l2 (by packet sockets), udp "
      "(the same frames in UDP), tcp or loopback");
  perf.add_option_function<std::string>(
      "-p,--port",
      [&o](const std::string& text) {
        o.port = static_cast<uint16_t>(number<unsigned>("--port", text, 0, 65535, "--port 18515"));
      },
      "port (default 18515); a server takes any free one for 0 and says which");
  perf.add_option(
      "--bind", o.bind,
      "address that a server listens at (default 0.0.0.0; with --self, rdma: the first of an RDMA "
      "device; kmod, l2: an interface, by default the only one; l2 with --self: lo)");
  auto* wait = perf.add_option_function<std::string>(
      "--wait",
      [&o](const std::string& text) {
        if (text == "adaptive")
          o.waiting = Waiting::kAdaptive;
        else if (text == "spin")
          o.waiting = Waiting::kSpin;
        else if (text == "sleep")
          o.waiting = Waiting::kSleep;
        else
          refuse_word("--wait", text, "adaptive spin sleep", "--wait spin");
      },
      "how to wait: adaptive, spin or sleep");
  perf.add_flag_callback(
          "-e,--events", [&o] { o.waiting = Waiting::kSleep; }, "the same as --wait sleep")
      ->excludes(wait);
  perf.add_flag("--self", o.self, "run both ends, in two processes on this machine");
  perf.add_option_function<std::string>(
      "--pin",
      [&o](const std::string& text) {
        if (text != "auto" && text != "off")
          refuse("--pin", text, "is none of auto off", "--pin off");
        o.pin = text == "auto";
      },
      "with --self, each process on a CPU of its own where there are two: auto or off");
  perf.add_flag("--forever", o.forever, "a server that goes on after its first client");
}

void check_atomic(PerfOptions& o) {
  const std::string example =
      "sluice perf " + std::string(o.test->name) + " --transport rdma --self";
  for (const char* without : {"shm", "kmod", "l2", "udp", "tcp", "loopback"}) {
    if (o.transport == without) refuse("--transport", o.transport, "has no atomics", example);
  }
  if (o.sizes.empty()) o.sizes = {Load::kAtomicBytes};
  if (o.sizes.size() > 1)
    refuse("--all", std::string(o.test->name), "has one size, 8 bytes", example);
  if (o.sizes[0] != Load::kAtomicBytes)
    refuse("--size", std::to_string(o.sizes[0]), "is no atomic's size, which is 8",
           example + " -s 8");
  o.compare = o.atomic_type == "CMP_AND_SWAP";
}

// Plain Ethernet has interfaces where others have addresses.
void check_interface(PerfOptions& o) {
  const std::string example =
      "sluice perf " + std::string(o.test->name) + " --transport " + o.transport;
  if (!o.host.empty()) {
    Result<Address> there = Address::parse(meeting_address(o));
    if (!there.ok() ||
        ((there->scheme == Scheme::kL2 || there->scheme == Scheme::kKmod) && !there->name.empty()))
      return;  // the former is told below
    refuse("HOST", o.host, "names no interface and MAC address",
           example + " eth0/02:00:00:00:00:0b");
  }
  bool self = o.self && !is_local(*o.test);
  if (o.bind != kAnyAddress) return;
  if (self && o.transport == "kmod") return;  // told where the module is there at all
  o.bind = self ? "lo" : "";
  if (self) return;
  std::string names;
  for (const l2::Interface& found : l2::survey_interfaces()) {
    if (found.loopback || !found.obstacle.empty()) continue;
    names += (names.empty() ? "" : " ") + found.name;
    o.bind = found.name;
  }
  if (names.empty() || o.bind != names) {
    refuse("--bind", "",
           names.empty()
               ? "an interface is needed, and none here carries frames: sluice info says why"
               : "an interface is needed: " + names,
           example + " --bind " + (o.bind.empty() ? "eth0" : o.bind));
  }
}

void check_verification(PerfOptions& o) {
  bool known = o.verify_by.empty() || o.verify_by == "bytes" || o.verify_by == "crc32c" ||
               o.verify_by == "false";
  if (!known) refuse_word("--verify", o.verify_by, "bytes crc32c", "--verify=crc32c");
  o.verify = o.verify_by != "false";
  o.checksum = o.verify_by == "crc32c";
}

// What a test of one process cannot be told.
void check_local(PerfOptions& o) {
  const std::string name(o.test->name);
  const bool copies = o.test->verb == Verb::kCopy;
  const std::string example =
      copies ? "sluice perf memcpy -a" : "sluice perf reg --transport rdma -s 64M";
  if (!o.host.empty())
    refuse("HOST", o.host, "has no part in " + name + ", which one process does alone", example);
  if (copies && o.transport != "auto")
    refuse("--transport", o.transport, "carries nothing of memcpy, which copies within one process",
           example);
  if (!copies && !registers_memory(o.transport)) {
    refuse("--transport", o.transport,
           "registers no memory: what it sends and receives is copied by the kernel; reg is for "
           "rdma, kmod and shm",
           example);
  }
  if (!copies && o.source_offset) refuse("--offset", name, "is of whole pages", example);
  const std::pair<const char*, bool> others[] = {
      {"--confidence", o.confidence.has_value()},
      {"--interval", o.interval.has_value()},
      {"--system-calls", o.system_calls},
      {"--under-load", o.under_load.has_value()},
      {"--perturb", o.pause_ns > 0},
      {"--verify", o.checksum || (!copies && o.verify && !o.verify_by.empty())}};
  for (const auto& [flag, given] : others) {
    if (given) refuse(flag, name, "is a test of one process, without messages", example);
  }
  o.self = true;
}

void check_calls(const PerfOptions& o) {
  if (!o.reply_bytes) return;
  const std::string example = "sluice perf rpc_lat --self -s 64 --reply-size 4K";
  if (o.test->verb != Verb::kRpc)
    refuse("--reply-size", std::string(o.test->name), "has no answers; rpc_lat and rpc_bw have",
           example);
  if (!o.self && o.host.empty())
    refuse("--reply-size", std::to_string(*o.reply_bytes),
           "has no use at a server, which follows its client", example);
}

// worker3:18515, 10.0.0.1:18515, [fd00::1]:18515, which would be taken for a name, or for nothing.
bool has_port(const PerfOptions& o) {
  size_t colon = o.host.rfind(':');
  if (o.transport == "l2" || o.transport == "kmod" || colon == std::string::npos || colon == 0 ||
      is_whole_address(o.host))
    return false;
  bool digits = colon + 1 < o.host.size() &&
                o.host.find_first_not_of("0123456789", colon + 1) == std::string::npos;
  return digits && (o.host[colon - 1] == ']' || o.host.find(':') == colon);
}

// As --transport names the path of an address.
std::string transport_of(const Address& address) {
  switch (address.scheme) {
    case Scheme::kSluice: return "auto";
    case Scheme::kL2: return address.is_udp() ? "udp" : "l2";
    case Scheme::kShm:
    case Scheme::kTcp:
    case Scheme::kLoopback:
    case Scheme::kRdma:
    case Scheme::kKmod: break;
  }
  return std::string(to_string(address.scheme));
}

// What single flags cannot see.
void check_combination(PerfOptions& o) {
  check_verification(o);
  if (is_local(*o.test)) check_local(o);
  if (o.self && !o.host.empty())
    refuse("--self", o.host, "is a server, and --self needs none", "sluice perf send_lat --self");
  if (o.forever && (o.self || !o.host.empty()))
    refuse("--forever", o.self ? "--self" : o.host, "makes this no server",
           "sluice perf send_lat --forever");
  if (o.transport == "loopback" && !o.self)
    refuse("--transport", "loopback", "is within one process and needs --self",
           "--transport loopback --self");
  bool striped = can_be_striped(*o.test);
  if (o.qps > 1 && !striped)
    refuse("--qps", std::to_string(o.qps),
           "is for send_bw, write_bw, read_bw, atomic_bw and rpc_bw",
           "sluice perf write_bw --self --qps 4");
  if (o.bidirectional && !can_be_bidirectional(*o.test))
    refuse("--bidirectional", std::string(o.test->name), "is none of send_bw, write_bw and read_bw",
           "sluice perf write_bw --self -b");
  if (o.sizes == std::vector<uint64_t>{0} && !may_be_empty(*o.test))
    refuse("--size", "0", "is for send_lat and rpc tests, whose messages may be empty",
           "sluice perf send_lat --self -s 0");
  if (o.post_list > 1 && !striped)
    refuse("--post_list", std::to_string(o.post_list),
           "is for send_bw, write_bw, read_bw, atomic_bw and rpc_bw",
           "sluice perf write_bw --self --post_list 16");
  if (o.tx_depth > 0 && o.post_list > o.tx_depth)
    refuse("--post_list", std::to_string(o.post_list),
           "is more than --tx-depth, " + std::to_string(o.tx_depth),
           "sluice perf write_bw --self --tx-depth 64 --post_list 16");
  check_calls(o);
  if (o.into && o.test->verb != Verb::kExchange)
    refuse("--into", std::string(o.test->name), "fetches nothing",
           "sluice perf exchange_bw --self --into");
  if (o.default_options && !has_default_options(*o.test))
    refuse("--default-options", std::string(o.test->name), "is none of send_lat and exchange_lat",
           "sluice perf send_lat --self --default-options");
  if (o.tensors && !(o.test->verb == Verb::kExchange && o.test->latency))
    refuse("--tensors", std::string(o.test->name), "is not exchange_lat",
           "sluice perf exchange_lat --self --tensors 3");
  if (!o.consume.empty() && o.consume != "line" && o.consume != "page")
    refuse_word("--consume", o.consume, "line page", "--consume=page");
  if (!o.consume.empty() && o.test->verb != Verb::kExchange)
    refuse("--consume", std::string(o.test->name), "fetches nothing",
           "sluice perf exchange_bw --self --into --consume");
  if (o.transport == "l2" || o.transport == "kmod") check_interface(o);
  if (o.interval && !o.seconds)
    refuse("--interval", fmt::format("{:g}", *o.interval), "is of a run by --duration",
           "sluice perf send_bw --self -D 10 --interval 1");
  if (has_port(o)) {
    size_t colon = o.host.rfind(':');
    const std::string scheme = o.transport == "udp"                            ? "l2://udp/"
                               : o.transport == "tcp" || o.transport == "rdma" ? o.transport + "://"
                                                                               : "sluice://";
    std::string host = o.host.substr(0, colon);
    if (host.front() == '[') host = host.substr(1, host.size() - 2);
    refuse("HOST", o.host, "has a port, which goes beside it or into a whole address",
           host + " --port " + o.host.substr(colon + 1) + ", or " + scheme + o.host);
  }
  if (!o.self) {
    Result<Address> address = Address::parse(meeting_address(o));
    std::string flag = o.host.empty() ? "--bind" : "HOST";
    bool another = address.ok() && is_whole_address(o.host) && o.transport != "auto" &&
                   o.transport != transport_of(*address);
    if (another)
      refuse("--transport", o.transport, "is another path than that of " + o.host,
             "sluice perf " + std::string(o.test->name) + " " + o.host);
    if (!address.ok())
      refuse(flag, o.host.empty() ? o.bind : o.host,
             std::string("gives no address: ") + std::string(address.status().detail()),
             "sluice perf send_lat sluice://127.0.0.1:18515");
  }
  if (o.test->verb == Verb::kAtomic) {
    check_atomic(o);
    if (o.checksum)
      refuse("--verify", "crc32c", "has no room in 8 bytes that atomics work on",
             "sluice perf " + std::string(o.test->name) + " --transport rdma --self --verify");
  } else if (!o.atomic_type.empty()) {
    refuse("--atomic_type", o.atomic_type, "is for atomic tests",
           "sluice perf atomic_lat --transport rdma --self -A " + o.atomic_type);
  }
  if (o.sizes.empty())
    o.sizes = {o.test->verb == Verb::kRegister ? kDefaultRegistered
               : o.test->latency               ? uint64_t{2}
                                               : uint64_t{65536}};
  check_conditions(o);
}

void add_flags(CLI::App& perf, PerfOptions& o) {
  add_load_flags(perf, o);
  add_link_flags(perf, o);
  add_condition_flags(perf, o);
  add_report_flags(perf, o);
  add_unhonoured_flags(perf, o);
  perf.allow_extras();  // told by check_extras(), with the flag that is meant
}

void check(const CLI::App& perf, PerfOptions& o) {
  check_extras(perf);
  if (o.test == nullptr)
    refuse("TEST", "", "is missing: one of " + names_of_tests(), "sluice perf send_lat --self");
  check_combination(o);
  note_idle_flags(perf, o);
  check_report(o);
}

bool given(const CLI::App& perf, const char* flag) { return perf.get_option(flag)->count() > 0; }

// Several runs with one header.
void check_columns(const CLI::App& perf, const PerfOptions& all,
                   std::initializer_list<const char*> flags) {
  for (const char* flag : flags) {
    if (all.format == Format::kCsv && given(perf, flag))
      refuse(flag, "csv", "has the same columns for all lines",
             "sluice perf --batch FILE --format json");
  }
}

// Throws what a command line of that text would be refused with.
void check_line(const BatchLine& line, const PerfOptions& all, PerfOptions& o) {
  CLI::App app;
  add_flags(app, o);
  app.parse(std::vector<std::string>(line.words.rbegin(), line.words.rend()));
  for (const char* flag : {"--format", "--json"}) {
    if (given(app, flag))
      refuse(flag, line.text, "is of all lines together: give it beside --batch",
             "sluice perf --batch FILE --format json");
  }
  for (const char* flag : {"--out_json", "--out_json_file", "--output"}) {
    if (given(app, flag))
      refuse(flag, line.text, "is of a command of its own",
             "sluice perf --batch FILE --json all.json");
  }
  if (o.all)
    refuse("TEST", "all", "is many tests, of which a batch has one in each line",
           "sluice perf all --self");
  check_columns(app, all, {"--percentiles", "--confidence", "--under-load", "--reply-size"});
  o.format = all.format;
  o.json_path = all.json_path;
  o.strict = o.strict || all.strict;
  if (!given(app, "--progress")) o.progress = all.progress;
  if (!given(app, "--title")) o.title = all.title;
  o.argv = all.argv;
  o.batch_line = line.number;
  o.batch_text = line.text;
  check(app, o);
  if (!o.self && o.host.empty())
    refuse("HOST", line.text, "is missing: a batch is run by a client",
           "send_lat --self, or send_lat HOST");
  o.json_path.clear();  // one for all
}

struct Batch {
  std::string name;  // the file, or "all"
  std::vector<BatchLine> lines;
  std::vector<std::unique_ptr<PerfOptions>> options;
};

// A line for each test that the path has, every one checked as if it were given alone.
Batch check_all(const CLI::App& perf, const PerfOptions& all) {
  const std::string example = "sluice perf all --self --json all.json";
  check_extras(perf);
  for (const char* flag : {"--plot", "--hist", "--out_json", "--out_json_file", "--output"}) {
    if (given(perf, flag)) refuse(flag, "all", "are many tests, and it is of one", example);
  }
  check_columns(perf, all, {"--confidence", "--under-load", "--reply-size"});
  Batch batch{.name = "all", .lines = {}, .options = {}};
  for (PerfOptions& test : all_tests(all)) {
    auto number = static_cast<unsigned>(batch.lines.size() + 1);
    BatchLine line{.number = number, .text = std::string(test.test->name), .words = {}};
    test.batch_line = number;
    test.batch_text = line.text;
    check(perf, test);
    test.json_path.clear();  // one for all
    batch.lines.push_back(std::move(line));
    batch.options.push_back(std::make_unique<PerfOptions>(std::move(test)));
  }
  return batch;
}

// Every line, before anything is opened.
Batch check_batch(const CLI::App& perf, const std::string& path, const PerfOptions& all) {
  const std::string example =
      "sluice perf --batch FILE --format ndjson, with lines such as: send_lat --self -s 64";
  for (const CLI::Option* option : perf.get_options()) {
    std::string name = option->get_name();
    bool of_all = name == "--batch" || name == "--format" || name == "--json" ||
                  name == "--strict" || name == "--title" || name == "--progress" ||
                  name == "--help";
    if (option->count() > 0 && !of_all)
      refuse("--batch", name, "is of a line of its own, in the file", example);
  }
  check_extras(perf);
  Result<std::vector<BatchLine>> lines = read_batch(path);
  if (!lines.ok()) refuse("--batch", path, std::string(lines.status().detail()), example);
  Batch batch{.name = path, .lines = *std::move(lines), .options = {}};
  for (const BatchLine& line : batch.lines) {
    batch.options.push_back(std::make_unique<PerfOptions>());
    try {
      check_line(line, all, *batch.options.back());
    } catch (const CLI::ParseError& error) {
      std::string why = error.get_name() == "CallForHelp" ? "asks for help" : error.what();
      refuse("--batch", path, "line " + std::to_string(line.number) + ": " + why, example);
    }
  }
  return batch;
}

int run_batch(const PerfOptions& all, const Batch& batch) {
  BatchDocument document(batch.name, all.title);
  std::vector<int> codes;
  for (size_t i = 0; i < batch.lines.size(); ++i) {
    PerfOptions options = *batch.options[i];
    options.first_in_batch = document.whole()["results"].empty();
    options.run_number = static_cast<unsigned>(i + 1);
    options.runs = static_cast<unsigned>(batch.lines.size());
    Json own;
    codes.push_back(run_perf(options, [&own](Json whole) { own = std::move(whole); }));
    if (codes.back() != kExitOk)
      fmt::print(stderr, "sluice perf: {}, line {}: exit code {}\n", batch.name,
                 batch.lines[i].number, codes.back());
    document.add(batch.lines[i], codes.back(), std::move(own));
  }
  int code = batch_exit_code(codes);
  if (all.format == Format::kOpenMetrics) fmt::print("{}", openmetrics(document.whole()));
  for (const std::string& where :
       {all.format == Format::kJson ? std::string("-") : std::string(), all.json_path}) {
    if (where.empty()) continue;
    Status written = write_json(where, document.whole());
    if (written.ok()) continue;
    fmt::print(stderr, "sluice perf: {}\n", written.to_string());
    if (code == kExitOk) code = kExitFailed;
  }
  return code;
}

}  // namespace

void add_perf_command(CLI::App& app, const std::vector<std::string>& argv, int& exit_code) {
  CLI::App* perf =
      app.add_subcommand("perf", "measure latency and bandwidth between two processes");
  perf->set_version_flag("-V,--version", std::string("sluice ") + kVersion);
  perf->footer(
      "Server: sluice perf send_lat        Client: sluice perf send_lat HOST        Both: sluice "
      "perf send_lat --self");
  auto options = std::make_shared<PerfOptions>();
  options->argv = argv;
  auto batch = std::make_shared<std::string>();
  add_flags(*perf, *options);
  perf->add_option("--batch", *batch,
                   "a file with a command line of sluice perf in each line (# begins a comment): "
                   "all are checked, then run in turn, with results in one document or stream");
  perf->callback([perf, options, batch, &exit_code] {
    bool batched = perf->get_option("--batch")->count() > 0,
         server = !options->self && options->host.empty();
    if (!batched && (!options->all || server)) {
      check(*perf, *options);
      exit_code = run_perf(*options);
      return;
    }
    auto check_lines = [&] {
      return batched ? check_batch(*perf, *batch, *options) : check_all(*perf, *options);
    };
    Batch lines = check_lines();
    if (options->json_path == "-") {
      if (options->format != Format::kText && options->format != Format::kJson)
        refuse("--json", "-", "is stdout, and so is --format's",
               "--format csv --json /tmp/perf.json");
      options->format = Format::kJson;
      options->json_path.clear();
      lines = check_lines();
    }
    exit_code = run_batch(*options, lines);
  });
}

}  // namespace sluice::tools
