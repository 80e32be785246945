// A device or a peer that lies: in completions, in frames, in immediate data, in HELLO and
// in the connection manager's private data. Whatever it says ends its own connection at
// most, with the reason; no memory is touched, nothing hangs.
#include "tests/verbs/backend/scene.h"

#include <string.h>

#include <sluice/base/log.h>
#include <sluice/verbs/queue_pair.h>

namespace sluice::verbs {
namespace {

enum class End { kBroken, kFine, kEither };

// One connection with the lie in its traffic.
void lie(Fabric& fabric, Duo& duo, const std::function<void(FakeFaults&)>& plan, End end,
         const std::string& text = "") {
  auto made = duo.connect();
  REQUIRE(made.ok());
  auto [client, server] = std::move(made).value();
  fabric.with_faults(plan);
  // Whose message was lost ends by its deadline.
  Traffic traffic(duo, client, server, end == End::kEither ? 50ms : 1s);
  traffic.client_tally.bytes_may_lie = traffic.server_tally.bytes_may_lie = end == End::kEither;
  traffic.post(20'000);
  traffic.finish();
  INFO(traffic.text());
  CHECK(fabric.with_faults([](FakeFaults& faults) { return faults.plans_left(); }) == 0);
  bool broken = traffic.failures() > 0;
  if (end == End::kBroken) {
    CHECK(broken);
    CHECK(duo.until(
        [&] {
          return client.state() == EndpointState::kClosed &&
                 server.state() == EndpointState::kClosed;
        },
        in(10s)));
    CHECK(traffic.text().find(text) != std::string::npos);
  }
  if (end == End::kFine) CHECK_FALSE(broken);
}

class Liars {
 public:
  Liars() { REQUIRE(duo.open().ok()); }
  ~Liars() { expect_traffic(duo, duo.client, duo.server); }
  void receive(uint64_t nth, FakeFaults::Change change, End end, const std::string& text = "") {
    lie(
        fabric, duo, [&](FakeFaults& f) { f.change_receive(nth, change); }, end, text);
  }
  void send(uint64_t nth, FakeFaults::Change change, End end, const std::string& text = "") {
    lie(
        fabric, duo, [&](FakeFaults& f) { f.change_send(nth, change); }, end, text);
  }
  void message(uint64_t nth, FakeFaults::Rewrite rewrite, End end, const std::string& text = "") {
    lie(
        fabric, duo, [&](FakeFaults& f) { f.rewrite_message(nth, rewrite); }, end, text);
  }
  Fabric fabric;
  Duo duo;
};

TEST_CASE("a frame's length is the peer's word", "[verbs][hostile]") {
  Liars liars;
  for (uint64_t nth : {1, 2, 6}) {
    for (uint32_t length :
         {0u, 4u, 7u, 9u, 20u, static_cast<uint32_t>(kSlotBytes) + 1, UINT32_MAX}) {
      INFO("receive " << nth << " has " << length << " bytes");
      bool impossible = length < kFramePrefix || length > kSlotBytes;
      std::string text = impossible ? "a frame of " + std::to_string(length) + " bytes" : "";
      liars.receive(
          nth, [=](ibv_wc& wc) { wc.byte_len = length; }, End::kBroken, text);
    }
  }
}

TEST_CASE("a completion that names no request, or one twice, ends the connection",
          "[verbs][hostile]") {
  Liars liars;
  for (uint64_t nth : {1, 3}) {
    for (uint64_t id : {uint64_t{0} - 1, uint64_t{1} << 63 | 64, uint64_t{1} << 63 | 0xFFFFFFFF,
                        uint64_t{1} << 62, uint64_t{1} << 40}) {
      INFO("completion " << nth << " is of request " << id);
      liars.receive(
          nth, [=](ibv_wc& wc) { wc.wr_id = id; }, End::kBroken, "not posted");
      liars.send(
          nth, [=](ibv_wc& wc) { wc.wr_id = id; }, End::kBroken, "not posted");
    }
  }
  // Near those that are posted.
  liars.send(
      2, [](ibv_wc& wc) { wc.wr_id += 300; }, End::kBroken, "not posted");
  // A slot that is posted again at once looks like a new message; there is then one too many.
  liars.fabric.expected_complaint = "post_recv: the receive queue is full";
  for (uint64_t nth : {1, 2, 5}) {
    lie(
        liars.fabric, liars.duo, [&](FakeFaults& f) { f.duplicate_receive(nth); }, End::kBroken);
  }
}

TEST_CASE("a completion of an opcode that nobody posted ends the connection", "[verbs][hostile]") {
  Liars liars;
  for (int opcode : {0, 1, 7, 0x42, 0x85, 0xFF}) {
    INFO("opcode " << opcode);
    liars.receive(
        2, [=](ibv_wc& wc) { wc.opcode = static_cast<ibv_wc_opcode>(opcode); }, End::kBroken,
        "opcode");
  }
  // Of a request of ours the opcode says nothing: it is known by its number.
  liars.send(
      2,
      [](ibv_wc& wc) {
        wc.opcode = static_cast<ibv_wc_opcode>(0x55);
        wc.byte_len = UINT32_MAX;
      },
      End::kFine);
}

// A message that the device says was a WRITE's notice: it is lost, and the notice garbage.
TEST_CASE("a notice that names nobody is counted and moves nothing", "[verbs][hostile]") {
  Liars liars;
  Gain late("session.late_arrivals");
  for (uint32_t notice : {0u, 1u, 0xFFFFu, 0xFFFF0001u, UINT32_MAX}) {
    INFO("notice " << notice);
    liars.receive(
        6,
        [=](ibv_wc& wc) {
          wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
          wc.imm_data = notice;
          wc.byte_len = 0;
        },
        End::kEither);
  }
  CHECK(late() >= 4);
}

struct Prefix {
  uint32_t credits, zero;
};
void put(std::vector<uint8_t>& bytes, Prefix prefix) {
  ::memcpy(bytes.data(), &prefix, sizeof(prefix));
}
Prefix taken(const std::vector<uint8_t>& bytes) {
  Prefix prefix{};
  ::memcpy(&prefix, bytes.data(), sizeof(prefix));
  return prefix;
}

TEST_CASE("credit that was never given, goes back or has something behind it ends the connection",
          "[verbs][hostile]") {
  Liars liars;
  for (uint64_t nth : {1, 4}) {
    for (uint32_t more : {65u, 1000u, 0x80000000u, 0xFFFFFFC0u}) {
      INFO("message " << nth << " gives " << more << " more");
      liars.message(
          nth,
          [=](auto& bytes) {
            put(bytes, {taken(bytes).credits + more, 0});
          },
          End::kBroken, "receive slots");
    }
    for (uint32_t kind : {1u, 2u, 0xFFFFFFFFu}) {
      liars.message(
          nth,
          [=](auto& bytes) {
            put(bytes, {taken(bytes).credits, kind});
          },
          End::kBroken);
    }
    liars.message(
        nth,
        [](auto& bytes) {
          put(bytes, {0, 0});
        },
        End::kBroken, "receive slots");
  }
}

TEST_CASE("frames that are cut short, too long or full of garbage end the connection",
          "[verbs][hostile]") {
  Liars liars;
  for (uint64_t nth : {1, 2, 5}) {
    for (size_t left : {size_t{0}, size_t{1}, size_t{7}, size_t{9}, size_t{15}, size_t{30}}) {
      INFO("message " << nth << " has " << left << " bytes left");
      liars.message(
          nth, [=](auto& bytes) { bytes.resize(left); }, End::kBroken);
    }
    liars.message(
        nth, [](auto& bytes) { bytes.pop_back(); }, End::kBroken);
    liars.message(
        nth, [](auto& bytes) { bytes.push_back(0); }, End::kBroken, "around a message of");
    liars.message(
        nth, [](auto& bytes) { bytes.resize(kSlotBytes); }, End::kBroken);
    for (uint8_t garbage : {0, 0x7F, 0xFF}) {
      liars.message(
          nth,
          [=](auto& bytes) {
            for (size_t i = kFramePrefix; i < bytes.size(); ++i) bytes[i] = garbage;
          },
          End::kBroken);
    }
  }
  // More than a slot holds: the device itself refuses it.
  liars.fabric.with_faults([](FakeFaults&) {});
  liars.message(
      2, [](auto& bytes) { bytes.resize(kSlotBytes + 1); }, End::kBroken);
}

TEST_CASE("every byte of a message may lie", "[verbs][hostile]") {
  Liars liars;
  for (uint64_t nth : {1, 3, 7, 9}) {
    for (size_t at = 0; at < 120; at += 3) {
      INFO("byte " << at << " of message " << nth);
      liars.message(
          nth,
          [=](auto& bytes) {
            if (at < bytes.size()) bytes[at] ^= 0x5A;
          },
          End::kEither);
    }
  }
}

// Greeting: client and server each send a HELLO, the first two messages of a connection.
Status greet(Fabric& fabric, Duo& duo, const std::function<void(FakeFaults&)>& plan) {
  fabric.with_faults(plan);
  auto made = duo.connect();
  fabric.with_faults([](FakeFaults& f) { f.forget_plans(); });
  if (made.ok()) return Status();
  CHECK_FALSE(made.status().detail().empty());
  return made.status();
}

TEST_CASE("a HELLO that lies ends the attempt, and the next one is met", "[verbs][hostile]") {
  Fabric fabric;
  DuoOptions options;
  options.connect.timeout = 100ms;
  Duo duo(options);
  REQUIRE(duo.open().ok());
  for (uint64_t nth : {1, 2}) {
    for (size_t at :
         {kFramePrefix, kFramePrefix + 1, kFramePrefix + 2, kFramePrefix + 4, kFramePrefix + 8}) {
      INFO("byte " << at << " of HELLO " << nth);
      (void)greet(fabric, duo, [=](FakeFaults& f) {
        f.rewrite_message(nth, [=](auto& bytes) { bytes[at] ^= 0xFF; });
      });
    }
    CHECK_FALSE(greet(fabric, duo, [=](FakeFaults& f) {
                  f.rewrite_message(nth, [](auto& bytes) { bytes.resize(10); });
                }).ok());
    CHECK_FALSE(greet(fabric, duo, [=](FakeFaults& f) {
                  f.rewrite_message(nth, [](auto& bytes) { bytes[kFramePrefix] = 0x07; });
                }).ok());
    CHECK_FALSE(greet(fabric, duo, [=](FakeFaults& f) {
                  f.rewrite_message(nth, [](auto& bytes) { put(bytes, {9999, 0}); });
                }).ok());
    CHECK_FALSE(greet(fabric, duo, [=](FakeFaults& f) {
                  f.change_receive(nth, [](ibv_wc& wc) { wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM; });
                }).ok());
    Status late = greet(fabric, duo, [=](FakeFaults& f) {
      f.rewrite_message(nth, [](auto& bytes) { bytes.resize(kFramePrefix); });
    });
    CHECK(late.code() == Code::kTimedOut);  // it never comes: an empty frame in its place
  }
  expect_traffic(duo, duo.client, duo.server);
  expect_reconnect(duo);
}

TEST_CASE("a listener says once why a connection ended before it was one", "[verbs][hostile]") {
  std::vector<std::string> warnings;
  Fabric fabric;
  DuoOptions options;
  options.connect.timeout = 1s;
  Duo duo(options);
  REQUIRE(duo.open().ok());
  set_log_sink(
      [](LogLevel level, std::string_view line, void* lines) {
        if (level == LogLevel::kWarning)
          static_cast<std::vector<std::string>*>(lines)->emplace_back(line);
      },
      &warnings);
  // The client's, which comes first.
  CHECK_FALSE(greet(fabric, duo, [](FakeFaults& f) {
                f.rewrite_message(1, [](auto& bytes) { bytes[kFramePrefix] = 0x07; });
              }).ok());
  duo.settle();
  REQUIRE(warnings.size() == 1);
  INFO(warnings[0]);
  CHECK(warnings[0].find("a message before HELLO") != std::string::npos);
  CHECK(warnings[0].find("rdma://127.0.0.1:") != std::string::npos);
  expect_traffic(duo, duo.client, duo.server);
}

TEST_CASE("a HELLO that comes twice ends the connection", "[verbs][hostile]") {
  Liars liars;
  std::vector<uint8_t> hello;
  liars.fabric.with_faults(
      [&](FakeFaults& f) { f.rewrite_message(1, [&](auto& bytes) { hello = bytes; }); });
  expect_reconnect(liars.duo);
  REQUIRE(hello.size() > 100);
  hello.resize(kFramePrefix + hello[kFramePrefix + 2] + 256u * hello[kFramePrefix + 3]);
  for (uint64_t nth : {1, 4}) {
    auto again = [&](auto& bytes) {
      Prefix prefix = taken(bytes);
      bytes = hello;
      put(bytes, prefix);
    };
    liars.message(nth, again, End::kBroken);
  }
}

TEST_CASE("private data that is not ours is refused and the next peer is met", "[verbs][hostile]") {
  Fabric fabric;
  DuoOptions options;
  options.connect.timeout = 1s;
  Duo duo(options);
  REQUIRE(duo.open().ok());
  Gain refused("verbs.refused");
  // ADDR_RESOLVED, ROUTE_RESOLVED, then the request.
  auto at_request = [&](const std::function<void(rdma_conn_param&)>& change) {
    return greet(fabric, duo, [&](FakeFaults& f) {
      for (uint64_t nth : {1, 2, 3, 4}) {
        f.change_cm_event(nth, [change](rdma_cm_event& event) {
          if (event.event == RDMA_CM_EVENT_CONNECT_REQUEST) change(event.param.conn);
        });
      }
    });
  };
  Status told =
      at_request([](rdma_conn_param& p) { ::memset(const_cast<void*>(p.private_data), 0x5A, 8); });
  CHECK(told.code() == Code::kUnreachable);
  CHECK(told.to_string().find("refuses the connection") != std::string::npos);
  CHECK_FALSE(at_request([](rdma_conn_param& p) { p.private_data_len = 7; }).ok());
  CHECK_FALSE(at_request([](rdma_conn_param& p) {
                p.private_data = nullptr;
                p.private_data_len = 0;
              }).ok());
  CHECK(refused() == 3);
  // A version that nobody speaks is found out by HELLO at the latest.
  (void)at_request([](rdma_conn_param& p) {
    ::memset(static_cast<char*>(const_cast<void*>(p.private_data)) + 4, 0xFF, 4);
  });
  expect_traffic(duo, duo.client, duo.server);
  expect_reconnect(duo);
}

TEST_CASE("a handshake that lies about its queue or its depths ends the attempt",
          "[verbs][hostile]") {
  Fabric fabric;
  DuoOptions options;
  options.connect.timeout = 50ms;
  Duo duo(options);
  REQUIRE(duo.open().ok());
  auto reject = greet(fabric, duo, [](FakeFaults& f) {
    for (uint64_t nth : {1, 2, 3, 4, 5}) {
      f.change_cm_event(nth, [](rdma_cm_event& e) {
        if (e.event == RDMA_CM_EVENT_CONNECT_RESPONSE)
          e.event = RDMA_CM_EVENT_REJECTED, e.status = 8;
      });
    }
  });
  CHECK(reject.code() == Code::kUnreachable);
  CHECK(reject.to_string().find("nobody listens") != std::string::npos);
  for (rdma_cm_event_type type :
       {RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ROUTE_ERROR, RDMA_CM_EVENT_CONNECT_ERROR,
        RDMA_CM_EVENT_UNREACHABLE, RDMA_CM_EVENT_DEVICE_REMOVAL, RDMA_CM_EVENT_DISCONNECTED,
        RDMA_CM_EVENT_MULTICAST_ERROR, RDMA_CM_EVENT_TIMEWAIT_EXIT, RDMA_CM_EVENT_ADDR_CHANGE}) {
    for (uint64_t nth : {1, 2, 3, 4}) {
      INFO("event " << nth << " is " << type);
      (void)greet(fabric, duo, [=](FakeFaults& f) {
        // The request itself brings an identifier, which nobody else would own.
        f.change_cm_event(nth, [=](rdma_cm_event& e) {
          if (e.event != RDMA_CM_EVENT_CONNECT_REQUEST) e.event = type, e.status = -5;
        });
      });
    }
  }
  expect_traffic(duo, duo.client, duo.server);
  expect_reconnect(duo);
}

TEST_CASE("a refusal that comes after the greeting is the peer's end", "[verbs][hostile]") {
  Fabric fabric;
  Duo duo;
  REQUIRE(duo.open().ok());
  Gain gone("verbs.peers_gone");
  // Of a connection that is met: the device knows nothing of it.
  REQUIRE(fabric->raise_cm(RDMA_CM_EVENT_REJECTED, 28) > 0);
  CHECK(duo.until([&] { return duo.both_closed(); }, in(3s)));
  CHECK(gone() == 2);
  expect_reconnect(duo);
}

}  // namespace
}  // namespace sluice::verbs
