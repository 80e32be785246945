// Where a generated protobuf message keeps a `bytes` field that protoc-gen-sluice changed: a
// string, as protobuf has it, or a sluice::Tensor whose memory the field shares. Copies of the
// message share the tensor; Clear(), Swap() and arenas work as for any field. The encoded form is
// that of a `bytes` field. Needs protobuf; knows neither gRPC nor a connection.
#ifndef SLUICE_GRPC_PAYLOAD_FIELD_H_
#define SLUICE_GRPC_PAYLOAD_FIELD_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include <google/protobuf/arena.h>
#include <google/protobuf/arenastring.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/parse_context.h>

#include <sluice/allocator/buffer.h>

#if GOOGLE_PROTOBUF_VERSION < 3021000 || GOOGLE_PROTOBUF_VERSION >= 3022000
#error "protoc-gen-sluice knows the generated code of protobuf 3.21 alone: Debian 12 has it"
#endif

namespace sluice::grpc {

// Fields from this size on are shared with the memory that they came in; smaller ones are copied
// into the field's string, which costs less than keeping a whole message for them.
inline constexpr size_t kShareBytes = 16 << 10;

// Generated code calls it as it calls protobuf's ArenaStringPtr, whose rules hold: the constructors
// do nothing, InitDefault() comes first, Destroy() last unless the message lies in an Arena.
// Thread: as a message: many may read, one may write.
class PayloadField {
 public:
  using Arena = ::google::protobuf::Arena;
  using Text = ::google::protobuf::internal::ArenaStringPtr;

  PayloadField() = default;
  constexpr PayloadField(::google::protobuf::internal::ExplicitlyConstructedArenaString* text,
                         ::google::protobuf::internal::ConstantInitialized constant)
      : text_(text, constant), shared_(nullptr) {}
  void InitDefault() {
    text_.InitDefault();
    shared_ = nullptr;
  }
  void Destroy();

  // Cost: a tensor is copied into a string at the first call, counted in `grpc.payloads_copied`.
  const std::string& Get() const;
  size_t size() const;
  bool empty() const { return size() == 0; }
  bool IsDefault() const { return shared_ == nullptr && text_.IsDefault(); }
  void Set(const PayloadField& other, Arena* arena);
  template <typename... Args>
  void SetBytes(Args&&... args) {
    drop();
    text_.SetBytes(std::forward<Args>(args)...);
  }
  std::string* Mutable(Arena* arena);
  [[nodiscard]] std::string* Release();
  void SetAllocated(std::string* value, Arena* arena);
  void ClearToEmpty();
  void ClearNonDefaultToEmpty() { ClearToEmpty(); }
  static void InternalSwap(PayloadField* left, Arena* left_arena, PayloadField* right,
                           Arena* right_arena);

  // The field's value as a tensor of bytes. Shares the memory if the field has a tensor; else the
  // string is copied (counted). Empty: an empty tensor.
  Tensor tensor() const;
  // Ownership: the field shares the tensor until it is changed or its message ends. Errors:
  // kInvalidArgument (a tensor with gaps between its elements, or of 2 GiB and more),
  // kUnsupported (device memory).
  Status set_tensor(const Tensor& tensor, Arena* arena);
  bool has_tensor() const;

  // Bytes of length and value as they are encoded, without the tag.
  size_t EncodedSize() const;
  uint8_t* Write(uint32_t number, uint8_t* target,
                 ::google::protobuf::io::EpsCopyOutputStream* stream) const;
  // The value behind a tag. Memory that is known (SharedRanges) is shared, other is copied.
  const char* Parse(const char* from, ::google::protobuf::internal::ParseContext* context,
                    Arena* arena);

 private:
  struct Shared;
  void drop();
  void share(Tensor tensor, Arena* arena);

  Text text_;  // first: protobuf's reflection takes the field for one, and sees it empty
  Shared* shared_;
};

// Memory of this process in which messages arrive, or leave: where a field's bytes lie in it, the
// tensor behind them is found by their address. Thread: any.
class SharedRanges {
 public:
  // Until remove(): the memory belongs to `tensor`, which outlives the entry.
  static void add(const Tensor* tensor);
  static void remove(const Tensor* tensor);
  // The bytes as a tensor that shares the memory; empty if they are unknown.
  static Tensor find(const void* data, size_t length);
};

// Counts, on this thread, fields with a tensor whose size was asked for: whether a message has any
// is known once its ByteSizeLong() returned.
uint64_t& tensors_measured();

// Takes a message apart while it is serialised: encoded bytes, and tensors in between.
class PayloadSink {
 public:
  virtual ~PayloadSink() = default;
  // Write() passes the tensor here before its memory goes to the stream by WriteAliasedRaw().
  virtual void next_is(const Tensor& tensor) = 0;
  // This thread's, for one serialisation; null: tensors are copied like strings.
  static PayloadSink*& current();
};

}  // namespace sluice::grpc

#endif  // SLUICE_GRPC_PAYLOAD_FIELD_H_
