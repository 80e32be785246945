#include <sluice/grpc/message.h>

#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <typeinfo>
#include <utility>
#include <vector>

#include <grpcpp/support/config.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/impl/codegen/config_protobuf.h>

#include <sluice/grpc/frames.h>

namespace sluice::grpc {
namespace {

using ::grpc::protobuf::MessageLite;

// Interceptors are given messages as void*: of a generated stub a protobuf message, of a generic
// stub a ByteBuffer, whose one member is a pointer to the heap or null. The first word tells them
// apart: the table of virtual functions of a message lies in a loaded program or library.
bool is_table(const void* word) {
  Dl_info info;
  return dladdr(word, &info) != 0;
}

// The last few tables found: dladdr() takes microseconds.
bool is_known_table(const void* word) {
  constexpr size_t kSlots = 64;
  static std::atomic<const void*> known[kSlots];
  std::atomic<const void*>& slot = known[(reinterpret_cast<uintptr_t>(word) >> 4) % kSlots];
  if (slot.load(std::memory_order_relaxed) == word) return true;
  if (!is_table(word)) return false;
  slot.store(word, std::memory_order_relaxed);
  return true;
}

bool is_protobuf(const void* message) {
  const void* first_word = nullptr;
  std::memcpy(&first_word, message, sizeof(first_word));
  return first_word != nullptr && is_known_table(first_word);
}

Outgoing refused(::grpc::StatusCode code, const std::string& why) {
  Outgoing out;
  out.status = ::grpc::Status(code, why);
  return out;
}

// Calls write(place) with room for `length` bytes.
Outgoing fill(uint64_t length, Arena& arena, const std::function<bool(uint8_t*)>& write) {
  Outgoing out;
  out.length = length;
  if (length > kMostMessageBytes) {
    return refused(::grpc::StatusCode::RESOURCE_EXHAUSTED,
                   "a message of " + std::to_string(length) + " bytes; the most is " +
                       std::to_string(kMostMessageBytes));
  }
  bool written;
  if (length <= kInlineBytes) {
    out.bytes.resize(length);
    written = write(reinterpret_cast<uint8_t*>(out.bytes.data()));
  } else {
    Result<Buffer> room = arena.allocate(length);
    if (!room.ok()) {
      return refused(::grpc::StatusCode::RESOURCE_EXHAUSTED,
                     "sluice: " + std::string(room.status().detail()));
    }
    written = write(reinterpret_cast<uint8_t*>(room->data()));
    out.tensor = std::move(*room).freeze();
  }
  if (!written) return refused(::grpc::StatusCode::INTERNAL, "Failed to serialize message");
  return out;
}

}  // namespace

Outgoing take_outgoing(::grpc::experimental::InterceptorBatchMethods& batch, Arena& arena) {
  const void* message = batch.GetSendMessage();
  if (message != nullptr && is_protobuf(message)) {
    const auto& typed = *static_cast<const MessageLite*>(message);
    return fill(typed.ByteSizeLong(), arena, [&](uint8_t* place) {
      typed.SerializeWithCachedSizesToArray(place);
      return true;
    });
  }
  ::grpc::ByteBuffer* serialized = batch.GetSerializedSendMessage();
  if (serialized == nullptr)
    return refused(::grpc::StatusCode::INTERNAL, "there is no message to send");
  return make_outgoing(*serialized, arena);
}

Outgoing make_outgoing(const ::grpc::ByteBuffer& buffer, Arena& arena) {
  std::vector<::grpc::Slice> slices;
  if (buffer.Valid() && !buffer.Dump(&slices).ok())
    return refused(::grpc::StatusCode::INTERNAL, "the message cannot be read");
  return fill(buffer.Length(), arena, [&](uint8_t* place) {
    for (const ::grpc::Slice& slice : slices) place = std::copy(slice.begin(), slice.end(), place);
    return true;
  });
}

::grpc::ByteBuffer copy_of(std::span<const std::byte> bytes) {
  ::grpc::Slice slice(bytes.data(), bytes.size());
  return ::grpc::ByteBuffer(&slice, 1);
}

::grpc::ByteBuffer alias_of(const Tensor& tensor) {
  auto* kept = new Tensor(tensor);
  ::grpc::Slice slice(
      const_cast<std::byte*>(kept->data()), kept->size_bytes(),
      [](void* user) { delete static_cast<Tensor*>(user); }, kept);
  return ::grpc::ByteBuffer(&slice, 1);
}

bool deliver(::grpc::ByteBuffer& from, void* into) {
  if (!is_protobuf(into)) {
    static_cast<::grpc::ByteBuffer*>(into)->Swap(&from);
    from.Clear();
    return true;
  }
  bool parsed;
  {
    ::grpc::ProtoBufferReader reader(&from);
    parsed =
        reader.status().ok() && static_cast<MessageLite*>(into)->ParseFromZeroCopyStream(&reader);
  }
  from.Clear();
  return parsed;
}

}  // namespace sluice::grpc
