// One call of a client over the bridge: what interceptors are shown of it, turned into frames.
#ifndef SLUICE_GRPC_CLIENT_CALL_H_
#define SLUICE_GRPC_CLIENT_CALL_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <grpcpp/support/client_interceptor.h>

#include <sluice/base/clock.h>
#include <sluice/base/result.h>
#include <sluice/grpc/context_thread.h>
#include <sluice/grpc/frames.h>
#include <sluice/grpc/message.h>

namespace sluice::grpc {

class ClientLink;

// Undecided until it is known whether the server has a bridge. Thread: intercept() any; all else
// the context thread's. gRPC itself never has two batches with the same kind of operation under
// way.
class ClientCall : public std::enable_shared_from_this<ClientCall> {
 public:
  using Batch = ::grpc::experimental::InterceptorBatchMethods;

  ClientCall(std::shared_ptr<ClientLink> link, ::grpc::experimental::ClientRpcInfo* info);
  void intercept(Batch* batch);
  // The interceptor is gone, and with it the user's ClientContext. Thread: any.
  void abandon();

  // Ends the wait for the bridge, if there still is one.
  void decide(bool bridged);
  void on_frame(const Frame& frame);
  // Ends the call here; tells the server if it may still know of it.
  void finish_here(const ::grpc::Status& status);
  void on_deadline();
  Instant deadline() const { return deadline_; }
  uint32_t stream() const { return stream_; }

 private:
  enum class Mode : uint8_t { kUndecided, kPlain, kBridged };
  struct Wants {
    Batch* batch = nullptr;
    bool metadata = false, message = false, status = false;
  };
  struct Write {
    Batch* batch = nullptr;
    std::optional<Outgoing> message;
    bool close = false;
  };
  struct Incoming {
    bool ready = false;
    ::grpc::ByteBuffer bytes;
  };

  // A call whose batch is on its way from the initial metadata to what it receives.
  struct Opening {
    Frame headers;
    Write first;
    bool typed = false;  // its message is the user's own object
  };

  void process(Batch* batch);
  void open(Batch* batch);
  void receive(Batch* batch);
  void wait_here(const Wants& wants, Opening opening);
  Frame headers(Batch* batch) const;
  void parse_late(Batch* batch);
  void on_parsed(bool whole);
  void end_broken();

  void start(Frame headers, Write first);
  void write(Write write);
  bool window_open() const;
  void send_message(Outgoing message);
  void send_close();
  void send_writes();
  void want(const Wants& wants);
  void advance();
  bool satisfied(const Wants& wants) const;
  void complete(const Wants& wants);
  void take_message(Batch* batch, bool with_status);
  void on_message(const Frame& frame);
  void on_status(const Frame& frame);
  void end_if_all_came();
  void finish(const ::grpc::Status& status);
  void end_unread();

  const std::shared_ptr<ClientLink> link_;
  const ::grpc::experimental::ClientRpcInfo::Type type_;
  const std::string method_;
  // The user's context may be gone when the context thread looks: what it says is read once.
  const bool own_credentials_;
  const Instant deadline_;

  std::optional<Opening> opening_;  // the thread's that runs the batch
  std::atomic<Mode> mode_{Mode::kUndecided};
  std::mutex mutex_;          // of held_, and of leaving kUndecided
  std::vector<Batch*> held_;  // in order, the one with the initial metadata first
  bool deciding_ = false;

  // The context thread's.
  uint32_t stream_ = 0;  // 0: not open
  bool bridged_ = false, ended_here_ = false, closed_ = false;
  // Read by others in abandon(). Unread: it has finished, and messages are left.
  std::atomic<bool> finished_{false}, unread_{false};
  ContextThread::Waiter* waiter_ = nullptr;  // a caller that waits, instead of a batch that goes on
  ::grpc::Status status_;
  // What the server ended it with, while messages that it lent are still to come.
  std::optional<::grpc::Status> ending_;
  bool metadata_came_ = false;
  Metadata initial_, trailing_;  // gRPC is shown references to them
  std::deque<std::shared_ptr<Incoming>> messages_;
  std::deque<Write> writes_;
  std::deque<uint64_t> under_way_;  // lengths of messages that the server has not taken
  uint64_t bytes_under_way_ = 0;
  std::vector<Wants> wants_;
  ::grpc::ByteBuffer late_;  // parsed by the thread that receives it; one at a time
  bool parsing_ = false;     // it is one of a stream: the status waits
};

}  // namespace sluice::grpc

#endif  // SLUICE_GRPC_CLIENT_CALL_H_
