// Every label x {SIGKILL, SIGSTOP} x {either side}, several cells at a time.
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>
#include <set>
#include <vector>

#include <sluice/base/fault_point.h>

#include "tests/kill/case.h"
#include "tests/support/skip.h"

namespace sluice::test {
namespace {

// Cells at once. They mostly sleep; with more of them two processors cannot keep anybody's
// deadlines.
constexpr size_t kAtOnce = 5;

std::vector<std::string> labels_of(const std::string& path) {
  std::vector<std::string> labels;
  auto add = [&](std::initializer_list<const char*> more) { labels.insert(labels.end(), more.begin(), more.end()); };
  // sluice:// adds the choice of a path; what comes after it is that path's matter.
  if (path == "sluice") add({"select.greeted", "select.met", "tcp.chosen", "tcp.choice_received"});
  if (path != "tcp") add({"shm.connected", "shm.hello_sent", "shm.hello_received", "shm.accepted"});
  if (path != "shm") add({"tcp.connected", "tcp.hello_sent", "tcp.hello_received", "tcp.hello_answered"});
  if (path == "sluice") return labels;
  add({"session.want", "session.supply", "session.offered", "session.done", "session.placed", "session.close", "session.bye"});
  if (path == "shm") {
    add({"session.view", "session.release", "shm.sent", "shm.announce", "shm.map_extent", "shm.close"});
  } else {
    add({"session.pull", "session.pushed", "tcp.data_partly_sent", "tcp.data_partly_placed", "tcp.bye_sent", "tcp.chosen",
         "tcp.choice_received"});
  }
  return labels;
}

std::vector<KillCase> cells_of(const std::string& path) {
  std::vector<KillCase> cells;
  const std::set<std::string> busy = {"session.done", "session.offered", "session.pushed", "shm.sent"};
  for (const std::string& label : labels_of(path)) {
    for (int signal : {SIGKILL, SIGSTOP}) {
      for (Side victim : {Side::kServer, Side::kClient}) {
        cells.push_back({.path = path, .label = label, .hit = 1, .signal = signal, .victim = victim});
        if (!busy.contains(label)) continue;
        cells.push_back({.path = path, .label = label, .hit = 4, .signal = signal, .victim = victim});
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
  for (ssize_t got; (got = ::read(running.report, part, sizeof(part))) > 0;) text.append(part, static_cast<size_t>(got));
  ::close(running.report);
  int status = 0;
  ::waitpid(running.pid, &status, 0);
  if (text.empty()) return {.reached = false, .failure = "the conductor ended with status " + std::to_string(status)};
  return {.reached = text[0] == '1', .failure = text.substr(1)};
}

void run_matrix(const std::string& path) {
  if (!kFaultPoints) return skip("fault-points", "an opt build has no labels");
  std::vector<KillCase> cells = cells_of(path);
  std::map<std::string, int> reached;
  std::vector<Running> running;
  size_t next = 0;
  while (next < cells.size() || !running.empty()) {
    while (next < cells.size() && running.size() < kAtOnce) running.push_back(launch(cells[next++]));
    std::vector<pollfd> reports;
    for (const Running& each : running) reports.push_back({each.report, POLLIN, 0});
    REQUIRE(::poll(reports.data(), reports.size(), 60'000) > 0);
    for (size_t i = reports.size(); i-- > 0;) {
      if (reports[i].revents == 0) continue;
      Verdict verdict = collect(running[i]);
      INFO(running[i].cell.name() << (verdict.reached ? "" : " (not reached)") << ": " << verdict.failure);
      CHECK(verdict.failure.empty());
      reached[running[i].cell.label] += verdict.reached ? 1 : 0;
      running.erase(running.begin() + static_cast<long>(i));
    }
  }
  // A label that nobody comes to would be a matrix of nothing.
  for (const KillCase& cell : cells) {
    if (reached[cell.label]++ == 0) FAIL_CHECK(path << ": no cell came to " << cell.label);
  }
}

TEST_CASE("shm: a peer killed or stopped at any step leaves the survivor whole", "[kill]") { run_matrix("shm"); }
TEST_CASE("tcp: a peer killed or stopped at any step leaves the survivor whole", "[kill]") { run_matrix("tcp"); }
TEST_CASE("sluice: a peer killed or stopped while a path is chosen leaves the survivor whole", "[kill]") { run_matrix("sluice"); }

}  // namespace
}  // namespace sluice::test
