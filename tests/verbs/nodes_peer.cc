#include "tests/verbs/nodes_peer.h"

#include <chrono>
#include <cstdlib>
#include <utility>

namespace sluice::nodes {

using namespace std::chrono_literals;

namespace {

std::string variable(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

}  // namespace

std::string here() { return variable("SLUICE_LAB_ADDRESS", "10.77.0.1"); }
std::string peer() { return variable("SLUICE_LAB_PEER", here().c_str()); }

void fill(std::span<std::byte> bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>((i * 131 + (i >> 9) * 17 + seed * 7919) >> 2);
}
bool holds(std::span<const std::byte> bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != static_cast<std::byte>((i * 131 + (i >> 9) * 17 + seed * 7919) >> 2))
      return false;
  }
  return true;
}
Buffer filled(Context& context, size_t size, uint64_t seed) {
  Buffer buffer = context.arena().allocate(size).value();
  (void)buffer.reshape(TensorDescriptor::bytes(size));
  fill(buffer.bytes(), seed);
  return buffer;
}

std::unique_ptr<Context> context() {
  auto opened = open_context({.arena = {},
                              .arena_options = {.limit_bytes = size_t{256} << 20},
                              .waiting = Waiting::kSleep});
  if (opened.ok()) return std::move(opened).value();
  std::printf("no context: %s\n", opened.status().to_string().c_str());
  std::exit(1);
}

Result<std::unique_ptr<Peer>> meet(const std::string& scheme, const ConnectOptions& options,
                                   Duration patience) {
  auto met = std::make_unique<Peer>();
  Instant limit = in(patience);
  while (true) {
    auto endpoint = met->own->connect(scheme + "://" + peer() + ":7000", options);
    if (endpoint.ok()) {
      met->endpoint = std::move(*endpoint);
      break;
    }
    if (now() >= limit) return endpoint.status();
    (void)met->own->wait(in(100ms));
  }
  auto key = met->endpoint.receive_and_wait(
      {.tag = 3}, filled(*met->own, RemoteKey::kEncodedBytes, 0), in(20s));
  if (!key.ok()) return key.status();
  SLUICE_TRY(met->key, RemoteKey::decode(key->buffer.bytes().first(RemoteKey::kEncodedBytes)));
  return met;
}

}  // namespace sluice::nodes
