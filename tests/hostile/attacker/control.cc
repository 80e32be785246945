// Not an attack: the traffic of one, by bytes and time, through a socket that has nothing to do
// with the server. What remains of an attack's effect beside this is the library's.
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "tests/hostile/attacker/siege.h"

namespace hostile {
namespace {

constexpr size_t kPiece = 16 << 10;

// Sends and receives by itself. The rate, in bytes per second, is in SLUICE_HOSTILE_RATE.
void unrelated(Siege& siege) {
  const char* text = ::getenv("SLUICE_HOSTILE_RATE");
  double rate = text != nullptr ? std::strtod(text, nullptr) : 0;
  int ends[2];
  int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(own);
  bool there = ::bind(listener, reinterpret_cast<sockaddr*>(&own), sizeof(own)) == 0 &&
               ::listen(listener, 1) == 0 &&
               ::getsockname(listener, reinterpret_cast<sockaddr*>(&own), &length) == 0;
  ends[0] = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  there = there && ::connect(ends[0], reinterpret_cast<sockaddr*>(&own), sizeof(own)) == 0;
  ends[1] = there ? ::accept(listener, nullptr, nullptr) : -1;
  siege.must(ends[1] >= 0, "a socket of its own");
  auto start = Siege::Clock::now();
  Bytes room(kPiece, 7);
  siege.hold([&] {
    std::chrono::duration<double> passed = Siege::Clock::now() - start;
    auto due = static_cast<uint64_t>(passed.count() * rate);
    while (siege.seen.bytes_out < due && siege.more()) {
      size_t part = std::min<uint64_t>(kPiece, due - siege.seen.bytes_out);
      ssize_t sent = ::send(ends[0], room.data(), part, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent > 0) siege.seen.bytes_out += static_cast<uint64_t>(sent);
      ssize_t got = ::recv(ends[1], room.data(), kPiece, MSG_DONTWAIT);
      if (got > 0) siege.seen.bytes_in += static_cast<uint64_t>(got);
      if (sent <= 0 && got <= 0) break;
    }
  });
  for (int fd : {listener, ends[0], ends[1]}) ::close(fd);
}

const Registered registered("control",
                            {{"unrelated", "the same bytes through another socket", unrelated}});

}  // namespace
}  // namespace hostile
