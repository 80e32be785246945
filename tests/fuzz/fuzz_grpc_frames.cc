// Frames of the gRPC bridge, one behind the other, and the same bytes as an announcement. What is
// accepted keeps every limit, reads nothing beyond the input, and encodes back to the same bytes.
#include <functional>
#include <string>
#include <string_view>

#include <sluice/grpc/frames.h>

#include "tests/fuzz/target.h"

namespace {

using sluice::grpc::Frame;
using sluice::grpc::FrameKind;

bool lies_in(std::span<const std::byte> part, std::span<const std::byte> whole) {
  const std::less_equal<const std::byte*> before;
  return part.empty() || (before(whole.data(), part.data()) &&
                          before(part.data() + part.size(), whole.data() + whole.size()));
}

std::string problem_of_parts(const Frame& frame, std::span<const std::byte> read) {
  if (frame.kind != FrameKind::kMessage && (!frame.parts.empty() || frame.length != 0))
    return "a frame without a message has parts";
  if (frame.parts.size() > sluice::grpc::kMostParts) return "more parts than are allowed";
  if (frame.length > sluice::grpc::kMostMessageBytes) return "a message beyond the limit";
  uint64_t total = 0, inline_bytes = 0;
  for (const sluice::grpc::MessagePart& part : frame.parts) {
    total += part.length;
    if (part.payload == 0) inline_bytes += part.length;
    if (part.bytes.size() != (part.payload == 0 ? part.length : 0))
      return "a part has other bytes than its length says";
    if (!lies_in(part.bytes, read)) return "a part lies outside of its frame";
  }
  if (total != frame.length) return "the parts are not the message";
  if (inline_bytes > sluice::grpc::kInlineBytes) return "more lies in a frame than is allowed";
  return {};
}

std::string problem_of(std::span<const std::byte> in) {
  while (!in.empty()) {
    std::span<const std::byte> rest = in;
    auto frame = sluice::grpc::take_frame(rest);
    if (!frame) return rest.size() == in.size() ? "" : "a refused frame shortened the input";
    if (rest.size() >= in.size() || rest.data() + rest.size() != in.data() + in.size())
      return "the rest is not the end of the input";
    const std::span<const std::byte> read = in.first(in.size() - rest.size());
    if (!sluice::grpc::fits(*frame)) return "a frame beyond the limits was accepted";
    if (std::string problem = problem_of_parts(*frame, read); !problem.empty()) return problem;
    std::string again;
    sluice::grpc::append(again, *frame);
    if (again != std::string_view(reinterpret_cast<const char*>(read.data()), read.size()))
      return "an accepted frame encodes to other bytes";
    in = rest;
  }
  return {};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sluice::fuzz::require_no(problem_of(std::as_bytes(std::span(data, size))));
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  auto announced = sluice::grpc::decode_announcement(text);
  if (announced && sluice::grpc::encode(*announced) != text)
    sluice::fuzz::require_no("an accepted announcement encodes to other bytes");
  return 0;
}
