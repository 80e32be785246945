#include "tools/demo_job/job.h"

namespace sluice::tools::demo {

std::string_view to_string(Mode mode) {
  switch (mode) {
    case Mode::kZerocopy: return "zerocopy";
    case Mode::kOnecopy: return "onecopy";
    case Mode::kGrpcOverSluice: return "grpc-over-sluice";
    case Mode::kGrpcUnary: return "grpc-unary";
    case Mode::kGrpcExpert: return "grpc-expert";
    case Mode::kGrpcStream: return "grpc-stream";
    case Mode::kGraph: return "graph";
  }
  return "";
}

std::string_view to_string(Route route) {
  switch (route) {
    case Route::kShm: return "shm";
    case Route::kRdma: return "rdma";
    case Route::kL2: return "l2";
    case Route::kTcp: return "tcp";
  }
  return "";
}

}  // namespace sluice::tools::demo
