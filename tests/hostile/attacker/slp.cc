#include "tests/hostile/attacker/slp.h"

#include <poll.h>

#include <algorithm>

namespace hostile {
namespace {

constexpr size_t kMostAnswers = 20'000;
constexpr size_t kPieceBytes = 1300;
constexpr uint64_t kMostFlying = 10'240, kMostControlFlying = 2048;
constexpr auto kAgainAfter = std::chrono::milliseconds(5);
// In HELLO's rendezvous: the answer may come from another socket than the one that was called.
constexpr char kCallMark[] = "sluice kmod call";

}  // namespace

SlpPeer::~SlpPeer() { say_bye(); }

void SlpPeer::note_end() {
  if (ended_) return;
  ended_ = true;
  ++(greeted_ ? siege_.seen.cut_off : siege_.seen.turned_away);
}

bool SlpPeer::meet() {
  if (carrier_ == nullptr) return false;
  ++siege_.seen.connections;
  ours_.nonce = siege_.random() | 1;
  ours_.connection = static_cast<uint32_t>(siege_.random()) | 1;
  auto end = std::min(siege_.end, Siege::Clock::now() + std::chrono::seconds(2));
  int wait_ms = 4;
  while (Siege::Clock::now() < end) {
    Frame hello;
    hello.type = kSlpHello;
    hello.source_port = carrier_->own_port;
    hello.destination_port = carrier_->peer_port;
    hello.extension = ours_.extension();
    (void)carrier_->send(hello.whole());
    auto again = Siege::Clock::now() + std::chrono::milliseconds(wait_ms);
    wait_ms = std::min(wait_ms * 2, 64);
    bool retried = false;
    while (!retried && Siege::Clock::now() < again) {
      Frame answer;
      if (!carrier_->receive(answer)) {
        pollfd wait{.fd = carrier_->fd(), .events = POLLIN, .revents = 0};
        ::poll(&wait, 1, 1);
        continue;
      }
      if (answer.type == kSlpNack) return note_end(), false;
      Greeting greeting;
      if (answer.type != kSlpRetry && answer.type != kSlpHelloAck) continue;
      greeting.parse(answer.extension);
      if (greeting.peer_nonce != ours_.nonce) continue;
      if (answer.type == kSlpRetry) {
        ours_.cookie = greeting.cookie;
        retried = true;
        continue;
      }
      theirs_ = greeting;
      uint64_t both = ours_.nonce ^ theirs_.nonce;
      session_ = static_cast<uint32_t>(both ^ both >> 32);
      up_ = true;
      last_progress_ = Siege::Clock::now();
      return true;
    }
  }
  return note_end(), false;
}

bool SlpPeer::greet() {
  HelloFields fields;
  fields.incarnation = siege_.random();
  return greet(hello(fields));
}

bool SlpPeer::greet(const Message& first) {
  if (!meet()) return false;
  if (siege_.path == "kmod" ? !be_called_back(first) : !send(first.whole())) return false;
  Answer answer;
  if (!await(kHello, answer)) return note_end(), false;
  peer.incarnation = answer.id;
  peer.host.assign(answer.bytes.begin() + 24, answer.bytes.begin() + 40);
  greeted_ = true;
  ++siege_.seen.greeted;
  return true;
}

// A listener over the kernel module takes one message on its port. Its answer is a session that a
// socket of its own begins, at another port.
bool SlpPeer::be_called_back(const Message& hello) {
  Bytes call(kCallMark, kCallMark + 16);
  put(call, siege_.random());
  put(call, siege_.random());
  Message marked = hello;
  if (!send(marked.tlv(kRendezvous, call).whole())) return false;
  auto end = std::min(siege_.end, Siege::Clock::now() + std::chrono::seconds(3));
  auto again = Siege::Clock::now() + std::chrono::milliseconds(50);
  while (Siege::Clock::now() < end) {
    Frame f;
    while (carrier_->receive(f)) {
      if (f.type == kSlpHello) return answer_call(f), true;
    }
    if (Siege::Clock::now() >= again) {
      again += std::chrono::milliseconds(50);
      send_again();
    }
    pollfd wait{.fd = carrier_->fd(), .events = POLLIN, .revents = 0};
    ::poll(&wait, 1, 1);
  }
  return note_end(), false;
}

void SlpPeer::answer_call(const Frame& f) {
  theirs_.parse(f.extension);
  ours_ = {.nonce = siege_.random() | 1,
           .peer_nonce = theirs_.nonce,
           .connection = static_cast<uint32_t>(siege_.random()) | 1};
  uint64_t both = ours_.nonce ^ theirs_.nonce;
  session_ = static_cast<uint32_t>(both ^ both >> 32);
  number_ = 1;
  largest_ = 0;
  credit_bytes_ = 10'240;
  for (int stream : {0, 1}) out_[stream] = {}, in_[stream] = {};
  carrier_->peer_port = f.source_port;
  Frame answer;
  answer.type = kSlpHelloAck;
  answer.source_port = carrier_->own_port;
  answer.destination_port = f.source_port;
  answer.connection = theirs_.connection;
  answer.extension = ours_.extension();
  hello_ack_ = answer.whole();
  (void)carrier_->send(hello_ack_);
}

void SlpPeer::say_bye() {
  if (!up_ || ended_) return;
  (void)put_out(frame(kSlpBye));
  up_ = false;
}

Frame SlpPeer::frame(uint8_t type) {
  Frame f;
  f.type = type;
  f.source_port = carrier_->own_port;
  f.destination_port = carrier_->peer_port;
  f.connection = theirs_.connection;
  f.number = static_cast<uint32_t>(number_++);
  f.session = session_;
  f.credit = own_credit_;
  if (largest_ != 0 && acknowledge) {
    f.flags |= kFlagAck;
    f.ack = largest_;
    while (f.run < 2000 && f.run + 1u < largest_ && seen_[(largest_ - 1 - f.run) % seen_.size()])
      ++f.run;
  }
  if (type == kSlpAck) f.extension = Bytes(4, 0);
  return f;
}

bool SlpPeer::put_piece(int stream, Piece& piece, bool again) {
  Frame f = frame(kSlpEager);
  if (again) f.flags |= kFlagAgain;
  put(f.extension, static_cast<uint32_t>(piece.offset));
  put<uint32_t>(f.extension, static_cast<uint32_t>(stream));
  f.payload = piece.bytes;
  piece.number = f.number;
  return put_out(f);
}

bool SlpPeer::send(const Bytes& message) {
  if (!send_record(0, kRecordMessage, message)) return false;
  ++siege_.seen.messages_out;
  return true;
}

bool SlpPeer::send_record(int stream, uint8_t kind, const Bytes& bytes) {
  Bytes record;
  put<uint32_t>(record, static_cast<uint32_t>(bytes.size()) | uint32_t{kind} << 24);
  record.insert(record.end(), bytes.begin(), bytes.end());
  Outgoing& out = out_[stream];
  uint64_t most = stream == 0 ? kMostFlying : kMostControlFlying;
  auto end = std::min(siege_.end, Siege::Clock::now() + std::chrono::seconds(4));
  for (size_t at = 0; at < record.size(); at += kPieceBytes) {
    size_t part = std::min(kPieceBytes, record.size() - at);
    bool asked = false;
    while (out.bytes_flying + part > most || (stream == 0 && out.next + part > credit_bytes_)) {
      if (!alive() || Siege::Clock::now() >= end) return false;
      // Who has more to say than there is credit for asks by PING.
      if (!asked && out.flying.empty()) (void)put_out(frame(kSlpPing));
      asked = true;
      if (!listen(1)) return false;
    }
    Piece piece{.offset = out.next,
                .bytes = Bytes(record.begin() + static_cast<long>(at),
                               record.begin() + static_cast<long>(at + part))};
    out.next += part;
    out.bytes_flying += part;
    if (!put_piece(stream, piece, false)) return false;
    out.flying.push_back(std::move(piece));
  }
  return alive();
}

bool SlpPeer::acked(const Frame& f, uint32_t number) const {
  uint32_t below = f.ack - number;
  if (below <= f.run) return true;
  if (f.type != kSlpAck) return false;
  uint32_t at = f.run;  // below ack: the last one that is known
  for (size_t i = 0; i + 4 <= f.payload.size(); i += 4) {
    uint32_t gap = hostile::take<uint16_t>(f.payload.data() + i),
             run = hostile::take<uint16_t>(f.payload.data() + i + 2);
    if (below > at + gap && below <= at + gap + run) return true;
    at += gap + run;
  }
  return false;
}

void SlpPeer::take_ack(const Frame& f) {
  for (Outgoing& out : out_) {
    for (auto piece = out.flying.begin(); piece != out.flying.end();) {
      if (!acked(f, piece->number)) {
        ++piece;
        continue;
      }
      out.bytes_flying -= piece->bytes.size();
      piece = out.flying.erase(piece);
      last_progress_ = Siege::Clock::now();
    }
  }
}

void SlpPeer::note_number(uint32_t number) {
  if (largest_ == 0 || static_cast<int32_t>(number - largest_) > 0) {
    uint32_t from = largest_ == 0 ? number : largest_ + 1;
    if (number - from >= seen_.size())
      seen_.reset();
    else
      for (uint32_t n = from; n != number; ++n) seen_[n % seen_.size()] = false;
    largest_ = number;
  }
  seen_[number % seen_.size()] = true;
}

void SlpPeer::take(const Frame& f) {
  if (f.destination_port != carrier_->own_port || f.source_port != carrier_->peer_port) return;
  if (f.type == kSlpHello && !hello_ack_.empty()) (void)carrier_->send(hello_ack_);
  // Believed only if it names this session: frames that were made wrong are answered as well.
  if (f.type == kSlpNack) {
    if (f.session == session_ && f.extension.size() == 8 &&
        hostile::take<uint32_t>(f.extension.data() + 4) == theirs_.connection)
      note_end();
    return;
  }
  bool numbered = f.type >= kSlpBye && f.type <= kSlpData && f.session == session_ &&
                  f.connection == ours_.connection;
  if (!numbered) return;
  if ((f.flags & kFlagAck) != 0) take_ack(f);
  auto kib = static_cast<uint16_t>(f.credit - static_cast<uint16_t>(credit_bytes_ / 1024));
  if (kib < 0x8000) credit_bytes_ += uint64_t{kib} * 1024;
  note_number(f.number);
  ack_due_ = ack_due_ || f.type >= kSlpPing;
  if (f.type == kSlpBye) return note_end();
  if (f.type == kSlpData && on_data) on_data(f);
  if (f.type != kSlpEager || f.extension[4] > 1) return;
  int stream = f.extension[4];
  Incoming& in = in_[stream];
  uint64_t offset =
      in.taken +
      static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(
          hostile::take<uint32_t>(f.extension.data()) - static_cast<uint32_t>(in.taken))));
  if (offset < in.taken || offset > in.taken + (1 << 20)) return;
  in.waiting[offset] = f.payload;
  while (!in.waiting.empty() && in.waiting.begin()->first <= in.taken) {
    auto first = in.waiting.begin();
    if (first->first == in.taken) {
      in.whole.insert(in.whole.end(), first->second.begin(), first->second.end());
      in.taken += first->second.size();
    }
    in.waiting.erase(first);
  }
  take_records(stream);
  if (!unread_) own_credit_ = static_cast<uint16_t>((in_[0].taken + kMostFlying) / 1024);
}

void SlpPeer::take_records(int stream) {
  Bytes& whole = in_[stream].whole;
  size_t at = 0;
  while (whole.size() - at >= 4) {
    uint32_t head = hostile::take<uint32_t>(whole.data() + at);
    size_t length = head & 0xffffff;
    if (whole.size() - at - 4 < length) break;
    Bytes bytes(whole.begin() + static_cast<long>(at + 4),
                whole.begin() + static_cast<long>(at + 4 + length));
    at += 4 + length;
    if (head >> 24 == kRecordMessage)
      take_message(std::move(bytes));
    else if (controls.size() < kMostAnswers)
      controls.push_back({static_cast<uint8_t>(head >> 24), std::move(bytes)});
  }
  whole.erase(whole.begin(), whole.begin() + static_cast<long>(at));
}

void SlpPeer::take_message(Bytes&& bytes) {
  if (bytes.size() < 16) return;
  Answer answer{.type = bytes[0],
                .flags = bytes[1],
                .header_bytes = hostile::take<uint16_t>(bytes.data() + 2),
                .payload_bytes = hostile::take<uint32_t>(bytes.data() + 4),
                .id = hostile::take<uint64_t>(bytes.data() + 8),
                .bytes = std::move(bytes)};
  ++siege_.seen.answers[answer.type < kTypes ? answer.type : 0];
  if (answer.type == kDone) ++siege_.seen.codes[answer.at<uint32_t>(16)];
  if (answer.type == kBye) {
    ++siege_.seen.codes[static_cast<uint32_t>(answer.at<uint64_t>(16))];
  }
  if (answers.size() < kMostAnswers) answers.push_back(std::move(answer));
}

void SlpPeer::send_ack() {
  ack_due_ = false;
  if (acknowledge) (void)put_out(frame(kSlpAck));
}

void SlpPeer::send_again() {
  last_progress_ = Siege::Clock::now();
  for (int stream : {0, 1}) {
    for (Piece& piece : out_[stream].flying) (void)put_piece(stream, piece, true);
  }
}

bool SlpPeer::listen(int milliseconds) {
  if (!alive()) return false;
  auto end = Siege::Clock::now() + std::chrono::milliseconds(milliseconds);
  size_t before = answers.size() + controls.size();
  uint64_t credit = credit_bytes_;
  while (true) {
    Frame f;
    while (alive() && carrier_->receive(f)) take(f);
    if (!alive()) return false;
    if (ack_due_) send_ack();
    bool flying = !out_[0].flying.empty() || !out_[1].flying.empty();
    if (flying && Siege::Clock::now() - last_progress_ > kAgainAfter) send_again();
    if (!flying) last_progress_ = Siege::Clock::now();
    if (answers.size() + controls.size() > before || credit_bytes_ > credit ||
        Siege::Clock::now() >= end)
      return true;
    pollfd wait{.fd = carrier_->fd(), .events = POLLIN, .revents = 0};
    ::poll(&wait, 1, 1);
  }
}

}  // namespace hostile
