#include "tests/hostile/attacker/tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace hostile {
namespace {

constexpr size_t kMostAnswers = 20'000;

// "tcp://127.0.0.1:7000" or "127.0.0.1:7000".
sockaddr_in address_of(const std::string& text) {
  size_t start = text.rfind('/') == std::string::npos ? 0 : text.rfind('/') + 1;
  size_t colon = text.rfind(':');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::atoi(text.c_str() + colon + 1)));
  ::inet_pton(AF_INET, text.substr(start, colon - start).c_str(), &to.sin_addr);
  return to;
}

}  // namespace

TcpPeer::~TcpPeer() { close(); }

void TcpPeer::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void TcpPeer::reset() {
  linger at_once{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  close();
}

void TcpPeer::shut_write() { ::shutdown(fd_, SHUT_WR); }

bool TcpPeer::connect(const TcpOptions& options) {
  fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd_ < 0) return false;
  ++siege_.seen.connections;
  int one = 1;
  ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  if (options.receive_bytes > 0)
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &options.receive_bytes, sizeof(int));
  const std::string& source = options.source.empty() ? siege_.source : options.source;
  if (!source.empty()) {
    sockaddr_in own = address_of(source + ":0");
    // Ports are found at connect(): there are 28,000 for each pair of addresses.
    ::setsockopt(fd_, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one));
    ::bind(fd_, reinterpret_cast<sockaddr*>(&own), sizeof(own));
  }
  ::fcntl(fd_, F_SETFL, O_NONBLOCK);
  sockaddr_in to = address_of(siege_.address);
  if (::connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) {
    if (errno != EINPROGRESS) return note_end(), false;
    pollfd wait{.fd = fd_, .events = POLLOUT, .revents = 0};
    // A full backlog drops the SYN: it is said again after a second.
    if (::poll(&wait, 1, std::min(siege_.left_ms(), 4000)) <= 0) return note_end(), false;
    int error = 0;
    socklen_t length = sizeof(error);
    ::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return note_end(), false;
  }
  return true;
}

bool TcpPeer::say_hello(const HelloFields& fields) { return send(hello(fields).whole()); }

bool TcpPeer::hear_hello() {
  Answer answer;
  if (!await(kHello, answer)) return note_end(), false;
  peer.incarnation = answer.id;
  peer.host.assign(answer.bytes.begin() + 24, answer.bytes.begin() + 40);
  peer.network_namespace = answer.at<uint64_t>(40);
  peer.user_namespace = answer.at<uint64_t>(48);
  peer.uid = answer.at<uint32_t>(56);
  peer.pid = answer.at<uint32_t>(60);
  peer.arena_bytes = answer.at<uint64_t>(64);
  peer.credit_messages = answer.at<uint64_t>(72);
  peer.credit_bytes = answer.at<uint64_t>(80);
  return true;
}

bool TcpPeer::choose(uint64_t path, uint32_t code) {
  if (!send(done(path, code, 0))) return false;
  greeted_ = true;
  ++siege_.seen.greeted;
  return true;
}

bool TcpPeer::greet(const TcpOptions& options) {
  return connect(options) && say_hello() && hear_hello() && choose();
}

void TcpPeer::note_end() {
  if (ended_) return;
  ended_ = true;
  ++(greeted_ ? siege_.seen.cut_off : siege_.seen.turned_away);
}

bool TcpPeer::send(const Bytes& message) {
  bool sent = send_raw(message.data(), message.size());
  if (sent) ++siege_.seen.messages_out;
  return sent;
}

bool TcpPeer::send_all(const std::vector<Bytes>& messages) {
  Bytes all;
  for (const Bytes& message : messages) all.insert(all.end(), message.begin(), message.end());
  bool sent = send_raw(all.data(), all.size());
  if (sent) siege_.seen.messages_out += messages.size();
  return sent;
}

bool TcpPeer::send_raw(const uint8_t* bytes, size_t length) {
  while (length > 0) {
    if (!alive()) return false;
    ssize_t sent = ::send(fd_, bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) {
      siege_.seen.bytes_out += static_cast<uint64_t>(sent);
      bytes += sent;
      length -= static_cast<size_t>(sent);
      continue;
    }
    if (errno != EAGAIN && errno != EINTR) return note_end(), false;
    if (!siege_.more()) return false;
    pollfd wait{.fd = fd_,
                .events = static_cast<short>(unread_ ? POLLOUT : POLLOUT | POLLIN),
                .revents = 0};
    if (::poll(&wait, 1, std::min(siege_.left_ms(), 100)) > 0 && (wait.revents & POLLIN) != 0 &&
        !read_some(1 << 20))
      return false;
  }
  return true;
}

bool TcpPeer::listen(int milliseconds) {
  if (!alive()) return false;
  if (unread_) {
    ::poll(nullptr, 0, milliseconds);
    return true;
  }
  pollfd wait{.fd = fd_, .events = POLLIN, .revents = 0};
  if (::poll(&wait, 1, milliseconds) <= 0) return true;
  return read_some(1 << 20);
}

bool TcpPeer::read_some(size_t most) {
  static Bytes room(1 << 20);
  ssize_t got = ::recv(fd_, room.data(), std::min(most, room.size()), MSG_DONTWAIT);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
    note_end();
    return false;
  }
  if (got < 0) return true;
  siege_.seen.bytes_in += static_cast<uint64_t>(got);
  in_.insert(in_.end(), room.begin(), room.begin() + got);
  parse();
  return true;
}

void TcpPeer::parse() {
  size_t at = 0;
  while (at < in_.size()) {
    if (payload_left_ > 0) {
      size_t part = std::min<uint64_t>(payload_left_, in_.size() - at);
      if (on_payload) on_payload(in_.data() + at, part);
      at += part;
      payload_left_ -= part;
      continue;
    }
    if (in_.size() - at < 16) break;
    const uint8_t* from = in_.data() + at;
    Answer answer{.type = from[0],
                  .flags = from[1],
                  .header_bytes = take<uint16_t>(from + 2),
                  .payload_bytes = take<uint32_t>(from + 4),
                  .id = take<uint64_t>(from + 8),
                  .bytes = {}};
    size_t whole = answer.header_bytes + (answer.type == kData ? 0 : size_t{answer.payload_bytes});
    if (in_.size() - at < whole) break;
    answer.bytes.assign(from, from + whole);
    at += whole;
    if (answer.type == kData) payload_left_ = answer.payload_bytes;
    ++siege_.seen.answers[answer.type < kTypes ? answer.type : 0];
    if (answer.type == kDone) ++siege_.seen.codes[answer.at<uint32_t>(16)];
    if (answer.type == kBye) ++siege_.seen.codes[static_cast<uint32_t>(answer.at<uint64_t>(16))];
    if (answers.size() < kMostAnswers) answers.push_back(std::move(answer));
  }
  in_.erase(in_.begin(), in_.begin() + static_cast<long>(at));
}

}  // namespace hostile
