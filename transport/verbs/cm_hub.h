// The RDMA connection manager of a context: its events, addresses, and its errors in words. Knows
// no connection.
#ifndef SLUICE_VERBS_CM_HUB_H_
#define SLUICE_VERBS_CM_HUB_H_

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include <sluice/base/result.h>
#include <sluice/base/socket_address.h>
#include <sluice/runtime/context_core.h>
#include <sluice/verbs/verbs_api.h>

namespace sluice::verbs {

// An event of the connection manager, copied so that it is acknowledged before anybody acts.
struct CmEvent {
  rdma_cm_event_type type;
  int status = 0;
  rdma_cm_id* id = nullptr;
  uint8_t responder_resources = 0, initiator_depth = 0;
  std::array<std::byte, 196> private_data{};
  size_t private_bytes = 0;
};

class CmClient {
 public:
  virtual void on_cm_event(const CmEvent& event) noexcept = 0;

 protected:
  ~CmClient() = default;
};

// The context's channel to the connection manager. An id's context is its CmClient.
class CmHub final : public EventHandler {
 public:
  // Errors: kUnsupported (no RDMA on this machine; the detail says what is missing), kNoMemory.
  static Result<std::unique_ptr<CmHub>> open(ContextCore& context, VerbsApi& api);
  ~CmHub();
  VerbsApi& api() { return api_; }
  rdma_event_channel* channel() const { return channel_; }
  void on_event(uint32_t epoll_events) noexcept override;

 private:
  CmHub(ContextCore& context, VerbsApi& api) : context_(context), api_(api) {}
  ContextCore& context_;
  VerbsApi& api_;
  rdma_event_channel* channel_ = nullptr;
};

// An address of a host name or of digits; port in host byte order. Blocks as long as the system's
// resolver takes: for listeners and `sluice doctor`. Connecting asks addresses_of(). Errors:
// kUnreachable.
Result<SocketAddress> resolve(const std::string& host, uint16_t port, bool to_listen);
std::string name_of(const sockaddr* address);  // "rdma://10.0.0.1:7000"

// Why the connection manager or a device says no to what was asked, in words.
Status cm_error(const std::string& what, int error);

}  // namespace sluice::verbs

#endif  // SLUICE_VERBS_CM_HUB_H_
