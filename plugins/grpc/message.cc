#include <sluice/grpc/message.h>

#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <typeinfo>
#include <utility>
#include <vector>

#include <grpcpp/support/config.h>
#include <grpcpp/impl/codegen/config_protobuf.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <sluice/grpc/payload_field.h>
#include <sluice/grpc/serialize.h>

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
  Piece& whole = out.pieces.emplace_back();
  bool written;
  if (length <= kInlineBytes) {
    whole.bytes.resize(length);
    written = write(reinterpret_cast<uint8_t*>(whole.bytes.data()));
  } else {
    Result<Buffer> room = arena.allocate(length);
    if (!room.ok()) {
      return refused(::grpc::StatusCode::RESOURCE_EXHAUSTED,
                     "sluice: " + std::string(room.status().detail()));
    }
    written = write(reinterpret_cast<uint8_t*>(room->data()));
    whole.tensor = std::move(*room).freeze();
  }
  if (!written) return refused(::grpc::StatusCode::INTERNAL, "Failed to serialize message");
  return out;
}

// As it is, if one frame can name all pieces; else empty.
std::vector<Piece> if_few(std::vector<Piece> pieces) {
  uint64_t inline_bytes = 0;
  for (const Piece& piece : pieces) inline_bytes += piece.bytes.size();
  if (pieces.size() > kMostParts || inline_bytes > kInlineBytes) pieces.clear();
  return pieces;
}

// The slices that lie in known memory as tensors; empty if none does.
std::vector<Piece> pieces_of(const std::vector<::grpc::Slice>& slices) {
  std::vector<Piece> pieces;
  bool found = false;
  for (const ::grpc::Slice& slice : slices) {
    if (slice.size() >= kShareBytes) {
      if (Tensor tensor = SharedRanges::find(slice.begin(), slice.size())) {
        pieces.push_back({.bytes = {}, .tensor = std::move(tensor)});
        found = true;
        continue;
      }
    }
    if (slice.size() > kInlineBytes) return {};
    if (pieces.empty() || pieces.back().tensor) pieces.emplace_back();
    pieces.back().bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return found ? if_few(std::move(pieces)) : std::vector<Piece>();
}

}  // namespace

Outgoing take_outgoing(::grpc::experimental::InterceptorBatchMethods& batch, Arena& arena) {
  const void* message = batch.GetSendMessage();
  if (message != nullptr && is_protobuf(message)) {
    const auto& typed = *static_cast<const MessageLite*>(message);
    const Measured measured = measure(typed);
    if (measured.has_tensors && measured.length <= kMostMessageBytes) {
      Outgoing out;
      out.length = measured.length;
      if (auto pieces = take_apart(typed)) out.pieces = if_few(std::move(*pieces));
      if (!out.pieces.empty()) return out;
    }
    return fill(measured.length, arena, [&](uint8_t* place) {
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
  const uint64_t length = buffer.Length();
  if (length > kInlineBytes && length <= kMostMessageBytes) {
    Outgoing out;
    out.length = length;
    out.pieces = pieces_of(slices);
    if (!out.pieces.empty()) return out;
  }
  return fill(length, arena, [&](uint8_t* place) {
    for (const ::grpc::Slice& slice : slices) place = std::copy(slice.begin(), slice.end(), place);
    return true;
  });
}

void send(Connection& connection, uint32_t stream, Outgoing message) {
  Frame frame{.kind = FrameKind::kMessage, .stream = stream, .length = message.length};
  for (Piece& piece : message.pieces) {
    MessagePart& part = frame.parts.emplace_back();
    part.length = piece.length();
    if (piece.tensor) {
      part.payload = connection.lend(std::move(piece.tensor));
    } else {
      part.bytes = std::as_bytes(std::span(piece.bytes));
    }
  }
  connection.send(frame);
}

void gather(Connection& connection, const Frame& frame, Gathered done) {
  struct Gathering {
    std::vector<::grpc::Slice> slices;
    size_t missing = 1;  // parts that are fetched, and this function
    Status status;
    Gathered done;
    void one_less() {
      if (--missing > 0) return;
      ::grpc::ByteBuffer message(slices.data(), slices.size());
      done(status, message);
    }
  };
  auto all = std::make_shared<Gathering>();
  all->done = std::move(done);
  all->slices.resize(frame.parts.size());
  for (size_t i = 0; i < frame.parts.size(); ++i) {
    const MessagePart& part = frame.parts[i];
    if (part.payload == 0) {
      all->slices[i] = ::grpc::Slice(part.bytes.data(), part.bytes.size());
      continue;
    }
    ++all->missing;
    connection.fetch(part.payload, [all, i, length = part.length](Result<Tensor> fetched) {
      if (!fetched.ok()) {
        all->status = fetched.status();
      } else if (fetched->size_bytes() != length) {
        all->status = Status(Code::kCorrupt, Scope::kOperation, "grpc/message",
                             "a part of a message has another length than was said");
      } else {
        all->slices[i] = alias_of(*fetched);
      }
      all->one_less();
    });
  }
  all->one_less();
}

::grpc::ByteBuffer copy_of(std::span<const std::byte> bytes) {
  ::grpc::Slice slice(bytes.data(), bytes.size());
  return ::grpc::ByteBuffer(&slice, 1);
}

bool over(uint64_t length, int64_t limit) {
  return limit >= 0 && length > static_cast<uint64_t>(limit);
}

::grpc::Status too_large(const char* what, uint64_t length, int64_t limit) {
  return ::grpc::Status(::grpc::StatusCode::RESOURCE_EXHAUSTED,
                        std::string(what) + " message larger than max (" + std::to_string(length) +
                            " vs. " + std::to_string(limit) + ")");
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
  if (!parsed) static_cast<MessageLite*>(into)->Clear();
  from.Clear();
  return parsed;
}

}  // namespace sluice::grpc
