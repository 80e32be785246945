#include "tests/hostile/attacker/bytes.h"

namespace hostile {

const char* name_of(int type) {
  static const char* const kNames[] = {"?",       "HELLO",  "OFFER",  "WANT", "DATA", "DONE",
                                       "RELEASE", "CANCEL", "CREDIT", "PING", "BYE"};
  return type > 0 && type < kTypes ? kNames[type] : kNames[0];
}

Message& Message::tlv(uint16_t type, const Bytes& value) {
  u16(type).u16(static_cast<uint16_t>(value.size())).raw(value);
  while (bytes_.size() % 8 != 0) bytes_.push_back(0);
  return *this;
}

Bytes Message::promising(uint32_t payload_bytes) const {
  Bytes all = bytes_;
  auto length = static_cast<uint16_t>(all.size());
  std::memcpy(all.data() + 2, &length, 2);
  std::memcpy(all.data() + 4, &payload_bytes, 4);
  return all;
}

Bytes Message::whole(const Bytes& payload) const {
  Bytes all = promising(static_cast<uint32_t>(payload.size()));
  all.insert(all.end(), payload.begin(), payload.end());
  return all;
}

Bytes layout_of(int64_t bytes) {
  Bytes value = {1, 8};  // uint8
  put<uint16_t>(value, 1);
  put<uint8_t>(value, 1);
  put<uint8_t>(value, 0);
  put<uint16_t>(value, 0);
  put<uint32_t>(value, 0);
  put<int64_t>(value, bytes);
  return value;
}

Bytes segment(uint32_t extent, uint64_t offset, uint64_t length) {
  Bytes value;
  put(value, extent);
  put(value, offset);
  put(value, length);
  return value;
}

Message offer(uint64_t id, uint8_t kind, uint64_t a, uint64_t total, uint8_t flags, uint64_t offset,
              uint32_t epoch) {
  return Message(kOffer, id, flags).u8(kind).u8(0).u16(0).u32(epoch).u64(a).u64(offset).u64(total);
}

Bytes inline_message(uint64_t id, uint64_t tag, const Bytes& payload, uint8_t more_flags) {
  return offer(id, kTagged, tag, payload.size(), static_cast<uint8_t>(kInline | more_flags))
      .whole(payload);
}

Message want(uint64_t id, uint8_t kind, uint64_t a, uint32_t key_id, uint64_t offset,
             uint64_t length, uint8_t into) {
  return Message(kWant, id).u8(kind).u8(into).u16(0).u32(key_id).u64(a).u64(offset).u64(length);
}

Bytes want_key(uint64_t id, uint32_t key_id, std::string_view key, uint64_t step) {
  Message message = want(id, kByKey, step, key_id);
  if (!key.empty()) message.text(kKey, key);
  return message.whole();
}

Bytes data(uint64_t id, uint64_t offset, const Bytes& payload) {
  return Message(kData, id).u64(offset).whole(payload);
}
Bytes done(uint64_t id, uint32_t code, uint64_t bytes) {
  return Message(kDone, id).u32(code).u32(0).u64(bytes).whole();
}

Bytes release(const std::vector<uint64_t>& ids) {
  Message message(kRelease, ids.size());
  for (uint64_t id : ids) message.u64(id);
  return message.whole();
}

Bytes cancel(uint64_t id, bool of_offer) {
  return Message(kCancel, id).u64(of_offer ? 1 : 0).whole();
}
Bytes credit(uint64_t messages, uint64_t bytes) {
  return Message(kCredit).u64(messages).u64(bytes).whole();
}
Bytes ping(uint64_t nonce, bool reply) {
  return Message(kPing, nonce, reply ? kReply : uint8_t{0}).whole();
}
Bytes bye(uint64_t code) { return Message(kBye).u64(code).whole(); }

Message hello(const HelloFields& f) {
  return Message(kHello, f.incarnation)
      .u32(f.magic)
      .u16(f.min_version)
      .u16(f.max_version)
      .raw(f.host)
      .u64(f.network_namespace)
      .u64(f.user_namespace)
      .u32(f.uid)
      .u32(f.pid)
      .u64(f.arena_bytes)
      .u64(f.credit_messages)
      .u64(f.credit_bytes)
      .u64(0);
}

}  // namespace hostile
