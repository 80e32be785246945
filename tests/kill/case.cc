#include "tests/kill/case.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <new>

#include <sluice/select/open.h>

#include "tests/kill/worker.h"

namespace sluice::test {
namespace {

constexpr Duration kLimit = std::chrono::seconds(25);
constexpr Duration kLimitInGuest = std::chrono::seconds(100);
// How long the survivor may be busy with its peer and with its buffers before it looks up.
constexpr Duration kPatience = std::chrono::seconds(10);
constexpr Duration kPatienceInGuest = std::chrono::seconds(30);

// The bystander, and the one who starts, wakes and collects the others.
class Conductor {
 public:
  explicit Conductor(const KillCase& cell) : cell_(cell) {
    void* memory =
        ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    board_ = new (memory) Board();
  }
  ~Conductor() {
    for (pid_t pid : {survivor_, victim_}) {
      if (pid <= 0) continue;
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    ::munmap(board_, sizeof(Board));
  }

  Verdict run() {
    limit_ = after(now(), cell_.in_guest() ? kLimitInGuest : kLimit);
    // Before our own context exists: children of it would be forked from one.
    pid_t server = start(Side::kServer), client = start(Side::kClient);
    victim_ = cell_.victim == Side::kServer ? server : client;
    survivor_ = cell_.victim == Side::kServer ? client : server;
    bool fine =
        connect() && ping() && operations() && ping() && wake_victim() && ping() && finish();
    Verdict verdict{.reached = board_->reached.load() != 0, .failure = fine ? "" : failure_};
    if (board_->failure[0] != '\0') verdict.failure += std::string("; ") + board_->failure;
    return verdict;
  }

 private:
  pid_t start(Side side) {
    pid_t pid = ::fork();
    if (pid == 0) work(cell_, side, *board_);
    return pid;
  }
  bool fail(const std::string& why) {
    failure_ = why + " [" + std::to_string(pings_) + " pings, the survivor at step " +
               std::to_string(board_->survivor_step.load()) + "]";
    return false;
  }
  // Runs our own context until `done`.
  template <typename Done>
  bool until(Done&& done, const char* what) {
    while (!done()) {
      (void)context_->wait(after(now(), std::chrono::milliseconds(5)));
      if (ended(survivor_)) return fail(std::string("the survivor ended during: ") + what);
      if (now() > limit_) return fail(std::string("hangs: ") + what);
    }
    return true;
  }
  bool ended(pid_t& pid) {
    int status = 0;
    if (pid <= 0 || ::waitpid(pid, &status, WNOHANG) != pid) return false;
    pid = -1;
    status_ = status;
    return true;
  }

  bool connect() {
    ArenaOptions arena{.limit_bytes = 16u << 20,
                       .first_extent_bytes = 2u << 20,
                       .receive_reserve_bytes = 1u << 20};
    auto context = open_context({.arena = {}, .arena_options = arena, .waiting = Waiting::kSleep});
    if (!context.ok()) return fail(context.status().to_string());
    context_ = std::move(*context);
    if (!until([&] { return board_->survivor_ready.load() != 0; }, "start")) return false;
    Instant limit = after(now(), patience());
    auto endpoint = context_->connect(board_->bystander_address, {.timeout = patience()});
    // A greeting that is not answered within the listener's own limit is no connection; a user
    // tries again.
    while (!endpoint.ok() && endpoint.code() == Code::kUnreachable && now() < limit &&
           !ended(survivor_)) {
      endpoint = context_->connect(board_->bystander_address, {.timeout = patience()});
    }
    if (!endpoint.ok())
      return fail("the bystander cannot connect: " + endpoint.status().to_string());
    endpoint_ = std::move(*endpoint);
    return true;
  }
  Duration patience() const { return cell_.in_guest() ? kPatienceInGuest : kPatience; }
  // The survivor's other connection works.
  bool ping() {
    auto out = context_->allocate({64}, uint8), back = context_->allocate({64}, uint8);
    if (!out.ok() || !back.ok()) return fail("no memory for a ping");
    std::memset(out->data(), ++pings_, 64);
    Instant deadline = after(now(), patience());
    auto sent = endpoint_.send_and_wait(1, std::move(*out).freeze(), deadline);
    if (!sent.ok()) return fail("the bystander cannot send: " + sent.status().to_string());
    auto got = endpoint_.receive_and_wait({.tag = 2}, std::move(*back), deadline);
    if (!got.ok()) return fail("the bystander gets no answer: " + got.status().to_string());
    if (got->buffer.data()[63] != static_cast<std::byte>(pings_))
      return fail("the bystander got another message");
    return true;
  }
  bool operations() {
    return until(
        [&] { return board_->operations_ended.load() != 0 && board_->memory_reused.load() != 0; },
        "operations");
  }
  bool wake_victim() {
    // Again and again: it may come to its label only now.
    auto gone = [&] {
      if (victim_ > 0) ::kill(victim_, SIGCONT);
      return ended(victim_);
    };
    if (!until(gone, "the end of the victim")) return false;
    bool killed = WIFSIGNALED(status_) && WTERMSIG(status_) == SIGKILL && cell_.signal == SIGKILL;
    bool fine = WIFEXITED(status_) && WEXITSTATUS(status_) == kFine;
    if (!killed && !fine) return fail("the victim failed with status " + std::to_string(status_));
    board_->victim_gone.store(1);
    return true;
  }
  bool finish() {
    (void)endpoint_.close(after(now(), std::chrono::seconds(5)));
    board_->finish.store(1);
    while (!ended(survivor_)) {
      (void)context_->wait(after(now(), std::chrono::milliseconds(5)));
      if (now() > limit_) return fail("the survivor hangs at its end");
    }
    bool fine = WIFEXITED(status_) && WEXITSTATUS(status_) == kFine;
    return fine || fail("the survivor failed with status " + std::to_string(status_));
  }

  const KillCase& cell_;
  Board* board_;
  pid_t survivor_ = -1, victim_ = -1;
  int status_ = 0;
  int pings_ = 0;
  Instant limit_{};
  std::unique_ptr<Context> context_;
  Endpoint endpoint_;
  std::string failure_;
};

}  // namespace

std::string KillCase::name() const {
  return path + " " + label + " #" + std::to_string(hit) +
         (signal == SIGKILL ? " SIGKILL" : " SIGSTOP") +
         (victim == Side::kServer ? " of the server" : " of the client");
}

Verdict run_case(const KillCase& cell) { return Conductor(cell).run(); }

}  // namespace sluice::test
