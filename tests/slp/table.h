// Two ends of SLP on a table: frames are passed by hand, held back, changed, invented.
#ifndef SLUICE_TESTS_SLP_TABLE_H_
#define SLUICE_TESTS_SLP_TABLE_H_

#include <catch2/catch.hpp>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernel_compat/slp/slp.h"
#include "tests/slp/assemble.h"
#include "tests/slp/judge.h"

namespace sluice::slp::table {

constexpr uint64_t kMicrosecond = 1000, kMillisecond = 1000 * kMicrosecond,
                   kSecond = 1000 * kMillisecond;
using Frame = std::vector<uint8_t>;

// As it comes to the core; valid as long as the frame.
inline slp_frame come(const Frame& frame) {
  return {.data = frame.data(),
          .present = frame.size(),
          .bytes = frame.size(),
          .ce = false,
          .context = nullptr};
}
inline uint8_t type_of(const Frame& frame) { return frame[0] & 31; }
inline void seal(Frame& frame, const slp_base& base) { slp_encode_base(frame.data(), &base); }
inline slp_base base_of(const Frame& frame) {
  slp_base base;
  REQUIRE(slp_decode_base(frame.data(), frame.size(), frame.size(), &base) == SLP_TAKEN);
  return base;
}

struct End {
  explicit End(uint64_t budget = 1 << 20) { slp_node_init(&node, budget); }
  static const slp_ops kOps;
  slp_config config(uint16_t mtu) {
    slp_config made;
    slp_config_init(&made);
    made.ops = &kOps;
    made.user = this;
    made.node = pulls_from != nullptr ? pulls_from : &node;
    made.share = share;
    made.mtu = mtu;
    return made;
  }
  slp_drop hear(const Frame& frame, uint64_t now) {
    Frame exact(frame);
    slp_frame in = come(exact);
    return slp_on_frame(session, now, &in);
  }
  std::vector<Frame> say(uint64_t now) {
    std::vector<Frame> frames;
    slp_tx tx;
    while (slp_poll_tx(session, now, &tx)) {
      const uint8_t* from = tx.from_memory ? memory.at(tx.cookie).data() + tx.offset : nullptr;
      Frame frame = assemble(session, tx, from);
      frames.push_back(std::move(frame));
      REQUIRE(frames.size() < 10'000);
    }
    return frames;
  }
  uint64_t dropped(slp_drop why) const { return slp_counters_of(session)->dropped[why]; }
  bool send(const std::string& text) {
    return slp_send(session, nullptr, reinterpret_cast<const uint8_t*>(text.data()),
                    static_cast<uint32_t>(text.size()), nullptr, 0);
  }

  slp_node node;
  slp_node* pulls_from = nullptr;  // another's, instead
  slp_share* share = nullptr;
  std::vector<uint64_t> room = std::vector<uint64_t>((slp_session_bytes() + 7) / 8);
  slp_session* session = nullptr;
  std::map<uint64_t, std::vector<uint8_t>> memory;
  std::vector<std::string> messages;
  std::vector<std::pair<uint64_t, slp_status>> ended;
  std::vector<uint32_t> notices;
  uint64_t placed = 0;
  bool full = false;
};

inline const slp_ops End::kOps = {
    .place =
        [](void* user, uint64_t cookie, uint64_t offset, const slp_frame* frame, uint32_t at,
           uint32_t bytes) {
          auto* end = static_cast<End*>(user);
          REQUIRE(offset + bytes <= end->memory.at(cookie).size());
          std::copy_n(frame->data + at, bytes, end->memory.at(cookie).data() + offset);
          end->placed += bytes;
        },
    .message =
        [](void* user, const slp_rts*, const uint8_t* data, uint32_t bytes) {
          auto* end = static_cast<End*>(user);
          if (end->full) return false;
          end->messages.emplace_back(reinterpret_cast<const char*>(data), bytes);
          return true;
        },
    .ended = [](void* user, uint64_t cookie,
                slp_status status) { static_cast<End*>(user)->ended.emplace_back(cookie, status); },
    .written =
        [](void* user, uint64_t, bool noticed, uint32_t notice) {
          if (noticed) static_cast<End*>(user)->notices.push_back(notice);
        },
    .state = nullptr,
    .wake = [](void*) {},  // each end is asked in every turn
    .source_crc = nullptr,
    .frame_crc = nullptr,
};

// A cipher, and its user at each place.
struct Sealing {
  const slp_cipher* calls = nullptr;
  void *client = nullptr, *listener = nullptr, *server = nullptr;
  uint8_t epoch_bits = SLP_EPOCH_BITS;
};

// What the client pulls out of, with other clients.
struct Pulling {
  slp_node* node = nullptr;
  slp_share* share = nullptr;
  uint64_t now = 1;
};

// Both ends are up, and have nothing to say.
struct Pair {
  Pair(const Pair&) = delete;
  explicit Pair(uint16_t mtu = 1452, uint64_t budget = 1 << 20, const Sealing& sealing = {},
                const Pulling& pulling = {}, uint16_t mtu_of_server = 0)  // 0: the same
      : now(pulling.now), client(budget), server(budget) {
    if (mtu_of_server == 0) mtu_of_server = mtu;
    client.pulls_from = pulling.node;
    client.share = pulling.share;
    slp_config ours = client.config(mtu);
    ours.nonce = 0x1111, ours.connection = 0x10005, ours.source_port = 7, ours.destination_port = 9;
    ours.cipher = sealing.calls, ours.cipher_user = sealing.client,
    ours.epoch_bits = sealing.epoch_bits, ours.salt[3] = 1;
    client.session = slp_connect(client.room.data(), &ours, now);
    slp_listener listener{.secret = {1, 2, 3},
                          .port = 9,
                          .mtu = mtu_of_server,
                          .cipher = sealing.calls,
                          .cipher_user = sealing.listener};
    for (int round = 0; round < 2; ++round) {
      std::vector<Frame> said = client.say(now);
      REQUIRE(said.size() == 1);
      hello = said[0];
      slp_frame in = come(hello);
      slp_answer answer =
          slp_listen(&listener, now, reinterpret_cast<const uint8_t*>("client"), 6, &in, &met);
      REQUIRE(answer == (round == 0 ? SLP_LISTEN_REPLY : SLP_LISTEN_ACCEPT));
      if (round == 0)
        REQUIRE(client.hear({met.reply, met.reply + met.reply_bytes}, now) == SLP_TAKEN);
    }
    slp_config theirs = server.config(mtu_of_server);
    theirs.nonce = 0x2222, theirs.connection = 0x20006, theirs.source_port = 9,
    theirs.destination_port = 7;
    theirs.cipher = sealing.calls, theirs.cipher_user = sealing.server,
    theirs.epoch_bits = SLP_EPOCH_BITS, theirs.salt[5] = 2;
    REQUIRE(slp_accept(server.room.data(), &theirs, &met.hello, now, &server.session) == SLP_OK);
    run();
    REQUIRE(slp_state_of(client.session) == SLP_UP);
  }
  // Passes frames until nobody has any, or `pass` says no; lets time go by up to timers.
  void run(uint64_t until = 0) {
    for (int quiet = 0; quiet < 2;) {
      bool any = false;
      for (End* from : {&client, &server}) {
        for (Frame& frame : from->say(now)) {
          any = true;
          if (!pass || pass(from == &client, frame))
            (void)(from == &client ? server : client).hear(frame, now);
        }
      }
      quiet = any ? 0 : quiet + 1;
      if (any || now >= until) continue;
      quiet = 0;
      now = std::min(until, std::max(now + 1, std::min(slp_next_timeout(client.session),
                                                       slp_next_timeout(server.session))));
      slp_on_timer(client.session, now);
      slp_on_timer(server.session, now);
    }
  }
  // Memory of the server's that the client may reach, filled with a pattern.
  uint32_t lend(uint64_t cookie, uint64_t bytes, uint32_t rights) {
    server.memory[cookie].resize(bytes);
    fill(cookie, 0, server.memory[cookie].data(), bytes);
    uint32_t handle = 0;
    REQUIRE(slp_open_handle(server.session, cookie, bytes, rights, &handle));
    return handle;
  }

  uint64_t now;
  End client, server;
  slp_meeting met{};
  Frame hello;  // that was let in
  std::function<bool(bool from_client, Frame& frame)> pass;
};

// A frame of the client's next message that has not been delivered.
inline Frame next_frame(Pair& pair, const std::string& text) {
  REQUIRE(pair.client.send(text));
  std::vector<Frame> said = pair.client.say(pair.now);
  REQUIRE(said.size() == 1);
  return said[0];
}

}  // namespace sluice::slp::table

#endif  // SLUICE_TESTS_SLP_TABLE_H_
