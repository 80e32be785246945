// What both ends of the gRPC link share.
#ifndef SLUICE_TOOLS_DEMO_JOB_GRPC_LINK_H_
#define SLUICE_TOOLS_DEMO_JOB_GRPC_LINK_H_

#include <grpc/grpc.h>

namespace sluice::tools::demo {

// Takes a reference to the library that is never given back: its last shutdown joins
// an executor that may sit in epoll_wait for up to 10 s (seen with 1.51). The process
// ends by _exit() instead, when all calls are over.
inline void keep_grpc_running() { grpc_init(); }

}  // namespace sluice::tools::demo

#endif  // SLUICE_TOOLS_DEMO_JOB_GRPC_LINK_H_
