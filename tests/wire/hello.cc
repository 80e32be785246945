#include "tests/wire/hello.h"

#include "tests/wire/oracle.h"
#include "tests/wire/random_messages.h"

namespace sluice::wire::test {
namespace {

std::string line(const char* name, uint64_t value) {
  return std::string(name) + " " + std::to_string(value) + "\n";
}

Uuid uuid_from(int first) {
  Uuid u;
  for (size_t i = 0; i < u.bytes.size(); ++i)
    u.bytes[i] = static_cast<std::byte>(first + static_cast<int>(i));
  return u;
}

Hello client_hello() {
  Hello m;
  m.incarnation = 0x1122334455667788;
  m.host = uuid_from(0x10);
  m.network_namespace = 4026531840;
  m.user_namespace = 4026531837;
  m.uid = 1000;
  m.pid = 4242;
  m.arena_bytes = uint64_t{64} << 30;
  m.credit_messages = 256;
  m.credit_bytes = 1 << 20;
  return m;
}

Hello server_hello() {
  Hello m = client_hello();
  m.incarnation = 0x8877665544332211;
  m.pid = 4243;
  m.has_rendezvous = true;
  m.rendezvous = uuid_from(0x40);
  m.token = uuid_from(0xf0);
  return m;
}

}  // namespace

std::string describe_hello(const Hello& m) {
  std::string text =
      "HELLO\n" + line("incarnation", m.incarnation) + line("min_version", m.min_version) +
      line("max_version", m.max_version) + "host " + to_hex(m.host.bytes) + "\n" +
      line("network_namespace", m.network_namespace) + line("user_namespace", m.user_namespace) +
      line("uid", m.uid) + line("pid", m.pid) + line("arena_bytes", m.arena_bytes) +
      line("credit_messages", m.credit_messages) + line("credit_bytes", m.credit_bytes);
  if (m.features != 0) text += line("features", m.features);
  if (m.has_rendezvous) {
    text += "rendezvous " + to_hex(m.rendezvous.bytes) + "\ntoken " + to_hex(m.token.bytes) + "\n";
  }
  if (m.rdma_port != 0) text += line("rdma_port", m.rdma_port);
  if (m.module_port != 0 || m.packet_port != 0)
    text += line("module_port", m.module_port) + line("packet_port", m.packet_port);
  if (m.has_streams) text += "streams_token " + to_hex(m.streams_token.bytes) + "\n";
  return text;
}

const std::vector<uint16_t>& hello_tlvs() {
  static const std::vector<uint16_t> types = {
      0x0004,  // rendezvous
      0x0005,  // rdma
      0x0006,  // ethernet
      0x0007,  // streams
  };
  return types;
}

Hello random_hello(RandomMessages& random) {
  auto word = [&] { return random.word(); };
  auto below = [&](uint64_t limit) { return random.below(limit); };
  auto chance = [&](int percent) { return random.chance(percent); };
  auto uuid = [&] {
    Uuid u;
    for (std::byte& b : u.bytes) b = static_cast<std::byte>(random.bits());
    return u;
  };
  Hello m;
  m.incarnation = word();
  m.min_version = static_cast<uint16_t>(1 + below(3));
  m.max_version = static_cast<uint16_t>(chance(10) ? 0xffff : m.min_version + below(5));
  m.host = uuid();
  m.network_namespace = word();
  m.user_namespace = word();
  m.uid = static_cast<uint32_t>(word());
  m.pid = static_cast<uint32_t>(word());
  m.arena_bytes = word();
  m.credit_messages = word();
  m.credit_bytes = word();
  m.features = chance(50) ? word() : 0;
  m.has_rendezvous = chance(50);
  if (m.has_rendezvous) {
    m.rendezvous = uuid();
    m.token = uuid();
  }
  m.rdma_port = chance(50) ? static_cast<uint16_t>(word()) : 0;
  m.module_port = chance(50) ? static_cast<uint16_t>(word()) : 0;
  m.packet_port = chance(50) ? static_cast<uint16_t>(word()) : 0;
  m.has_streams = chance(50);
  if (m.has_streams) m.streams_token = uuid();
  return m;
}

std::vector<NamedHello> hello_variants() {
  std::vector<NamedHello> out;
  out.push_back({"hello", "plain", client_hello()});
  out.push_back({"hello", "rendezvous", server_hello()});
  Hello rdma = server_hello();
  rdma.rdma_port = 0x1b58;
  out.push_back({"hello", "rdma", rdma});
  Hello ethernet = server_hello();
  ethernet.module_port = 0x1b59;
  ethernet.packet_port = 0x8001;
  out.push_back({"hello", "ethernet", ethernet});
  Hello features = server_hello();
  features.features = kFeatureLatest;
  out.push_back({"hello", "features", features});
  Hello streams = server_hello();
  streams.features = kFeatureLatest | kFeatureLayoutNumbers | kFeatureStreams;
  streams.has_streams = true;
  streams.streams_token = uuid_from(0x60);
  out.push_back({"hello", "streams", streams});
  Hello zeros;
  zeros.pid = 0;
  out.push_back({"hello", "zeros", zeros});
  Hello most = client_hello();
  most.min_version = most.max_version = 0xffff;
  most.incarnation = most.network_namespace = most.user_namespace = most.arena_bytes = ~uint64_t{0};
  most.credit_messages = most.credit_bytes = ~uint64_t{0};
  most.uid = most.pid = ~uint32_t{0};
  most.host.bytes.fill(std::byte{0xff});
  out.push_back({"hello", "ones", most});
  out.push_back({"handshake", "client", client_hello()});
  out.push_back({"handshake", "server", server_hello()});
  return out;
}

}  // namespace sluice::wire::test
