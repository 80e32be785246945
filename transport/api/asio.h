// Boost.Asio on top of a Context: operations take completion tokens (use_awaitable,
// use_future, deferred, a callback) and run on an io_context, which sleeps on
// Context::fd(). The only public header that needs Boost, with the half of it that is in
// asio_drive.h. Knows no backend; it drives what it can co_await (a fetch, a Task) without
// knowing the type.
#ifndef SLUICE_API_ASIO_H_
#define SLUICE_API_ASIO_H_

#include <coroutine>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/io_context.hpp>

#include <sluice/api/asio_drive.h>
#include <sluice/api/connecting.h>
#include <sluice/api/context.h>

namespace sluice {

namespace internal {

// An operation of an endpoint. Request: post(core, options), and give_back(completion)
// for what the post did not take.
template <typename Handler, typename Request>
class AsioPost final : public AsioOperation<Handler, Completion>, private CompletionSink {
 public:
  AsioPost(std::shared_ptr<AsioDrive> drive, Handler&& handler, std::shared_ptr<EndpointCore> core,
           Request&& request, const PostOptions& options)
      : AsioOperation<Handler, Completion>(std::move(drive), std::move(handler)),
        core_(std::move(core)),
        request_(std::move(request)),
        options_(options) {}

 private:
  void start() override {
    options_.sink = this;
    Result<OperationId> id = request_.post(*core_, options_);
    if (!id.ok()) return refuse(id.status());
    id_ = *id;
    posted_ = this->shared_from_this();
    this->drive().schedule();
  }
  void cancel() override {
    (void)internal::cancel(*core_, id_);
    this->drive().schedule();
  }
  void refuse(const Status& why) override {
    Completion refused;
    refused.status = why;
    refused.user_data = options_.user_data;
    request_.give_back(refused);
    this->complete(std::move(refused));
  }
  void on_completion(Completion&& completion) noexcept override {
    auto self = std::move(posted_);
    this->complete(std::move(completion));
  }

  std::shared_ptr<EndpointCore> core_;
  Request request_;
  PostOptions options_;
  OperationId id_ = kNoOperation;
  std::shared_ptr<AsioOperation<Handler, Completion>>
      posted_;  // itself, while the endpoint has it as its sink
};

struct AsioSend {
  Tag tag;
  std::vector<Tensor> segments;
  Result<OperationId> post(EndpointCore& core, const PostOptions& options) {
    return post_send(core, tag, segments, options);
  }
  void give_back(Completion&) {}
};
struct AsioReceive {
  TagMatch match;
  std::vector<Buffer> into;
  Result<OperationId> post(EndpointCore& core, const PostOptions& options) {
    return post_receive(core, match, into, options);
  }
  void give_back(Completion& completion) {
    for (Buffer& buffer : into) completion.buffers.emplace_back(std::move(buffer));
  }
};
struct AsioRead {
  RemoteKey key;
  uint64_t offset;
  Buffer into;
  Result<OperationId> post(EndpointCore& core, const PostOptions& options) {
    return post_read(core, key, offset, into, options);
  }
  void give_back(Completion& completion) { completion.buffers.emplace_back(std::move(into)); }
};
struct AsioWrite {
  RemoteKey key;
  uint64_t offset;
  Tensor from;
  Result<OperationId> post(EndpointCore& core, const PostOptions& options) {
    return post_write(core, key, offset, from, options);
  }
  void give_back(Completion&) {}
};

template <typename Handler>
class AsioAccept final : public AsioOperation<Handler, Result<Endpoint>>, public AsioDrive::Poll {
 public:
  AsioAccept(std::shared_ptr<AsioDrive> drive, Handler&& handler, Listener& listener,
             Instant deadline)
      : AsioOperation<Handler, Result<Endpoint>>(std::move(drive), std::move(handler)),
        listener_(&listener),
        deadline_(deadline) {}

 private:
  void start() override {
    this->drive().add_poll(std::static_pointer_cast<AsioAccept>(this->shared_from_this()));
  }
  void cancel() override {
    cancelled_ = true;
    this->drive().schedule();
  }
  void refuse(const Status& why) override { this->complete(why); }
  bool poll(Instant now) override {
    if (cancelled_) {
      refuse(Status(Code::kCancelled, Scope::kOperation, "api/asio", "cancelled by the caller"));
      return true;
    }
    Result<Endpoint> endpoint = listener_->try_accept();
    if (!endpoint.ok() && endpoint.code() == Code::kTryAgain) {
      if (now < deadline_) return false;
      endpoint = Status(Code::kTimedOut, Scope::kOperation, "api/asio",
                        "nobody connected to " + listener_->address() + " before the deadline");
    }
    this->complete(std::move(endpoint));
    return true;
  }
  Instant poll_by() const override { return deadline_; }

  Listener* listener_;
  Instant deadline_;
  bool cancelled_ = false;
};

template <typename Handler>
class AsioClose final : public AsioOperation<Handler, Status>, public AsioDrive::Poll {
 public:
  AsioClose(std::shared_ptr<AsioDrive> drive, Handler&& handler, Endpoint&& endpoint,
            Instant deadline)
      : AsioOperation<Handler, Status>(std::move(drive), std::move(handler)),
        endpoint_(std::move(endpoint)),
        deadline_(deadline) {}

 private:
  void start() override {
    this->drive().add_poll(std::static_pointer_cast<AsioClose>(this->shared_from_this()));
  }
  void cancel() override {
    deadline_ = Instant{};
    why_ = Code::kCancelled;
    this->drive().schedule();
  }
  void refuse(const Status& why) override { this->complete(why); }
  // First asked after a round of progress: views dropped just before are given back with
  // a RELEASE, not by the end of it all.
  bool poll(Instant now) override {
    if (!std::exchange(started_, true)) {
      endpoint_.start_close();
      this->drive().schedule();
    }
    Status status;
    if (endpoint_.state() != EndpointState::kClosed) {
      if (now < deadline_) return false;
      status = Status(why_, Scope::kEndpoint, "api/asio",
                      "closed at once: the peer had not answered the close yet");
      endpoint_.abort(status);
    }
    endpoint_ = Endpoint();
    this->complete(status);
    return true;
  }
  Instant poll_by() const override { return deadline_; }

  Endpoint endpoint_;
  Instant deadline_;
  Code why_ = Code::kTimedOut;
  bool started_ = false;
};

// Runs a coroutine that nobody holds: it ends itself.
struct AsioDetached {
  struct promise_type {
    AsioDetached get_return_object() noexcept { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() noexcept {}
    void unhandled_exception() noexcept { std::terminate(); }
  };
};

template <typename Start>
using AsioPending = std::decay_t<std::invoke_result_t<Start&>>;
template <typename Start>
using AsioAwaited = std::decay_t<decltype(std::declval<AsioPending<Start>&>().await_resume())>;

template <typename Handler, typename Start>
class AsioAwait final : public AsioOperation<Handler, AsioAwaited<Start>> {
 public:
  using Value = AsioAwaited<Start>;
  AsioAwait(std::shared_ptr<AsioDrive> drive, Handler&& handler, Start&& start)
      : AsioOperation<Handler, Value>(std::move(drive), std::move(handler)),
        start_(std::move(start)) {}

 private:
  void start() override {
    pending_.emplace(start_());
    await(std::static_pointer_cast<AsioAwait>(this->shared_from_this()));
    this->drive().schedule();
  }
  void cancel() override {
    if constexpr (requires(AsioPending<Start> & pending) { pending.cancel(); }) {
      pending_->cancel();
      this->drive().schedule();
    }
  }
  // No value says "no driver" for every type. The operation still starts, and ends when any
  // thread progresses the context.
  void refuse(const Status&) override { start(); }

  // The pending operation ends here, on the strand: it belongs to the context's thread.
  static AsioDetached await(std::shared_ptr<AsioAwait> self) {
    // By reference: awaiting an lvalue, gcc 12 copies it.
    struct Borrowed {
      AsioPending<Start>& pending;
      bool await_ready() { return pending.await_ready(); }
      auto await_suspend(std::coroutine_handle<> waiter) { return pending.await_suspend(waiter); }
      Value await_resume() { return pending.await_resume(); }
    };
    Value value = co_await Borrowed{*self->pending_};
    self->pending_.reset();
    self->complete(std::move(value));
  }

  Start start_;
  std::optional<AsioPending<Start>> pending_;
};

}  // namespace internal

// Runs a Context on an executor. Everything of sluice's happens on a strand of it,
// get_executor(): handlers without an executor of their own run there too, and may call the
// context directly (spawn coroutines on it to do the same).
//
// async_ functions: Thread: any. They never throw and never call the handler from inside.
// The handler gets what the blocking twin would return, or the Completion of the posted
// form: with the buffers also on failure, and with the status of the post if that was
// refused (kTryAgain: wait for other operations, then repeat). Every operation ends once,
// by its deadline at the latest.
// Cancellation: each listens to its handler's cancellation slot (terminal and partial) and
// ends with kCancelled, unless it already ended; sends and writes that the peer may have
// seen end with kOutcomeUnknown.
// Work: run() of an io_context does not return while an operation is outstanding, nor before
// the answers to those that are over have found room on their way to the peer, for up to 3 s.
// Then the context is not progressed, unless start() was called.
//
// Requires: the context outlives the driver; the executor's io_context and the context
// outlive what is outstanding (close the endpoints first); from the first operation on
// nothing but the strand's handlers calls the context, also no ProgressThread.
class AsioDriver {
 public:
  using executor_type = internal::AsioDrive::Executor;

  // Errors: kNoMemory (the io_context cannot watch another descriptor), kWrongState (the
  // context has a driver already; in a forked child).
  static Result<AsioDriver> open(const boost::asio::any_io_executor& executor, Context& context) {
    auto drive = std::make_shared<internal::AsioDrive>(executor, context);
    SLUICE_RETURN_IF_ERROR(drive->attach());
    return AsioDriver(std::move(drive));
  }
  static Result<AsioDriver> open(boost::asio::io_context& loop, Context& context) {
    return open(boost::asio::any_io_executor(loop.get_executor()), context);
  }
  AsioDriver(AsioDriver&&) noexcept = default;
  AsioDriver& operator=(AsioDriver&&) = delete;
  // Thread: while no other thread runs the executor. Operations outstanding end, and
  // handlers are called, when the context is progressed or closed from elsewhere.
  ~AsioDriver() {
    if (!drive_) return;
    drive_->detach();
  }

  executor_type get_executor() const { return drive_->executor(); }
  Context& context() const { return *drive_->context(); }

  // From here to stop() the context is progressed also while no operation is outstanding:
  // peers read and write granted memory, fetch, get their tensors released. As many stops end it
  // as there were starts. Thread: any.
  void start() const {
    boost::asio::dispatch(drive_->executor(), [drive = drive_] {
      drive->start();
      drive->schedule();
    });
  }
  void stop() const {
    boost::asio::dispatch(drive_->executor(), [drive = drive_] {
      drive->stop();
      drive->schedule();
    });
  }

  // One more round of progress, soon: after posting to the context directly
  // (Endpoint::send(), Exchange::publish()), which this driver cannot see. Thread: any.
  void schedule() const {
    boost::asio::dispatch(drive_->executor(), [drive = drive_] { drive->schedule(); });
  }

  // Handler: void(Completion). The tensors' compact bytes as one message; a segment list of
  // up to 16. `options.sink` is not used.
  template <typename Token>
  auto async_send(const Endpoint& endpoint, Tag tag, std::vector<Tensor> segments,
                  const PostOptions& options, Token&& token) const {
    return post(endpoint, internal::AsioSend{tag, std::move(segments)}, options, token);
  }
  template <typename Token>
  auto async_send(const Endpoint& endpoint, Tag tag, Tensor segment, const PostOptions& options,
                  Token&& token) const {
    return post(endpoint, internal::AsioSend{tag, {std::move(segment)}}, options, token);
  }
  // Handler: void(Completion): `tag` that came, `receipt.bytes` of `buffers`, in order.
  template <typename Token>
  auto async_receive(const Endpoint& endpoint, TagMatch match, std::vector<Buffer> into,
                     const PostOptions& options, Token&& token) const {
    return post(endpoint, internal::AsioReceive{match, std::move(into)}, options, token);
  }
  template <typename Token>
  auto async_receive(const Endpoint& endpoint, TagMatch match, Buffer into,
                     const PostOptions& options, Token&& token) const {
    std::vector<Buffer> one;
    one.push_back(std::move(into));
    return post(endpoint, internal::AsioReceive{match, std::move(one)}, options, token);
  }
  // Handler: void(Completion). One-sided, `into.size_bytes()` bytes from `offset` of the
  // granted range. kAccessDenied: outside the grant.
  template <typename Token>
  auto async_read(const Endpoint& endpoint, const RemoteKey& key, uint64_t offset, Buffer into,
                  const PostOptions& options, Token&& token) const {
    return post(endpoint, internal::AsioRead{key, offset, std::move(into)}, options, token);
  }
  template <typename Token>
  auto async_write(const Endpoint& endpoint, const RemoteKey& key, uint64_t offset, Tensor from,
                   const PostOptions& options, Token&& token) const {
    return post(endpoint, internal::AsioWrite{key, offset, std::move(from)}, options, token);
  }

  // Handler: void(Result<Endpoint>). Errors: as start_connect(), which says what of it blocks.
  template <typename Token>
  auto async_connect(std::string address, ConnectOptions options, Token&& token) const {
    return async_await(
        [context = &this->context(), address = std::move(address), options = std::move(options)] {
          return start_connect(*context, address, options);
        },
        token);
  }
  // Handler: void(Result<Endpoint>). Errors: kTimedOut, kCancelled, kWrongState. Requires:
  // the listener outlives the operation.
  template <typename Token>
  auto async_accept(Listener& listener, Instant deadline, Token&& token) const {
    return boost::asio::async_initiate<Token, void(Result<Endpoint>)>(
        [](auto handler, std::shared_ptr<internal::AsioDrive> drive, Listener* at, Instant by) {
          using Handler = std::decay_t<decltype(handler)>;
          std::make_shared<internal::AsioAccept<Handler>>(std::move(drive), std::move(handler), *at,
                                                          by)
              ->launch();
        },
        token, drive_, &listener, deadline);
  }
  // Handler: void(Status). The orderly end of Endpoint::close(), without blocking: sent bytes
  // are flushed, the peer is told, every operation completes. Errors: kTimedOut,
  // kCancelled (aborted instead).
  template <typename Token>
  auto async_close(Endpoint endpoint, Instant deadline, Token&& token) const {
    return boost::asio::async_initiate<Token, void(Status)>(
        [](auto handler, std::shared_ptr<internal::AsioDrive> drive, Endpoint end, Instant by) {
          using Handler = std::decay_t<decltype(handler)>;
          std::make_shared<internal::AsioClose<Handler>>(std::move(drive), std::move(handler),
                                                         std::move(end), by)
              ->launch();
        },
        token, drive_, std::move(endpoint), deadline);
  }

  // Handler: void(T), T what `co_await start()` gives. `start()` is called on the strand and
  // returns anything that can be awaited there: a Fetch, a FetchInto, a Publication, a
  // Task<T> (<sluice/exchange/asio.h> has the first two by name). Cancellation: where it
  // has cancel().
  template <typename Start, typename Token>
  auto async_await(Start start, Token&& token) const {
    return boost::asio::async_initiate<Token, void(internal::AsioAwaited<Start>)>(
        [](auto handler, std::shared_ptr<internal::AsioDrive> drive, Start begin) {
          using Handler = std::decay_t<decltype(handler)>;
          std::make_shared<internal::AsioAwait<Handler, Start>>(
              std::move(drive), std::move(handler), std::move(begin))
              ->launch();
        },
        token, drive_, std::move(start));
  }

 private:
  explicit AsioDriver(std::shared_ptr<internal::AsioDrive> drive) : drive_(std::move(drive)) {}

  template <typename Request, typename Token>
  auto post(const Endpoint& endpoint, Request request, const PostOptions& options,
            Token& token) const {
    return boost::asio::async_initiate<Token, void(Completion)>(
        [](auto handler, std::shared_ptr<internal::AsioDrive> drive,
           std::shared_ptr<EndpointCore> core, Request what, const PostOptions& how) {
          using Handler = std::decay_t<decltype(handler)>;
          std::make_shared<internal::AsioPost<Handler, Request>>(
              std::move(drive), std::move(handler), std::move(core), std::move(what), how)
              ->launch();
        },
        token, drive_, endpoint.shared(), std::move(request), options);
  }

  std::shared_ptr<internal::AsioDrive> drive_;
};

}  // namespace sluice

#endif  // SLUICE_API_ASIO_H_
