// victim serve ADDRESS | victim work ADDRESS FIRST_STEP [visits]: the two honest ends of tests/hostile.
#include <signal.h>
#include <sys/prctl.h>

#include <cstdlib>
#include <iostream>
#include <string>

#include "tests/hostile/victim/server.h"
#include "tests/hostile/victim/worker.h"

int main(int argc, char** argv) {
  std::string verb = argc >= 3 ? argv[1] : "";
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (verb == "serve") return sluice::hostile::serve(argv[2]);
  if (verb == "work" && argc >= 4) return sluice::hostile::work(argv[2], std::strtoull(argv[3], nullptr, 10), argc > 4);
  std::cerr << "use victim serve ADDRESS, or victim work ADDRESS FIRST_STEP [visits]\n";
  return 2;
}
