// The inside of a world: its two ends, and the network, the attacker and the time between them.
#ifndef SLUICE_TESTS_SLP_STAGE_H_
#define SLUICE_TESTS_SLP_STAGE_H_

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/slp/toy_cipher.h"
#include "tests/slp/world.h"

namespace sluice::slp::stage {

using sim::Random;

constexpr uint64_t kSecret = 0x5ec7e7;  // the toy cipher's, of both ends

struct Message {
  std::vector<uint8_t> bytes;
  bool ce = false;
  bool forged = false;  // no end has sent it so
};

// One session between the two, in both users' books. End 1 may crash before end 0 knows of it and
// begin again by the same HELLO; what it had said before may be what end 0 hears, late.
struct Meeting {
  Account caller;
  std::deque<Account> lives{1};  // of end 1, the present one last
};

struct Announced {
  uint64_t cookie, length, free_from = 0;
  uint32_t rights;
  uint32_t handle;
};

class World;
class End;

// One session of an end, from its HELLO on.
struct Life {
  Life(End& end, NonceBook* book) : end(end), cipher(kSecret, book) {}
  End& end;
  ToyCipher cipher;
  std::vector<uint64_t> inside() const;
  bool lends = false;  // to the session what it needs for what is under way
  std::vector<uint64_t> memory, work;
  slp_session* session = nullptr;
  std::shared_ptr<Meeting> meeting;  // null: with a client that is no more
  uint64_t peer_nonce = 0;
  std::optional<size_t> hears;  // end 0: which of the other's lives
};

class End {
 public:
  End(World& world, int which) : world_(world), which_(which) { slp_node_init(&node_, 1 << 20); }
  void set_budget(uint64_t budget) { slp_node_init(&node_, budget); }
  uint64_t now() const;
  void connect();
  void arrive(const Message& message);
  void on_time();
  uint64_t due() const;
  void send_out();
  void act(Random& random);
  void crash();
  void check_books(bool healed);
  bool up() const { return life_ != nullptr && slp_state_of(life_->session) == SLP_UP; }
  bool at_rest() const;
  void resume();
  End& other();
  bool meets(const End& peer) const { return life_->meeting == peer.life_->meeting; }
  void collect_counters();

  uint64_t skew = 0;
  bool paused = false, stalled = false;
  std::vector<Message> held;
  uint64_t restart_at = UINT64_MAX;

 private:
  static const slp_ops kOps, kLendingOps;
  std::unique_ptr<Life> new_life(slp_config& config);
  void listen(const slp_frame& frame, bool forged);
  void begin(const slp_hello& hello);
  bool hear(Life& life, const slp_frame& frame, bool forged);
  void hear(const slp_frame& frame, bool forged);
  void look_for_confirmed();
  Account& books_of(const Life& life) const {
    return which_ == 0 ? life.meeting->caller : life.meeting->lives.back();
  }
  Account& mine() { return books_of(*life_); }
  Account& theirs();
  void find_whom_it_hears(uint64_t first_id);
  slp_session* session() const { return life_ == nullptr ? nullptr : life_->session; }
  void send_out(Life& life);
  void forget_session();
  void collect_counters(const slp_session* session);
  void answer_rts(Random& random, const Announced& what);
  bool on_message(const slp_rts* rts, const uint8_t* data, uint32_t bytes);
  uint64_t new_cookie();

  World& world_;
  int which_;
  slp_node node_{};
  std::unique_ptr<Life> life_;
  std::vector<std::unique_ptr<Life>> rivals_;  // whose HELLO may be an old one
  slp_listener listener_{};
  std::unique_ptr<ToyCipher> listening_;
  uint16_t generation_ = 0;
  uint64_t nonce_ = 0;
  std::map<uint32_t, Announced> announced_;  // by handle
  std::set<uint64_t> open_transfers_;
  friend class World;
};

// Sees every frame, and sends what it likes. It cannot make the secret's tags.
class Attacker {
 public:
  explicit Attacker(World& world) : world_(world) {}
  // What it does about a frame that leaves end `from`: may change it, and may send others.
  void see(int from, Message& message);

 private:
  Message mangled(const Message& seen);
  Message stripped(const Message& seen);
  Message forged(const Message& seen);
  Message nack(const Message& seen);

  World& world_;
  std::array<std::vector<std::vector<uint8_t>>, 2> kept_;  // of each end
};

class World {
 public:
  explicit World(const Plan& plan)
      : plan(plan),
        random(plan.seed),
        book(plan.sealed ? uint64_t{1} << plan.epoch_bits : UINT64_MAX),
        ends{End(*this, 0), End(*this, 1)},
        attacker_(*this) {}
  Summary run();
  void transmit(int from, Message message);
  void deliver(int to, Message message, uint64_t at) {
    events_.push({at, order_++, to, std::move(message), {}});
  }

  const Plan& plan;
  Random random;
  uint64_t now = 1;
  Summary summary;
  NonceBook book;
  std::array<End, 2> ends;
  uint64_t next_id = 1;
  bool healed = false;
  void note(uint64_t what) { summary.digest = sim::mix(summary.digest ^ what); }

 private:
  struct Event {
    uint64_t at, order;
    int to;
    Message message;
    std::function<void()> action;
    bool operator<(const Event& other) const {
      return std::tie(at, order) > std::tie(other.at, other.order);
    }
  };
  void schedule(uint64_t at, std::function<void()> action) {
    events_.push({at, order_++, -1, {}, std::move(action)});
  }
  void plan_users();
  void plan_faults();
  void step_ends();
  void heal();

  std::priority_queue<Event> events_;
  uint64_t order_ = 0;
  bool cut_[2] = {false, false};
  uint64_t sent_frames_[2] = {0, 0};
  std::optional<Message> swapped_;
  Attacker attacker_;
};

}  // namespace sluice::slp::stage

#endif  // SLUICE_TESTS_SLP_STAGE_H_
