// Runs the demo command in a process of its own and looks afterwards for what it may
// have left behind.
#ifndef SLUICE_TESTS_DEMO_COMMAND_H_
#define SLUICE_TESTS_DEMO_COMMAND_H_

#include <sys/types.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

namespace sluice::test {

struct CommandOutcome {
  int exit_code = -1;  // -1: ended by a signal
  std::string out;
  std::string err;
};

// A demo run under audit: at the end of its life no process of its process group is
// alive, and /dev/shm and the temporary directory hold no more than before.
class DemoCommand {
 public:
  DemoCommand();
  ~DemoCommand();
  DemoCommand(const DemoCommand&) = delete;
  DemoCommand& operator=(const DemoCommand&) = delete;

  // `demo` and these arguments. Blocks: until the process ends; it is killed after 120 s.
  CommandOutcome run(const std::vector<std::string>& arguments);
  // As run(), with a signal to the command once it has worker processes.
  CommandOutcome run_and_signal(const std::vector<std::string>& arguments, int signal);
  // What --json wrote. Requires: run() was given json_flag().
  std::vector<std::string> with_json(std::vector<std::string> arguments) const;
  nlohmann::json read_json() const;

 private:
  CommandOutcome execute(const std::vector<std::string>& arguments, int signal);
  std::string directory_;
  std::set<std::string> shared_memory_before_;
  std::vector<pid_t> groups_;
};

}  // namespace sluice::test

#endif  // SLUICE_TESTS_DEMO_COMMAND_H_
