// What server and client of a kill case do, and the page they share with the conductor.
#ifndef SLUICE_TESTS_KILL_WORKER_H_
#define SLUICE_TESTS_KILL_WORKER_H_

#include <atomic>
#include <cstdint>

#include "tests/kill/case.h"

namespace sluice::test {

// In memory that all processes of a case share; who sets what is said.
struct Board {
  char server_address[160];
  std::atomic<int> server_ready;  // server: its address is there
  char bystander_address[160];
  std::atomic<int> survivor_ready;    // survivor: the bystander's address is there
  std::atomic<int> reached;           // victim: came to the label
  std::atomic<int> dones;             // victim: answers it can have sent at most
  std::atomic<int> operations_ended;  // survivor
  std::atomic<int> memory_reused;     // survivor: all memory it can get is overwritten
  std::atomic<int> survivor_step;     // survivor: how far it is, for the report of a failure
  std::atomic<int> victim_gone;       // conductor
  std::atomic<int> finish;            // conductor: the bystander is done
  char failure[512];                  // survivor or victim
};

// Exit codes.
inline constexpr int kFine = 0;
inline constexpr int kFailed = 4;

// The life of one process; never returns.
[[noreturn]] void work(const KillCase& cell, Side side, Board& board);

}  // namespace sluice::test

#endif  // SLUICE_TESTS_KILL_WORKER_H_
