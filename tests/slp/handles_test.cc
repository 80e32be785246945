// What a handle of SLP names, beyond one session.
#include <catch2/catch.hpp>

#include <algorithm>
#include <iterator>
#include <memory>

#include "kernel_compat/slp/slp.h"

namespace {

// With the random numbers that it was given.
uint32_t first_handle(uint16_t random) {
  static const slp_ops kNothing = {};
  slp_node node;
  slp_node_init(&node, 1 << 20);
  slp_config config;
  slp_config_init(&config);
  config.ops = &kNothing;
  config.node = &node;
  config.nonce = 1;
  std::fill(std::begin(config.generations), std::end(config.generations), random);
  config.connection = 1;
  auto room = std::make_unique<uint64_t[]>((slp_session_bytes() + 7) / 8);
  slp_session* session = slp_connect(room.get(), &config, 1);
  uint32_t handle = 0;
  REQUIRE(slp_open_handle(session, 1, 10, SLP_READ, &handle));
  return handle;
}

TEST_CASE("a handle of one session names nothing in another", "[slp]") {
  CHECK(first_handle(0x1234) != first_handle(0xfedc));
}

}  // namespace
