#include "tools/profile/record.h"

#include <errno.h>
#include <fmt/format.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>

#include <sluice/recording/format.h>

namespace sluice::tools::profile {
namespace {

namespace fs = std::filesystem;

int fail(const std::string& why) {
  fmt::print(stderr, "sluice profile: {}\n", why);
  return 1;
}

// Empty: it could not be made, and why is said.
std::string make_folder(std::string folder) {
  std::error_code error;
  if (folder.empty()) {
    folder = "sluice-recording-XXXXXX";
    if (::mkdtemp(folder.data()) == nullptr) {
      fail(fmt::format("no folder can be made here: {}; give one with --output",
                       std::strerror(errno)));
      return "";
    }
  } else if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    fail(fmt::format("the folder {} cannot be made: {}; give another with --output", folder,
                     std::strerror(errno)));
    return "";
  }
  const fs::path whole = fs::canonical(folder, error);
  if (error || !fs::is_directory(whole, error)) {
    fail(folder + " is no folder; give another with --output");
    return "";
  }
  return whole.string();
}

std::set<std::string> recordings_in(const std::string& folder) {
  std::set<std::string> found;
  std::error_code error;
  for (const fs::directory_entry& each : fs::directory_iterator(folder, error))
    if (each.path().extension() == ".sluicerec") found.insert(each.path().string());
  return found;
}

constexpr int kPassedOn[] = {SIGTERM, SIGHUP};

// For the handler below; 0: not begun, or over.
std::atomic<pid_t> running = 0;

// What ends us ends the program, which is then told of as always.
void pass_on(int number) {
  if (const pid_t program = running; program > 0) ::kill(program, number);
}

void pass_on_from_now() {
  for (int number : kPassedOn) {
    struct sigaction before {};
    if (::sigaction(number, nullptr, &before) != 0 || before.sa_handler == SIG_IGN) continue;
    struct sigaction handler {};
    handler.sa_handler = pass_on;
    (void)::sigaction(number, &handler, nullptr);
  }
}

// As the shell tells it.
int run(const std::vector<std::string>& program) {
  std::vector<char*> words;
  for (const std::string& word : program) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  std::fflush(nullptr);
  pass_on_from_now();
  // What comes before we know the program waits.
  sigset_t mask, blocked;
  ::sigemptyset(&blocked);
  for (int number : kPassedOn) ::sigaddset(&blocked, number);
  ::sigprocmask(SIG_BLOCK, &blocked, &mask);
  const pid_t child = ::fork();
  if (child < 0) return fail(fmt::format("no second process: {}", std::strerror(errno)));
  if (child == 0) {
    ::sigprocmask(SIG_SETMASK, &mask, nullptr);
    ::execvp(words[0], words.data());
    const int error = errno;
    fail(fmt::format("{} cannot be run: {}; give a program and its arguments behind --", program[0],
                     std::strerror(error)));
    ::_exit(error == ENOENT ? 127 : 126);
  }
  // A terminal's interrupt is for the program; what it wrote until then is told below.
  ::signal(SIGINT, SIG_IGN);
  ::signal(SIGQUIT, SIG_IGN);
  running = child;
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {}
  running = 0;
  ::signal(SIGINT, SIG_DFL);
  ::signal(SIGQUIT, SIG_DFL);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

int record(const std::vector<std::string>& program, std::string folder) {
  const bool own = folder.empty();
  folder = make_folder(std::move(folder));
  if (folder.empty()) return 1;
  const std::set<std::string> before = recordings_in(folder);
  ::setenv("SLUICE_RECORD", folder.c_str(), /*overwrite=*/1);
  const int code = run(program);
  std::fflush(stdout);
  size_t told = 0;
  for (const std::string& file : recordings_in(folder)) {
    if (before.contains(file)) continue;
    ++told;
    Result<recording::Recording> read = recording::read_recording(file);
    if (!read.ok()) {
      fmt::print(stderr, "sluice profile: {}\n", read.status().detail());
      continue;
    }
    size_t messages = 0;
    for (const auto& [number, context] : (*read).contexts) messages += context.events.size();
    fmt::print(stderr, "sluice profile: {}: {} messages\n", file, messages);
    for (const std::string& missing : (*read).missing)
      fmt::print(stderr, "sluice profile:   {}\n", missing);
  }
  if (told > 0) {
    fmt::print(stderr, "sluice profile: next: sluice profile advise {}/*\n", folder);
    return code;
  }
  if (own) ::rmdir(folder.c_str());
  if (code == 126 || code == 127) return code;
  const int nothing =
      fail(fmt::format("nothing was recorded: {} opened no context of sluice, or of a version "
                       "without a recorder, or it is set-user-id, or it cleared its environment",
                       program[0]));
  return code != 0 ? code : nothing;
}

}  // namespace sluice::tools::profile
