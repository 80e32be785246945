#include "tests/module/carrier.h"

#include <catch2/catch.hpp>

#include <chrono>
#include <span>
#include <stdexcept>
#include <utility>

namespace sluice::module_test {

using namespace std::chrono_literals;

namespace {

void fill(Buffer& buffer, unsigned seed) {
  auto bytes = buffer.bytes();
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>((i * 2654435761u + seed) >> 13);
}

bool holds(std::span<const std::byte> bytes, unsigned seed) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != static_cast<std::byte>((i * 2654435761u + seed) >> 13)) return false;
  }
  return true;
}

}  // namespace

Instant soon() { return after(now(), 20s); }

std::unique_ptr<Context> small_context() {
  auto context =
      open_context({.arena = {},
                    .arena_options = {.limit_bytes = 64 << 20, .first_extent_bytes = 4 << 20},
                    .waiting = Waiting::kAdaptive});
  if (!context.ok()) throw std::runtime_error(context.status().to_string());
  return std::move(context).value();
}

Status Echo::serve(const std::string& address, const std::vector<size_t>& sizes) {
  auto context = small_context();
  SLUICE_TRY(Listener listener, context->listen(address));
  told_ = true;
  listening_.set_value(listener.address());
  SLUICE_TRY(Endpoint peer, listener.accept(soon()));
  for (size_t size : sizes) {
    SLUICE_TRY(Buffer room, context->allocate({static_cast<int64_t>(size)}, uint8));
    SLUICE_TRY(Endpoint::Received got, peer.receive_and_wait({.tag = 1}, std::move(room), soon()));
    last_ = got.receipt;
    SLUICE_RETURN_IF_ERROR(peer.send_and_wait(2, std::move(got.buffer).freeze(), soon()).status());
  }
  return peer.close(soon());
}

Sent exchange(Context& context, Endpoint& server, size_t size, unsigned seed) {
  auto buffer = context.allocate({static_cast<int64_t>(size)}, uint8);
  REQUIRE(buffer.ok());
  fill(*buffer, seed);
  auto sent = server.send_and_wait(1, std::move(*buffer).freeze(), soon());
  INFO(sent.status().to_string());
  REQUIRE(sent.ok());
  auto room = context.allocate({static_cast<int64_t>(size)}, uint8);
  REQUIRE(room.ok());
  auto got = server.receive_and_wait({.tag = 2}, std::move(*room), soon());
  INFO(got.status().to_string());
  REQUIRE(got.ok());
  CHECK(holds(got->buffer.bytes(), seed));
  return {.out = *sent, .in = got->receipt};
}

}  // namespace sluice::module_test
