// A hostile peer against one session of SLP's core: no undefined behaviour, no memory
// touched that was not given or was taken back, every transfer ends once, and what leaves
// is well-formed.
//
// The input is a program: one byte names a step, the bytes after it are its arguments. One of
// odd length is for a sealed session, whose peer has the secret; or has not, in raw steps.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#include "kernel_compat/slp/slp.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/target.h"
#include "tests/slp/assemble.h"
#include "tests/slp/judge.h"
#include "tests/slp/toy_cipher.h"

namespace sluice::fuzz {
namespace {

using slp::require;

constexpr int kMostSteps = 300;
constexpr uint32_t kOurs = 0x10005, kTheirs = 0x20006;
constexpr uint64_t kOurNonce = 0x1111, kTheirNonce = 0x2222;
constexpr uint16_t kMtu = 4000;
constexpr uint64_t kSecret = 77;

constexpr uint64_t kAmounts[] = {0,
                                 1,
                                 2,
                                 3,
                                 8,
                                 100,
                                 1000,
                                 SLP_UNIT_BYTES,
                                 2 * SLP_UNIT_BYTES,
                                 10 * SLP_UNIT_BYTES,
                                 65536,
                                 1 << 20,
                                 uint64_t{1} << 32,
                                 static_cast<uint64_t>(INT64_MAX),
                                 uint64_t{1} << 63,
                                 ~uint64_t{0}};

std::vector<uint8_t> bytes_of(Input& input, size_t most) {
  std::span<const uint8_t> bytes = input.rest(most);
  return {bytes.begin(), bytes.end()};
}

class World {
 public:
  explicit World(bool sealed) : sealed_(sealed), room_((slp_session_bytes() + 7) / 8) {
    slp_node_init(&node_, 100'000);
    slp_config config;
    slp_config_init(&config);
    static const slp_ops kOps = {.place = place,
                                 .message = message,
                                 .ended = ended,
                                 .written = nullptr,
                                 .state = nullptr,
                                 .wake = nullptr,
                                 .source_crc = nullptr,
                                 .frame_crc = nullptr};
    config.ops = &kOps;
    config.user = this;
    config.node = &node_;
    config.nonce = kOurNonce, config.connection = kOurs, config.source_port = 9,
    config.destination_port = 7;
    config.mtu = kMtu;
    if (sealed)
      config.cipher = &slp::ToyCipher::kCalls, config.cipher_user = &ours_,
      config.epoch_bits = SLP_LEAST_EPOCH_BITS;
    slp_hello hello{};
    if (sealed) hello.capabilities = SLP_CAN_SEAL, hello.epoch_bits = SLP_LEAST_EPOCH_BITS;
    hello.nonce = kTheirNonce, hello.connection = kTheirs,
    hello.min_version = hello.max_version = 1;
    hello.mtu = kMtu, hello.stream_kib = SLP_STREAM_BYTES / 1024, hello.transfers = SLP_TRANSFERS,
    hello.handles = SLP_HANDLES, hello.ack_delay_us = 200;
    require(slp_accept(room_.data(), &config, &hello, now_, &session_) == SLP_OK,
            "a good HELLO was refused");
  }

  void run(Input& input) {
    for (int step = 0; step < kMostSteps && !input.empty(); ++step) {
      switch (input.byte() % 8) {
        case 0: raw(input); break;
        case 1: numbered(input); break;
        case 2: record(input); break;
        case 3: data(input); break;
        case 4: time(input); break;
        default: post(input); break;
      }
      say();
    }
    slp_abort(session_);
    require(account_.open() == 0, "a session is over and a transfer of it is not");
    require(node_.pulling == 0, "pull budget was not given back");
  }

 private:
  static void place(void* user, uint64_t cookie, uint64_t offset, const slp_frame* frame,
                    uint32_t at, uint32_t bytes) {
    auto* world = static_cast<World*>(user);
    require(at + bytes <= frame->bytes, "bytes beyond the frame");
    slp::Region& region = world->account_.find(cookie);
    // What is pushed may be pushed again to the same place.
    if (world->handles_.contains(cookie))
      std::fill(region.placed.begin(), region.placed.end(), uint8_t{0});
    world->account_.place(cookie, offset, frame->data + at, bytes);
  }
  static bool message(void* user, const slp_rts*, const uint8_t* data, uint32_t bytes) {
    auto* world = static_cast<World*>(user);
    uint32_t sum = 0;
    for (uint32_t i = 0; i < bytes; ++i) sum += data[i];
    world->seen_ += sum;
    return !world->full_;
  }
  static void ended(void* user, uint64_t cookie, slp_status) {
    auto* world = static_cast<World*>(user);
    world->account_.ended(world->account_, cookie, false);
  }

  void hear(std::vector<uint8_t> frame) {
    slp_frame in{.data = frame.data(),
                 .present = frame.size(),
                 .bytes = frame.size(),
                 .ce = (frame.size() & 1) != 0,
                 .context = nullptr};
    (void)slp_on_frame(session_, now_, &in);
  }
  // A frame with all that a peer knows, and whatever the input says.
  void hear(uint8_t type, std::vector<uint8_t> extension, const std::vector<uint8_t>& payload,
            Input& input) {
    slp_base base{};
    uint8_t how = input.byte();
    base.type = type;
    base.flags = how & (SLP_FLAG_CE | SLP_FLAG_ACK | SLP_FLAG_ACKREQ | SLP_FLAG_AGAIN);
    base.source_port = 7, base.destination_port = 9;
    base.connection = kOurs;
    base.session = slp_session_tag(kOurNonce, kTheirNonce);
    number_ += how >> 6;  // again, next, or one left out
    base.number = number_;
    if ((how & SLP_FLAG_ACK) != 0) base.ack = input.byte(), base.ack_run = input.byte() % 8;
    base.credit_kib = static_cast<uint16_t>(10 + (how >> 4));
    base.payload_bytes = static_cast<uint16_t>(payload.size());
    extension.resize(slp_extension_bytes(type));
    std::vector<uint8_t> frame(SLP_BASE_BYTES);
    frame.insert(frame.end(), extension.begin(), extension.end());
    frame.insert(frame.end(), payload.begin(), payload.end());
    if (sealed_ && type > SLP_NACK) seal(frame, base);
    slp_encode_base(frame.data(), &base);
    hear(std::move(frame));
  }
  // As docs/slp.md has it, section 14, by the client.
  void seal(std::vector<uint8_t>& frame, slp_base& base) {
    uint64_t epoch = base.number >> SLP_LEAST_EPOCH_BITS;
    base.flags |= SLP_FLAG_SEALED | (epoch % 2 != 0 ? SLP_FLAG_PHASE : 0);
    slp_encode_base(frame.data(), &base);
    uint8_t salt[2 * SLP_SALT_BYTES] = {}, info[36] = {'s', 'l', 'p', '1', ' ', 'k', 'e', 'y'};
    slp_store64(info + 12, epoch);
    slp_store64(info + 20, kTheirNonce);
    slp_store64(info + 28, kOurNonce);
    slp::ToyCipher::kCalls.derive(&theirs_, 0, salt, info, sizeof(info));
    slp_sealing how{.slot = 0, .nonce = {}, .header = {}};
    slp_store64(how.nonce + 4, base.number);
    slp_copy_base(how.header, frame.data());
    std::vector<uint8_t> body(frame.begin() + SLP_BASE_BYTES, frame.end());
    slp_piece piece{.data = body.data(), .bytes = static_cast<uint32_t>(body.size())};
    frame.resize(frame.size() + SLP_TAG_BYTES);
    slp::ToyCipher::kCalls.seal(&theirs_, &how, &piece, 1, frame.data() + SLP_BASE_BYTES);
  }
  void raw(Input& input) { hear(bytes_of(input, input.byte())); }
  void numbered(Input& input) {
    auto type = static_cast<uint8_t>(1 + input.byte() % (SLP_TYPES - 1));
    std::vector<uint8_t> extension = bytes_of(input, slp_extension_bytes(type)),
                         payload = bytes_of(input, input.byte());
    hear(type, extension, payload, input);
  }
  void record(Input& input) {
    uint8_t stream = input.byte() % 2, kind = input.byte() % 7;
    std::vector<uint8_t> content(input.byte() % 48);
    if (stream == SLP_CONTROL && kind != SLP_RECORD_MESSAGE) {
      content.resize(kind == SLP_RECORD_GRANT  ? SLP_GRANT_BYTES
                     : kind == SLP_RECORD_DONE ? SLP_DONE_BYTES
                                               : SLP_PULL_BYTES);
      slp_store32(content.data(), (input.byte() & 31u) |
                                      (kind == SLP_RECORD_PUSH ? SLP_TRANSFER_PUSH : 0) |
                                      static_cast<uint32_t>(input.byte() % 4) << 16);
      uint32_t handle = (input.byte() & 7u) | static_cast<uint32_t>(1 + input.byte() % 3) << 16;
      slp_store32(content.data() + 4, kind == SLP_RECORD_DONE    ? handle % 17
                                      : kind == SLP_RECORD_GRANT ? 0
                                                                 : handle);
      for (size_t at = 8; at + 8 <= content.size(); at += 8)
        slp_store64(content.data() + at, input.amount());
    }
    std::vector<uint8_t> payload(SLP_RECORD_BYTES), extension(SLP_EAGER_BYTES);
    slp_store32(payload.data(), static_cast<uint32_t>(content.size()) | static_cast<uint32_t>(kind)
                                                                            << 24);
    payload.insert(payload.end(), content.begin(), content.end());
    slp_store32(extension.data(), static_cast<uint32_t>(streams_[stream]));
    slp_store32(extension.data() + 4, stream);
    streams_[stream] += payload.size();
    hear(SLP_EAGER, extension, payload, input);
  }
  void data(Input& input) {
    std::vector<uint8_t> extension(SLP_DATA_BYTES);
    slp_store64(extension.data(),
                input.byte() % 16 * SLP_UNIT_BYTES + (input.byte() == 255 ? 1 : 0));
    slp_store32(extension.data() + 8, (input.byte() % 3) |
                                          ((input.byte() & 1) != 0 ? SLP_TRANSFER_PUSH : 0) |
                                          static_cast<uint32_t>(input.byte() % 4) << 16);
    std::vector<uint8_t> payload(input.byte() % 3 * SLP_UNIT_BYTES +
                                 (input.byte() < 200 ? 0 : input.byte()));
    hear(SLP_DATA, extension, payload, input);
  }
  void time(Input& input) {
    now_ += std::min<uint64_t>(input.amount(), uint64_t{1} << 40) * (1 + input.byte());
    slp_on_timer(session_, now_);
  }
  void post(Input& input) {
    uint64_t cookie = next_cookie_++;
    uint32_t handle = 0;
    switch (input.byte() % 8) {
      case 0: {
        std::vector<uint8_t> text(input.amount() % (SLP_MAX_MESSAGE + 2), 'm');
        (void)slp_send(session_, nullptr, text.data(), static_cast<uint32_t>(text.size()), nullptr,
                       0);
        break;
      }
      case 1: {
        uint64_t length = 1 + input.amount() % 40'000;
        if (!slp_open_handle(session_, cookie, length, 1 + input.byte() % 3, &handle)) break;
        account_.give(cookie, slp::Region::Role::kTarget, length, 0);
        handles_[cookie] = handle;
        break;
      }
      case 2:
        if (handles_.empty()) break;
        slp_close_handle(session_, handles_.begin()->second);
        account_.take_back(handles_.begin()->first);
        handles_.erase(handles_.begin());
        break;
      case 3:
      case 4: {
        bool pull = (input.byte() & 1) != 0;
        uint64_t length = 1 + input.amount() % 40'000, offset = input.amount();
        uint32_t theirs = static_cast<uint32_t>(input.byte());
        account_.give(cookie, pull ? slp::Region::Role::kTarget : slp::Region::Role::kSource,
                      length, cookie);
        account_.want(cookie, {.pull = pull,
                               .peer_region = cookie,
                               .offset = 0,
                               .length = length,
                               .own_region = cookie});
        slp_status status = pull ? slp_pull(session_, theirs, offset, length, cookie)
                                 : slp_push(session_, theirs, offset, length, cookie, &theirs);
        if (status != SLP_OK) account_.ended(account_, cookie, false);
        break;
      }
      case 5: {
        uint64_t chosen = next_cookie_ - 1 - input.byte() % 8;
        if (slp_cancel(session_, chosen)) account_.ended(account_, chosen, false);
        break;
      }
      case 6: full_ = true; break;
      default: full_ = false; slp_resume(session_);
    }
  }
  void say() {
    slp_tx tx;
    for (int frames = 0; slp_poll_tx(session_, now_, &tx); ++frames) {
      require(frames < 3000, "a session sends without end");
      slp_base base;
      uint64_t bytes = tx.header_bytes + tx.piece_bytes[0] + tx.piece_bytes[1] + tx.bytes +
                       (tx.sealed ? SLP_TAG_BYTES : 0);
      require(bytes <= kMtu, "a frame larger than the peer takes");
      require(tx.sealed == (sealed_ && tx.number > 0), "a frame in the clear in a sealed session");
      require(slp_decode_base(tx.header, tx.header_bytes, bytes, &base) == SLP_TAKEN,
              "a frame that nobody would take");
      const uint8_t* memory = nullptr;
      if (tx.from_memory) {
        const slp::Region& region = account_.find(tx.cookie);
        require(region.live && tx.offset + tx.bytes <= region.bytes.size(),
                "memory was read that was not given");
        memory = region.bytes.data() + tx.offset;
      }
      require(!tx.sealed || slp::assemble(session_, tx, memory).size() == bytes,
              "a frame could not be sealed");
    }
  }

  const bool sealed_;
  slp::NonceBook book_{uint64_t{1} << SLP_LEAST_EPOCH_BITS};
  slp::ToyCipher ours_{kSecret, &book_}, theirs_{kSecret, nullptr};
  std::vector<uint64_t> room_;
  slp_node node_{};
  slp_session* session_ = nullptr;
  uint64_t now_ = 1, next_cookie_ = 10, seen_ = 0;
  uint32_t number_ = 0;
  uint64_t streams_[2] = {0, 0};
  bool full_ = false;
  slp::Account account_;
  std::map<uint64_t, uint32_t> handles_;
};

}  // namespace
}  // namespace sluice::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sluice::fuzz::Input input(data, size, sluice::fuzz::kAmounts);
  sluice::fuzz::World world(size % 2 != 0);
  world.run(input);
  return 0;
}
