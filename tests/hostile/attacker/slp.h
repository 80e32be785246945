// A session of SLP (docs/slp.md) as an attacker keeps it: as much of the protocol as it takes to be
// spoken to, and a switch for each thing that an honest end would not do.
#ifndef SLUICE_TESTS_HOSTILE_ATTACKER_SLP_H_
#define SLUICE_TESTS_HOSTILE_ATTACKER_SLP_H_

#include <bitset>
#include <deque>
#include <map>
#include <memory>
#include <string>

#include "tests/hostile/attacker/frame.h"

namespace hostile {

enum Record : uint8_t {
  kRecordMessage = 0,
  kRecordRts,
  kRecordPull,
  kRecordGrant,
  kRecordPush,
  kRecordDone
};
struct Control {
  uint8_t kind = 0;
  Bytes bytes;
};

class SlpPeer final : public Channel {
 public:
  explicit SlpPeer(Siege& siege, const std::string& source = {})
      : siege_(siege), carrier_(open_carrier(siege, source)) {
    windows = true;
  }
  ~SlpPeer() override;
  SlpPeer(const SlpPeer&) = delete;

  // HELLO until HELLO_ACK. False: nobody answered, or NACK.
  bool meet();
  // And HELLO of docs/wire.md both ways, one of an honest end or that one.
  bool greet();
  bool greet(const Message& hello);
  bool send(const Bytes& message) override;
  // A record of the control stream (1), or of messages (0).
  bool send_record(int stream, uint8_t kind, const Bytes& bytes);
  bool listen(int milliseconds) override;
  bool alive() const override { return up_ && !ended_; }
  void leave_unread(bool yes) override { unread_ = yes; }
  // One numbered frame of this session, as it is.
  Frame frame(uint8_t type);
  bool put_out(const Frame& frame) { return carrier_->send(frame.whole()); }
  void say_bye();
  void vanish() { up_ = false; }  // without BYE

  bool acknowledge = true;       // else nothing is
  std::deque<Control> controls;  // that came and nobody took
  std::function<void(const Frame&)> on_data;
  Carrier& carrier() { return *carrier_; }
  uint32_t session_tag() const { return session_; }
  uint32_t their_connection() const { return theirs_.connection; }
  uint64_t next_number() const { return number_; }

 private:
  struct Piece {
    uint64_t offset = 0;
    Bytes bytes;
    uint32_t number = 0;  // of the frame that carries it
  };
  struct Outgoing {
    uint64_t next = 0;  // offset
    std::deque<Piece> flying;
    uint64_t bytes_flying = 0;
  };
  struct Incoming {
    uint64_t taken = 0;
    std::map<uint64_t, Bytes> waiting;
    Bytes whole;
  };
  bool be_called_back(const Message& hello);
  void answer_call(const Frame& frame);
  void take(const Frame& frame);
  void take_ack(const Frame& frame);
  void take_records(int stream);
  void take_message(Bytes&& bytes);
  void note_number(uint32_t number);
  void send_ack();
  void send_again();
  bool put_piece(int stream, Piece& piece, bool again);
  void note_end();
  bool acked(const Frame& frame, uint32_t number) const;

  Siege& siege_;
  std::unique_ptr<Carrier> carrier_;
  Greeting ours_, theirs_;
  Bytes hello_ack_;  // of a call that came back
  uint32_t session_ = 0;
  uint64_t number_ = 1;
  uint32_t largest_ = 0;
  std::bitset<4096> seen_;
  Outgoing out_[2];
  Incoming in_[2];
  uint64_t credit_bytes_ = 10240;
  uint16_t own_credit_ = 10;
  bool up_ = false, ended_ = false, unread_ = false, greeted_ = false, ack_due_ = false;
  Siege::Clock::time_point last_progress_;
};

}  // namespace hostile

#endif  // SLUICE_TESTS_HOSTILE_ATTACKER_SLP_H_
