// One TCP connection as a path for a session: frames over a byte stream, payload from
// tensor memory and into it without a stop in between. Knows nothing of sessions but
// the LinkClient; nothing of other links but the group's buffers and its own further streams.
//
// A frame is a message of wire/messages.h as it stands: its header says how long it is.
//
// A link may have further streams: TCP connections between the same two ends, each a TcpLink that
// carries DATA alone. The first stream then carries everything else, and no more DATA. Two orders
// hold across them. DATA is not placed before what was sent on the first stream before it: it says
// how many messages those were. And BYE, or the end of the first stream, counts when the further
// ones are read out: whoever sends BYE ends them for writing.
#ifndef SLUICE_TCP_LINK_H_
#define SLUICE_TCP_LINK_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <sluice/proto/connection_ticket.h>
#include <sluice/proto/idle_talk.h>
#include <sluice/proto/turn_budget.h>
#include <sluice/runtime/context_core.h>
#include <sluice/spi/link.h>
#include <sluice/tcp/link_group.h>
#include <sluice/tcp/socket.h>

namespace sluice::tcp {

const LinkTraits& link_traits();  // to a peer on another machine

class TcpLink final : public StreamLink, public EventHandler {
 public:
  // Requires: `fd` is connected and non-blocking; the group outlives close().
  // `traits` outlives the link.
  TcpLink(LinkGroup& group, Descriptor fd, const LinkTraits& traits = link_traits());
  ~TcpLink() override;
  TcpLink(const TcpLink&) = delete;
  TcpLink& operator=(const TcpLink&) = delete;

  // Errors: kNoMemory (epoll).
  Status watch();
  // Who is called. Requires: set before the context's next progress; outlives close().
  void set_client(LinkClient* session, StreamClient* transfer) override {
    client_ = session;
    transfer_ = transfer;
  }

  const LinkTraits& traits() const override { return *traits_; }
  // Takes bulk over another connection to the same peer, from now on. Requires: as the constructor;
  // this link is no further stream itself. Errors: kNoMemory (epoll).
  Status add_stream(Descriptor fd, proto::ConnectionTicket ticket);
  // One was added, or will not be.
  void streams_changed();
  // The group is asked for further streams once so many bytes of DATA have passed.
  void ask_for_streams_after(uint64_t bytes) { bulk_until_asked_ = bytes; }
  int fd() const { return fd_.value(); }

  bool send(ConstBytes header, std::span<const ConstBytes> payload) override;
  bool push(ConstBytes header, std::span<const ConstBytes> payload, uint64_t cookie) override {
    return push_by(header, payload, cookie, false);
  }
  bool lend(ConstBytes header, std::span<const ConstBytes> payload, uint64_t cookie) override {
    return push_by(header, payload, cookie, true);
  }
  uint64_t uncopied_out(uint64_t bytes) override;
  void settle(uint64_t cookie) override;
  void flush() override;
  bool may_reorder() const override { return further_ != nullptr; }
  uint32_t streams() const override;
  bool has_unsent() const override;
  // No peer can reach our memory, but the kernel may have to send of it yet.
  void quarantine(StorageRef memory) override;
  void close() override;
  std::string local_name() const override { return local_name_; }
  std::string peer_name() const override { return peer_name_; }

  void on_event(uint32_t epoll_events) noexcept override;

  // A large payload is on its way in or out: the next event is some time off.
  bool in_bulk() const { return data_left_ > 0 || blocked_; }

 private:
  friend class LinkGroup;
  friend class StagedPayload;

  // For the group.
  void run(Instant now);
  size_t poll(Instant now);
  bool check_answered(Instant now);  // false: nothing is out any more

  // link.cc: out, and the end.
  bool usable() const { return !closed_ && !down_; }
  bool push_by(ConstBytes header, std::span<const ConstBytes> payload, uint64_t cookie,
               bool lendable);
  bool enqueue(ConstBytes header, std::span<const ConstBytes> payload, uint64_t cookie,
               bool lendable);
  void flush_own();
  void report_pushed(Instant now);
  void take_down();
  // Writes what is queued, at most so much: the rest leaves in the next turn.
  void write_out(size_t most);
  void queue_rest(ConstBytes header, std::span<const ConstBytes> payload, size_t taken);
  void note_blocked();
  void return_queue_if_empty();
  void report(Instant now);
  void note_broken(int os_error);
  void fail(const Status& why, Instant now);
  void end_of_stream(int os_error, Instant now);
  void corrupt(const Status& why, Instant now);

  // link_receive.cc: in.
  size_t receive(Instant now);
  ssize_t receive_staged(Instant now);
  ssize_t receive_data(Instant now);
  ssize_t drop_data(Instant now);
  void make_room(StagingBlock& block);
  ssize_t ended(ssize_t got, int os_error, Instant now);
  void parse(Instant now);
  bool parse_message(Instant now);
  bool start_data(const wire::Header& common, Instant now);
  bool place_staged(Instant now);
  bool data_arrived(uint64_t length, Instant now);
  void return_block();

  // link_lending.cc: payload that the kernel sends out of the tensors' pages.
  bool may_lend();
  void start_lending();
  bool write_lending(size_t& most);
  bool any_lent() const;
  // Requires: usable(). False: not any more.
  bool collect(Instant now) { return loans_ == nullptr || collect_loans(now); }
  bool collect_loans(Instant now);
  void report_returned(Instant now);
  void end_socket();

  // link_streams.cc: the further streams.
  struct Stream {
    std::unique_ptr<TcpLink> link;
    proto::ConnectionTicket ticket;
  };
  struct Further {
    std::vector<Stream> streams;
    size_t next = 0;  // the one that is asked first
  };
  // Of the first stream.
  bool push_further(ConstBytes header, std::span<const ConstBytes> payload, uint64_t cookie,
                    bool lendable);
  void end_further();
  void close_further();
  bool further_read_out() const;
  void wake_further();
  void stop_opening();
  void hold(Instant now);
  void await_end(Instant now);
  void check_patience(Instant now);
  void note_progress(Instant now) {
    last_progress_ = now;
    patience_over_ = false;
  }
  void let_go();
  void count_bulk(uint64_t length) {
    if (bulk_until_asked_ > 0) [[unlikely]]
      ask_for_streams(length);
  }
  void ask_for_streams(uint64_t length);
  template <typename Visit>
  void for_each_further(Visit&& visit) const {
    if (further_ == nullptr) [[likely]]
      return;
    for (const Stream& stream : further_->streams) visit(*stream.link);
  }
  // Of a further one.
  bool early() const { return first_ != nullptr && data_after_ > first_->handled_; }
  Status check_order(const wire::Data& data) const;
  void read_out();
  void stream_broken();
  void end_writing_if_empty();

  LinkGroup* group_;
  const LinkTraits* traits_;
  LinkClient* client_ = nullptr;
  StreamClient* transfer_ = nullptr;
  Descriptor fd_;
  std::string local_name_, peer_name_;

  // Out. No queue while nothing waits.
  std::unique_ptr<OutputQueue> queue_;
  int broken_ = 0;          // errno of a write: told after what has arrived was read
  bool blocked_ = false;    // the socket took less than it was given; EPOLLOUT follows
  bool want_room_ = false;  // send() or push() said no
  bool ending_ = false;     // nothing is written behind what is queued
  uint64_t sent_ = 0;       // messages that are not DATA

  // Lent. Null: never.
  enum class Lending : uint8_t { kUndecided, kOn, kOff };
  Lending lending_ = Lending::kUndecided;
  std::unique_ptr<PageLoans> loans_;
  // Of the first stream.
  uint64_t uncopied_ = 0;                   // of what pushed() tells just now
  std::unique_ptr<SocketRemains> remains_;  // what is left to the group with close()

  // In. No block while nothing is half read.
  std::unique_ptr<StagingBlock> block_;
  size_t read_ahead_;
  size_t needed_ = 0;     // bytes missing of the message at the block's beginning
  uint64_t data_id_ = 0;  // the DATA message whose payload is arriving
  uint64_t data_offset_ = 0;
  uint64_t data_left_ = 0;
  uint64_t data_after_ = 0;  // of a further stream: messages of the first one that come before it
  uint64_t handled_ = 0;     // messages that are not DATA
  uint64_t staged_copied_ = 0;
  bool readable_ = false;              // the socket may hold more
  bool peer_ended_ = false;            // read until the end of the stream, whatever comes
  bool unparsed_ = false;              // the turn ended before the messages in the block did
  proto::TurnBudget* turn_ = nullptr;  // while receiving
  uint64_t cut_in_ = 0;                // the group's turn of which it used up its part
  bool receiving_ = false;
  proto::IdleTalk idle_talk_;
  bool held_back_ = false;  // what comes next is left in the socket for now

  // Further streams. Null: there are none, or this is one.
  std::unique_ptr<Further> further_;
  TcpLink* first_ = nullptr;       // this is a further stream of that link
  bool waits_for_first_ = false;   // its DATA came early
  bool read_out_ = false;          // the peer has ended it, and all of it was read
  bool held_ = false;              // BYE or the end waits for the further streams
  bool stream_broke_ = false;      // a further one did: BYE or the end may follow here
  bool overdue_ = false;           // neither is waited for any more
  Instant last_progress_{};        // of the further streams, while one of these waits
  bool patience_over_ = false;     // as the last look found it
  uint64_t bulk_until_asked_ = 0;  // 0: nobody asks

  bool down_ = false;  // link_down() was called
  bool closed_ = false;
  uint32_t fruitless_polls_ = 0;
  size_t todo_place_ = Roster::kNotIn;
  size_t unanswered_place_ = Roster::kNotIn;
};

}  // namespace sluice::tcp

#endif  // SLUICE_TCP_LINK_H_
