// One run of one attack: what it may use, what it did, and what it saw. The attack itself says
// with must() what shows that it took place; a run in which that is missing fails.
#ifndef SLUICE_TESTS_HOSTILE_ATTACKER_SIEGE_H_
#define SLUICE_TESTS_HOSTILE_ATTACKER_SIEGE_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/hostile/attacker/bytes.h"

namespace hostile {

struct Seen {
  uint64_t connections = 0;  // begun
  uint64_t greeted = 0;      // whose greeting the other end accepted
  uint64_t turned_away = 0;  // refused or ended before that
  uint64_t cut_off = 0;      // ended by the other end afterwards
  uint64_t messages_out = 0, bytes_out = 0, bytes_in = 0;
  uint64_t frames_out = 0, frames_in = 0;
  uint64_t descriptors_out = 0;
  uint64_t hits = 0;  // got what the other end must not give
  std::array<uint64_t, kTypes> answers{};
  std::map<uint32_t, uint64_t> codes;  // of DONE and BYE that came
};

class Siege {
 public:
  using Clock = std::chrono::steady_clock;
  std::string path, attack, address, source;
  uint64_t dose = 1;
  Clock::time_point end;
  Seen seen;
  std::mt19937_64 random{1};

  // False: time is over. Every loop asks.
  bool more() const { return Clock::now() < end; }
  int left_ms() const {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    return left > 0 ? static_cast<int>(left) : 0;
  }
  // What shows that the attack took place.
  void must(bool happened, const std::string& what) {
    if (!happened) missing.push_back(what);
  }
  void note(const std::string& what) { notes.push_back(what); }
  // Stays as it is until the driver says "leave" on standard input, or time is over; `meanwhile`
  // is called again and again.
  void hold(const std::function<void()>& meanwhile = {});
  Bytes junk(size_t bytes);

  std::vector<std::string> missing, notes;
};

// A conversation that has been greeted, over whatever path: messages as docs/wire.md has them.
class Channel {
 public:
  virtual ~Channel() = default;
  // False: the other end is gone, or takes nothing before time is over. Answers are read
  // meanwhile, unless they are left unread on purpose.
  virtual bool send(const Bytes& message) = 0;
  // The messages one after the other, at once where the path can.
  virtual bool send_all(const std::vector<Bytes>& messages);
  // Looks for answers for so long; false: the other end has ended this.
  virtual bool listen(int milliseconds) = 0;
  virtual bool alive() const = 0;
  virtual void leave_unread(bool yes) = 0;
  // What came and nobody took, oldest first. Bounded: the first ones are kept.
  std::vector<Answer> answers;
  // Waits for an answer of that type; false: none came.
  bool await(uint8_t type, Answer& out, int milliseconds = 5000);
  HelloFields peer;      // of the other end's HELLO, as far as it tells
  bool views = false;    // offers name memory to be mapped
  bool windows = false;  // offers name windows of SLP
};

// A new conversation by this siege's path; null: turned away, which seen.turned_away counts.
std::unique_ptr<Channel> open_channel(Siege& siege);

// So many messages, or fewer if the other end has enough of them. Returns how many went out.
uint64_t flood(Siege& siege, Channel& channel, uint64_t count,
               const std::function<Bytes(uint64_t)>& make);
// Until the other end has answered a PING, so has taken all that went before, or has ended this;
// else that is missing.
void settle(Siege& siege, Channel& channel);
// Each on a conversation of its own, which the other end has to end.
void each_refused(Siege& siege, const std::vector<std::vector<Bytes>>& variants);
// The service of the server that is attacked: a command, and its answer (empty: none came).
Bytes ask(Channel& channel, const std::string& command);
inline constexpr uint64_t kCommandTag = 0xc0, kAnswerTag = 0xc1, kGiftTag = 0xc3;

struct Attack {
  const char* name;
  const char* what;
  void (*run)(Siege&);
  // Comes from so many addresses that somebody new can no longer be told from it.
  bool crowd = false;
};
// By path; "any" are those that every path with a Channel runs.
std::map<std::string, std::vector<Attack>>& table();
struct Registered {
  Registered(const char* path, std::initializer_list<Attack> attacks) {
    auto& list = table()[path];
    list.insert(list.end(), attacks);
  }
};

}  // namespace hostile

#endif  // SLUICE_TESTS_HOSTILE_ATTACKER_SIEGE_H_
