// The message sluice.v1.Tensor (sluice/tensor.proto), to and from tensors and DLPack.
#ifndef SLUICE_GRPC_TENSOR_MESSAGE_H_
#define SLUICE_GRPC_TENSOR_MESSAGE_H_

#include <string_view>

#include <sluice/allocator/buffer.h>
#include <sluice/allocator/dlpack.h>
#include <sluice/base/result.h>

namespace sluice::v1 {
class Tensor;  // "sluice/tensor.pb.h", which a generated message that has one includes
}

namespace sluice::grpc {

// The message shares the tensor's memory, which is sent from where it is: without a copy if it is
// memory of allocate() (<sluice/grpc/bridge.h>), else with one.
// Errors: kInvalidArgument (gaps between the elements, 2 GiB and more).
Status to_message(const Tensor& tensor, v1::Tensor* message);
// As above. Ownership: taken only if the result is ok.
Status to_message(Buffer&& buffer, v1::Tensor* message);
Status to_message(DlpackTensor&& managed, v1::Tensor* message);
Status to_message(LegacyDlpackTensor&& managed, v1::Tensor* message);

// The elements where they arrived, with the message's type and shape. Copied once, and counted in
// `grpc.payloads_copied`, if they came over a connection without sluice, or at an address that is
// no multiple of the element's size.
// Errors: kInvalidArgument (unknown element type, bad shape, or another number of bytes than they
// say: the text has both).
Result<Tensor> tensor_of(const v1::Tensor& message);
Result<DlpackTensor> dlpack_of(const v1::Tensor& message);

// A name of NumPy's ("float32", "bool", "float8_e4m3fn"), or what DataType::to_string() says
// ("bool8", "int8x4"). Errors: kInvalidArgument.
Result<DataType> data_type_of(std::string_view name);

}  // namespace sluice::grpc

#endif  // SLUICE_GRPC_TENSOR_MESSAGE_H_
