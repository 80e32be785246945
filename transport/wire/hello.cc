// HELLO, and the version that two of them agree on.
#include <algorithm>
#include <cstring>

#include "transport/wire/codec.h"
#include "transport/wire/common_part.h"
#include "transport/wire/tlv.h"

namespace sluice::wire {
namespace {

constexpr TlvType kRendezvous{0x0004};  // a peer without shared memory skips it
constexpr TlvType kRdma{0x0005};        // a peer without RDMA skips it
constexpr TlvType kEthernet{0x0006};    // a peer that does not take Ethernet skips it
constexpr TlvType kStreams{0x0007};     // a peer that has one stream skips it

}  // namespace

size_t encode(const Hello& m, std::span<std::byte> out) {
  Writer w(out);
  w.put(kMagic);
  w.put(m.min_version);
  w.put(m.max_version);
  w.put_bytes(m.host.bytes.data(), 16);
  w.put(m.network_namespace);
  w.put(m.user_namespace);
  w.put(m.uid);
  w.put(m.pid);
  w.put(m.arena_bytes);
  w.put(m.credit_messages);
  w.put(m.credit_bytes);
  w.put(m.features);
  if (m.has_rendezvous) {
    w.begin_tlv(kRendezvous, 32);
    w.put_bytes(m.rendezvous.bytes.data(), 16);
    w.put_bytes(m.token.bytes.data(), 16);
    w.pad();
  }
  if (m.rdma_port != 0) {
    w.begin_tlv(kRdma, 4);
    w.put(m.rdma_port);
    w.put(uint16_t{0});
    w.pad();
  }
  if (m.module_port != 0 || m.packet_port != 0) {
    w.begin_tlv(kEthernet, 4);
    w.put(m.module_port);
    w.put(m.packet_port);
    w.pad();
  }
  if (m.has_streams) {
    w.begin_tlv(kStreams, 16);
    w.put_bytes(m.streams_token.bytes.data(), 16);
    w.pad();
  }
  return w.finish(MessageType::kHello, 0, m.incarnation, 0);
}

Status decode(std::span<const std::byte> header, Hello& out) {
  Reader r(header);
  Common c;
  SLUICE_RETURN_IF_ERROR(open(MessageType::kHello, header, r, c));
  out.incarnation = c.id;
  auto magic = r.get<uint32_t>();
  if (magic != kMagic)
    return corrupt("HELLO", "magic is " + hex(magic) + ", not " + hex(kMagic) +
                                "; the peer does not speak sluice");
  out.min_version = r.get<uint16_t>();
  out.max_version = r.get<uint16_t>();
  if (out.min_version > out.max_version || out.min_version == 0) {
    return corrupt("HELLO", "versions are " + std::to_string(out.min_version) + ".." +
                                std::to_string(out.max_version) + ", must be in order and from 1");
  }
  std::memcpy(out.host.bytes.data(), r.take(16).data(), 16);
  out.network_namespace = r.get<uint64_t>();
  out.user_namespace = r.get<uint64_t>();
  out.uid = r.get<uint32_t>();
  out.pid = r.get<uint32_t>();
  out.arena_bytes = r.get<uint64_t>();
  out.credit_messages = r.get<uint64_t>();
  out.credit_bytes = r.get<uint64_t>();
  // Any bits: HELLO comes before the version is agreed, and a later one may have more.
  out.features = r.get<uint64_t>();
  out.has_rendezvous = out.has_streams = false;
  out.rdma_port = out.module_port = out.packet_port = 0;
  return for_each_tlv("HELLO", r, [&](uint16_t type, Reader value) {
    if (type == static_cast<uint16_t>(kRdma)) {
      if (out.rdma_port != 0) return corrupt("HELLO", "rdma appears 2 times");
      if (value.left() != 4)
        return corrupt("HELLO", "rdma of " + std::to_string(value.left()) + " bytes, not 4");
      out.rdma_port = value.get<uint16_t>();
      if (out.rdma_port == 0) return corrupt("HELLO", "rdma port is 0");
      return check_zero("HELLO", "reserved word of rdma", value.get<uint16_t>());
    }
    if (type == static_cast<uint16_t>(kEthernet)) {
      if (out.module_port != 0 || out.packet_port != 0)
        return corrupt("HELLO", "ethernet appears 2 times");
      if (value.left() != 4)
        return corrupt("HELLO", "ethernet of " + std::to_string(value.left()) + " bytes, not 4");
      out.module_port = value.get<uint16_t>();
      out.packet_port = value.get<uint16_t>();
      if (out.module_port == 0 && out.packet_port == 0)
        return corrupt("HELLO", "both ports of ethernet are 0");
      return Status();
    }
    if (type == static_cast<uint16_t>(kStreams)) {
      if (out.has_streams) return corrupt("HELLO", "streams appears 2 times");
      auto token = value.take_rest();
      if (token.size() != 16)
        return corrupt("HELLO", "streams of " + std::to_string(token.size()) + " bytes, not 16");
      std::memcpy(out.streams_token.bytes.data(), token.data(), 16);
      out.has_streams = true;
      return Status();
    }
    if (type != static_cast<uint16_t>(kRendezvous)) return unknown_tlv("HELLO", type);
    if (out.has_rendezvous) return corrupt("HELLO", "rendezvous appears 2 times");
    auto bytes = value.take_rest();
    if (bytes.size() != 32)
      return corrupt("HELLO", "rendezvous of " + std::to_string(bytes.size()) + " bytes, not 32");
    std::memcpy(out.rendezvous.bytes.data(), bytes.data(), 16);
    std::memcpy(out.token.bytes.data(), bytes.data() + 16, 16);
    out.has_rendezvous = true;
    return Status();
  });
}

Result<uint16_t> negotiate(const Hello& ours, const Hello& theirs) {
  uint16_t low = std::max(ours.min_version, theirs.min_version);
  uint16_t high = std::min(ours.max_version, theirs.max_version);
  if (low > high) {
    auto range = [](const Hello& h) {
      return std::to_string(h.min_version) + ".." + std::to_string(h.max_version);
    };
    return Status(Code::kUnsupported, Scope::kEndpoint, "wire",
                  "we speak versions " + range(ours) + ", the peer " + range(theirs) +
                      "; upgrade the older side");
  }
  return high;
}

}  // namespace sluice::wire
