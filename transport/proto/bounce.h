// Operations on device memory that the path does not reach: their bytes pass host memory of the
// arena, one copy at this end, which the receipt counts.
#ifndef SLUICE_PROTO_BOUNCE_H_
#define SLUICE_PROTO_BOUNCE_H_

#include <algorithm>
#include <cstdint>
#include <list>
#include <span>

#include <sluice/allocator/buffer.h>
#include <sluice/allocator/device_storage.h>
#include <sluice/api/endpoint.h>
#include <sluice/base/inline_vector.h>
#include <sluice/proto/connection.h>
#include <sluice/proto/matching.h>
#include <sluice/proto/operations.h>
#include <sluice/proto/requests.h>
#include <sluice/proto/send_queue.h>
#include <sluice/proto/transfer.h>
#include <sluice/proto/want_table.h>
#include <sluice/spi/endpoint_core.h>

namespace sluice::proto {

// Thread: the context's. Blocks: for the device's copies; those of a source in the post, those of a
// destination before its completion.
class Bounce {
 public:
  Bounce(Connection& connection, Operations& operations, Transfer& transfer, SendQueue& sends,
         Matching& matching, Requests& requests, WantTable& wants)
      : connection_(connection),
        operations_(operations),
        transfer_(transfer),
        sends_(sends),
        matching_(matching),
        requests_(requests),
        wants_(wants) {}

  // One piece of host memory, as most messages have: not for the calls below. (A walk over the
  // pieces would take a small message 25 instructions more.)
  template <typename Memory>  // Buffer or Tensor
  static bool one_of_host(std::span<const Memory> memory) {
    return memory.size() == 1 && !memory[0].in_device_memory();
  }
  // Whether it lies where the path does not reach it.
  template <typename Memory>
  bool needed(const Memory& memory) const {
    return memory.in_device_memory() && !transfer_.reaches(*DeviceStorage::of(memory.storage()));
  }

  // EndpointCore's. What is not needed() goes on as it is.
  Result<OperationId> post_send(Tag tag, std::span<const Tensor> segments,
                                const PostOptions& options);
  Result<OperationId> post_receive(TagMatch match, std::span<Buffer> segments,
                                   const PostOptions& options);
  Result<OperationId> post_read(const RemoteKey& key, uint64_t offset, Buffer& into,
                                const PostOptions& options);
  Result<OperationId> post_write(const RemoteKey& key, uint64_t offset, Tensor& from,
                                 const PostOptions& options);
  Result<OperationId> post_atomic(const RemoteKey& key, uint64_t offset, const Atomic& request,
                                  Buffer& result, const PostOptions& options);
  Result<OperationId> post_want(WantOptions& want, const PostOptions& options);
  Result<OperationId> post_supply(uint64_t token, const Tensor& tensor, const PostOptions& options);
  // The operations are gone without a completion: the host goes away.
  void clear() { returns_.clear(); }

 private:
  // Gets the completion of an operation into host memory, and gives the program its own buffers.
  struct Return final : CompletionSink {
    void on_completion(Completion&& completion) noexcept override;

    Bounce* bounce = nullptr;
    CompletionSink* sink = nullptr;
    uint64_t user_data = 0;
    InlineVector<Buffer, 1> device;  // as the program posted them; empty: this one is host memory
    std::list<Return>::iterator place;
  };

  template <typename Memory>
  bool any_needed(std::span<const Memory> memory) const {
    return std::any_of(memory.begin(), memory.end(),
                       [&](const Memory& each) { return needed(each); });
  }
  Result<Tensor> to_host(const Tensor& tensor, uint64_t& copied);
  Result<OperationId> counted(Result<OperationId> posted, uint64_t copied);
  template <typename Post>
  Result<OperationId> with_host_memory(std::span<Buffer> buffers, const PostOptions& options,
                                       Post&& post);

  Connection& connection_;
  Operations& operations_;
  Transfer& transfer_;
  SendQueue& sends_;
  Matching& matching_;
  Requests& requests_;
  WantTable& wants_;
  std::list<Return> returns_;  // of operations under way
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_BOUNCE_H_
