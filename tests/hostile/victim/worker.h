// The honest client: operations of every kind with the server, one after the other, each of which
// has to end well.
#ifndef SLUICE_TESTS_HOSTILE_VICTIM_WORKER_H_
#define SLUICE_TESTS_HOSTILE_VICTIM_WORKER_H_

#include <cstdint>
#include <string>

namespace sluice::hostile {

// Connects, prints "working" after the first round, and goes on until standard input says "end" or
// ends. "more N" prints "did" when N further rounds are done. At the end a line of JSON: completed,
// failed (texts), bytes, longest_us; "figures" prints it earlier, "begin" counts bytes and
// longest_us anew. Returns the exit code. Its keys have steps from `first_step` on; with `visits` a
// second connection comes and goes in every eighth round.
int work(const std::string& address, const std::string& secret, uint64_t first_step, bool visits);

}  // namespace sluice::hostile

#endif  // SLUICE_TESTS_HOSTILE_VICTIM_WORKER_H_
