// victim serve ADDRESS SECRET | victim work ADDRESS SECRET FIRST_STEP [visits]: the two honest ends
// of tests/hostile.
#include <signal.h>
#include <sys/prctl.h>

#include <cstdlib>
#include <iostream>
#include <string>

#include "tests/hostile/victim/server.h"
#include "tests/hostile/victim/worker.h"

int main(int argc, char** argv) {
  std::string verb = argc >= 4 ? argv[1] : "";
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (verb == "serve") return sluice::hostile::serve(argv[2], argv[3]);
  if (verb == "work" && argc >= 5)
    return sluice::hostile::work(argv[2], argv[3], std::strtoull(argv[4], nullptr, 10), argc > 5);
  std::cerr
      << "use victim serve ADDRESS SECRET, or victim work ADDRESS SECRET FIRST_STEP [visits]\n";
  return 2;
}
