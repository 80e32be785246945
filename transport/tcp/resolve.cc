#include <sluice/tcp/resolve.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstring>
#include <string>

namespace sluice::tcp {
namespace {

constexpr const char* kOrigin = "tcp/resolve";

using boost::asio::ip::tcp;

SocketAddress to_socket_address(const tcp::endpoint& endpoint) {
  SocketAddress out;
  out.length = static_cast<socklen_t>(endpoint.size());
  std::memcpy(&out.storage, endpoint.data(), endpoint.size());
  return out;
}

}  // namespace

Result<std::vector<SocketAddress>> resolve(const Address& address) {
  boost::system::error_code error;
  std::vector<SocketAddress> found;
  auto in_digits = boost::asio::ip::make_address(address.host, error);
  if (!error) {
    found.push_back(to_socket_address(tcp::endpoint(in_digits, address.port)));
    return found;
  }
  boost::asio::io_context io;
  tcp::resolver resolver(io);
  auto results = resolver.resolve(address.host, std::to_string(address.port),
                                  tcp::resolver::numeric_service, error);
  for (const auto& entry : results) found.push_back(to_socket_address(entry.endpoint()));
  if (error || found.empty()) {
    return Status(Code::kUnreachable, Scope::kOperation, kOrigin,
                  "the name '" + address.host + "' in " + address.to_string() +
                      " does not resolve (" + (error ? error.message() : "it has no address") +
                      "); check its spelling, /etc/hosts and the DNS servers in /etc/resolv.conf");
  }
  return found;
}

}  // namespace sluice::tcp
