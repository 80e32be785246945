#include "tools/perf/report.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include <sluice/base/counters.h>

#include "tools/version.h"

namespace sluice::tools {
namespace {

constexpr const char* kOrigin = "perf/report";

double per_byte(double amount, uint64_t bytes) { return bytes > 0 ? amount / static_cast<double>(bytes) : 0; }
double per_second(uint64_t amount, double seconds) { return seconds > 0 ? static_cast<double>(amount) / seconds : 0; }

// Messages in both directions, as payload_bytes counts them.
uint64_t messages(const Measurement& m) { return m.payload_bytes / m.load.size_bytes; }

Json environment(const PerfOptions& options, const Surroundings& surroundings, const ClientRun& run) {
  const Machine& machine = surroundings.machine;
  Json out;
  out["version"] = kVersion;
  out["host"] = machine.host;
  out["kernel"] = machine.kernel;
  out["architecture"] = machine.architecture;
  out["cpu"] = machine.cpu;
  out["cpus"] = machine.cpus;
  out["governor"] = machine.governor.empty() ? Json() : Json(machine.governor);
  out["memory_bytes"] = machine.memory_bytes;
  out["thp"] = {{"enabled", machine.thp}, {"shmem_enabled", machine.thp_shmem}};
  out["argv"] = options.argv;
  out["waiting"] = to_string(options.waiting);
  out["pinned"] = surroundings.pinned;
  out["transport"] = {{"requested", options.transport},
                      {"path", to_string(run.link.path.path)},
                      {"reason", run.link.reason},
                      {"local", run.link.local},
                      {"peer", run.link.peer}};
  out["steal_seconds"] = {{"before", surroundings.steal_before_seconds}, {"after", steal_seconds()}};
  return out;
}

Json per_byte(Copies copied, uint64_t bytes) {
  return {{"user", per_byte(static_cast<double>(copied.user), bytes)}, {"kernel", per_byte(static_cast<double>(copied.kernel), bytes)}};
}

Json result(const Measurement& m) {
  const Distribution& d = m.latency_ns;
  Json out;
  out["test"] = m.load.test->name;
  out["transport"] = m.path;
  out["size_bytes"] = m.load.size_bytes;
  out["iterations"] = m.iterations;
  out["latency_ns"] = {{"min", d.min}, {"p50", d.p50}, {"p99", d.p99}, {"p99_9", d.p99_9}, {"max", d.max}, {"mean", d.mean}, {"stdev", d.stdev}};
  out["bytes_per_second"] = per_second(m.payload_bytes, m.seconds);
  out["messages_per_second"] = per_second(messages(m), m.seconds);
  out["cpu_ns_per_byte"] = per_byte(m.cpu_ns, m.payload_bytes);
  out["copied_bytes_per_byte"] = per_byte(static_cast<double>(m.copied.all()), m.payload_bytes);
  out["verified_bytes"] = m.verdict.verified_bytes;
  out["errors"] = m.verdict.mismatched_bytes;
  // Added to the schema: what the figures were taken with.
  out["seconds"] = m.seconds;
  out["tx_depth"] = m.load.depth;
  out["qps"] = m.load.qps;
  if (m.load.qps > 1) out["bytes_by_qp"] = m.bytes_by_qp;
  out["user_copied_bytes_per_byte"] = per_byte(static_cast<double>(m.copied.user), m.payload_bytes);
  out["copied_by"] = {{"client", per_byte(m.copied_here, m.payload_bytes)}, {"server", per_byte(m.copied - m.copied_here, m.payload_bytes)}};
  if (m.load.test->verb == Verb::kAtomic) out["atomic_type"] = m.load.compare ? "CMP_AND_SWAP" : "FETCH_AND_ADD";
  if (m.load.test->verb == Verb::kExchange) out["into"] = m.load.into;
  if (!m.first_handover_ns.empty()) out["first_handover_ns"] = m.first_handover_ns;
  return out;
}

bool is_regular_or_absent(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode);
}

std::string beside(const std::string& path) { return path + ".tmp." + std::to_string(::getpid()); }

// Errno, 0 where all of it was written.
int write_all(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    done += static_cast<size_t>(n);
  }
  return 0;
}

}  // namespace

void print_header(const TestKind& test) {
  if (test.latency) {
    fmt::print(" #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]   copies/byte\n");
  } else {
    fmt::print(" #bytes     #iterations    BW average[MiB/sec]   MsgRate[Mpps]   CPU[ns/byte]   copies/byte   path\n");
  }
  std::fflush(stdout);
}

void print_row(const Measurement& m) {
  double copies = per_byte(static_cast<double>(m.copied.all()), m.payload_bytes);
  if (m.load.test->latency) {
    const Distribution& d = m.latency_ns;
    fmt::print(" {:<10} {:<10} {:<14.3f} {:<14.3f} {:<16.3f} {:<14.3f} {:<15.3f} {:<22.3f} {:<24.3f} {:.2f}\n", m.load.size_bytes,
               m.iterations, d.min / 1e3, d.max / 1e3, d.p50 / 1e3, d.mean / 1e3, d.stdev / 1e3, d.p99 / 1e3, d.p99_9 / 1e3, copies);
  } else {
    fmt::print(" {:<10} {:<14} {:<21.2f} {:<15.6f} {:<14.4f} {:<13.2f} {}\n", m.load.size_bytes, m.iterations,
               per_second(m.payload_bytes, m.seconds) / (1 << 20), per_second(messages(m), m.seconds) / 1e6,
               per_byte(m.cpu_ns, m.payload_bytes), copies, m.path);
  }
  std::fflush(stdout);
}

Json to_json(const PerfOptions& options, const Surroundings& surroundings, const ClientRun& run) {
  Json out;
  out["schema"] = "sluice.perf/1";
  out["environment"] = environment(options, surroundings, run);
  out["results"] = Json::array();
  out["warnings"] = run.warnings;
  // Of the client's whole process: what was dropped or refused, by cause, and all else that is counted.
  out["counters"] = Json::object();
  for (const auto& [name, value] : read_counters()) {
    if (value > 0) out["counters"][std::string(name)] = value;
  }
  for (const Measurement& m : run.measurements) {
    if (m.verdict.mismatched_bytes == 0) {
      out["results"].push_back(result(m));
    } else {
      out["warnings"].push_back(fmt::format("{} of {} bytes: {} of the bytes that arrived were not those that were sent; no figures of it",
                                            m.load.test->name, m.load.size_bytes, m.verdict.mismatched_bytes));
    }
  }
  return out;
}

std::string json_obstacle(const std::string& path) {
  if (path == "-") return "";
  if (path.empty()) return "it is empty";
  bool regular = is_regular_or_absent(path);
  std::string probe = regular ? beside(path) : path;
  int fd = ::open(probe.c_str(), O_WRONLY | O_CLOEXEC | (regular ? O_CREAT | O_EXCL : 0), 0644);
  if (fd < 0) return std::strerror(errno);
  ::close(fd);
  if (regular) ::unlink(probe.c_str());
  return "";
}

Status write_json(const std::string& path, const Json& document) {
  std::string text = document.dump(1) + "\n";
  if (path == "-") {
    bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
    return written ? Status() : Status(Code::kInternal, Scope::kOperation, kOrigin, "stdout cannot be written", errno);
  }
  bool regular = is_regular_or_absent(path);
  std::string name = regular ? beside(path) : path;
  int fd = ::open(name.c_str(), O_WRONLY | O_CLOEXEC | (regular ? O_CREAT | O_EXCL : 0), 0644);
  int error = fd < 0 ? errno : write_all(fd, text);
  if (fd >= 0 && ::close(fd) != 0 && error == 0) error = errno;
  if (error == 0 && regular && ::rename(name.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return Status();
  if (regular && fd >= 0) ::unlink(name.c_str());
  return Status(Code::kInternal, Scope::kOperation, kOrigin, "--json: '" + path + "' cannot be written: " + std::strerror(error), error);
}

}  // namespace sluice::tools
