#include <sluice/tcp/link_group.h>

#include <algorithm>
#include <utility>

#include <sluice/base/clock.h>
#include <sluice/tcp/link.h>

namespace sluice::tcp {
namespace {

// Polls in a row that find nothing before a link is left to epoll: about 100 us of them.
constexpr uint32_t kFruitlessPolls = 400;
// How often the kernel is asked about links with unanswered bytes: often enough that
// kUnpluggedAfter is kept to a third.
constexpr Duration kAnswerCheck = std::chrono::seconds(1);
// How long links are read and written in one turn before the rest waits for the next. Each takes
// 100 us at most. It is short because a request and its answer wait behind another link's flood
// once in each round trip.
constexpr Duration kLinksTime = std::chrono::microseconds(300);
// What a link writes before others have their turn: about 30 us of the kernel's copying if other
// links are polled, else enough that a socket's buffer does not run dry in a turn.
constexpr size_t kBytesPerWrite = size_t{256} << 10;
constexpr size_t kBytesPerLoneWrite = size_t{1} << 20;
// Buffers kept for the next link that needs one.
constexpr size_t kSpares = 8;

}  // namespace

void Roster::add(TcpLink* link, size_t& place) {
  if (place != kNotIn) return;
  place = links_.size();
  links_.push_back(link);
  ++count_;
}

void Roster::remove(size_t& place) {
  if (place == kNotIn) return;
  links_[place] = nullptr;
  place = kNotIn;
  if (--count_ == 0) {
    // Those who walk it look at size() each time.
    links_.clear();
  }
}

size_t LinkGroup::progress(Instant now) {
  if (walking_) return 0;
  turn_start_.reset();
  ++turn_;
  size_t work = 0;
  // A turn that was cut short goes on behind the one that was read last.
  if (first_hot_ > 0 && first_hot_ < hot_count_) {
    std::rotate(hot_.begin(), hot_.begin() + static_cast<ptrdiff_t>(first_hot_),
                hot_.begin() + static_cast<ptrdiff_t>(hot_count_));
  }
  first_hot_ = 0;
  for (size_t i = 0; i < hot_count_;) {
    TcpLink* link = hot_[i];
    if (link->poll(now) > 0) {
      link->fruitless_polls_ = 0;
      ++work;
      if (i + 1 < hot_count_ && turn_over()) {
        first_hot_ = i + 1;
        break;
      }
    } else if (i < hot_count_ && hot_[i] == link && ++link->fruitless_polls_ >= kFruitlessPolls) {
      hot_[i] = hot_[--hot_count_];
      continue;
    }
    if (i < hot_count_ && hot_[i] == link) ++i;  // else it left, and another took its place
  }
  work += run_todo(now);
  if (!unanswered_.empty() && now >= next_check_) work += check_answers(now);
  if (now >= remains_.next_look()) work += remains_.look(now);
  return work + std::exchange(handled_, 0);
}

bool LinkGroup::turn_over() {
  const Instant now = sluice::now();
  if (!turn_start_) turn_start_ = now;
  return now - *turn_start_ >= kLinksTime;
}

size_t LinkGroup::bytes_per_write(const TcpLink* link) const {
  const bool alone = std::all_of(hot_.begin(), hot_.begin() + static_cast<ptrdiff_t>(hot_count_),
                                 [link](const TcpLink* other) { return other == link; });
  return alone ? kBytesPerLoneWrite : kBytesPerWrite;
}

size_t LinkGroup::run_todo(Instant now) {
  if (todo_.empty() || walking_) return 0;
  walking_ = true;
  size_t work = 0;
  // Links that add themselves again wait for the next round, behind those that have not had their
  // turn.
  for (size_t i = 0, round = todo_.size(); i < std::min(round, todo_.size()); ++i) {
    TcpLink* link = todo_.at(i);
    if (link == nullptr) continue;
    if (work > 0 && turn_over()) break;
    todo_.remove(link->todo_place_);
    if (todo_.empty()) round = 0;  // it was the last: what comes now is the next round
    link->run(now);
    ++work;
  }
  todo_.compact([](TcpLink* link, size_t place) { link->todo_place_ = place; });
  walking_ = false;
  return work;
}

bool LinkGroup::in_bulk() const {
  return std::any_of(hot_.begin(), hot_.begin() + static_cast<ptrdiff_t>(hot_count_),
                     [](TcpLink* link) { return link->in_bulk(); });
}

void LinkGroup::begin_sleep() {
  sleeping_ = true;
  hot_count_ = 0;
}

// Returns how many links it took down.
size_t LinkGroup::check_answers(Instant now) {
  walking_ = true;
  size_t down = 0;
  for (size_t i = 0; i < unanswered_.size(); ++i) {
    TcpLink* link = unanswered_.at(i);
    if (link == nullptr || link->check_answered(now)) continue;
    down += link->usable() ? 0 : 1;
    unanswered_.remove(link->unanswered_place_);
  }
  unanswered_.compact([](TcpLink* link, size_t place) { link->unanswered_place_ = place; });
  walking_ = false;
  next_check_ = after(now, kAnswerCheck);
  return down;
}

void LinkGroup::make_hot(TcpLink* link) {
  if (sleeping_) return;
  for (size_t i = 0; i < hot_count_; ++i) {
    if (hot_[i] == link) return;
  }
  link->fruitless_polls_ = 0;
  if (hot_count_ < kHotLinks) {
    hot_[hot_count_++] = link;
    return;
  }
  // The one that has been quiet longest gives way, if it is quiet at all.
  auto quietest = std::max_element(
      hot_.begin(), hot_.end(),
      [](const TcpLink* a, const TcpLink* b) { return a->fruitless_polls_ < b->fruitless_polls_; });
  if ((*quietest)->fruitless_polls_ > 0) *quietest = link;
}

void LinkGroup::add_todo(TcpLink* link) { todo_.add(link, link->todo_place_); }

void LinkGroup::await_answer(TcpLink* link) {
  if (link->unanswered_place_ != Roster::kNotIn) return;
  if (unanswered_.empty()) next_check_ = after(context_.now(), kAnswerCheck);
  unanswered_.add(link, link->unanswered_place_);
}

void LinkGroup::forget(TcpLink* link) {
  todo_.remove(link->todo_place_);
  unanswered_.remove(link->unanswered_place_);
  auto end = hot_.begin() + static_cast<ptrdiff_t>(hot_count_);
  auto found = std::find(hot_.begin(), end, link);
  if (found != end) *found = hot_[--hot_count_];
  if (streams_ != nullptr) streams_->forget(*link);
}

std::unique_ptr<StagingBlock> LinkGroup::take_block() {
  if (spare_blocks_.empty()) return std::unique_ptr<StagingBlock>(new StagingBlock);
  auto block = std::move(spare_blocks_.back());
  spare_blocks_.pop_back();
  return block;
}

void LinkGroup::return_block(std::unique_ptr<StagingBlock> block) {
  block->begin = block->end = 0;
  if (spare_blocks_.size() < kSpares) spare_blocks_.push_back(std::move(block));
}

std::unique_ptr<OutputQueue> LinkGroup::take_queue() {
  if (spare_queues_.empty()) return std::make_unique<OutputQueue>();
  auto queue = std::move(spare_queues_.back());
  spare_queues_.pop_back();
  return queue;
}

void LinkGroup::return_queue(std::unique_ptr<OutputQueue> queue) {
  queue->clear();
  if (spare_queues_.size() < kSpares) spare_queues_.push_back(std::move(queue));
}

}  // namespace sluice::tcp
