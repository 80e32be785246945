#include <sluice/grpc/client_call.h>

#include <pthread.h>

#include <algorithm>
#include <utility>

#include <grpcpp/client_context.h>

#include <sluice/grpc/client_link.h>

namespace sluice::grpc {
namespace {

using Hook = ::grpc::experimental::InterceptionHookPoints;
using RpcType = ::grpc::experimental::ClientRpcInfo::Type;

// Larger messages of a stream are parsed by the thread that receives them, not by the context
// thread.
constexpr size_t kParseHereBytes = 64 << 10;

bool has(ClientCall::Batch* batch, Hook hook) { return batch->QueryInterceptionHookPoint(hook); }

Instant deadline_of(gpr_timespec deadline) {
  if (gpr_time_cmp(deadline, gpr_inf_future(deadline.clock_type)) == 0) return kNever;
  const gpr_timespec left = gpr_convert_clock_type(deadline, GPR_TIMESPAN);
  // A year at most: beyond that lies no timer that anybody waits for.
  const int64_t seconds = std::clamp<int64_t>(left.tv_sec, -1, 365 * 24 * 3600);
  return now() + std::chrono::seconds(seconds) + std::chrono::nanoseconds(left.tv_nsec);
}

void show(const Metadata& from, std::multimap<::grpc::string_ref, ::grpc::string_ref>* into) {
  for (const auto& [key, value] : from) {
    into->emplace(::grpc::string_ref(key.data(), key.size()),
                  ::grpc::string_ref(value.data(), value.size()));
  }
}

::grpc::Status does_not_parse() {
  return ::grpc::Status(::grpc::StatusCode::INTERNAL, "the message does not parse");
}

// Whether the object is a local one of a caller of this thread's.
bool on_own_stack(const void* object) {
  struct Range {
    uintptr_t low = 0, high = 0;
  };
  static thread_local const Range own = [] {
    pthread_attr_t attributes;
    void* low = nullptr;
    size_t size = 0;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0) return Range{};
    (void)pthread_attr_getstack(&attributes, &low, &size);
    (void)pthread_attr_destroy(&attributes);
    return Range{reinterpret_cast<uintptr_t>(low), reinterpret_cast<uintptr_t>(low) + size};
  }();
  const auto at = reinterpret_cast<uintptr_t>(object);
  return at >= own.low && at < own.high;
}

}  // namespace

ClientCall::ClientCall(std::shared_ptr<ClientLink> link, ::grpc::experimental::ClientRpcInfo* info)
    : link_(std::move(link)),
      type_(info->type()),
      method_(info->method()),
      own_credentials_(info->client_context()->credentials() != nullptr),
      deadline_(deadline_of(info->client_context()->raw_deadline())) {}

// --- What gRPC's threads do -------------------------------------------------------------------

void ClientCall::intercept(Batch* batch) {
  if (has(batch, Hook::PRE_SEND_CANCEL)) {
    link_->post([self = shared_from_this()] {
      self->decide(self->link_->forced());
      self->finish_here(::grpc::Status(::grpc::StatusCode::CANCELLED, "CANCELLED"));
    });
    return;
  }
  if (has(batch, Hook::POST_RECV_MESSAGE)) parse_late(batch);
  const bool before =
      !has(batch, Hook::POST_SEND_MESSAGE) && !has(batch, Hook::POST_RECV_MESSAGE) &&
      !has(batch, Hook::POST_RECV_INITIAL_METADATA) && !has(batch, Hook::POST_RECV_STATUS);
  if (!before) return batch->Proceed();
  if (mode_.load() == Mode::kUndecided) {
    std::unique_lock lock(mutex_);
    if (mode_.load() == Mode::kUndecided) {
      const bool first = has(batch, Hook::PRE_SEND_INITIAL_METADATA);
      ClientLink::Route route = first ? link_->route() : ClientLink::Route::kWait;
      if (first && own_credentials_)
        route = link_->forced() ? ClientLink::Route::kBridge : ClientLink::Route::kPlain;
      if (route == ClientLink::Route::kWait) {
        held_.push_back(batch);
        lock.unlock();
        if (first) link_->post([self = shared_from_this()] { self->link_->hold(self); });
        return;
      }
      mode_ = route == ClientLink::Route::kBridge ? Mode::kBridged : Mode::kPlain;
    }
  }
  if (mode_.load() == Mode::kPlain) return batch->Proceed();
  process(batch);
}

void ClientCall::decide(bool bridged) {
  std::unique_lock lock(mutex_);
  if (mode_.load() != Mode::kUndecided || deciding_) return;
  deciding_ = true;
  // Batches that come meanwhile wait behind those that are held: the first one opens the call.
  while (!held_.empty()) {
    Batch* batch = held_.front();
    held_.erase(held_.begin());
    lock.unlock();
    if (bridged) {
      process(batch);
    } else {
      batch->Proceed();
    }
    lock.lock();
  }
  mode_ = bridged ? Mode::kBridged : Mode::kPlain;
}

void ClientCall::abandon() {
  if ((finished_ && !unread_) || mode_.load() == Mode::kPlain) return;
  link_->post([self = shared_from_this()] {
    if (self->bridged_)
      self->finish_here(::grpc::Status(::grpc::StatusCode::CANCELLED, "CANCELLED"));
  });
}

// A batch of a bridged call, on its way down: first what it sends, then, when that went on, what
// it receives.
void ClientCall::process(Batch* batch) {
  if (has(batch, Hook::PRE_SEND_INITIAL_METADATA)) return open(batch);
  if (has(batch, Hook::PRE_SEND_MESSAGE) || has(batch, Hook::PRE_SEND_CLOSE)) {
    Write next{.batch = batch, .close = has(batch, Hook::PRE_SEND_CLOSE)};
    if (has(batch, Hook::PRE_SEND_MESSAGE)) next.message = take_outgoing(*batch, link_->arena());
    link_->post([self = shared_from_this(), shared = std::make_shared<Write>(std::move(next))] {
      self->write(std::move(*shared));
    });
    return;
  }
  receive(batch);
}

// The message leaves with what the batch receives: Hijack() comes back with that.
void ClientCall::open(Batch* batch) {
  Opening opening{.headers = headers(batch), .first = {.close = has(batch, Hook::PRE_SEND_CLOSE)}};
  if (has(batch, Hook::PRE_SEND_MESSAGE)) {
    opening.typed = batch->GetSendMessage() != nullptr;
    opening.first.message = take_outgoing(*batch, link_->arena());
  }
  opening_ = std::move(opening);
  batch->Hijack();
}

void ClientCall::receive(Batch* batch) {
  const Wants wants{.batch = batch,
                    .metadata = has(batch, Hook::PRE_RECV_INITIAL_METADATA),
                    .message = has(batch, Hook::PRE_RECV_MESSAGE),
                    .status = has(batch, Hook::PRE_RECV_STATUS)};
  const bool nothing = !wants.metadata && !wants.message && !wants.status;
  if (opening_) {
    Opening opening = std::move(*opening_);
    opening_.reset();
    const bool all = wants.metadata && wants.message && wants.status && opening.first.close;
    opening.headers.whole = all && type_ == RpcType::UNARY;
    // A stub that blocks lends its own status, and its message unserialised: this thread waits.
    if (opening.headers.whole && opening.typed && on_own_stack(batch->GetRecvStatus()) &&
        !link_->thread().has_turn())
      return wait_here(wants, std::move(opening));
    link_->post(
        [self = shared_from_this(), shared = std::make_shared<Opening>(std::move(opening))] {
          self->start(std::move(shared->headers), std::move(shared->first));
        });
  }
  if (nothing) return batch->Proceed();
  link_->post([self = shared_from_this(), wants] { self->want(wants); });
}

void ClientCall::wait_here(const Wants& wants, Opening opening) {
  ContextThread::Waiter waiter;
  auto self = shared_from_this();
  link_->thread().wait_for(
      waiter,
      [&] {
        // Another thread may run this. As soon as the call ends, its caller returns and drops its
        // own reference.
        auto kept = self;
        waiter_ = &waiter;
        start(std::move(opening.headers), std::move(opening.first));
        want(wants);
      },
      [&] { return link_->has_calls(); });
  wants.batch->Proceed();
}

Frame ClientCall::headers(Batch* batch) const {
  Frame frame{.kind = FrameKind::kHeaders, .text = method_};
  for (const auto& [key, value] : *batch->GetSendInitialMetadata()) {
    // What a context asks of gRPC's own transport, such as compression.
    if (!key.starts_with("grpc-internal-")) frame.metadata.emplace_back(key, value);
  }
  return frame;
}

// On the thread that gets the message: parsing a large one is not the context thread's business.
void ClientCall::parse_late(Batch* batch) {
  if (!late_.Valid()) return;
  void* message = batch->GetRecvMessage();
  const bool whole = message == nullptr || deliver(late_, message);
  late_.Clear();
  if (!has(batch, Hook::POST_RECV_STATUS)) {
    link_->post([self = shared_from_this(), whole] { self->on_parsed(whole); });
  } else if (!whole) {
    *batch->GetRecvStatus() = does_not_parse();
  }
}

// --- What the context thread does
// ---------------------------------------------------------------------

void ClientCall::start(Frame headers, Write first) {
  bridged_ = true;
  if (finished_) return advance();
  if (!fits(headers)) {
    return finish_here(::grpc::Status(::grpc::StatusCode::RESOURCE_EXHAUSTED,
                                      "metadata larger than the 16 KiB that a bridged call has, or "
                                      "a method name larger than 1 KiB"));
  }
  if (deadline_ != kNever) {
    const Duration left = deadline_ - now();
    if (left <= Duration(0)) return on_deadline();
    headers.timeout_ns = static_cast<uint64_t>(left.count());
  }
  if (own_credentials_) {
    return finish_here(::grpc::Status(
        ::grpc::StatusCode::UNAVAILABLE,
        "sluice: the target forces a path, and credentials of a call go by gRPC's own alone"));
  }
  stream_ = link_->add(shared_from_this());
  if (stream_ == 0) {
    const std::string& why = link_->why_down();
    return finish_here(::grpc::Status(
        ::grpc::StatusCode::UNAVAILABLE,
        "sluice: " + (why.empty() ? "the connection ended before the call left" : why)));
  }
  headers.stream = stream_;
  link_->connection()->send(headers);
  writes_.push_back(std::move(first));
  send_writes();
}

void ClientCall::write(Write write) {
  writes_.push_back(std::move(write));
  send_writes();
}

bool ClientCall::window_open() const {
  return under_way_.size() < kWindowMessages &&
         (under_way_.empty() || bytes_under_way_ < kWindowBytes);
}

void ClientCall::send_writes() {
  while (!writes_.empty()) {
    Write& next = writes_.front();
    if (!finished_ && next.message && !window_open()) return;
    Write write = std::move(next);
    writes_.pop_front();
    if (write.message && !finished_) send_message(std::move(*write.message));
    if (write.close && !finished_) send_close();
    if (write.batch == nullptr) continue;
    if (write.message && finished_ && type_ != RpcType::UNARY)
      write.batch->FailHijackedSendMessage();
    write.batch->Proceed();
  }
}

void ClientCall::send_message(Outgoing message) {
  if (!message.status.ok()) return finish_here(message.status);
  if (over(message.length, link_->limits().send))
    return finish_here(too_large("Sent", message.length, link_->limits().send));
  under_way_.push_back(message.length);
  bytes_under_way_ += message.length;
  send(*link_->connection(), stream_, std::move(message));
}

void ClientCall::send_close() {
  if (std::exchange(closed_, true)) return;
  link_->connection()->send({.kind = FrameKind::kHalfClose, .stream = stream_});
}

void ClientCall::want(const Wants& wants) {
  wants_.push_back(wants);
  advance();
}

// gRPC shows a status only after all messages were read, unless the call was cut off.
bool ClientCall::satisfied(const Wants& wants) const {
  if (wants.metadata && !metadata_came_ && !finished_) return false;
  const bool ready = !messages_.empty() && messages_.front()->ready;
  const bool over = finished_ && (messages_.empty() || ended_here_);
  if (wants.message && !ready && !over) return false;
  if (!wants.status) return true;
  return finished_ && !parsing_ && (ended_here_ || messages_.size() <= (wants.message ? 1u : 0u));
}

void ClientCall::advance() {
  for (size_t i = 0; i < wants_.size();) {
    if (!satisfied(wants_[i])) {
      ++i;
      continue;
    }
    const Wants wants = wants_[i];
    wants_.erase(wants_.begin() + static_cast<ptrdiff_t>(i));
    complete(wants);
    i = 0;
  }
}

void ClientCall::complete(const Wants& wants) {
  Batch* batch = wants.batch;
  if (wants.metadata) show(initial_, batch->GetRecvInitialMetadata());
  if (wants.message) take_message(batch, wants.status);
  if (wants.status) {
    end_unread();
    *batch->GetRecvStatus() = status_;
    show(trailing_, batch->GetRecvTrailingMetadata());
  }
  if (waiter_ != nullptr) return std::exchange(waiter_, nullptr)->done();
  batch->Proceed();  // the batch may be gone now
}

void ClientCall::take_message(Batch* batch, bool with_status) {
  const bool ready = !messages_.empty() && messages_.front()->ready && !ended_here_;
  if (!ready || (with_status && !status_.ok())) {
    batch->FailHijackedRecvMessage();
    return;
  }
  ::grpc::ByteBuffer bytes;
  bytes.Swap(&messages_.front()->bytes);
  messages_.pop_front();
  if (!finished_ && link_->connection() != nullptr)
    link_->connection()->send({.kind = FrameKind::kWindow, .stream = stream_, .count = 1});
  if (with_status || bytes.Length() > kParseHereBytes) {
    late_.Swap(&bytes);
    parsing_ = !with_status;
    return;
  }
  if (deliver(bytes, batch->GetRecvMessage())) return;
  batch->FailHijackedRecvMessage();
  parsing_ = true;
  link_->post([self = shared_from_this()] { self->on_parsed(false); });
}

void ClientCall::on_parsed(bool whole) {
  parsing_ = false;
  whole ? advance() : end_broken();
}

// Of a message that does not parse. The status may have come, and nobody has seen it.
void ClientCall::end_broken() {
  if (!finished_) return finish_here(does_not_parse());
  status_ = does_not_parse();
  ended_here_ = true;
  messages_.clear();
  advance();
}

void ClientCall::on_frame(const Frame& frame) {
  if (finished_ || ending_) return;
  switch (frame.kind) {
    case FrameKind::kInitialMetadata:
      if (metadata_came_) break;
      metadata_came_ = true;
      initial_ = frame.metadata;
      break;
    case FrameKind::kMessage: on_message(frame); break;
    case FrameKind::kStatus: on_status(frame); break;
    case FrameKind::kWindow:
      if (frame.count > under_way_.size())
        return link_->connection()->refuse("the server took messages that were never sent");
      for (uint32_t i = 0; i < frame.count; ++i) {
        bytes_under_way_ -= under_way_.front();
        under_way_.pop_front();
      }
      send_writes();
      break;
    default: return link_->connection()->refuse("a frame that servers do not send");
  }
  advance();
}

void ClientCall::on_message(const Frame& frame) {
  if (messages_.size() >= kWindowMessages)
    return link_->connection()->refuse("the server sent messages beyond the window");
  if (over(frame.length, link_->limits().receive)) {
    link_->connection()->drop_parts(frame);
    return finish_here(too_large("Received", frame.length, link_->limits().receive));
  }
  auto incoming = std::make_shared<Incoming>();
  messages_.push_back(incoming);
  gather(*link_->connection(), frame,
         [self = shared_from_this(), incoming](const Status& status, ::grpc::ByteBuffer& bytes) {
           if (!status.ok()) {
             return self->finish_here(
                 ::grpc::Status(::grpc::StatusCode::UNAVAILABLE,
                                "sluice: a message was lost: " + std::string(status.detail())));
           }
           incoming->bytes.Swap(&bytes);
           incoming->ready = true;
           self->end_if_all_came();
           self->advance();
         });
}

void ClientCall::on_status(const Frame& frame) {
  trailing_ = frame.metadata;
  const auto code = frame.code <= static_cast<uint32_t>(::grpc::StatusCode::UNAUTHENTICATED)
                        ? static_cast<::grpc::StatusCode>(frame.code)
                        : ::grpc::StatusCode::UNKNOWN;
  ending_ = code == ::grpc::StatusCode::OK ? ::grpc::Status()
                                           : ::grpc::Status(code, frame.text, frame.details);
  end_if_all_came();
}

// What the server lent comes after its status. Until then the call has a connection, a deadline and
// an end if either is over.
void ClientCall::end_if_all_came() {
  if (!ending_ || finished_) return;
  for (const auto& message : messages_) {
    if (!message->ready) return;
  }
  finish(*ending_);
}

void ClientCall::on_deadline() {
  decide(link_->forced());  // else gRPC itself ends a call that never left
  finish_here(::grpc::Status(::grpc::StatusCode::DEADLINE_EXCEEDED, "Deadline Exceeded"));
}

void ClientCall::finish_here(const ::grpc::Status& status) {
  if (finished_ && !unread_) return;
  if (finished_) {
    end_unread();
    status_ = status;
    ended_here_ = true;
    messages_.clear();
    return advance();
  }
  ended_here_ = true;
  messages_.clear();
  if (stream_ != 0 && link_->connection() != nullptr)
    link_->connection()->send({.kind = FrameKind::kCancel, .stream = stream_});
  finish(status);
}

void ClientCall::finish(const ::grpc::Status& status) {
  auto self = shared_from_this();
  finished_ = true;
  status_ = status;
  link_->remove(*this);
  send_writes();
  advance();
  // The status waits for the reader of these; a cancel and the deadline still end the call.
  if (messages_.empty()) return;
  unread_ = true;
  link_->mind_deadline(self);
}

void ClientCall::end_unread() {
  if (unread_.exchange(false)) link_->forget_deadline(*this);
}

}  // namespace sluice::grpc
