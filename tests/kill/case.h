// One cell of the kill matrix: two processes at work over one path, one of which is killed
// or stopped at a label, and a bystander whose connection to the survivor must go on.
#ifndef SLUICE_TESTS_KILL_CASE_H_
#define SLUICE_TESTS_KILL_CASE_H_

#include <string>

namespace sluice::test {

enum class Side { kServer, kClient };

struct KillCase {
  std::string path;   // shm, tcp, sluice, rdma, l2, kmod
  std::string mark;   // in the names of its shm sockets
  std::string label;  // of fault_point()
  int hit = 1;        // the how-many-th time it is reached
  int signal = 0;     // SIGKILL or SIGSTOP
  Side victim = Side::kClient;
  std::string name() const;
  // The survivor cuts the connection, without a word: what comes to the label otherwise does so by
  // chance.
  bool cut() const { return label == "kmod.stopped"; }
  bool in_guest() const {
    return path == "rdma" || path == "kmod";
  }  // where each instruction is many of the machine's
};

struct Verdict {
  bool reached = false;  // the victim came to the label
  std::string failure;   // empty: all rules were kept
};

// Runs one cell with processes of its own. Called in a process without threads; returns when
// all of them have ended. Blocks: at most about 25 s, in a guest 100 s.
Verdict run_case(const KillCase& cell);

}  // namespace sluice::test

#endif  // SLUICE_TESTS_KILL_CASE_H_
