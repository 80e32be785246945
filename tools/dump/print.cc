#include "tools/dump/print.h"

#include <fmt/format.h>

#include <ctime>
#include <iterator>

namespace sluice::tools::dump {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kBillion = 1'000'000'000;

std::string hex(std::span<const uint8_t> bytes) {
  std::string text;
  for (uint8_t b : bytes) fmt::format_to(std::back_inserter(text), "{:02x}", b);
  return text;
}

// UTC: a capture may be from anywhere.
std::string time_text(uint64_t time_ns) {
  auto seconds = static_cast<time_t>(time_ns / kBillion);
  tm parts{};
  ::gmtime_r(&seconds, &parts);
  return fmt::format("{:02}:{:02}:{:02}.{:09}", parts.tm_hour, parts.tm_min, parts.tm_sec,
                     time_ns % kBillion);
}

slp_hello hello_of(const Frame& frame) {
  slp_hello hello;
  slp_decode_hello(frame.extension.data(), &hello);
  return hello;
}

bool is_hello(uint8_t type) {
  return type == SLP_HELLO || type == SLP_HELLO_ACK || type == SLP_RETRY;
}
bool is_numbered(uint8_t type) { return type >= SLP_BYE && type < SLP_TYPES; }
bool is_sealed(const Frame& frame) { return (frame.base.flags & SLP_FLAG_SEALED) != 0; }

std::string hello_line(const Frame& frame) {
  slp_hello h = hello_of(frame);
  std::string text = fmt::format(" nonce {:016x}", h.nonce);
  if (h.peer_nonce != 0) text += fmt::format(" answers {:016x}", h.peer_nonce);
  if (h.cookie != 0) text += fmt::format(" cookie {:016x}", h.cookie);
  text += fmt::format(" use {:08x} versions {}-{} mtu {} wait {}us", h.connection, h.min_version,
                      h.max_version, h.mtu, h.ack_delay_us);
  if ((h.capabilities & SLP_CAN_PCRC) != 0) text += " can-pcrc";
  if ((h.capabilities & SLP_CAN_SEAL) != 0) text += " can-seal";
  return text;
}

// The name in FIND and FOUND, which a decoder has checked.
std::string name_of(const Frame& frame) {
  std::string name(reinterpret_cast<const char*>(frame.extension.data()) + 8, SLP_NAME_BYTES);
  return name.substr(0, name.find('\0'));
}

std::string record_line(const Record& record) {
  std::string text = " {" + record.name;
  for (const auto& [name, value] : record.fields) {
    bool numbered = std::string_view(name) == "transfer" || std::string_view(name) == "handle";
    bool status = std::string_view(name) == "status";
    text += fmt::format(" {} {}", name,
                        status     ? status_name(static_cast<uint32_t>(value))
                        : numbered ? fmt::format("{:08x}", value)
                                   : std::to_string(value));
  }
  return text + "}";
}

// What a type says beyond the base. Requires: decoded.
std::string contents_line(const Frame& frame) {
  std::span<const uint8_t> e = frame.extension;
  if (is_sealed(frame)) return " sealed";
  if (is_hello(frame.base.type)) return hello_line(frame);
  std::string text;
  switch (frame.base.type) {
    case SLP_FIND:
    case SLP_FOUND:
      return fmt::format(" name {} asked {:016x}", name_of(frame), slp_load64(e.data()));
    case SLP_NACK:
      return fmt::format(" reason {} of {:08x}", status_name(slp_load16(e.data())),
                         slp_load32(e.data() + 4));
    case SLP_ACK:
      for (auto [gap, run] : frame.pairs) text += fmt::format(" -{}+{}", gap, run);
      return text;
    case SLP_EAGER:
      text = fmt::format(" {} at {}", e[4] == SLP_CONTROL ? "control" : "messages",
                         slp_load32(e.data()));
      for (const Record& record : frame.records) text += record_line(record);
      return text;
    case SLP_DATA:
      return fmt::format(" transfer {:08x} at {}", slp_load32(e.data() + 8), slp_load64(e.data()));
    default: return text;
  }
}

std::string base_line(const Frame& frame) {
  const slp_base& b = frame.base;
  std::string text;
  if (is_find(b.type)) return text;
  if (is_numbered(b.type)) text += fmt::format(" #{}", b.number);
  if ((b.flags & SLP_FLAG_ACK) != 0)
    text += fmt::format(" ack {}+{} age {}us", b.ack, b.ack_run, b.ack_age_us);
  if (is_numbered(b.type)) text += fmt::format(" credit {} marks {}", b.credit_kib, b.ce_count);
  text += fmt::format(" conn {:08x} session {:08x}", b.connection, b.session);
  return text;
}

Json hello_json(const Frame& frame) {
  slp_hello h = hello_of(frame);
  return {{"nonce", h.nonce},
          {"answers", h.peer_nonce},
          {"cookie", h.cookie},
          {"connection_to_use", h.connection},
          {"lowest", h.min_version},
          {"highest", h.max_version},
          {"capabilities", h.capabilities},
          {"mtu", h.mtu},
          {"stream_kib", h.stream_kib},
          {"transfers", h.transfers},
          {"handles", h.handles},
          {"wait_us", h.ack_delay_us},
          {"epoch_bits", h.epoch_bits},
          {"salt", hex(h.salt)},
          {"tag", hex(h.tag)}};
}

void add_contents(const Frame& frame, Json& out) {
  std::span<const uint8_t> e = frame.extension;
  if (is_hello(frame.base.type)) out.update(hello_json(frame));
  switch (frame.base.type) {
    case SLP_FIND:
    case SLP_FOUND:
      out["asked"] = slp_load64(e.data());
      out["name"] = name_of(frame);
      break;
    case SLP_NACK:
      out["reason"] = slp_load16(e.data());
      out["meant"] = slp_load32(e.data() + 4);
      break;
    case SLP_ACK:
      out["pairs"] = Json::array();
      for (auto [gap, run] : frame.pairs) out["pairs"].push_back({gap, run});
      break;
    case SLP_EAGER:
      out["offset"] = slp_load32(e.data());
      out["stream"] = e[4];
      out["records"] = Json::array();
      for (const Record& record : frame.records) {
        Json one{{"record", record.name}};
        for (const auto& [name, value] : record.fields) one[name] = value;
        out["records"].push_back(std::move(one));
      }
      break;
    case SLP_DATA:
      out["offset"] = slp_load64(e.data());
      out["transfer"] = slp_load32(e.data() + 8);
      break;
    default: break;
  }
}

void add_base(const Frame& frame, Json& out) {
  const slp_base& b = frame.base;
  out["type"] = type_name(b.type);
  out["flags"] = Json::array();
  for (unsigned bit = 0; bit < 8; ++bit) {
    if ((b.flags >> bit & 1) != 0)
      out["flags"].push_back(flag_names(static_cast<uint8_t>(1u << bit), ""));
  }
  out["source"] = b.source_port;
  out["destination"] = b.destination_port;
  out["payload_bytes"] = b.payload_bytes;
  out["connection"] = b.connection;
  out["number"] = b.number;
  out["ack"] = b.ack;
  out["run"] = b.ack_run;
  out["age"] = b.ack_age_us;
  out["credit"] = b.credit_kib;
  out["marks"] = b.ce_count;
  out["payload_crc"] = b.payload_crc;
  out["session"] = b.session;
}

}  // namespace

std::string flag_names(uint8_t flags, const char* between) {
  static constexpr const char* kNames[8] = {"CE",     "ACK",  "ACKREQ", "AGAIN",
                                            "SEALED", "PCRC", "PHASE",  "0x80"};
  std::string text;
  for (unsigned bit = 0; bit < 8; ++bit) {
    if ((flags >> bit & 1) != 0) text += (text.empty() ? "" : between) + std::string(kNames[bit]);
  }
  return text;
}

std::string as_line(const Told& told, bool payload) {
  const Frame& frame = told.frame;
  const Envelope& envelope = told.envelope;
  std::string text = time_text(told.packet.time_ns);
  for (uint16_t vlan : envelope.vlans) text += fmt::format(" vlan {}", vlan);
  text += fmt::format(" {}", envelope.from);
  if (frame.decoded) text += fmt::format("/{}", frame.base.source_port);
  text += fmt::format(" > {}", envelope.to.empty() ? "?" : envelope.to);
  if (frame.decoded)
    text += fmt::format("/{} {}{}", frame.base.destination_port, type_name(frame.base.type),
                        base_line(frame));
  if (frame.decoded && frame.problem.empty()) text += contents_line(frame);
  if (frame.decoded) text += fmt::format(" {} B", frame.base.payload_bytes);
  if (frame.decoded && frame.base.flags != 0)
    text += fmt::format(" [{}]", flag_names(frame.base.flags, " "));
  if (envelope.congested) text += " [IP CE]";
  if (frame.drop != SLP_TAKEN)
    text += fmt::format(" DAMAGED {}", frame.problem);
  else if (!frame.problem.empty())
    text += fmt::format(" CUT {}", frame.problem);
  else if (frame.cut)
    text += fmt::format(" CUT {} of {} bytes of payload were captured", frame.payload.size(),
                        frame.base.payload_bytes);
  if (payload && !frame.payload.empty()) text += " " + hex(frame.payload);
  return text;
}

nlohmann::ordered_json as_json(const Told& told, bool payload) {
  const Frame& frame = told.frame;
  Json out;
  out["time_ns"] = told.packet.time_ns;
  out["carrier"] = told.envelope.udp ? "udp" : "ethernet";
  out["from"] = told.envelope.from;
  out["to"] = told.envelope.to.empty() ? Json() : Json(told.envelope.to);
  if (!told.envelope.vlans.empty()) out["vlans"] = told.envelope.vlans;
  if (told.envelope.udp) out["ip_congestion"] = told.envelope.congested;
  out["captured_bytes"] = told.envelope.bytes.size();
  out["bytes"] = told.envelope.length;
  if (frame.cut) out["cut"] = true;
  if (frame.drop != SLP_TAKEN) out["damaged"] = slp_drop_names[frame.drop];
  if (!frame.problem.empty()) out["problem"] = frame.problem;
  if (!frame.decoded) return out;
  add_base(frame, out);
  if (frame.problem.empty() && !is_sealed(frame)) add_contents(frame, out);
  if (payload) out["payload"] = hex(frame.payload);
  return out;
}

}  // namespace sluice::tools::dump
