// Labelled steps of the protocol, where a test may stop, kill or fail the
// process. Without SLUICE_FAULT_POINTS (an opt build) a label is nothing.
#ifndef SLUICE_BASE_FAULT_POINT_H_
#define SLUICE_BASE_FAULT_POINT_H_

#include <atomic>

namespace sluice {

using FaultHook = void (*)(const char* label);

#if defined(SLUICE_FAULT_POINTS)
inline std::atomic<FaultHook> fault_hook{nullptr};

inline void fault_point(const char* label) {
  FaultHook hook = fault_hook.load(std::memory_order_relaxed);
  if (hook != nullptr) [[unlikely]]
    hook(label);
}
inline constexpr bool kFaultPoints = true;
#else
inline void fault_point(const char*) {}
inline constexpr bool kFaultPoints = false;
#endif

}  // namespace sluice

#endif  // SLUICE_BASE_FAULT_POINT_H_
