// The frames of a conversation, byte for byte as they were on the day the format was
// fixed: golden/frames.txt, "end type hex" a line, and golden/sealed.txt, the same with a
// secret. `golden_test --write FILE`, `golden_test --write FILE --sealed` make them anew
// (a new version of the protocol, and nothing less, is a reason to).
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <sluice/l2/cipher.h>

#include "kernel_compat/slp/slp.h"
#include "tests/slp/assemble.h"

namespace {

using Frame = std::vector<uint8_t>;
constexpr uint64_t kMillisecond = 1'000'000;

struct End {
  const char* name;
  explicit End(const char* called, uint8_t first_salt = 0) : name(called), salt(first_salt) {}
  std::vector<uint64_t> room = std::vector<uint64_t>((slp_session_bytes() + 7) / 8);
  slp_node node{};
  slp_session* session = nullptr;
  std::map<uint64_t, std::vector<uint8_t>> memory;
  uint32_t heard_handle = 0;
  uint8_t salt = 0;
  std::unique_ptr<sluice::l2::Cipher> cipher;
};

// Known to golden/decode_test.py as well.
constexpr char kSecret[] = "the secret of the golden frames";
constexpr int kMessagesForTwoKeys = 60;

const slp_ops kOps = {
    .place =
        [](void* user, uint64_t cookie, uint64_t offset, const slp_frame* frame, uint32_t at,
           uint32_t bytes) {
          std::memcpy(static_cast<End*>(user)->memory.at(cookie).data() + offset, frame->data + at,
                      bytes);
        },
    .message =
        [](void* user, const slp_rts* rts, const uint8_t*, uint32_t) {
          if (rts != nullptr) static_cast<End*>(user)->heard_handle = rts->handle;
          return true;
        },
    .ended = nullptr,
    .written = nullptr,
    .state = nullptr,
    .wake = nullptr,
    .source_crc =
        [](void* user, uint64_t cookie, uint64_t offset, uint32_t bytes) {
          return slp_crc32c(0, static_cast<End*>(user)->memory.at(cookie).data() + offset, bytes);
        },
    .frame_crc = nullptr,
};

class Conversation {
 public:
  explicit Conversation(bool sealed) {
    for (End* end : {&client_, &server_, &listener_}) {
      if (sealed)
        end->cipher = *sluice::l2::Cipher::open(
            {reinterpret_cast<const uint8_t*>(kSecret), sizeof(kSecret) - 1});
    }
    slp_config ours = config(client_);
    ours.nonce = 0x0123456789abcdef, ours.connection = 0x00010002, ours.source_port = 40000,
    ours.destination_port = 7;
    std::fill(std::begin(ours.generations), std::end(ours.generations), uint16_t{0x4567});
    client_.session = slp_connect(client_.room.data(), &ours, now_);
    greet();
    send(client_, "hello", false);
    send(server_, "hello back", false);
    talk();
    // The first of two messages is lost, so that an ACK has a range to tell.
    send(client_, "lost at first", true);
    send(client_, "not lost", false);
    talk();
    lend_and_pull();
    push();
    // Both ends come to their second key.
    for (int i = 0; sealed && i < kMessagesForTwoKeys; ++i) {
      send(client_, "ask", false);
      send(server_, "tell", false);
      talk();
    }
    now_ += 2000 * kMillisecond;  // a keepalive
    talk();
    slp_abort(client_.session);
    talk();
    stranger();
    if (!sealed) find();
  }
  const std::string& text() const { return text_; }

 private:
  slp_config config(End& end) {
    slp_config made;
    slp_config_init(&made);
    slp_node_init(&end.node, 1 << 20);
    made.ops = &kOps, made.user = &end, made.node = &end.node, made.payload_crc = true;
    if (end.cipher == nullptr) return made;
    made.cipher = sluice::l2::Cipher::calls(), made.cipher_user = end.cipher.get(),
    made.epoch_bits = SLP_LEAST_EPOCH_BITS;
    for (uint8_t i = 0; i < SLP_SALT_BYTES; ++i) made.salt[i] = static_cast<uint8_t>(end.salt + i);
    return made;
  }
  void write(const char* who, const Frame& frame) {
    static const std::map<int, const char*> kNames = {
        {1, "HELLO"}, {2, "HELLO_ACK"}, {3, "RETRY"}, {4, "NACK"},  {5, "BYE"},   {6, "ACK"},
        {7, "PING"},  {8, "EAGER"},     {9, "DATA"},  {16, "FIND"}, {17, "FOUND"}};
    char hex[3];
    text_ += std::string(who) + " " + kNames.at(frame[0] & 31) + " ";
    for (uint8_t byte : frame) {
      std::snprintf(hex, sizeof hex, "%02x", byte);
      text_ += hex;
    }
    text_ += "\n";
  }
  static slp_frame view(const Frame& frame) {
    return {.data = frame.data(),
            .present = frame.size(),
            .bytes = frame.size(),
            .ce = false,
            .context = nullptr};
  }
  bool next(End& end, Frame& frame) {
    slp_tx tx;
    if (!slp_poll_tx(end.session, now_, &tx)) return false;
    frame = sluice::slp::assemble(
        end.session, tx, tx.from_memory ? end.memory.at(tx.cookie).data() + tx.offset : nullptr);
    write(end.name, frame);
    return true;
  }
  void greet() {
    slp_listener listener{.secret = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16},
                          .port = 7,
                          .mtu = 1452,
                          .cipher = nullptr,
                          .cipher_user = nullptr};
    if (listener_.cipher != nullptr)
      listener.cipher = sluice::l2::Cipher::calls(), listener.cipher_user = listener_.cipher.get();
    slp_meeting met;
    for (int round = 0; round < 2; ++round) {
      Frame hello;
      next(client_, hello);
      slp_frame in = view(hello);
      if (slp_listen(&listener, now_, reinterpret_cast<const uint8_t*>("\x02\0\0\0\0\x01"), 6, &in,
                     &met) != SLP_LISTEN_REPLY)
        break;
      Frame retry(met.reply, met.reply + met.reply_bytes);
      write("server", retry);
      in = view(retry);
      (void)slp_on_frame(client_.session, now_, &in);
    }
    slp_config theirs = config(server_);
    theirs.nonce = 0x1122334455667788, theirs.connection = 0x00030004, theirs.source_port = 7,
    theirs.destination_port = 40000;
    std::fill(std::begin(theirs.generations), std::end(theirs.generations), uint16_t{0x3344});
    (void)slp_accept(server_.room.data(), &theirs, &met.hello, now_, &server_.session);
    talk();
  }
  void send(End& end, const char* words, bool lost) {
    (void)slp_send(end.session, nullptr, reinterpret_cast<const uint8_t*>(words),
                   static_cast<uint32_t>(std::strlen(words)), nullptr, 0);
    if (!lost) return;
    Frame gone;
    next(end, gone);
  }
  // Both say and hear everything, timers included, until a quarter of a second of silence.
  void talk() {
    uint64_t quiet_at = now_ + 250 * kMillisecond;
    while (now_ < quiet_at) {
      bool any = false;
      for (End* end : {&client_, &server_}) {
        End& other = end == &client_ ? server_ : client_;
        for (Frame frame; next(*end, frame); any = true) {
          slp_frame in = view(frame);
          (void)slp_on_frame(other.session, now_ + 10'000, &in);
        }
      }
      now_ += 10'000;
      if (any) continue;
      now_ = std::max(now_, std::min({quiet_at, slp_next_timeout(client_.session),
                                      slp_next_timeout(server_.session)}));
      slp_on_timer(client_.session, now_);
      slp_on_timer(server_.session, now_);
    }
  }
  void lend_and_pull() {
    std::vector<uint8_t>& lent = server_.memory[5];
    lent.resize(2 * SLP_UNIT_BYTES + 100);
    for (size_t i = 0; i < lent.size(); ++i) lent[i] = static_cast<uint8_t>(i * 3);
    uint32_t handle = 0;
    (void)slp_open_handle(server_.session, 5, lent.size(), SLP_READ, &handle);
    slp_rts rts{.handle = handle, .length = lent.size()};
    (void)slp_send(server_.session, &rts, reinterpret_cast<const uint8_t*>("take"), 4, nullptr, 0);
    talk();
    client_.memory[6].resize(lent.size());
    (void)slp_pull(client_.session, client_.heard_handle, 0, lent.size(), 6);
    talk();
    // Outside the handle: DONE with a status.
    (void)slp_pull(client_.session, client_.heard_handle, 1, lent.size(), 6);
    talk();
  }
  void push() {
    server_.memory[7].resize(50);
    uint32_t handle = 0, notice = 0x0badcafe;
    (void)slp_open_handle(server_.session, 7, 50, SLP_WRITE, &handle);
    client_.memory[8].assign(40, 0x5a);
    (void)slp_push(client_.session, handle, 10, 40, 8, &notice);
    talk();
  }
  void stranger() {
    std::string last = text_.substr(text_.find("client EAGER") + 13);
    Frame frame;
    for (size_t i = 0; last[i] != '\n'; i += 2)
      frame.push_back(static_cast<uint8_t>(std::stoi(last.substr(i, 2), nullptr, 16)));
    slp_frame in = view(frame);
    uint8_t reply[SLP_MAX_HEADER];
    uint32_t bytes = slp_no_session(&in, reply);
    if (bytes > 0) write("server", Frame(reply, reply + bytes));
  }

  // Of no session.
  void find() {
    for (bool answer : {false, true}) {
      slp_find find{.type = SLP_FIND,
                    .source_port = 40001,
                    .destination_port = 0,
                    .nonce = 0xfedcba9876543210,
                    .name = "Worker-3.rack_1"};
      if (answer) find.type = SLP_FOUND, find.source_port = 7, find.destination_port = 40001;
      Frame frame(SLP_FIND_FRAME);
      (void)slp_encode_find(frame.data(), &find);
      write(answer ? "server" : "client", frame);
    }
  }

  uint64_t now_ = 1000 * kMillisecond;
  End client_{"client", 0x10}, server_{"server", 0x80}, listener_{"listener"};
  std::string text_;
};

// Says where the first difference is.
bool same(const char* path, bool sealed) {
  std::string now = Conversation(sealed).text();
  std::ifstream file(path);
  std::stringstream golden;
  golden << file.rdbuf();
  if (golden.str() == now) return true;
  std::istringstream expected(golden.str()), found(now);
  for (std::string a, b; std::getline(expected, a) || std::getline(found, b);
       a.clear(), b.clear()) {
    if (b.empty()) std::getline(found, b);
    if (a != b) {
      std::cout << "expected " << a << "\nfound    " << b << "\n";
      break;
    }
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc >= 3 && std::string(argv[1]) == "--write") {
    std::ofstream(argv[2]) << Conversation(argc == 4).text();
    return 0;
  }
  if (argc == 3) return same(argv[1], false) && same(argv[2], true) ? 0 : 1;
  std::cout << "golden_test FRAMES SEALED\n";
  return 2;
}
