// Every label x {SIGKILL, SIGSTOP} x {each side that comes to it}, several cases at a time;
// afterwards no process, descriptor, mapping, file or socket is left.
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <vector>

#include <sluice/base/fault_point.h>

#include "tests/kill/case.h"
#include "tests/kill/labels.h"
#include "tests/l2/wire.h"
#include "tests/module/wire.h"
#include "tests/support/audit.h"
#include "tests/support/fresh_name.h"
#include "tests/support/skip.h"

namespace sluice::test {
namespace {

// Cells at once. They mostly sleep; with more of them two processors cannot keep anybody's
// deadlines.
constexpr size_t kAtOnce = 5;
// Of a cell that came to no label.
constexpr int kMostRepeats = 3;
// Six processes and an emulated device are enough for an emulated machine.
constexpr size_t kAtOnceInGuest = 2;

// In the name of every shm socket of this run, also that of a child.
const std::string& run_mark() {
  static const std::string mark = fresh_name("kill") + "-";
  return mark;
}

Reached reached_on(const std::string& path, const Label& label) {
  return path == "shm"    ? label.shm
         : path == "tcp"  ? label.tcp
         : path == "rdma" ? label.rdma
         : path == "l2"   ? label.l2
         : path == "kmod" ? label.kmod
                          : label.sluice;
}

std::vector<KillCase> cells_of(const std::string& path) {
  std::vector<KillCase> cells;
  for (const Label& label : labels()) {
    Reached reached = reached_on(path, label);
    for (Side victim : {Side::kServer, Side::kClient}) {
      bool comes = reached == Reached::kEither ||
                   reached == (victim == Side::kServer ? Reached::kServer : Reached::kClient);
      if (!comes) continue;
      for (int signal : {SIGKILL, SIGSTOP}) {
        for (int hit : {1, 4}) {
          if (hit == 1 || label.busy)
            cells.push_back({.path = path,
                             .mark = run_mark(),
                             .label = label.name,
                             .hit = hit,
                             .signal = signal,
                             .victim = victim});
        }
      }
    }
  }
  // One cell of the matrix, to look at it alone: its name.
  if (const char* only = std::getenv("SLUICE_KILL_CELL")) {
    std::erase_if(cells, [&](const KillCase& cell) { return cell.name() != only; });
  }
  return cells;
}

// A cell in a process of its own, which reports through a pipe.
struct Running {
  KillCase cell;
  pid_t pid = -1;
  int report = -1;
};

Running launch(const KillCase& cell) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  pid_t pid = ::fork();
  if (pid == 0) {
    ::close(ends[0]);
    Verdict verdict = run_case(cell);
    std::string text = (verdict.reached ? "1" : "0") + verdict.failure;
    [[maybe_unused]] ssize_t n = ::write(ends[1], text.data(), text.size());
    ::_exit(0);
  }
  ::close(ends[1]);
  return {cell, pid, ends[0]};
}

Verdict collect(const Running& running) {
  std::string text;
  char part[600];
  for (ssize_t got; (got = ::read(running.report, part, sizeof(part))) > 0;)
    text.append(part, static_cast<size_t>(got));
  ::close(running.report);
  int status = 0;
  ::waitpid(running.pid, &status, 0);
  if (text.empty())
    return {.reached = false,
            .failure = "the conductor ended with status " + std::to_string(status)};
  return {.reached = text[0] == '1', .failure = text.substr(1)};
}

// Abstract sockets of this run that are still bound, whoever holds them.
std::string sockets_left(const std::string& path) {
  std::ifstream table("/proc/net/unix");
  std::string left;
  for (std::string line; std::getline(table, line);) {
    if (line.find(run_mark()) != std::string::npos) left += line + "\n";
  }
  // Of this network, which is the test's own where there are any.
  std::ifstream packets("/proc/net/packet");
  std::string heading;
  std::getline(packets, heading);
  for (std::string line; path == "l2" && std::getline(packets, line);) left += line + "\n";
  return left;
}

void report(const std::string& path, const std::vector<KillCase>& cells) {
  std::set<std::string> names;
  int killed = 0, server = 0;
  for (const KillCase& cell : cells) {
    names.insert(cell.label);
    killed += cell.signal == SIGKILL ? 1 : 0;
    server += cell.victim == Side::kServer ? 1 : 0;
  }
  std::fprintf(stderr,
               "kill matrix, %s: %zu cases: %zu labels; %d SIGKILL, %zu SIGSTOP; %d of the server, "
               "%zu of the client\n",
               path.c_str(), cells.size(), names.size(), killed,
               cells.size() - static_cast<size_t>(killed), server,
               cells.size() - static_cast<size_t>(server));
}

void run_matrix(const std::string& path) {
  std::vector<KillCase> cells = cells_of(path);
  if (!kFaultPoints) {
    for (const KillCase& cell : cells)
      skip("fault-points", cell.name() + ": an optimised build has no labels");
    return;
  }
  NothingLeftBehind audit;
  // Whoever outlives its parent becomes ours and is found below.
  REQUIRE(::prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
  std::vector<Running> running;
  // On a machine that is too busy for the operations' deadlines nobody may come to a label: such
  // cases run again in the end, one at a time.
  std::map<std::string, int> tries;
  std::vector<KillCase> again;
  size_t next = 0;
  size_t at_once = !cells.empty() && cells[0].in_guest() ? kAtOnceInGuest : kAtOnce;
  while (next < cells.size() || !running.empty() || !again.empty()) {
    while (next < cells.size() && running.size() < at_once)
      running.push_back(launch(cells[next++]));
    if (running.empty()) {
      running.push_back(launch(again.back()));
      again.pop_back();
    }
    std::vector<pollfd> reports;
    for (const Running& each : running) reports.push_back({each.report, POLLIN, 0});
    REQUIRE(::poll(reports.data(), reports.size(), 120'000) > 0);
    for (size_t i = reports.size(); i-- > 0;) {
      if (reports[i].revents == 0) continue;
      Verdict verdict = collect(running[i]);
      if (verdict.failure.empty() && !verdict.reached &&
          ++tries[running[i].cell.name()] <= kMostRepeats) {
        again.push_back(running[i].cell);
        running.erase(running.begin() + static_cast<long>(i));
        continue;
      }
      INFO(running[i].cell.name() << ": " << verdict.failure);
      CHECK(verdict.failure.empty());
      // A label that nobody comes to would be a case of nothing.
      CHECK(verdict.reached);
      running.erase(running.begin() + static_cast<long>(i));
    }
  }
  report(path, cells);
  bool alone = ::waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD;
  CHECK(alone);
  CHECK(sockets_left(path) == "");
}

TEST_CASE("a label that no case comes to says why", "[kill]") {
  for (const Label& label : labels()) {
    INFO(label.name);
    bool nowhere = label.shm == Reached::kNowhere && label.tcp == Reached::kNowhere &&
                   label.sluice == Reached::kNowhere && label.rdma == Reached::kNowhere &&
                   label.l2 == Reached::kNowhere && label.kmod == Reached::kNowhere;
    CHECK(nowhere == (label.why_nowhere != nullptr));
    if (nowhere)
      std::fprintf(stderr, "kill matrix: no case for %s: %s\n", label.name, label.why_nowhere);
  }
}

TEST_CASE("shm: a peer killed or stopped at any step leaves the survivor whole", "[kill]") {
  run_matrix("shm");
}
TEST_CASE("tcp: a peer killed or stopped at any step leaves the survivor whole", "[kill]") {
  run_matrix("tcp");
}
// Hidden: it needs a device, which a guest of the lab has (matrix_rdma_guest_test).
TEST_CASE("rdma: a peer killed or stopped at any step leaves the survivor whole", "[.rdma]") {
  run_matrix("rdma");
}
// Hidden, too: it needs the module (matrix_kmod_guest_test). Both ends are at one interface, whose
// frames come back by a switch. The module does not unload, and that is a failure, while a socket
// of anybody who was killed is left.
TEST_CASE(
    "kmod: a peer killed or stopped at any step leaves the survivor whole, and its kernel without "
    "a socket of the dead",
    "[.kmod]") {
  module_test::Module module;
  REQUIRE(own_network());
  (void)run("/sbin/modprobe bridge");  // a kernel that was built for tests has it built in
  for (const char* command :
       {"ip link add end0 type veth peer name port0", "ip link add switch0 type bridge",
        "ip link set port0 master switch0", "ip link set port0 type bridge_slave hairpin on",
        "ip link set end0 up", "ip link set port0 up", "ip link set switch0 up"}) {
    REQUIRE(run(command));
  }
  run_matrix("kmod");
}
TEST_CASE("sluice: a peer killed or stopped while a path is chosen leaves the survivor whole",
          "[kill]") {
  run_matrix("sluice");
}
// Last: the process stays in a network of its own.
TEST_CASE("l2: a peer killed or stopped at any step leaves the survivor whole", "[kill]") {
  if (!own_network() || !set_mtu("lo", 9000)) return skip("netns", kNoNetwork);
  run_matrix("l2");
}

}  // namespace
}  // namespace sluice::test
