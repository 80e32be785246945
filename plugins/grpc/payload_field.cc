#include <sluice/grpc/payload_field.h>

#include <climits>
#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <string_view>

#include <google/protobuf/wire_format_lite.h>

#include <sluice/base/counters.h>

namespace sluice::grpc {
namespace {

using ::google::protobuf::internal::WireFormatLite;
using ::google::protobuf::io::CodedOutputStream;

Counter payloads_copied("grpc.payloads_copied");
Counter payloads_shared("grpc.payloads_shared");

// Bytes that protobuf may have copied aside at the seam of two pieces of its input: what follows
// them is read where it really lies. Twice EpsCopyInputStream::kSlopBytes, and some.
constexpr int kSeamBytes = 64;

struct Ranges {
  std::shared_mutex mutex;
  std::multimap<const std::byte*, const Tensor*> by_start;
};

Ranges& ranges() {
  static auto* all = new Ranges();  // slices end after main()
  return *all;
}

Tensor copy_of(std::string_view text) {
  payloads_copied.add();
  auto* kept = new std::string(text);
  Result<Tensor> tensor = Tensor::wrap(
      kept->data(), TensorDescriptor::bytes(kept->size()),
      [](void* user) { delete static_cast<std::string*>(user); }, kept);
  if (tensor.ok()) return std::move(*tensor);
  delete kept;
  return Tensor();
}

}  // namespace

struct PayloadField::Shared {
  Tensor tensor;
  bool in_arena = false;
  std::once_flag copied;
  std::string text;
};

void PayloadField::drop() {
  Shared* shared = std::exchange(shared_, nullptr);
  if (shared == nullptr) return;
  if (!shared->in_arena) {
    delete shared;
    return;
  }
  // The Arena ends the rest; the tensor goes back to its owner now.
  shared->tensor = Tensor();
  std::string().swap(shared->text);
}

void PayloadField::share(Tensor tensor, Arena* arena) {
  drop();
  text_.ClearToEmpty();
  shared_ = Arena::Create<Shared>(arena);
  shared_->in_arena = arena != nullptr;
  shared_->tensor = std::move(tensor);
}

// A string that came by reflection, which does not know of tensors, is the newer value.
bool PayloadField::has_tensor() const { return shared_ != nullptr && text_.Get().empty(); }

void PayloadField::Destroy() {
  drop();
  text_.Destroy();
}

const std::string& PayloadField::Get() const {
  if (!has_tensor()) return text_.Get();
  std::call_once(shared_->copied, [&] {
    payloads_copied.add();
    const auto bytes = shared_->tensor.bytes();
    shared_->text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  });
  return shared_->text;
}

size_t PayloadField::size() const {
  return has_tensor() ? shared_->tensor.size_bytes() : text_.Get().size();
}

void PayloadField::Set(const PayloadField& other, Arena* arena) {
  if (other.has_tensor()) return share(other.shared_->tensor, arena);
  drop();
  text_.Set(other.text_.Get(), arena);
}

std::string* PayloadField::Mutable(Arena* arena) {
  if (has_tensor()) {
    std::string text = Get();
    drop();
    text_.Set(std::move(text), arena);
  }
  return text_.Mutable(arena);
}

std::string* PayloadField::Release() {
  if (!has_tensor()) return text_.Release();
  auto* released = new std::string(Get());
  drop();
  return released;
}

void PayloadField::SetAllocated(std::string* value, Arena* arena) {
  drop();
  text_.SetAllocated(value, arena);
}

void PayloadField::ClearToEmpty() {
  drop();
  text_.ClearToEmpty();
}

void PayloadField::InternalSwap(PayloadField* left, Arena* left_arena, PayloadField* right,
                                Arena* right_arena) {
  Text::InternalSwap(&left->text_, left_arena, &right->text_, right_arena);
  std::swap(left->shared_, right->shared_);
}

Tensor PayloadField::tensor() const {
  if (has_tensor()) return shared_->tensor;
  return text_.Get().empty() ? Tensor() : copy_of(text_.Get());
}

Status PayloadField::set_tensor(const Tensor& tensor, Arena* arena) {
  if (tensor && !tensor.descriptor().is_compact()) {
    return Status(Code::kInvalidArgument, Scope::kOperation, "grpc/payload",
                  "a tensor with gaps between its elements: copy it into a compact one first");
  }
  if (tensor.in_device_memory()) {
    return Status(Code::kUnsupported, Scope::kOperation, "grpc/payload",
                  "protobuf reads the tensor's bytes, which are a device's: copy_to_host() first");
  }
  if (tensor.size_bytes() > static_cast<size_t>(INT_MAX)) {
    return Status(Code::kInvalidArgument, Scope::kOperation, "grpc/payload",
                  "a protobuf message holds less than 2 GiB: send the tensor in parts");
  }
  if (tensor.size_bytes() == 0) {
    ClearToEmpty();
  } else {
    share(tensor, arena);
  }
  return Status();
}

size_t PayloadField::EncodedSize() const {
  if (!has_tensor()) return WireFormatLite::BytesSize(text_.Get());
  ++tensors_measured();
  return WireFormatLite::LengthDelimitedSize(shared_->tensor.size_bytes());
}

uint8_t* PayloadField::Write(uint32_t number, uint8_t* target,
                             ::google::protobuf::io::EpsCopyOutputStream* stream) const {
  if (!has_tensor()) return stream->WriteBytesMaybeAliased(number, text_.Get(), target);
  const Tensor& tensor = shared_->tensor;
  const int length = static_cast<int>(tensor.size_bytes());
  target = stream->EnsureSpace(target);
  target = CodedOutputStream::WriteVarint32ToArray(number << 3 | 2, target);
  target = CodedOutputStream::WriteVarint32ToArray(static_cast<uint32_t>(length), target);
  PayloadSink* sink = PayloadSink::current();
  if (sink == nullptr) return stream->WriteRaw(tensor.data(), length, target);
  sink->next_is(tensor);
  stream->EnableAliasing(true);
  target = stream->WriteRawMaybeAliased(tensor.data(), length, target);
  stream->EnableAliasing(false);
  return target;
}

const char* PayloadField::Parse(const char* from,
                                ::google::protobuf::internal::ParseContext* context, Arena* arena) {
  const char* start = from;
  const int length = ::google::protobuf::internal::ReadSize(&from);
  if (from == nullptr) return nullptr;
  if (length < static_cast<int>(kShareBytes)) {
    drop();
    return ::google::protobuf::internal::InlineGreedyStringParser(text_.Mutable(arena), start,
                                                                  context);
  }
  // The first bytes may be protobuf's own copy: the rest shows by its address whose memory it is.
  std::string head;
  from = context->ReadString(from, kSeamBytes, &head);
  if (from == nullptr) return nullptr;
  const int rest = length - kSeamBytes;
  Tensor found = SharedRanges::find(from - kSeamBytes, static_cast<size_t>(length));
  if (found && std::memcmp(found.data(), head.data(), kSeamBytes) == 0) {
    payloads_shared.add();
    share(std::move(found), arena);
    return context->Skip(from, rest);
  }
  drop();
  std::string* text = text_.Mutable(arena);
  text->assign(head);
  return context->AppendString(from, rest, text);
}

void SharedRanges::add(const Tensor* tensor) {
  std::unique_lock lock(ranges().mutex);
  ranges().by_start.emplace(tensor->data(), tensor);
}

void SharedRanges::remove(const Tensor* tensor) {
  std::unique_lock lock(ranges().mutex);
  auto [first, last] = ranges().by_start.equal_range(tensor->data());
  while (first != last && first->second != tensor) ++first;
  if (first != last) ranges().by_start.erase(first);
}

Tensor SharedRanges::find(const void* data, size_t length) {
  const auto* begin = static_cast<const std::byte*>(data);
  std::shared_lock lock(ranges().mutex);
  auto after = ranges().by_start.upper_bound(begin);
  while (after != ranges().by_start.begin()) {
    --after;
    const Tensor& tensor = *after->second;
    const auto offset = static_cast<size_t>(begin - tensor.data());
    if (offset > tensor.size_bytes() || length > tensor.size_bytes() - offset) continue;
    Result<Tensor> part = tensor.slice_bytes(offset, length);
    return part.ok() ? std::move(*part) : Tensor();
  }
  return Tensor();
}

uint64_t& tensors_measured() {
  thread_local uint64_t measured = 0;
  return measured;
}

PayloadSink*& PayloadSink::current() {
  thread_local PayloadSink* sink = nullptr;
  return sink;
}

}  // namespace sluice::grpc
