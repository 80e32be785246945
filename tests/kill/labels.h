// Every fault_point label of transport/, and which side comes to it on which path. The
// matrix runs a case for each; labels_test.py compares this list with the sources.
#ifndef SLUICE_TESTS_KILL_LABELS_H_
#define SLUICE_TESTS_KILL_LABELS_H_

#include <span>

namespace sluice::test {

enum class Reached {
  kNowhere,
  kServer,  // the side that listens
  kClient,  // the side that connects
  kEither,
};

struct Label {
  const char* name;
  Reached shm, tcp;
  Reached sluice;  // up to the choice of a path; what comes after it is that path's matter
  Reached rdma;    // in a guest of the lab
  Reached l2;      // in a network of the test's own
  Reached kmod;    // over the kernel module, in a guest of the lab
  bool busy;       // reached many times: also killed and stopped at the fourth
  // Of a label that no case comes to.
  const char* why_nowhere = nullptr;
};

std::span<const Label> labels();

}  // namespace sluice::test

#endif  // SLUICE_TESTS_KILL_LABELS_H_
