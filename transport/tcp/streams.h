// Further streams of TCP connections: who may join, and where the end that connected opens some.
// One stream carries no more in a round trip than one machine's buffers hold, and slows down by
// itself when a frame is lost. Knows no sessions.
#ifndef SLUICE_TCP_STREAMS_H_
#define SLUICE_TCP_STREAMS_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <unordered_map>
#include <vector>

#include <sluice/api/address.h>
#include <sluice/api/task.h>
#include <sluice/runtime/context_core.h>
#include <sluice/tcp/greeting_listener.h>
#include <sluice/tcp/link_group.h>

namespace sluice::tcp {

// Thread: the context's. Requires: the context outlives it.
class Streams final : public StreamSource, public StreamTaker {
 public:
  // Reads $SLUICE_TCP_STREAMS and $SLUICE_TCP_STREAMS_FROM_US.
  explicit Streams(ContextCore& context);
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  // Whether this side takes and opens any.
  bool wanted() const { return most_ > 1; }
  // Of the side that listened: who says the token joins this link.
  void expect(TcpLink& link, const wire::Uuid& token);
  // Of the side that connected: streams with the peer's token are opened once the link has moved a
  // chunk of bulk, if its round trip is long; with its first bulk, if every round trip is.
  void may_open(TcpLink& link, const wire::Uuid& token);

  bool expects(const wire::Uuid& token) const override;
  void take_stream(Greeting&& greeting) override;
  void ask_for_streams(TcpLink& link) override { asking_.push_back(&link); }
  bool joining(const TcpLink& link) const override;
  void stop_opening(TcpLink& link) override;
  void forget(TcpLink& link) override;

  // Opens, and gives links what was opened. Returns how much it did.
  size_t progress() { return has_work() ? open_and_give() : 0; }
  bool has_work() const;
  void shut_down();

 private:
  struct ByToken {
    size_t operator()(const wire::Uuid& token) const;  // random already
  };
  // One that is being opened. What the task refers to outlives it.
  struct Opening {
    TcpLink* link;
    Address address;
    bool asked = false;  // the peer may have taken it
    std::optional<Task<Result<Greeting>>> task;
  };
  size_t open_and_give();
  void open(TcpLink& link);
  void give(TcpLink& link, Result<Greeting> greeting);
  void add(TcpLink& link, Greeting&& greeting);

  ContextCore& context_;
  uint64_t most_;
  Duration from_round_trip_;
  std::unordered_map<wire::Uuid, TcpLink*, ByToken> expected_;
  std::unordered_map<const TcpLink*, wire::Uuid> tokens_;  // of both kinds
  std::vector<TcpLink*> asking_;
  std::list<Opening> openings_;
};

}  // namespace sluice::tcp

#endif  // SLUICE_TCP_STREAMS_H_
