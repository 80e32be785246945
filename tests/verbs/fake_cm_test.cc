// The fake connection manager: the handshake as two programs see it, and its endings.
#include <arpa/inet.h>
#include <errno.h>

#include <filesystem>

#include "tests/verbs/fake_pair.h"

namespace sluice::verbs {
namespace {

class Manager {
 public:
  explicit Manager(FakeOptions options = {}) : fake(std::move(options)) {
    REQUIRE(descriptors() == before);
    for (rdma_event_channel*& channel : channels) {
      channel = fake.create_event_channel();
      make_nonblocking(channel->fd);
    }
    REQUIRE(fake.create_id(channels[0], &listener, this) == 0);
    sockaddr_in any = address("0.0.0.0", 0);
    REQUIRE(fake.bind_addr(listener, reinterpret_cast<sockaddr*>(&any)) == 0);
    REQUIRE(fake.listen(listener, 4) == 0);
  }
  ~Manager() {
    for (rdma_cm_id* id : {active, passive, listener}) {
      if (id != nullptr) CHECK(fake.destroy_id(id) == 0);
    }
    for (rdma_event_channel* channel : channels) fake.destroy_event_channel(channel);
    CHECK(fake.complaints() == "");
    CHECK(descriptors() == before);  // while the fabric lives
  }
  static size_t descriptors() {
    std::filesystem::directory_iterator all("/proc/self/fd");
    return static_cast<size_t>(std::distance(begin(all), end(all)));
  }
  static sockaddr_in address(const char* host, uint16_t port) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htons(port);
    ::inet_pton(AF_INET, host, &in.sin_addr);
    return in;
  }
  // The next event, acknowledged: its type and a copy of what it said.
  struct Seen {
    rdma_cm_event event{};
    std::vector<uint8_t> data;
  };
  Seen next(int side, rdma_cm_event_type expected) {
    rdma_cm_event* event = nullptr;
    REQUIRE(readable(channels[side]->fd));
    REQUIRE(fake.cm_event(channels[side], &event) == 0);
    Seen seen{*event, {}};
    CHECK(event->event == expected);
    const auto* data = static_cast<const uint8_t*>(event->param.conn.private_data);
    if (data != nullptr) seen.data.assign(data, data + event->param.conn.private_data_len);
    REQUIRE(fake.ack_cm_event(event) == 0);
    return seen;
  }
  bool quiet(int side) { return !readable(channels[side]->fd); }
  void resolve(const char* host = "127.0.0.1") {
    REQUIRE(fake.create_id(channels[1], &active, this) == 0);
    sockaddr_in to = address(host, fake.source_port(listener));
    REQUIRE(fake.resolve_addr(active, reinterpret_cast<sockaddr*>(&to), 1000) == 0);
    next(1, RDMA_CM_EVENT_ADDR_RESOLVED);
    REQUIRE(fake.resolve_route(active, 1000) == 0);
    next(1, RDMA_CM_EVENT_ROUTE_RESOLVED);
  }
  static rdma_conn_param parameters(const char* data, uint32_t qp_num) {
    rdma_conn_param p{};
    p.private_data = data;
    p.private_data_len = static_cast<uint8_t>(::strlen(data));
    p.responder_resources = 5;
    p.initiator_depth = 3;
    p.retry_count = 4;
    p.rnr_retry_count = 2;
    p.qp_num = qp_num;
    return p;
  }
  Seen request() {
    rdma_conn_param p = parameters("hello", 0x123);
    REQUIRE(fake.connect(active, &p) == 0);
    Seen seen = next(0, RDMA_CM_EVENT_CONNECT_REQUEST);
    passive = seen.event.id;
    return seen;
  }
  Seen reply() {
    rdma_conn_param p = parameters("welcome", 0x456);
    p.responder_resources = 3;
    p.initiator_depth = 2;
    p.rnr_retry_count = 6;
    REQUIRE(fake.accept(passive, &p) == 0);
    return next(1, RDMA_CM_EVENT_CONNECT_RESPONSE);
  }
  void connected() {
    resolve();
    request();
    reply();
    REQUIRE(fake.establish(active) == 0);
    next(0, RDMA_CM_EVENT_ESTABLISHED);
  }

  size_t before = descriptors();
  FakeVerbs fake;
  rdma_event_channel* channels[2] = {};
  rdma_cm_id* listener = nullptr;
  rdma_cm_id* active = nullptr;
  rdma_cm_id* passive = nullptr;
};

TEST_CASE("a connection is made by request, response and establish", "[verbs][fake][cm]") {
  Manager m;
  m.resolve("127.9.9.9");
  CHECK(std::string(m.active->verbs->device->name) == "fake0");
  CHECK(m.active->port_num == 1);
  auto request = m.request();
  CHECK(request.event.listen_id == m.listener);
  CHECK(m.passive != m.listener);
  CHECK(m.passive->context == &m);
  CHECK(std::string(m.passive->verbs->device->name) == "fake0");
  CHECK(request.event.param.conn.qp_num == 0x123);
  CHECK(request.event.param.conn.responder_resources == 3);  // what the other may start
  CHECK(request.event.param.conn.initiator_depth == 5);
  REQUIRE(request.data.size() == 56);  // padded
  CHECK(std::string(reinterpret_cast<char*>(request.data.data())) == "hello");
  CHECK(request.data[55] == 0);
  auto reply = m.reply();
  CHECK(reply.data.size() == 196);
  CHECK(std::string(reinterpret_cast<char*>(reply.data.data())) == "welcome");
  CHECK(reply.event.param.conn.qp_num == 0x456);
  CHECK(m.quiet(0));
  REQUIRE(m.fake.establish(m.active) == 0);
  m.next(0, RDMA_CM_EVENT_ESTABLISHED);
  CHECK(m.quiet(1));
  CHECK(m.fake.establish(m.active) == EINVAL);
}

TEST_CASE("the attributes of both ends fit each other", "[verbs][fake][cm]") {
  Manager m;
  m.resolve();
  ibv_qp_attr a{}, b{};
  int mask = 0;
  a.qp_state = IBV_QPS_INIT;
  REQUIRE(m.fake.init_qp_attr(m.active, &a, &mask) == 0);
  CHECK(mask == (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
  CHECK(a.qp_access_flags == 0);
  a.qp_state = IBV_QPS_RTR;
  CHECK(m.fake.init_qp_attr(m.active, &a, &mask) == EINVAL);  // nobody there yet
  m.request();
  b.qp_state = IBV_QPS_RTS;  // the passive side may send before it accepts
  REQUIRE(m.fake.init_qp_attr(m.passive, &b, &mask) == 0);
  CHECK(b.retry_cnt == 4);
  CHECK(b.rnr_retry == 2);
  CHECK(b.max_rd_atomic == 5);
  ibv_qp_attr b_receives{};
  b_receives.qp_state = IBV_QPS_RTR;
  REQUIRE(m.fake.init_qp_attr(m.passive, &b_receives, &mask) == 0);
  CHECK(mask == FakePair::kReceiveMask);
  CHECK(b_receives.dest_qp_num == 0x123);
  CHECK(b_receives.max_dest_rd_atomic == 3);
  m.reply();
  a.qp_state = IBV_QPS_RTR;
  REQUIRE(m.fake.init_qp_attr(m.active, &a, &mask) == 0);
  CHECK(a.dest_qp_num == 0x456);
  CHECK(a.path_mtu == IBV_MTU_1024);
  CHECK(a.ah_attr.is_global == 1);
  CHECK(a.ah_attr.grh.sgid_index == 3);  // RoCE v2 of the address
  CHECK(a.max_dest_rd_atomic == 2);
  CHECK(a.rq_psn == b.sq_psn);
  ibv_qp_attr a_sends{};
  a_sends.qp_state = IBV_QPS_RTS;
  REQUIRE(m.fake.init_qp_attr(m.active, &a_sends, &mask) == 0);
  CHECK(mask == FakePair::kSendMask);
  CHECK(a_sends.sq_psn == b_receives.rq_psn);
  CHECK(a_sends.rnr_retry == 6);
  CHECK(a_sends.max_rd_atomic == 3);
}

TEST_CASE("the private data has its limits", "[verbs][fake][cm]") {
  Manager m;
  m.resolve();
  rdma_conn_param p = Manager::parameters("", 1);
  uint8_t data[200] = {};
  p.private_data = data;
  p.private_data_len = 57;
  CHECK(m.fake.connect(m.active, &p) == EINVAL);
  m.request();
  p.private_data_len = 197;
  CHECK(m.fake.accept(m.passive, &p) == EINVAL);
  CHECK(m.fake.reject(m.passive, data, 149) == EINVAL);
  m.reply();
}

TEST_CASE("a rejection says why", "[verbs][fake][cm]") {
  Manager m;
  m.resolve();
  m.request();
  REQUIRE(m.fake.reject(m.passive, "no", 2) == 0);
  auto seen = m.next(1, RDMA_CM_EVENT_REJECTED);
  CHECK(seen.event.status == 28);
  CHECK(seen.data.size() == 148);
  CHECK(seen.data[0] == 'n');
}

TEST_CASE("nobody listens, no device, nothing answers", "[verbs][fake][cm]") {
  Manager m;
  m.resolve();
  REQUIRE(m.fake.destroy_id(m.listener) == 0);
  m.listener = nullptr;
  rdma_conn_param p = Manager::parameters("", 1);
  REQUIRE(m.fake.connect(m.active, &p) == 0);
  CHECK(m.next(1, RDMA_CM_EVENT_REJECTED).event.status == 8);

  rdma_cm_id* other = nullptr;
  REQUIRE(m.fake.create_id(m.channels[1], &other, nullptr) == 0);
  sockaddr_in far = Manager::address("192.0.2.1", 1);
  REQUIRE(m.fake.resolve_addr(other, reinterpret_cast<sockaddr*>(&far), 1000) == 0);
  CHECK(m.next(1, RDMA_CM_EVENT_ADDR_ERROR).event.status == -ENODEV);
  sockaddr_in near = Manager::address("127.0.0.1", 1);
  REQUIRE(m.fake.resolve_addr(other, reinterpret_cast<sockaddr*>(&near), 1000) == 0);
  m.next(1, RDMA_CM_EVENT_ADDR_RESOLVED);
  REQUIRE(m.fake.resolve_route(other, 1000) == 0);
  m.next(1, RDMA_CM_EVENT_ROUTE_RESOLVED);
  m.fake.with_faults([](FakeFaults& f) { f.link = FakeFaults::Link::kCut; });
  REQUIRE(m.fake.connect(other, &p) == 0);
  CHECK(m.next(1, RDMA_CM_EVENT_UNREACHABLE).event.status == -ETIMEDOUT);
  CHECK(m.fake.destroy_id(other) == 0);
}

TEST_CASE("whoever asks to disconnect hears of it when the other answers", "[verbs][fake][cm]") {
  Manager m;
  m.connected();
  REQUIRE(m.fake.disconnect(m.active) == 0);
  CHECK(m.quiet(1));
  m.next(0, RDMA_CM_EVENT_DISCONNECTED);
  SECTION("by a disconnect of its own") {
    REQUIRE(m.fake.disconnect(m.passive) == 0);
    m.next(0, RDMA_CM_EVENT_TIMEWAIT_EXIT);
  }
  SECTION("by going away") {
    REQUIRE(m.fake.destroy_id(m.passive) == 0);
    m.passive = nullptr;
  }
  m.next(1, RDMA_CM_EVENT_DISCONNECTED);
  m.next(1, RDMA_CM_EVENT_TIMEWAIT_EXIT);
  CHECK(m.fake.disconnect(m.active) == EINVAL);
}

TEST_CASE("an identifier that goes takes its connection with it", "[verbs][fake][cm]") {
  Manager m;
  SECTION("established") {
    m.connected();
    REQUIRE(m.fake.destroy_id(m.active) == 0);
    m.next(0, RDMA_CM_EVENT_DISCONNECTED);
  }
  SECTION("while the request waits") {
    m.resolve();
    m.request();
    REQUIRE(m.fake.destroy_id(m.active) == 0);
    m.next(0, RDMA_CM_EVENT_REJECTED);
  }
  m.active = nullptr;
}

TEST_CASE("requests that a listener never took are rejected when it goes", "[verbs][fake][cm]") {
  Manager m;
  m.resolve();
  rdma_conn_param p = Manager::parameters("", 1);
  REQUIRE(m.fake.connect(m.active, &p) == 0);
  REQUIRE(m.fake.destroy_id(m.listener) == 0);
  m.listener = nullptr;
  m.next(1, RDMA_CM_EVENT_REJECTED);
  CHECK(m.quiet(0));
}

TEST_CASE("an identifier with an unacknowledged event would hang its destruction",
          "[verbs][fake][cm]") {
  FakeVerbs fake;
  rdma_event_channel* channel = fake.create_event_channel();
  rdma_cm_id* id = nullptr;
  REQUIRE(fake.create_id(channel, &id, nullptr) == 0);
  sockaddr_in to = Manager::address("127.0.0.1", 1);
  REQUIRE(fake.resolve_addr(id, reinterpret_cast<sockaddr*>(&to), 1) == 0);
  rdma_cm_event* event = nullptr;
  REQUIRE(fake.cm_event(channel, &event) == 0);
  CHECK(fake.destroy_id(id) == EBUSY);
  REQUIRE(fake.misuses().size() == 1);
  CHECK(fake.ack_cm_event(event) == 0);
  fake.destroy_event_channel(channel);
  CHECK(fake.misuses().size() == 2);
  CHECK(fake.destroy_id(id) == 0);
  fake.destroy_event_channel(channel);
  CHECK(fake.census().empty());
}

TEST_CASE("a port is one listener's", "[verbs][fake][cm]") {
  Manager m;
  REQUIRE(m.fake.create_id(m.channels[1], &m.active, nullptr) == 0);
  sockaddr_in same = Manager::address("127.0.0.1", m.fake.source_port(m.listener));
  CHECK(m.fake.bind_addr(m.active, reinterpret_cast<sockaddr*>(&same)) == EADDRINUSE);
  same.sin_port = 0;
  REQUIRE(m.fake.bind_addr(m.active, reinterpret_cast<sockaddr*>(&same)) == 0);
  CHECK(m.fake.source_port(m.active) != 0);
  CHECK(m.active->verbs != nullptr);
}

}  // namespace
}  // namespace sluice::verbs
