// gRPC as its experts use it: callback API, messages that are slices over the program's own memory,
// no protobuf, chunks of the best size. Knows nothing of sluice's transports.
//
// Method Pull: the worker sends an ExpertAsk, the server parts. Method Push: the worker sends
// parts. A part is a PartPlace and its bytes. Both ends are one machine's, so numbers are its own.
#ifndef SLUICE_TOOLS_DEMO_JOB_GRPC_EXPERT_H_
#define SLUICE_TOOLS_DEMO_JOB_GRPC_EXPERT_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include "tools/demo_job/grpc_lane.h"
#include "tools/demo_job/grpc_store.h"
#include "tools/demo_job/model.h"

namespace sluice::tools::demo {

inline constexpr char kExpertPull[] = "/sluice.demo.Expert/Pull";
inline constexpr char kExpertPush[] = "/sluice.demo.Expert/Push";

// Tried in the warm-up step; the second one first, untimed.
inline constexpr std::array<uint64_t, 5> kExpertChunkSizes = {64 << 10, 512 << 10, 2 << 20, 8 << 20,
                                                              32 << 20};

struct ExpertAsk {
  int64_t step = 0;
  uint64_t chunk_bytes = 0;
};

// The parts of a model one after another. `model` outlives it.
class ExpertChunks {
 public:
  ExpertChunks(const Model& model, uint64_t chunk_bytes)
      : model_(model), chunk_bytes_(std::max<uint64_t>(chunk_bytes, 1)) {}

  bool done() const { return tensor_ == model_.tensors.size(); }
  uint32_t tensor() const { return tensor_; }
  // The next one, whose tensor lies at `data`; `place` needs worker and step. Requires: not done();
  // the memory stays until the call is over.
  ::grpc::ByteBuffer take(char* data, PartPlace place) {
    const size_t bytes = model_.tensors[tensor_].bytes();
    const size_t length = std::min<size_t>(chunk_bytes_, bytes - at_);
    place.tensor = tensor_;
    place.offset = at_;
    const ::grpc::Slice slices[] = {::grpc::Slice(&place, sizeof(place)),
                                    ::grpc::Slice(data + at_, length, ::grpc::Slice::STATIC_SLICE)};
    at_ += length;
    if (at_ == bytes) {
      ++tensor_;
      at_ = 0;
    }
    return ::grpc::ByteBuffer(slices, 2);
  }

 private:
  const Model& model_;
  const uint64_t chunk_bytes_;
  uint32_t tensor_ = 0;
  size_t at_ = 0;
};

// What came, where gRPC has it: a head, and the rest in pieces.
class ExpertMessage {
 public:
  // Takes the message over; its slices live as long as this. False: it is shorter than its head.
  template <typename Head>
  bool open(::grpc::ByteBuffer& message, Head& head) {
    slices_.clear();
    pieces_.clear();
    const bool there = message.Dump(&slices_).ok();
    message.Clear();
    if (!there) return false;
    size_t have = 0;
    for (const ::grpc::Slice& slice : slices_) {
      std::string_view piece(reinterpret_cast<const char*>(slice.begin()), slice.size());
      const size_t part = std::min(sizeof(head) - have, piece.size());
      std::memcpy(reinterpret_cast<char*>(&head) + have, piece.data(), part);
      have += part;
      piece.remove_prefix(part);
      if (!piece.empty()) pieces_.push_back(piece);
    }
    return have == sizeof(head);
  }
  const std::vector<std::string_view>& pieces() const { return pieces_; }

 private:
  std::vector<::grpc::Slice> slices_;
  std::vector<std::string_view> pieces_;
};

// `store` outlives it.
std::unique_ptr<::grpc::CallbackGenericService> make_expert_service(GrpcStore& store);
std::unique_ptr<GrpcLane> make_expert_lane(const GrpcLaneParameters& parameters);

}  // namespace sluice::tools::demo

#endif  // SLUICE_TOOLS_DEMO_JOB_GRPC_EXPERT_H_
