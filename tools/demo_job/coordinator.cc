#include "tools/demo_job/coordinator.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tools/demo_job/control.h"
#include "tools/demo_job/roles.h"
#include "tools/demo_job/wire.h"

namespace sluice::tools::demo {
namespace {

// Restarts in one visit; more is not a worker that was killed but one that cannot live.
constexpr int kMostRestarts = 3;
// A child that has said its last word ends within this, or is killed.
constexpr std::chrono::seconds kExitTime{10};

// Set by SIGINT and SIGTERM for the length of a visit.
volatile sig_atomic_t interrupted = 0;
void on_interrupt(int) { interrupted = 1; }

class InterruptGuard {
 public:
  InterruptGuard() {
    interrupted = 0;
    struct sigaction action {};
    action.sa_handler = on_interrupt;  // no SA_RESTART: poll() returns
    ::sigaction(SIGINT, &action, &old_int_);
    ::sigaction(SIGTERM, &action, &old_term_);
  }
  ~InterruptGuard() {
    ::sigaction(SIGINT, &old_int_, nullptr);
    ::sigaction(SIGTERM, &old_term_, nullptr);
  }

 private:
  struct sigaction old_int_ {};
  struct sigaction old_term_ {};
};

struct Child {
  pid_t pid = -1;
  ControlLine line;
  bool open = true;  // its line has not ended
  bool listening = false;
  std::string address;
  int64_t ready = -1;  // newest step of each word
  int64_t applied = -1;
  int64_t reported = -1;
  std::map<int64_t, Message> applications;
  std::map<int64_t, Message> reports;
};

class VisitRun {
 public:
  VisitRun(const Visit& visit, const std::function<void()>& on_step)
      : visit_(visit), on_step_(on_step) {}
  ~VisitRun() {
    for (auto& child : workers_) end(*child);
    for (auto& child : servers_) end(*child);
  }

  VisitOutcome run() {
    if (drive() && outcome_.failure.empty()) collect_samples();
    return std::move(outcome_);
  }

 private:
  bool fail(const std::string& why) {
    if (outcome_.failure.empty()) outcome_.failure = why;
    return false;
  }

  bool drive() {
    for (uint32_t s = 0; s < visit_.spreading.servers; ++s) {
      servers_.push_back(start(visit_.server_network, [this, s](ControlLine line) {
        return serve(visit_, s, std::move(line));
      }));
      if (!servers_.back()) return false;
    }
    if (!pump([&] { return all(servers_, [](const Child& c) { return c.listening; }); },
              "the servers to listen"))
      return false;
    for (int w = 0; w < visit_.workers; ++w) {
      workers_.push_back(start_worker(w, 0));
      if (!workers_.back()) return false;
    }
    for (int64_t step = 0; step <= visit_.last_step(); ++step) {
      if (!drive_step(step)) return false;
      if (step >= visit_.warm_up_steps()) on_step_();
    }
    for (auto& worker : workers_) {
      if (!ended_well(*worker, "a worker")) return false;
    }
    for (auto& server : servers_) (void)server->line.send({.word = Word::kStop});
    for (auto& server : servers_) {
      if (!ended_well(*server, "a server")) return false;
    }
    return true;
  }

  bool drive_step(int64_t step) {
    step_ = step;
    auto ready = [&](const Child& c) { return c.ready >= step; };
    if (!pump([&] { return all(servers_, ready) && all(workers_, ready); },
              "everybody to be ready"))
      return false;
    for (auto& server : servers_) (void)server->line.send({.word = Word::kGo, .step = step});
    if (!pump([&] { return applied(step); }, "the gradients to be averaged")) return false;
    for (auto& worker : workers_) {
      // One that was restarted after this step was averaged has begun with the next.
      if (worker->reported < step) (void)worker->line.send({.word = Word::kFinished, .step = step});
    }
    auto reported = [&](const Child& c) { return c.reported >= step; };
    return pump([&] { return all(servers_, reported) && all(workers_, reported); },
                "the verification");
  }

  using Children = std::vector<std::unique_ptr<Child>>;

  template <typename Test>
  static bool all(const Children& children, Test test) {
    return std::all_of(children.begin(), children.end(),
                       [&](const auto& child) { return test(*child); });
  }

  // By all servers: until then each of them still has the weights of that step for a worker that
  // comes again.
  bool applied(int64_t step) const {
    return all(servers_, [&](const Child& c) { return c.applied >= step; });
  }

  std::unique_ptr<Child> start(int network, const std::function<int(ControlLine)>& role) {
    Result<std::pair<ControlLine, ControlLine>> lines = ControlLine::open_pair();
    if (!lines.ok()) {
      fail(lines.status().to_string());
      return nullptr;
    }
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid < 0) {
      fail("fork() failed; see ulimit -u");
      return nullptr;
    }
    if (pid == 0) {
      ::signal(SIGINT, SIG_DFL);
      ::signal(SIGTERM, SIG_DFL);
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);  // it died before prctl()
      // Of the others' lines only the inherited copies are closed: their ends are seen.
      lines->first = ControlLine();
      for (auto& other : workers_) other->line = ControlLine();
      for (auto& other : servers_) other->line = ControlLine();
      if (network >= 0 && !enter_network(network)) {
        Message gone{.word = Word::kFailed};
        gone.set_text("the network namespace cannot be entered");
        (void)lines->second.send(gone);
        ::_exit(1);
      }
      ::_exit(role(std::move(lines->second)));
    }
    auto child = std::make_unique<Child>();
    child->pid = pid;
    child->line = std::move(lines->first);
    return child;
  }

  // l2://its-interface/MAC:port names the server's interface; a worker goes by its own.
  std::string address_for_workers(const std::string& address) const {
    const size_t mac = address.find('/', std::min(address.size(), sizeof("l2://") - 1));
    if (!address.starts_with("l2://") || mac == std::string::npos) return address;
    return "l2://" + visit_.worker_interface + address.substr(mac);
  }

  std::unique_ptr<Child> start_worker(int index, int64_t first_step, bool again = false) {
    Visit plan = visit_;
    if (again) plan.kill_step = -1;
    WorkerPlace place{static_cast<uint32_t>(index), first_step, {}};
    for (const auto& server : servers_)
      place.addresses.push_back(address_for_workers(server->address));
    auto child = start(visit_.worker_network, [plan, place](ControlLine line) {
      return work(plan, place, std::move(line));
    });
    if (child) child->reported = first_step - 1;
    return child;
  }

  // Handles messages until done() or the time of one step is over.
  template <typename Done>
  bool pump(Done done, const char* what) {
    const Instant deadline = after(now(), visit_.timeout);
    while (!done()) {
      if (!outcome_.failure.empty()) return false;
      if (interrupted) return fail("interrupted");
      const Duration left = deadline - now();
      if (left <= Duration(0)) {
        return fail("waited " + std::to_string(visit_.timeout.count()) + " s for " + what +
                    " in step " + std::to_string(step_) +
                    "; raise it with --timeout, e.g. --timeout 300");
      }
      std::vector<pollfd> pollers;
      std::vector<Child*> polled;
      auto add = [&](Child& child) {
        if (!child.open) return;
        pollers.push_back({child.line.fd(), POLLIN, 0});
        polled.push_back(&child);
      };
      for (auto& server : servers_) add(*server);
      for (auto& worker : workers_) add(*worker);
      const auto wait = std::chrono::ceil<std::chrono::milliseconds>(left).count();
      if (::poll(pollers.data(), pollers.size(), static_cast<int>(wait)) <= 0) continue;
      for (size_t i = 0; i < polled.size(); ++i) {
        if (pollers[i].revents != 0) read_line(*polled[i]);
      }
      if (!revive()) return false;
    }
    return outcome_.failure.empty();
  }

  void read_line(Child& child) {
    for (;;) {
      Result<Message> message = child.line.try_receive();
      if (message.code() == Code::kTryAgain) return;
      if (!message.ok()) {
        child.open = false;
        return;
      }
      handle(child, *message);
    }
  }

  void handle(Child& child, const Message& message) {
    switch (message.word) {
      case Word::kListening:
        child.listening = true;
        child.address = message.text;
        break;
      case Word::kReady: child.ready = message.step; break;
      case Word::kApplied:
        child.applied = message.step;
        child.applications[message.step] = message;
        break;
      case Word::kReport:
        child.reported = message.step;
        child.reports[message.step] = message;
        if (*message.text != '\0' && outcome_.corruption.empty()) {
          outcome_.corruption = "step " + std::to_string(message.step) + ": " + message.text;
        }
        if (message.chunk_bytes != 0) outcome_.chunk_bytes = message.chunk_bytes;
        break;
      case Word::kFailed: fail(message.text); break;
      default: break;
    }
  }

  // A worker whose line ended before its work: restarted if it was killed.
  bool revive() {
    for (const auto& server : servers_) {
      if (!server->open && server->reported < visit_.last_step())
        return fail("a server's process ended");
    }
    for (size_t w = 0; w < workers_.size(); ++w) {
      Child& child = *workers_[w];
      if (child.open || child.pid < 0 || child.reported >= visit_.last_step()) continue;
      int status = 0;
      if (!reap(child, status)) return fail("a worker closed its line and went on");
      if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) {
        return fail("worker " + std::to_string(w) + " ended " + describe(status));
      }
      // A plan has one runner for each process, and no second one for its successor.
      if (visit_.mode == Mode::kGraph) return fail("a worker of mode graph was killed");
      if (++outcome_.restarts > kMostRestarts) return fail("workers were killed more than 3 times");
      // The step is repeated for it, unless all servers have averaged it already.
      const int64_t first = applied(step_) ? step_ + 1 : step_;
      if (first > visit_.last_step()) {
        child.reported = visit_.last_step();
        continue;
      }
      auto reports = std::move(child.reports);
      workers_[w] = start_worker(static_cast<int>(w), first, true);
      if (!workers_[w]) return false;
      workers_[w]->reports = std::move(reports);
    }
    return true;
  }

  static std::string describe(int status) {
    if (WIFSIGNALED(status)) return "by signal " + std::to_string(WTERMSIG(status));
    return "with exit code " + std::to_string(WEXITSTATUS(status));
  }

  // Waits for a child that is about to end. False: it did not.
  static bool reap(Child& child, int& status) {
    const Instant deadline = after(now(), kExitTime);
    for (;;) {
      const pid_t got = ::waitpid(child.pid, &status, WNOHANG);
      if (got == child.pid) break;
      if (got < 0 && errno != EINTR) return false;
      if (now() >= deadline) return false;
      // Its line ends a moment before its process does.
      (void)::poll(nullptr, 0, 1);
    }
    child.pid = -1;
    return true;
  }

  bool ended_well(Child& child, const std::string& who) {
    if (child.pid < 0) return true;
    int status = 0;
    if (!reap(child, status)) return fail(who + " did not end within 10 s");
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
    read_line(child);  // its last word, if it had one
    return fail(who + " ended " + describe(status));
  }

  static void end(Child& child) {
    if (child.pid < 0) return;
    ::kill(child.pid, SIGKILL);
    while (::waitpid(child.pid, nullptr, 0) < 0 && errno == EINTR) {}
    child.pid = -1;
  }

  static void add_counts(Sample& sample, const Message& report) {
    sample.copied_bytes += report.copied_bytes;
    sample.arena_bytes += report.arena_bytes;
    sample.fetches += report.fetches;
    sample.views += report.views;
  }

  void collect_samples() {
    for (int64_t step = visit_.warm_up_steps(); step <= visit_.last_step(); ++step) {
      Sample sample;
      int64_t begin_ns = servers_[0]->applications[step].begin_ns;
      int64_t end_ns = 0;
      int64_t cpu_ns = 0;
      for (auto& server : servers_) {
        const Message& applied = server->applications[step];
        begin_ns = std::min(begin_ns, applied.begin_ns);
        end_ns = std::max(end_ns, applied.end_ns);
        cpu_ns += applied.cpu_ns;
        add_counts(sample, server->reports[step]);
      }
      sample.step_seconds = static_cast<double>(end_ns - begin_ns) * 1e-9;
      for (auto& worker : workers_) {
        auto report = worker->reports.find(step);
        if (report == worker->reports.end()) continue;  // killed after its part was done
        sample.pull_seconds = std::max(
            sample.pull_seconds, static_cast<double>(report->second.end_ns - begin_ns) * 1e-9);
        cpu_ns += report->second.cpu_ns;
        add_counts(sample, report->second);
      }
      sample.cpu_seconds = static_cast<double>(cpu_ns) * 1e-9;
      outcome_.samples.push_back(sample);
    }
  }

  const Visit& visit_;
  const std::function<void()>& on_step_;
  InterruptGuard guard_;
  Children servers_;
  Children workers_;
  int64_t step_ = 0;
  VisitOutcome outcome_;
};

}  // namespace

VisitOutcome run_visit(const Visit& visit, const std::function<void()>& on_step) {
  return VisitRun(visit, on_step).run();
}

}  // namespace sluice::tools::demo
