// A link that goes wrong as the plan says: calls refused, arrivals late, one call lost or
// broken. Between a session and any path; knows neither. Here what all kinds of links share;
// each kind has a class in kinds.h.
//
// Harmless faults stay within the contract of sluice::Link: messages keep their order, DATA
// never overtakes a message, what was accepted goes out.
#ifndef SLUICE_FAULT_LINK_H_
#define SLUICE_FAULT_LINK_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include <sluice/fault/injector.h>
#include <sluice/fault/plan.h>
#include <sluice/spi/link_decorator.h>

namespace sluice::fault {

class FaultyLink : public LinkClient {
 public:
  // Once in each round of the context. Returns how much it did.
  size_t turn(Instant now);
  // Something is held back, so turn() must come.
  bool waiting() const;

  // LinkClient.
  Status handle_message(ConstBytes header, PayloadReader& payload, Instant now) override;
  Status handle_tagged_inline(const wire::TaggedInline& message, PayloadReader& payload,
                              Instant now) override;
  bool note_messages(uint32_t messages, Duration took, Instant now) override {
    return client_->note_messages(messages, took, now);
  }
  bool overdrawn(Instant now) const override { return client_->overdrawn(now); }
  void writable(Instant now) override;
  void link_down(const Status& why, Instant now) override;

 protected:
  // `inner` is valid until close_path() returns.
  FaultyLink(std::shared_ptr<Injector> injector, sluice::Link& inner, uint32_t connection);
  ~FaultyLink() = default;

  void set_session(LinkClient* session) { client_ = session; }
  bool send_message(ConstBytes header, std::span<const ConstBytes> payload);
  void flush_messages();
  void close_path();

  // Of links with DATA.
  // The second piece of a push() waits for room.
  virtual bool has_rest() const { return false; }
  // False: no room yet, the inner link's writable() follows.
  virtual bool push_rest() { return true; }
  // Reports of what has left are held back.
  virtual bool has_reports() const { return false; }
  virtual size_t deliver_reports(Instant /*now*/, bool /*all*/) { return 0; }
  // The path is over: nothing of them is kept.
  virtual void drop_data() {}

  // For the calls that a kind adds.
  bool over() const { return closed_ || down_; }
  bool broken() const { return !breaking_.ok(); }
  Action strike(Call call) { return injector_->strike(call, connection_); }
  bool hold_back() { return injector_->hold_back(); }
  bool split_push() { return injector_->split_push(); }
  uint32_t turns() { return injector_->turns(); }
  uint64_t below(uint64_t bound) { return injector_->below(bound); }
  void break_path(Call call);
  bool no_room();
  void maybe_wake();
  size_t deliver_arrivals(Instant now, bool all);
  Instant last_time() const { return now_; }

 private:
  struct Arrival {
    std::vector<std::byte> header, payload;
    uint32_t turns = 0;
  };
  void say_writable(Instant now);
  Arrival copy(ConstBytes header, PayloadReader& payload);
  Status hand_over(const Arrival& arrival, Instant now);
  void end(const Status& why, Instant now);

  std::shared_ptr<Injector> injector_;
  LinkClient* client_ = nullptr;
  uint32_t connection_;
  sluice::Link& inner_;

  std::deque<Arrival> arrivals_;
  std::vector<Arrival> overtaken_;  // one at most, behind the next arrival
  Instant now_{};                   // of the last call with a time
  uint32_t writable_in_ = 0;        // turns until writable(); 0: none is due
  bool refusing_ = false;           // we said "no room": writable() must follow
  Status breaking_;                 // told at the next turn
  bool down_ = false;               // link_down() was called
  bool closed_ = false;
};

}  // namespace sluice::fault

#endif  // SLUICE_FAULT_LINK_H_
