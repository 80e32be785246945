#include "tests/wire/oracle.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <map>

#include "tests/wire/hello.h"
#include "tests/wire/layout_oracle.h"

namespace sluice::wire::test {
namespace {

std::string line(const char* name, uint64_t value) {
  return std::string(name) + " " + std::to_string(value) + "\n";
}

std::string list(std::span<const int64_t> words) {
  std::string text;
  for (int64_t w : words) text += (text.empty() ? "" : ",") + std::to_string(w);
  return text.empty() ? "-" : text;
}

std::string layout_line(const TensorDescriptor& d) {
  return "layout code=" + std::to_string(static_cast<int>(d.dtype().code)) +
         " bits=" + std::to_string(d.dtype().bits) + " lanes=" + std::to_string(d.dtype().lanes) +
         " shape=" + list(d.shape()) + " strides=" + list(d.strides()) +
         " span=" + std::to_string(d.span_bytes()) + "\n";
}

std::string segment_lines(std::span<const Segment> segments) {
  std::string text;
  for (const Segment& s : segments) {
    text += "segment extent=" + std::to_string(s.extent) + " offset=" + std::to_string(s.offset) +
            " length=" + std::to_string(s.length) + "\n";
  }
  return text;
}

struct Describe {
  std::string operator()(const Hello& m) const { return describe_hello(m); }
  std::string operator()(const Offer& m) const {
    std::string text = "OFFER\n" + line("id", m.id) + line("flags", m.flags) +
                       line("payload_bytes", m.payload_bytes) +
                       line("kind", static_cast<uint64_t>(m.about.kind())) +
                       line("epoch", m.about.word20()) + line("a", m.about.word24()) +
                       line("offset", m.about.word32()) + line("total", m.total);
    if (m.layout_number != 0) text += line("layout_number", m.layout_number);
    text += segment_lines(std::span(m.segments).first(m.segment_count));
    return m.has_layout ? text + layout_line(m.layout) : text;
  }
  std::string operator()(const Want& m) const {
    std::string text = "WANT\n" + line("id", m.id) +
                       line("kind", static_cast<uint64_t>(m.about.kind())) + line("into", m.into) +
                       line("key_id", m.about.word20()) + line("a", m.about.word24()) +
                       line("offset", m.about.word32()) + line("length", m.about.word40());
    if (m.has_layout) text += layout_line(m.layout);
    if (!m.key.empty()) text += "key " + to_hex(std::as_bytes(std::span(m.key))) + "\n";
    for (size_t i = 0; i < m.following.size(); ++i) text += line("following", m.following[i]);
    return text + segment_lines(std::span(m.segments).first(m.segment_count));
  }
  std::string operator()(const Data& m) const {
    return "DATA\n" + line("id", m.id) + line("payload_bytes", m.payload_bytes) +
           line("offset", m.offset) + (m.has_after ? line("after", m.after) : "");
  }
  std::string operator()(const Done& m) const {
    return "DONE\n" + line("id", m.id) + line("code", static_cast<uint64_t>(m.code)) +
           line("bytes", m.bytes);
  }
  std::string operator()(const Release& m) const {
    std::string text = "RELEASE\n" + line("count", m.count);
    for (uint32_t i = 0; i < m.count; ++i) text += line("released", m.ids[i]);
    return text;
  }
  std::string operator()(const Cancel& m) const {
    return "CANCEL\n" + line("id", m.id) + line("offer", m.offer);
  }
  std::string operator()(const Credit& m) const {
    return "CREDIT\n" + line("messages", m.messages) + line("bytes", m.bytes);
  }
  std::string operator()(const Ping& m) const {
    return "PING\n" + line("nonce", m.nonce) + line("reply", m.reply);
  }
  std::string operator()(const Bye& m) const {
    return "BYE\n" + line("code", static_cast<uint64_t>(m.code));
  }
};

uint64_t word(std::span<const std::byte> bytes, size_t at, size_t length) {
  uint64_t value = 0;
  for (size_t i = length; i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

void append_tlv(Bytes& out, uint16_t type, std::span<const std::byte> value) {
  for (uint16_t w : {type, static_cast<uint16_t>(value.size())}) {
    out.push_back(static_cast<std::byte>(w & 0xff));
    out.push_back(static_cast<std::byte>(w >> 8));
  }
  out.insert(out.end(), value.begin(), value.end());
  while (out.size() % 8 != 0) out.push_back(std::byte{0});
}

Bytes shortest_layout(std::span<const std::byte> value) {
  auto raw = parse_layout_value(value);
  auto meaning = raw ? meaning_of(*raw) : std::nullopt;
  if (!meaning) return {};  // accepted but must not be: the comparison fails
  raw->has_strides = !meaning->compact;
  raw->strides = meaning->strides;
  return layout_value(*raw);
}

template <typename Message>
Status decode_as(std::span<const std::byte> header, AnyMessage& out) {
  return decode(header, out.emplace<Message>());
}

Status decode_any(MessageType type, std::span<const std::byte> header, AnyMessage& out) {
  switch (type) {
    case MessageType::kHello: return decode_as<Hello>(header, out);
    case MessageType::kOffer: return decode_as<Offer>(header, out);
    case MessageType::kWant: return decode_as<Want>(header, out);
    case MessageType::kData: return decode_as<Data>(header, out);
    case MessageType::kDone: return decode_as<Done>(header, out);
    case MessageType::kRelease: return decode_as<Release>(header, out);
    case MessageType::kCancel: return decode_as<Cancel>(header, out);
    case MessageType::kCredit: return decode_as<Credit>(header, out);
    case MessageType::kPing: return decode_as<Ping>(header, out);
    case MessageType::kBye: return decode_as<Bye>(header, out);
  }
  return Status(Code::kInternal, Scope::kOperation, "oracle");
}

void refuse(Verdict& v, const Status& status, std::string_view name) {
  v.text = status.to_string();
  bool has_digit =
      std::ranges::any_of(status.detail(), [](unsigned char c) { return std::isdigit(c) != 0; });
  if (status.code() != Code::kCorrupt) v.problem = "refused with another code: " + v.text;
  if (!status.detail().starts_with(std::string(name) + ": "))
    v.problem = "the message is not named: " + v.text;
  if (!has_digit) v.problem = "no value is named: " + v.text;
}

void check_accepted(Verdict& v, MessageType type, std::span<const std::byte> header,
                    const AnyMessage& message) {
  v.accepted = true;
  v.text = describe(message);
  Bytes again = encode_any(message);
  if (again != canonical(header)) {
    v.problem = "accepted " + to_hex(header) + "\nencodes to " + to_hex(again) + "\ncanonical  " +
                to_hex(canonical(header));
    return;
  }
  AnyMessage second;
  auto checked = decode_header(again);
  if (!checked.ok() || checked->type != type || !decode_any(type, again, second).ok() ||
      describe(second) != v.text) {
    v.problem = "its own encoding is refused or differs: " + to_hex(again);
  }
}

// decode_fast() is a shortcut: it takes exactly the plain inline OFFERs that decode()
// takes, with the same values.
void check_fast(Verdict& v, std::span<const std::byte> header, const AnyMessage& message) {
  TaggedInline fast;
  bool taken = decode_fast(header, fast);
  const Offer* offer = std::get_if<Offer>(&message);
  bool plain = v.accepted && offer != nullptr && header.size() == 48 &&
               offer->about.kind() == OfferKind::kTagged && (offer->flags & Offer::kInline) != 0 &&
               (offer->flags & Offer::kDataFollows) == 0;
  if (taken != plain)
    v.problem = std::string("decode_fast ") + (taken ? "accepts " : "refuses ") + to_hex(header);
  if (!taken || !plain) return;
  bool report = (offer->flags & Offer::kReport) != 0;
  if (fast.id != offer->id || fast.tag != offer->about.tagged().tag ||
      fast.payload_bytes != offer->payload_bytes || fast.report != report) {
    v.problem = "decode_fast reads other values from " + to_hex(header);
  }
  if (offer->about.word20() != 0 || offer->about.word32() != 0) return;
  Bytes again(48, std::byte{0xee});
  if (encode(fast, again) != 48 || again != encode_any(message))
    v.problem = "encode(TaggedInline) gives " + to_hex(again);
}

}  // namespace

std::string to_hex(std::span<const std::byte> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (std::byte b : bytes) {
    text += kDigits[static_cast<uint8_t>(b) >> 4];
    text += kDigits[static_cast<uint8_t>(b) & 15];
  }
  return text;
}

std::string describe(const AnyMessage& message) { return std::visit(Describe(), message); }

Bytes encode_any(const AnyMessage& message) {
  Bytes out(kMaxHeaderBytes, std::byte{0xee});  // bytes left unwritten are seen
  out.resize(std::visit([&](const auto& m) { return encode(m, out); }, message));
  return out;
}

Bytes canonical(std::span<const std::byte> header) {
  static constexpr size_t kFixed[] = {0, 96, 48, 48, 24, 32, 16, 24, 32, 16, 24};
  auto type = static_cast<uint8_t>(header[0]);
  size_t fixed = kFixed[type];
  if (type == 6) fixed += 8 * word(header, 8, 8);
  Bytes out(header.begin(), header.begin() + static_cast<ptrdiff_t>(fixed));
  std::map<uint16_t, Bytes> of_hello;
  Bytes layout, key,
      following;  // WANT: layout, key, segments or following; OFFER: segments, layout
  std::vector<Bytes> windows;
  bool has_layout = false, has_key = false, into = type == 3 && header[17] == std::byte{1};
  for (size_t at = fixed; at < header.size();) {
    auto tlv = static_cast<uint16_t>(word(header, at, 2));
    size_t length = word(header, at + 2, 2);
    auto value = header.subspan(at + 4, length);
    at += (4 + length + 7) / 8 * 8;
    if (type == 1) of_hello[tlv].assign(value.begin(), value.end());
    if (type == 2 && tlv == 0x8002) append_tlv(out, tlv, value);
    if (type == 4 && tlv == 0x8008) append_tlv(out, tlv, value);
    if ((type == 2 || type == 3) && tlv == 0x8001) {
      layout = shortest_layout(value);
      has_layout = true;
    }
    if (type == 3 && tlv == 0x8003) {
      key.assign(value.begin(), value.end());
      has_key = true;
    }
    if (type == 3 && tlv == 0x8009) following.assign(value.begin(), value.end());
    // Accepted where it must not be: the comparison fails.
    if (into && tlv == 0x8002 && windows.size() < 16)
      windows.emplace_back(value.begin(), value.end());
  }
  for (uint16_t known : hello_tlvs()) {
    if (of_hello.contains(known)) append_tlv(out, known, of_hello[known]);
  }
  if (has_layout) append_tlv(out, 0x8001, layout);
  if (has_key) append_tlv(out, 0x8003, key);
  for (const Bytes& window : windows) append_tlv(out, 0x8002, window);
  if (!following.empty()) append_tlv(out, 0x8009, following);
  out[2] = static_cast<std::byte>(out.size() & 0xff);
  out[3] = static_cast<std::byte>(out.size() >> 8);
  return out;
}

Verdict judge(std::span<const std::byte> bytes) {
  Verdict v;
  auto checked = decode_header(bytes);
  bool nameable = bytes.size() >= 16 && bytes[0] >= std::byte{1} && bytes[0] <= std::byte{10};
  std::string_view name = nameable ? to_string(static_cast<MessageType>(bytes[0])) : "message";
  if (!checked.ok()) {
    refuse(v, checked.status(), name);
    return v;
  }
  if (checked->header_bytes > bytes.size()) {
    v.text = "incomplete";
    return v;
  }
  auto header = bytes.first(checked->header_bytes);
  AnyMessage message;
  Status status = decode_any(checked->type, header, message);
  if (!status.ok()) {
    refuse(v, status, name);
    check_fast(v, header, message);
    return v;
  }
  v.header_bytes = header.size();
  v.message_bytes = header.size() + checked->payload_bytes;
  check_accepted(v, checked->type, header, message);
  check_fast(v, header, message);
  return v;
}

std::string judge_stream(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    Verdict v = judge(bytes);
    if (!v.problem.empty()) return v.problem;
    if (!v.accepted) return {};
    bytes = bytes.subspan(std::min(v.message_bytes, bytes.size()));
  }
  return {};
}

}  // namespace sluice::wire::test
