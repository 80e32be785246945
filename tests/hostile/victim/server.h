// The server that is attacked: a listener, an exchange and the service of service.h for everybody
// who comes, honest or not. It cannot tell.
#ifndef SLUICE_TESTS_HOSTILE_VICTIM_SERVER_H_
#define SLUICE_TESTS_HOSTILE_VICTIM_SERVER_H_

#include <string>

namespace sluice::hostile {

// Listens at `address`, prints where, and obeys lines of standard input: "audit" (waits until
// what clients had is given back, then prints what is held; the first one is what later ones are
// compared with), "keys" (how many new names can be published), "turns" (of progress() since it was
// last asked), "end". Returns the exit code. Clients that say `secret` may have and supply keys of
// their own.
int serve(const std::string& address, const std::string& secret);

}  // namespace sluice::hostile

#endif  // SLUICE_TESTS_HOSTILE_VICTIM_SERVER_H_
