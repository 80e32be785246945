// What both ends of the exchange link agree on.
#ifndef SLUICE_TOOLS_DEMO_JOB_EXCHANGE_LINK_H_
#define SLUICE_TOOLS_DEMO_JOB_EXCHANGE_LINK_H_

#include <chrono>

#include <sluice/api/completion.h>

namespace sluice::tools::demo {

// A worker's first message: its index, 4 bytes.
inline constexpr Tag kHelloTag = 0x68656c6c6f;
// An orderly close that takes longer is aborted.
inline constexpr std::chrono::seconds kCloseTime{5};

}  // namespace sluice::tools::demo

#endif  // SLUICE_TOOLS_DEMO_JOB_EXCHANGE_LINK_H_
