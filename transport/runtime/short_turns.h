// Lets a turn end as soon as something has come, so that the program has it before anything else
// is done: what is left to send, or to look at, is of the next turn. A count keeps a peer that
// never stops from holding the rest up.
#ifndef SLUICE_RUNTIME_SHORT_TURNS_H_
#define SLUICE_RUNTIME_SHORT_TURNS_H_

#include <cstddef>
#include <cstdint>

namespace sluice {

class ShortTurns {
 public:
  // The turn after so many short ones is whole, however much comes. A short one lasts half a
  // millisecond at most (proto/turn_budget.h). Until a whole one no RELEASE leaves: with 7, eight
  // tensors in flight went out and came home together, and both ends waited in between
  // (docs/performance.md, "Hand-overs in flight").
  static constexpr uint32_t kMostInARow = 3;

  // `work`: what this turn has handled so far. True: it ends here.
  bool ends_after(size_t work) {
    if (work == 0 || in_a_row_ == kMostInARow) {
      in_a_row_ = 0;
      return false;
    }
    ++in_a_row_;
    return true;
  }

 private:
  uint32_t in_a_row_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_SHORT_TURNS_H_
