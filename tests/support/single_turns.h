// Tells which calls of progress() were a single turn. A call 20 ms or more after the last one makes
// several (docs/design.md, "Turns"); on a busy machine any call can be that late.
#ifndef SLUICE_TESTS_SUPPORT_SINGLE_TURNS_H_
#define SLUICE_TESTS_SUPPORT_SINGLE_TURNS_H_

#include <chrono>
#include <utility>

#include <sluice/api/context.h>
#include <sluice/base/clock.h>

namespace sluice::test {

class SingleTurns {
 public:
  explicit SingleTurns(Context& context) : context_(context) {}
  // True: it was one turn. False: it may have been several.
  bool progress() {
    const Instant last = std::exchange(last_, now());
    (void)context_.progress();
    return now() - last < std::chrono::milliseconds(10);
  }

 private:
  Context& context_;
  Instant last_{};  // when the last one began
};

}  // namespace sluice::test

#endif  // SLUICE_TESTS_SUPPORT_SINGLE_TURNS_H_
