// One schedule: two sessions, a network between them, a program on each side that does
// what chance says, an oracle that watches. One thread, one seed, virtual time.
#ifndef SLUICE_TESTS_SIM_SIMULATION_H_
#define SLUICE_TESTS_SIM_SIMULATION_H_

#include <array>
#include <memory>
#include <string>
#include <vector>

#include <sluice/proto/session_set.h>
#include <sluice/runtime/mailbox.h>
#include <sluice/runtime/peer_account.h>
#include <sluice/spi/endpoint_core.h>

#include "tests/sim/network.h"
#include "tests/sim/oracle.h"
#include "tests/sim/random.h"
#include "tests/sim/trace.h"

namespace sluice::sim {

struct Outcome {
  bool ok = true;
  std::string why;
  uint64_t hash = 0;
  uint64_t operations = 0;
  uint64_t turns = 0;
};

Outcome run_schedule(uint64_t seed, bool print = false);

class Simulation;

class VirtualSessionSet final : public proto::SessionSet {
 public:
  explicit VirtualSessionSet(const Trace& trace) : SessionSet(kStart), trace_(trace) {}
  Instant exact_now() const override { return trace_.now; }
  Instant from_now(Duration d) const override { return after(trace_.now, d); }

 private:
  const Trace& trace_;
};

// One side: a context's worth of machinery and the program on it.
class Peer final : public CompletionSink, public WantHandler {
 public:
  Peer(Simulation& world, int side);

  void on_completion(Completion&& completion) noexcept override;
  void on_want(EndpointCore& endpoint, const WantRequest& request) noexcept override;
  bool on_want_cancelled(EndpointCore& endpoint, uint64_t token) noexcept override;
  void on_endpoint_closed(EndpointCore& endpoint, const Status& why) noexcept override;

 private:
  friend class Simulation;
  struct Waiting {
    uint64_t token, step;
    bool into;
    TensorDescriptor layout;
  };
  // Memory the program lends and wants back.
  struct Source {
    Tensor tensor;
    uint64_t key, offset;
  };

  Simulation& world_;
  int side_;
  std::shared_ptr<Arena> arena_;
  std::shared_ptr<Mailbox> mailbox_;
  VirtualSessionSet set_;
  std::shared_ptr<proto::Session> session_;
  Instant paused_until_ = kStart;
  Instant turn_at_ = kNever;
  Duration quiet_{};  // how long chance kept this side from answering, in all
  bool crashed_ = false;
  bool handler_set_ = false;
  int closed_calls_ = 0;
  uint64_t next_key_id_ = 0;
  std::vector<Waiting> wants_;
  std::vector<Source> sources_;
};

class Simulation {
 public:
  Simulation(uint64_t seed, bool print);
  ~Simulation();
  Outcome run();

 private:
  friend class Peer;

  // simulation.cc: time and turns.
  void open();
  void step(Instant most);
  void run_until(Instant end);
  void settle();
  void take_turn(Peer& peer);
  Instant turn_due(const Peer& peer) const;
  Instant next_event() const;
  bool alive(const Peer& peer) const;
  bool connected() const;
  void heal();
  void check_tables();
  void close_all();
  void tear_down();

  // workload.cc: what the program does.
  void act(int side);
  void random_action(Peer& peer);
  void post_send(Peer& peer);
  void post_receive(Peer& peer);
  void post_want(Peer& peer);
  void post_wants(Peer& peer);
  void answer_want(Peer& peer);
  void make_grant(Peer& peer);
  void revoke_grant(Peer& peer);
  void post_one_sided(Peer& peer, bool write);
  void cancel_something(Peer& peer);
  void drop_something(Peer& peer);
  void thaw_something(Peer& peer);
  void disturb();
  PostOptions options(Peer& peer, Record& record);
  uint64_t size();
  Tensor make_tensor(Peer& peer, uint64_t bytes, uint64_t key, uint64_t offset);
  void judge_post(const Peer& peer, const Status& status);

  uint64_t seed_;
  Random random_;
  Trace trace_;
  NetworkOptions network_options_;
  proto::SessionOptions session_options_[2];
  uint64_t features_[2] = {};                // of each side's HELLO
  std::shared_ptr<PeerAccount> account_[2];  // null: without limits
  std::unique_ptr<Oracle> oracle_;
  std::unique_ptr<Network> network_;
  std::array<std::unique_ptr<Peer>, 2> peers_;
  uint64_t serial_ = 0;
  uint64_t turns_ = 0;
  uint64_t actions_left_ = 0;
  uint64_t callback_percent_ = 0;
  uint64_t trouble_percent_ = 0;
  Duration pace_{};        // longest gap between two actions
  Duration turn_delay_{};  // longest time from a wake-up to the turn
  Duration longest_deadline_{};
  int crashed_side_ = -1;
  bool want_late_handler_ = false;
  bool quotas_ = false;
};

}  // namespace sluice::sim

#endif  // SLUICE_TESTS_SIM_SIMULATION_H_
