// How a session behaves, where its maker may choose.
#ifndef SLUICE_PROTO_SESSION_OPTIONS_H_
#define SLUICE_PROTO_SESSION_OPTIONS_H_

#include <chrono>
#include <cstdint>
#include <string>

#include <sluice/base/clock.h>

namespace sluice::proto {

struct SessionOptions {
  // Why this path, where a backend has no other reason.
  std::string why = "was asked for";
  // Deadline of operations that state none.
  Duration operation_timeout = std::chrono::seconds(30);
  // With operations outstanding and nothing heard for this long, a PING asks whether
  // the peer makes progress. Each session takes something between half of it and all.
  Duration ping_interval = std::chrono::seconds(1);
  // A PING unanswered for this long: the peer is reported silent.
  Duration silent_after = std::chrono::seconds(3);
  // A silent peer is closed after this; zero: never.
  Duration silence_limit = Duration(0);
  // A connection that nobody uses is closed after this, and at twice that at the latest; zero:
  // never.
  Duration idle_limit = Duration(0);
  // Operations outstanding at once: ours, and those made for the peer's requests.
  uint32_t operation_limit = 4096;
  // Requests for keys the peer may have waiting here.
  uint32_t want_limit = 4096;
  // What may arrive before a receive was posted for it; told to the peer in HELLO.
  uint64_t credit_messages = 256;
  uint64_t credit_bytes = 1u << 20;
};

// What ConnectOptions and ListenOptions say of a session.
template <typename Options>
SessionOptions session_options(const Options& options) {
  SessionOptions session;
  session.operation_timeout = options.operation_timeout;
  session.silence_limit = options.silence_limit;
  if constexpr (requires { options.idle_limit; }) session.idle_limit = options.idle_limit;
  return session;
}

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_SESSION_OPTIONS_H_
