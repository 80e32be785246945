// The half of <sluice/api/asio.h> that talks to Boost.Asio: a context driven from an
// executor, and one operation with its handler. Knows no kind of operation.
#ifndef SLUICE_API_ASIO_DRIVE_H_
#define SLUICE_API_ASIO_DRIVE_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/basic_waitable_timer.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/execution/outstanding_work.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/prefer.hpp>
#include <boost/asio/strand.hpp>

#include <sluice/api/context.h>
#include <sluice/api/progress_hook.h>
#include <sluice/base/clock.h>

namespace sluice::internal {

// Progresses a context on a strand whenever its descriptor or its next timeout says so,
// and only while somebody waits or is owed an answer: an io_context without work returns
// from run().
// Shared, because handlers that Asio still holds may outlive the AsioDriver.
class AsioDrive final : public ProgressHook, public std::enable_shared_from_this<AsioDrive> {
 public:
  using Executor = boost::asio::any_io_executor;  // a strand

  AsioDrive(const Executor& executor, Context& context)
      : context_(&context),
        executor_(boost::asio::make_strand(executor)),
        descriptor_(executor_),
        timer_(executor_) {}

  Status attach() {
    if (context_->forked())
      return Status(Code::kWrongState, Scope::kContext, "api/asio",
                    "the context belongs to the parent process");
    boost::system::error_code failed;
    descriptor_.assign(context_->fd(), failed);
    if (failed == boost::system::errc::file_exists) {
      return Status(Code::kWrongState, Scope::kContext, "api/asio",
                    "the context has a driver on this io_context already", failed.value());
    }
    if (failed) {
      return Status(Code::kNoMemory, Scope::kContext, "api/asio",
                    "the io_context cannot watch another descriptor; see fs.epoll.max_user_watches",
                    failed.value());
    }
    context_->add_hook(this);
    return Status();
  }
  void detach() {
    if (context_ == nullptr) return;
    context_->remove_hook(this);
    context_ = nullptr;
    (void)descriptor_.release();  // the descriptor stays the context's; its wait ends
    timer_.cancel();
  }

  // All that follows is called on the strand.
  const Executor& executor() const { return executor_; }
  Context* context() const { return context_; }  // null: detached

  // Somebody waits from here to end().
  void begin() {
    ++waiting_for_;
    owing_until_ = kNever;
  }
  void end() { --waiting_for_; }
  // As begin() and end(), for a program that serves. What was never started cannot be stopped.
  void start() {
    ++starts_;
    begin();
  }
  void stop() {
    if (starts_ == 0) return;
    --starts_;
    end();
  }

  // Another turn, soon: something was posted or cancelled.
  void schedule() {
    if (std::exchange(scheduled_, true)) return;
    boost::asio::post(executor_, [self = shared_from_this()] {
      self->scheduled_ = false;
      self->turn();
    });
  }

  // What has no completion is asked after each turn.
  class Poll {
   public:
    virtual bool poll(Instant now) = 0;  // true: over, ask no more
    virtual Instant poll_by() const = 0;

   protected:
    ~Poll() = default;
  };
  void add_poll(std::shared_ptr<Poll> poll) {
    polls_.push_back(std::move(poll));
    schedule();
  }

 private:
  // Rounds of progress before other handlers of the io_context get a turn.
  static constexpr int kRoundsPerTurn = 32;
  // How long answers that find no room are seen out once nobody waits here: as long as a
  // peer may be quiet before it counts as silent. Then the peer reads nothing, and gets them when
  // the context is progressed again.
  static constexpr Duration kSeenOut = std::chrono::seconds(3);

  // Somebody else progressed the context (a blocking call in a handler): it no longer
  // rings its descriptor, so look and prepare again.
  size_t progress(Instant) override {
    if (!in_turn_ && descriptor_armed_) schedule();
    return 0;
  }
  Instant next_timeout() override { return kNever; }

  void turn() {
    if (context_ == nullptr) return;
    in_turn_ = true;
    int rounds = 0;
    while (rounds < kRoundsPerTurn && context_->progress() > 0) ++rounds;
    in_turn_ = false;
    std::erase_if(polls_, [this](const auto& poll) { return poll->poll(context_->refresh_now()); });
    if (scheduled_) return;
    if (!needed()) return rest();
    resting_ = false;
    // Armed, then looked again: what comes from here on makes the descriptor readable.
    if (rounds == kRoundsPerTurn || !context_->prepare_to_sleep()) return schedule();
    arm();
  }

  // Somebody waits here, or a peer for the answer to what is over here: a message was
  // received, and its sender is to be told.
  bool needed() {
    if (waiting_for_ > 0) return true;
    if (!context_->has_unsent()) {
      owing_until_ = kNever;
      return false;
    }
    Instant now = context_->refresh_now();
    if (owing_until_ == kNever) owing_until_ = after(now, kSeenOut);
    return now < owing_until_;
  }

  // Nobody waits. The handlers just posted often start the next operation, so they run
  // before the descriptor and the timer, which are work to the io_context, are given up.
  void rest() {
    if (!descriptor_armed_ && timer_armed_for_ == kNever) return;
    if (!std::exchange(resting_, true)) return schedule();
    resting_ = false;
    owing_until_ = kNever;
    boost::system::error_code ignored;
    descriptor_.cancel(ignored);
    timer_.cancel();
    timer_armed_for_ = kNever;
  }

  // After rest().
  bool given_up() const { return waiting_for_ == 0 && owing_until_ == kNever; }

  void arm() {
    if (!std::exchange(descriptor_armed_, true)) {
      // Asio asks epoll anew with each wait, so what is readable already is seen.
      descriptor_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                             [self = shared_from_this()](boost::system::error_code) {
                               self->descriptor_armed_ = false;
                               // Also when given up: an operation may have started since.
                               if (!self->given_up()) self->turn();
                             });
    }
    Instant wake = std::min(context_->next_timeout(), owing_until_);
    for (const auto& poll : polls_) wake = std::min(wake, poll->poll_by());
    // A timer that comes too early only makes a turn that finds nothing.
    if (wake >= timer_armed_for_) return;
    timer_armed_for_ = wake;
    timer_.expires_at(wake);
    timer_.async_wait([self = shared_from_this()](boost::system::error_code cancelled) {
      if (cancelled) return;
      self->timer_armed_for_ = kNever;
      if (!self->given_up()) self->turn();
    });
  }

  Context* context_;
  Executor executor_;
  boost::asio::posix::stream_descriptor descriptor_;
  boost::asio::basic_waitable_timer<MonotonicClock> timer_;
  Instant timer_armed_for_ = kNever;
  std::vector<std::shared_ptr<Poll>> polls_;
  size_t waiting_for_ = 0;
  size_t starts_ = 0;             // of waiting_for_, those of start()
  Instant owing_until_ = kNever;  // set while nobody waits and answers are still to go out
  bool scheduled_ = false;
  bool descriptor_armed_ = false;
  bool in_turn_ = false;
  bool resting_ = false;
};

// One operation from its initiation to its handler's call. Shared by all that may end it
// and by the handler's cancellation slot.
template <typename Handler, typename Value>
class AsioOperation : public std::enable_shared_from_this<AsioOperation<Handler, Value>> {
 public:
  AsioOperation(std::shared_ptr<AsioDrive> drive, Handler&& handler)
      : drive_(std::move(drive)),
        handler_(std::move(handler)),
        slot_(boost::asio::get_associated_cancellation_slot(handler_)),
        executor_(boost::asio::prefer(
            AsioDrive::Executor(boost::asio::get_associated_executor(handler_, drive_->executor())),
            boost::asio::execution::outstanding_work.tracked)) {}
  virtual ~AsioOperation() = default;

  // Thread: the initiator's. Both lambdas run on the strand, in this order.
  void launch() {
    auto self = this->shared_from_this();
    if (slot_.is_connected()) {
      slot_.assign([weak = this->weak_from_this()](boost::asio::cancellation_type type) {
        auto self = weak.lock();
        // An operation that was under way may have taken part of its effect (its status
        // says so), which `total` alone forbids.
        using boost::asio::cancellation_type;
        if (!self || (type & (cancellation_type::terminal | cancellation_type::partial)) ==
                         cancellation_type::none)
          return;
        boost::asio::post(self->drive_->executor(), [self] {
          if (!self->done_) self->cancel();
        });
      });
    }
    boost::asio::dispatch(drive_->executor(), [self] {
      self->drive_->begin();
      if (Context* context = self->drive_->context()) {
        (void)context->refresh_now();  // deadlines count from now, not from the last turn
        self->start();
      } else {
        self->refuse(
            Status(Code::kWrongState, Scope::kContext, "api/asio", "the AsioDriver is gone"));
      }
    });
  }

 protected:
  virtual void start() = 0;
  virtual void cancel() = 0;
  virtual void refuse(const Status& why) = 0;  // instead of start()

  AsioDrive& drive() { return *drive_; }

  // Never calls the handler from inside: this may be in the middle of progress().
  void complete(Value value) {
    done_ = true;
    drive_->end();
    boost::asio::post(executor_,
                      [self = this->shared_from_this(), value = std::move(value)]() mutable {
                        // The slot is emitted where the handler runs, so nobody is in the middle of
                        // it.
                        if (self->slot_.is_connected()) self->slot_.clear();
                        Handler handler = std::move(self->handler_);
                        self.reset();
                        std::move(handler)(std::move(value));
                      });
  }

 private:
  std::shared_ptr<AsioDrive> drive_;
  Handler handler_;
  boost::asio::associated_cancellation_slot_t<Handler> slot_;
  AsioDrive::Executor executor_;  // the handler's, whose run() does not return meanwhile
  bool done_ = false;
};

}  // namespace sluice::internal

#endif  // SLUICE_API_ASIO_DRIVE_H_
