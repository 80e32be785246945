// A peer's requests for keyed tensors, as whoever answers them sees them: the exchange.
#ifndef SLUICE_SPI_WANT_HANDLER_H_
#define SLUICE_SPI_WANT_HANDLER_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <sluice/allocator/buffer.h>
#include <sluice/base/status.h>
#include <sluice/base/tensor_descriptor.h>

namespace sluice {

class EndpointCore;

// Keys one side may name on one connection, and the longest key.
inline constexpr uint32_t kMaxKeyIds = 1u << 16;
inline constexpr size_t kMaxKeyBytes = 255;

// A peer's request for a keyed tensor, as the exchange sees it.
struct WantRequest {
  uint64_t token = 0;    // names the request on its endpoint: answer with supply()
  uint32_t key_id = 0;   // peer's number for the key, dense from 0
  std::string_view key;  // the key's text; empty if this id was named before
  uint64_t step = 0;
  bool into = false;        // the peer has a destination of exactly
  TensorDescriptor layout;  // this dtype and shape
};

// Implemented by the exchange. Called from progress.
class WantHandler {
 public:
  virtual void on_want(EndpointCore& endpoint, const WantRequest& request) noexcept = 0;
  // The peer no longer wants it. True if the request was still waiting for an answer.
  virtual bool on_want_cancelled(EndpointCore& endpoint, uint64_t token) noexcept = 0;
  // The endpoint is closed; all its operations have completed. Forget it.
  virtual void on_endpoint_closed(EndpointCore& endpoint, const Status& why) noexcept = 0;

 protected:
  ~WantHandler() = default;
};

// What a fetch asks for.
struct WantOptions {
  uint32_t key_id = 0;   // chosen by the asker, dense from 0, below kMaxKeyIds
  std::string_view key;  // given the first time the id is used on this endpoint
  uint64_t step = 0;
  Buffer destination;  // empty: a view or a fresh tensor; taken if posting succeeds
};

}  // namespace sluice

#endif  // SLUICE_SPI_WANT_HANDLER_H_
