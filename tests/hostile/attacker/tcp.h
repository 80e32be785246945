// A TCP connection as an attacker uses it: as far through the greeting as an attack wants.
#ifndef SLUICE_TESTS_HOSTILE_ATTACKER_TCP_H_
#define SLUICE_TESTS_HOSTILE_ATTACKER_TCP_H_

#include <memory>
#include <string>

#include "tests/hostile/attacker/siege.h"

namespace hostile {

inline constexpr uint64_t kChoiceTcp =
    7;  // what DONE names after HELLO (transport/tcp/greeting.h, api/receipt.h)

struct TcpOptions {
  std::string source = {};  // instead of the siege's
  int receive_bytes = 0;    // a small window
};

class TcpPeer final : public Channel {
 public:
  explicit TcpPeer(Siege& siege) : siege_(siege) {}
  ~TcpPeer() override;
  TcpPeer(const TcpPeer&) = delete;

  // One step each; false: the other end would not have it.
  bool connect(const TcpOptions& options = {});
  bool say_hello(const HelloFields& fields = {});
  bool hear_hello();
  bool choose(uint64_t path = kChoiceTcp, uint32_t code = 0);
  // All of them.
  bool greet(const TcpOptions& options = {});

  bool send(const Bytes& message) override;
  bool send_all(const std::vector<Bytes>& messages) override;
  bool send_raw(const uint8_t* bytes, size_t length);
  bool listen(int milliseconds) override;
  bool alive() const override { return fd_ >= 0 && !ended_; }
  void leave_unread(bool yes) override { unread_ = yes; }
  // Takes at most so many bytes of what has come; false: ended.
  bool read_some(size_t most);
  void reset();  // RST
  void shut_write();
  void close();
  int fd() const { return fd_; }
  // Calls with each piece of a DATA payload; null: it is dropped.
  std::function<void(const uint8_t*, size_t)> on_payload;

 private:
  void parse();
  void note_end();
  Siege& siege_;
  int fd_ = -1;
  bool ended_ = false, unread_ = false, greeted_ = false;
  Bytes in_;
  uint64_t payload_left_ = 0;  // of a DATA whose header was parsed
};

}  // namespace hostile

#endif  // SLUICE_TESTS_HOSTILE_ATTACKER_TCP_H_
