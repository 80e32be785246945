#include "tools/perf/flags/load_flags.h"

#include <sluice/api/address.h>

#include "tools/perf/flags/refusal.h"
#include "tools/perf/flags/size_text.h"
#include "tools/perf/run/roles.h"

namespace sluice::tools {
namespace {

// Sizes of -a: 2 bytes to 8 MiB (perftest's range).
constexpr uint64_t kLargestOfAll = uint64_t{8} << 20;
constexpr uint64_t kMostIterations = 200'000'000;
constexpr uint64_t kMostDepth = 4000;  // a session has 4096 operations at once

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

}  // namespace

std::string names_of_tests() {
  std::string names;
  for (const TestKind& test : kTests) names += (names.empty() ? "" : " ") + std::string(test.name);
  return names + " all";
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
      "operations outstanding at once in _bw tests (default 128, exchange_bw 32; at most 512 MiB "
      "of them)");
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
  perf.add_flag("--subscribe", o.subscribe,
                "exchange_bw: take the steps of a subscription, which asks for several at once "
                "(without it each step is fetched by itself)");
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
          refuse_word("--transport", text, "auto shm rdma kmod l2 xdp udp tcp loopback",
                      "--transport shm");
        o.transport = text == "verbs"    ? "rdma"
                      : text == "packet" ? "l2"
                      : text == "module" ? "kmod"
                                         : text;  // the path's own name
      },
      "auto, shm, rdma, kmod (plain Ethernet by the kernel module), l2 (by packet sockets), xdp "
      "(the same frames by AF_XDP), udp (in UDP), tcp or loopback");
  perf.add_option_function<std::string>(
      "-p,--port",
      [&o](const std::string& text) {
        o.port = static_cast<uint16_t>(number<unsigned>("--port", text, 0, 65535, "--port 18515"));
      },
      "port (default 18515); a server takes any free one for 0 and says which");
  perf.add_option(
      "--bind", o.bind,
      "address that a server listens at (default 0.0.0.0; with --self, rdma: the first of an RDMA "
      "device; kmod, l2, xdp: an interface, by default the only one; l2 with --self: lo)");
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

}  // namespace sluice::tools
