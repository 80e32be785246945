#include <sluice/grpc/pieces.h>

#include <utility>

#include <google/protobuf/io/zero_copy_stream.h>

#include <sluice/grpc/payload_field.h>

namespace sluice::grpc {
namespace {

// What is taken for the bytes between two tensors: mostly a few tags and lengths. Less than
// kShareBytes, or protobuf would copy a tensor into it instead of passing it on.
constexpr size_t kBlockBytes = 4 << 10;
static_assert(kBlockBytes < kShareBytes);

class PieceStream final : public ::google::protobuf::io::ZeroCopyOutputStream, public PayloadSink {
 public:
  PieceStream() : outer_(std::exchange(PayloadSink::current(), this)) {}
  ~PieceStream() override { PayloadSink::current() = outer_; }

  bool Next(void** data, int* size) override {
    if (pieces.empty() || pieces.back().tensor) pieces.emplace_back();
    std::string& bytes = pieces.back().bytes;
    const size_t used = bytes.size();
    bytes.resize(used + kBlockBytes);
    *data = bytes.data() + used;
    *size = static_cast<int>(kBlockBytes);
    count_ += static_cast<int64_t>(kBlockBytes);
    return true;
  }
  void BackUp(int count) override {
    if (count == 0) return;  // protobuf's last word, also behind a tensor
    std::string& bytes = pieces.back().bytes;
    bytes.resize(bytes.size() - static_cast<size_t>(count));
    count_ -= count;
    if (bytes.empty()) pieces.pop_back();
  }
  int64_t ByteCount() const override { return count_; }
  bool AllowsAliasing() const override { return true; }
  void next_is(const Tensor& tensor) override { next_ = &tensor; }
  bool WriteAliasedRaw(const void*, int size) override {
    pieces.push_back({.bytes = {}, .tensor = *next_});
    count_ += size;
    return true;
  }

  std::vector<Piece> pieces;

 private:
  PayloadSink* const outer_;
  const Tensor* next_ = nullptr;
  int64_t count_ = 0;
};

}  // namespace

Measured measure(const ::google::protobuf::MessageLite& message) {
  tensors_measured() = 0;
  const uint64_t length = message.ByteSizeLong();
  return {.length = length, .has_tensors = tensors_measured() > 0};
}

std::optional<std::vector<Piece>> take_apart(const ::google::protobuf::MessageLite& message) {
  PieceStream stream;
  if (!message.SerializeToZeroCopyStream(&stream)) return std::nullopt;
  return std::move(stream.pieces);
}

}  // namespace sluice::grpc
