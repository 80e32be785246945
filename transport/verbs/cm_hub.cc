#include <sluice/verbs/cm_hub.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cstring>

namespace sluice::verbs {
namespace {

constexpr const char* kOrigin = "verbs/connection";
constexpr int kEventsPerTurn = 64;

}  // namespace

Status cm_error(const std::string& what, int error) {
  Code code = Code::kUnreachable;
  std::string why;
  switch (error) {
    case ENODEV: why = ": no RDMA device has this address or reaches it; see `sluice info`"; break;
    case EADDRNOTAVAIL:
      why = ": no RDMA device of this machine has this address; see `sluice info`";
      break;
    case EADDRINUSE:
      code = Code::kInvalidArgument, why = ": the port is taken; use port 0 for any that is free";
      break;
    case EACCES:
    case EPERM:
      code = Code::kAccessDenied, why = ": /dev/infiniband/rdma_cm must be readable and writable";
      break;
    case ETIMEDOUT: why = ": nobody answered"; break;
    case ECONNREFUSED: why = ": nobody listens there by RDMA; start the listener first"; break;
    case ENOMEM:
    case EMFILE:
      code = Code::kNoMemory, why = ": out of memory or file descriptors (ulimit -n, ulimit -l)";
      break;
    default: break;
  }
  return Status(code, Scope::kOperation, kOrigin, what + why, error);
}

Result<std::unique_ptr<CmHub>> CmHub::open(ContextCore& context, VerbsApi& api) {
  std::unique_ptr<CmHub> hub(new CmHub(context, api));
  errno = 0;
  hub->channel_ = api.create_event_channel();
  if (hub->channel_ == nullptr) {
    int error = errno;
    if (error == ENODEV || error == ENOENT) {
      return Status(Code::kUnsupported, Scope::kOperation, kOrigin,
                    "this machine has no RDMA connection manager (/dev/infiniband/rdma_cm); load "
                    "it with `modprobe rdma_ucm`",
                    error);
    }
    return cm_error("the RDMA connection manager cannot be used", error);
  }
  int fd = hub->channel_->fd;
  int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0)
    return cm_error("the event channel cannot be made non-blocking", errno);
  SLUICE_RETURN_IF_ERROR(context.watch(fd, EPOLLIN, hub.get()));
  return hub;
}

CmHub::~CmHub() {
  if (channel_ == nullptr) return;
  context_.unwatch(channel_->fd, this);
  api_.destroy_event_channel(channel_);
}

void CmHub::on_event(uint32_t) noexcept {
  for (int i = 0; i < kEventsPerTurn; ++i) {
    rdma_cm_event* raw = nullptr;
    if (api_.cm_event(channel_, &raw) != 0) return;
    CmEvent event{.type = raw->event, .status = raw->status, .id = raw->id};
    event.responder_resources = raw->param.conn.responder_resources;
    event.initiator_depth = raw->param.conn.initiator_depth;
    if (raw->param.conn.private_data != nullptr) {
      event.private_bytes =
          std::min<size_t>(raw->param.conn.private_data_len, event.private_data.size());
      std::memcpy(event.private_data.data(), raw->param.conn.private_data, event.private_bytes);
    }
    auto* client = static_cast<CmClient*>(raw->id->context);
    // Before anybody acts: ending an id waits until its events were acknowledged.
    (void)api_.ack_cm_event(raw);
    if (client != nullptr) client->on_cm_event(event);
  }
}

Result<SocketAddress> resolve(const std::string& host, uint16_t port, bool to_listen) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (to_listen ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    return Status(Code::kUnreachable, Scope::kOperation, kOrigin,
                  "host '" + host + "' cannot be resolved: " + ::gai_strerror(error) +
                      "; check the name, or give an address");
  }
  SocketAddress address;
  address.length = std::min<socklen_t>(found->ai_addrlen, sizeof(address.storage));
  std::memcpy(&address.storage, found->ai_addr, address.length);
  ::freeaddrinfo(found);
  return address;
}

std::string name_of(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "?";
  uint16_t port = 0;
  if (address->sa_family == AF_INET6) {
    const auto* six = reinterpret_cast<const sockaddr_in6*>(address);
    ::inet_ntop(AF_INET6, &six->sin6_addr, text, sizeof(text));
    port = ntohs(six->sin6_port);
    return "rdma://[" + std::string(text) + "]:" + std::to_string(port);
  }
  const auto* four = reinterpret_cast<const sockaddr_in*>(address);
  ::inet_ntop(AF_INET, &four->sin_addr, text, sizeof(text));
  port = ntohs(four->sin_port);
  return "rdma://" + std::string(text) + ":" + std::to_string(port);
}

}  // namespace sluice::verbs
