#include "tests/demo/command.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace sluice::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kLongestRun{120};
constexpr const char* kBinary = "tools/demo_job/demo_main";

std::set<std::string> names_in(const std::string& directory) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    names.insert(entry.path().filename());
  return names;
}

// Others use the machine's shared memory as well.
std::set<std::string> names_of_ours() {
  std::set<std::string> names = names_in("/dev/shm");
  std::erase_if(names, [](const std::string& name) { return name.find("sluice") == name.npos; });
  return names;
}

std::string contents(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Children of `parent` right now.
size_t children_of(pid_t parent) {
  std::istringstream list(contents("/proc/" + std::to_string(parent) + "/task/" +
                                   std::to_string(parent) + "/children"));
  size_t count = 0;
  for (pid_t pid; list >> pid;) ++count;
  return count;
}

}  // namespace

DemoCommand::DemoCommand() {
  const char* base = std::getenv("TEST_TMPDIR");
  std::string pattern = std::string(base != nullptr ? base : "/tmp") + "/demo-XXXXXX";
  REQUIRE(::mkdtemp(pattern.data()) != nullptr);
  directory_ = pattern;
  std::filesystem::create_directory(directory_ + "/tmp");
  shared_memory_before_ = names_of_ours();
}

DemoCommand::~DemoCommand() {
  CHECK(names_of_ours() == shared_memory_before_);
  CHECK(names_in(directory_ + "/tmp").empty());
  for (pid_t group : groups_) {
    // A child that was told to die by its parent's death may take a moment.
    const Clock::time_point limit = Clock::now() + std::chrono::seconds(10);
    while (::kill(-group, 0) == 0 && Clock::now() < limit) (void)::poll(nullptr, 0, 5);
    const bool alive = ::kill(-group, 0) == 0;
    CHECK_FALSE(alive);
    if (alive) ::kill(-group, SIGKILL);
  }
  std::filesystem::remove_all(directory_);
}

CommandOutcome DemoCommand::run(const std::vector<std::string>& arguments) {
  return execute(arguments, 0);
}

CommandOutcome DemoCommand::run_and_signal(const std::vector<std::string>& arguments, int signal) {
  return execute(arguments, signal);
}

CommandOutcome DemoCommand::execute(const std::vector<std::string>& arguments, int signal) {
  const std::string out = directory_ + "/out";
  const std::string err = directory_ + "/err";
  std::vector<std::string> words = {kBinary, "demo"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const std::string temporary = directory_ + "/tmp";

  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    ::setpgid(0, 0);
    ::setenv("TMPDIR", temporary.c_str(), 1);
    ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
    ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
    ::execv(kBinary, argv.data());
    ::_exit(126);
  }
  ::setpgid(pid, pid);
  groups_.push_back(pid);

  const Clock::time_point limit = Clock::now() + kLongestRun;
  int status = 0;
  bool signalled = false;
  while (::waitpid(pid, &status, WNOHANG) == 0) {
    if (signal != 0 && !signalled && children_of(pid) >= 2) signalled = ::kill(pid, signal) == 0;
    if (Clock::now() >= limit) {
      ::kill(-pid, SIGKILL);
      ::waitpid(pid, &status, 0);
      FAIL_CHECK("the command did not end within 120 s");
      break;
    }
    (void)::poll(nullptr, 0, 2);
  }
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, contents(out), contents(err)};
}

std::vector<std::string> DemoCommand::with_json(std::vector<std::string> arguments) const {
  arguments.push_back("--json");
  arguments.push_back(directory_ + "/figures.json");
  return arguments;
}

nlohmann::json DemoCommand::read_json() const {
  return nlohmann::json::parse(contents(directory_ + "/figures.json"));
}

}  // namespace sluice::test
