// The peer's requests for keys: kept until they are supplied, refused or given up, and handed to
// the exchange.
#ifndef SLUICE_PROTO_WANT_TABLE_H_
#define SLUICE_PROTO_WANT_TABLE_H_

#include <cstdint>
#include <string>
#include <unordered_map>

#include <sluice/api/endpoint.h>
#include <sluice/proto/connection.h>
#include <sluice/proto/control_queue.h>
#include <sluice/proto/operations.h>
#include <sluice/proto/send_queue.h>
#include <sluice/proto/transfer.h>
#include <sluice/spi/endpoint_core.h>

namespace sluice::proto {

// Thread: the context's. Blocks: never.
class WantTable {
 public:
  // The handler is told of requests at `endpoint`.
  WantTable(EndpointCore& endpoint, Connection& connection, Operations& operations,
            ControlQueue& control, SendQueue& sends, Transfer& transfer)
      : endpoint_(endpoint),
        connection_(connection),
        operations_(operations),
        control_(control),
        sends_(sends),
        transfer_(transfer) {}

  // EndpointCore's.
  void set_handler(WantHandler* handler);
  const WantHandler* handler() const { return handler_; }
  Result<OperationId> post_supply(uint64_t token, const Tensor& tensor, const PostOptions& options);
  Status refuse(uint64_t token, Code code);

  // A request of the peer. Errors: kCorrupt.
  Status on_want(const wire::Want& want);
  // It gives one up.
  void on_given_up(uint64_t token);
  // The connection is over; then, the last call: so the handler is told.
  void clear();
  void tell_closed(const Status& why);

 private:
  struct Early {
    uint64_t order = 0;
    WantRequest request;
    std::string key;
  };

  bool take_place();
  void end_one();
  Status pass_on(const WantRequest& request, bool placed);
  Status keep_early(const WantRequest& request);

  EndpointCore& endpoint_;
  Connection& connection_;
  Operations& operations_;
  ControlQueue& control_;
  SendQueue& sends_;
  Transfer& transfer_;
  WantHandler* handler_ = nullptr;
  uint32_t waiting_ = 0;
  std::unordered_map<uint64_t, Early> early_;  // by token: those without a handler yet
  uint64_t early_order_ = 0;
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_WANT_TABLE_H_
