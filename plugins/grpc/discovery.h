// How a client finds a server's listener: a service on the server's own gRPC port.
#ifndef SLUICE_GRPC_DISCOVERY_H_
#define SLUICE_GRPC_DISCOVERY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <grpcpp/security/auth_context.h>
#include <grpcpp/server.h>
#include <grpcpp/support/byte_buffer.h>

#include <sluice/grpc/frames.h>

namespace sluice::grpc {

inline constexpr char kFindMethod[] = "/sluice.grpc.v1.Discovery/Find";
// Ends when the server shuts down, and not before. For the server's own process alone.
inline constexpr char kHoldMethod[] = "/sluice.grpc.v1.Discovery/Hold";
// What gRPC says of the caller on a server's in-process channel, which the listener calls by.
inline constexpr char kPeerInProcess[] = "unknown";

// What gRPC proved of a caller: as ::grpc::AuthContext has it; none if it is not authenticated.
using Properties = std::vector<std::pair<std::string, std::string>>;
Properties properties_of(const ::grpc::AuthContext& context);

// Makes an announcement with a fresh token for a caller; called by gRPC's threads.
using Announcer = std::function<Announcement(const Properties& caller)>;

// Called at the end of ServerBuilder::BuildAndStart(), on its thread; may be empty.
std::function<void()>& when_built();

// From now on the server answers Find with what the announcer says. Returns the server's limit of a
// message that it receives, in bytes; -1: none. Nothing: the server has no such service.
std::optional<int64_t> announce(::grpc::Server* server,
                                const std::shared_ptr<Announcer>& announcer);

::grpc::ByteBuffer buffer_of(std::string_view text);
std::string text_of(const ::grpc::ByteBuffer& buffer);
// The host in what ClientContext::peer() says: ipv4:127.0.0.1:5 or ipv6:%5B::1%5D:5; else this one.
std::string host_of(const std::string& peer);
// The address with an unspecified host (0.0.0.0, [::]) replaced.
std::string at_host(const std::string& address, const std::string& host);

bool switched_off();  // SLUICE_GRPC=off

}  // namespace sluice::grpc

#endif  // SLUICE_GRPC_DISCOVERY_H_
