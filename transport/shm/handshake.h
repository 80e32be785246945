// The packets by which two processes meet: a HELLO each way, with a control region. Private to shm.
#ifndef SLUICE_SHM_HANDSHAKE_H_
#define SLUICE_SHM_HANDSHAKE_H_

#include <sys/socket.h>
#include <sys/un.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <sluice/base/result.h>
#include <sluice/shm/mapper.h>
#include <sluice/wire/messages.h>

namespace sluice::shm {

inline constexpr std::string_view kNamed = "sluice/name/";  // before the name of a listener

// Abstract: in the network namespace, without a file.
sockaddr_un abstract_address(const std::string& name, socklen_t& length);
// A socket's name as a program wrote it.
std::string shown(const std::string& socket);

Status send_hello(int fd, const wire::Hello& hello, int region_fd);
// Best effort: the peer sees the connection end in any case.
void send_bye(int fd, Code code);

struct Greeting {
  wire::Hello hello;
  std::unique_ptr<PeerRegion> region;
};
// None: nothing has come yet. Errors: kUnreachable, kUnsupported (version), kCorrupt, kNoMemory,
// and what the peer said in its BYE.
Result<std::optional<Greeting>> receive_hello(int fd, const wire::Hello& ours);

}  // namespace sluice::shm

#endif  // SLUICE_SHM_HANDSHAKE_H_
