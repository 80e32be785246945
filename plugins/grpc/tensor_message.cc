#include <sluice/grpc/tensor_message.h>

#include <charconv>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sluice/tensor.pb.h"

namespace sluice::grpc {
namespace {

constexpr const char* kOrigin = "grpc/tensor_message";

Status wrong(std::string why) {
  return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin, std::move(why));
}

// As NumPy names it, or its extension ml_dtypes: "bool" where DLPack has 8 bits of bool,
// "float8_e4m3fn" without our "_8". What NumPy does not have is named as to_string() does.
std::string numpy_name(DataType type) {
  std::string name = type.to_string();
  if (type.lanes != 1) return name;
  if (type.code == TypeCode::kBool) return "bool";
  if (type.code > TypeCode::kBool) name.resize(name.rfind('_'));
  return name;
}

// Names of all types of one lane that DLPack defines, NumPy's and ours.
const std::unordered_map<std::string, DataType>& names() {
  static const auto* all = [] {
    auto* made = new std::unordered_map<std::string, DataType>();
    for (int code = 0; code <= static_cast<int>(TypeCode::kFloat4_e2m1fn); ++code) {
      for (int bits = 1; bits <= 128; ++bits) {
        const DataType type{static_cast<TypeCode>(code), static_cast<uint8_t>(bits), 1};
        if (!type.valid()) continue;
        made->emplace(type.to_string(), type);
        made->emplace(numpy_name(type), type);
      }
    }
    return made;
  }();
  return *all;
}

// As <sluice/allocator/dlpack.h> takes it: of an error it is still the caller's.
template <typename Managed>
Status import(Managed&& managed, v1::Tensor* message) {
  SLUICE_TRY(Tensor tensor, tensor_from_dlpack(std::move(managed)));
  return to_message(tensor, message);
}

}  // namespace

Result<DataType> data_type_of(std::string_view name) {
  const auto whole = names().find(std::string(name));
  if (whole != names().end()) return whole->second;
  const size_t cross = name.rfind('x');
  if (cross != std::string_view::npos) {
    const auto one = names().find(std::string(name.substr(0, cross)));
    uint16_t lanes = 0;
    const char* end = name.data() + name.size();
    const auto [read, error] = std::from_chars(name.data() + cross + 1, end, lanes);
    if (one != names().end() && error == std::errc() && read == end) {
      DataType type = one->second;
      type.lanes = lanes;
      if (type.valid()) return type;
    }
  }
  return wrong("the dtype '" + std::string(name.substr(0, 64)) +
               "' is none of DLPack's: use names such as float32, int64 or bfloat16");
}

Status to_message(const Tensor& tensor, v1::Tensor* message) {
  SLUICE_RETURN_IF_ERROR(message->set_payload_tensor(tensor));
  message->set_dtype(numpy_name(tensor.descriptor().dtype()));
  const auto shape = tensor.descriptor().shape();
  message->mutable_shape()->Assign(shape.begin(), shape.end());
  return Status();
}

Status to_message(Buffer&& buffer, v1::Tensor* message) {
  if (!buffer.descriptor().is_compact())
    return wrong("a buffer with gaps between its elements: copy it into a compact one first");
  return to_message(std::move(buffer).freeze(), message);
}

Status to_message(DlpackTensor&& managed, v1::Tensor* message) {
  return import(std::move(managed), message);
}

Status to_message(LegacyDlpackTensor&& managed, v1::Tensor* message) {
  return import(std::move(managed), message);
}

Result<Tensor> tensor_of(const v1::Tensor& message) {
  SLUICE_TRY(DataType type, data_type_of(message.dtype()));
  SLUICE_TRY(TensorDescriptor layout,
             TensorDescriptor::compact(
                 {message.shape().data(), static_cast<size_t>(message.shape().size())}, type));
  Tensor bytes = message.payload_tensor();
  if (bytes.size_bytes() != layout.size_bytes())
    return wrong("the payload has " + std::to_string(bytes.size_bytes()) +
                 " bytes, and dtype and shape say " + layout.to_string() + ", which has " +
                 std::to_string(layout.size_bytes()));
  if (layout.size_bytes() == 0) return Tensor::wrap("", layout, nullptr, nullptr);
  const uint32_t element = type.size_bytes() / type.lanes;
  if (element > 1 && reinterpret_cast<uintptr_t>(bytes.data()) % element != 0) {
    // The sender put it behind other fields: a string of its own is aligned.
    v1::Tensor copy;
    copy.set_payload(message.payload());
    bytes = copy.payload_tensor();
  }
  SLUICE_TRY(TensorDescriptor placed,
             TensorDescriptor::strided(layout.shape(), layout.strides(), type,
                                       bytes.descriptor().byte_offset()));
  return Tensor(bytes.storage(), placed);
}

Result<DlpackTensor> dlpack_of(const v1::Tensor& message) {
  SLUICE_TRY(Tensor tensor, tensor_of(message));
  return to_dlpack(tensor);
}

}  // namespace sluice::grpc
