// What the links of one context share: buffers for bytes in passing, the short list of
// links that are polled, the lists of links with something to do. An idle link is on no
// list and costs nothing here. Knows no sessions.
#ifndef SLUICE_TCP_LINK_GROUP_H_
#define SLUICE_TCP_LINK_GROUP_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include <sluice/runtime/context_core.h>
#include <sluice/tcp/output_queue.h>
#include <sluice/tcp/socket_remains.h>

namespace sluice::tcp {

class TcpLink;

// Finds further streams for links.
class StreamSource {
 public:
  // The link has moved the bulk that it was to ask after. Called from its turn.
  virtual void ask_for_streams(TcpLink& link) = 0;
  // Whether the peer may have taken a stream that the link does not have yet.
  virtual bool joining(const TcpLink& link) const = 0;
  // No others are wanted.
  virtual void stop_opening(TcpLink& link) = 0;
  // The link is down or closed: it gets none.
  virtual void forget(TcpLink& link) = 0;

 protected:
  ~StreamSource() = default;
};

// Received bytes between the socket and their destination.
struct StagingBlock {
  // The longest control message with its inline payload, and room to read on behind it.
  static constexpr size_t kBytes = wire::kMaxHeaderBytes + wire::kMaxInlineBytes + 8192;
  size_t begin = 0;
  size_t end = 0;
  std::array<std::byte, kBytes> bytes;

  size_t size() const { return end - begin; }
  std::byte* data() { return bytes.data() + begin; }
};

// Links by membership; each link knows its place, so that leaving is O(1).
class Roster {
 public:
  static constexpr size_t kNotIn = static_cast<size_t>(-1);
  bool empty() const { return count_ == 0; }
  size_t size() const { return links_.size(); }
  void add(TcpLink* link, size_t& place);
  void remove(size_t& place);
  TcpLink* at(size_t i) const { return links_[i]; }
  // Forgets the places left behind. Requires: nobody walks the roster.
  template <typename SetPlace>
  void compact(SetPlace&& set_place) {
    size_t kept = 0;
    for (TcpLink* link : links_) {
      if (link == nullptr) continue;
      set_place(link, kept);
      links_[kept++] = link;
    }
    links_.resize(kept);
  }

 private:
  std::vector<TcpLink*> links_;  // null: left
  size_t count_ = 0;
};

class LinkGroup {
 public:
  // Requires: the context outlives the group, the group outlives its links' close().
  // `streams` outlives it, or is null: then no link has further ones.
  explicit LinkGroup(ContextCore& context, StreamSource* streams = nullptr)
      : context_(context), streams_(streams) {}
  LinkGroup(const LinkGroup&) = delete;
  LinkGroup& operator=(const LinkGroup&) = delete;

  // Reads the hot links, then runs what is left to do. Returns how much was done.
  size_t progress(Instant now);
  // Upcalls and writes that could not be made where they arose.
  size_t run_todo(Instant now);
  bool has_work() const { return !todo_.empty(); }
  // Closed sockets that the kernel still sends from tensors' pages.
  bool has_remains() const { return !remains_.empty(); }
  void drop_remains() { remains_.clear(); }
  // For links that begin to lend from now on.
  void set_lending(const LendingRules& rules) { lending_ = rules; }
  // True if a link that was lately busy moves a large payload.
  bool in_bulk() const;
  void begin_sleep();
  void end_sleep() { sleeping_ = false; }
  // When progress() must ask the kernel whether peers still answer.
  Instant next_timeout() const {
    return std::min(unanswered_.empty() ? kNever : next_check_, remains_.next_look());
  }
  ContextCore& context() { return context_; }

 private:
  friend class TcpLink;
  static constexpr size_t kHotLinks = 4;

  // Messages and reads that a link has handled. They count as work, so that the context looks at
  // its descriptors sooner after a long turn.
  void note_handled(size_t messages) { handled_ += messages; }
  // Number of the current turn, from 1 on.
  uint64_t turn() const { return turn_; }
  void make_hot(TcpLink* link);
  void add_todo(TcpLink* link);
  void await_answer(TcpLink* link);
  void forget(TcpLink* link);
  void ask_for_streams(TcpLink& link) {
    if (streams_ != nullptr) streams_->ask_for_streams(link);
  }
  bool joining(const TcpLink& link) const { return streams_ != nullptr && streams_->joining(link); }
  void stop_opening(TcpLink& link) {
    if (streams_ != nullptr) streams_->stop_opening(link);
  }
  size_t check_answers(Instant now);
  // Asked between two links that have something: whether those of this turn have used its time. The
  // rest comes first in the next turn.
  bool turn_over();

  // How much of what is queued a link may write before others have their turn.
  size_t bytes_per_write(const TcpLink* link) const;

  std::unique_ptr<StagingBlock> take_block();
  void return_block(std::unique_ptr<StagingBlock> block);
  std::unique_ptr<OutputQueue> take_queue();
  void return_queue(std::unique_ptr<OutputQueue> queue);

  ContextCore& context_;
  StreamSource* const streams_;
  std::array<TcpLink*, kHotLinks> hot_{};
  size_t hot_count_ = 0;
  size_t handled_ = 0;  // since the last turn
  uint64_t turn_ = 1;
  Roster todo_;
  Roster unanswered_;
  Instant next_check_ = kNever;
  LendingRules lending_;
  RemainsList remains_;
  // When this turn began to read links; none: no link had anything yet.
  std::optional<Instant> turn_start_;
  size_t first_hot_ = 0;
  std::vector<std::unique_ptr<StagingBlock>> spare_blocks_;
  std::vector<std::unique_ptr<OutputQueue>> spare_queues_;
  bool sleeping_ = false;
  bool walking_ = false;
};

}  // namespace sluice::tcp

#endif  // SLUICE_TCP_LINK_GROUP_H_
