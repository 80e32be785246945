#include <sluice/grpc/server_call.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace sluice::grpc {
namespace {

// A last request up to this is kept to the end of its call, which saves a wake of the thread.
constexpr size_t kSmallBytes = 64 << 10;

}  // namespace

Metadata metadata_of(const std::multimap<::grpc::string_ref, ::grpc::string_ref>& shown) {
  Metadata read;
  for (const auto& [key, value] : shown) {
    read.emplace_back(std::string(key.data(), key.size()), std::string(value.data(), value.size()));
  }
  return read;
}

void show_headers(const Frame& headers, const Metadata& about_the_peer,
                  ::grpc::ClientContext& context) {
  for (const auto& [key, value] : headers.metadata) context.AddMetadata(key, value);
  for (const auto& [key, value] : about_the_peer) context.AddMetadata(key, value);
  if (headers.timeout_ns == 0) return;
  // A day at most: a service that asks is told so.
  const auto left = std::min<uint64_t>(headers.timeout_ns, uint64_t{24} * 3600 * 1'000'000'000);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::nanoseconds(left));
}

Frame status_frame(uint32_t stream, const ::grpc::Status& status, Metadata trailing) {
  Frame frame{.kind = FrameKind::kStatus,
              .stream = stream,
              .text = status.error_message().substr(0, kStatusTextBytes),
              .details = status.error_details(),
              .metadata = std::move(trailing),
              .code = static_cast<uint32_t>(status.error_code())};
  if (!fits(frame)) {
    frame.details.clear();
    frame.metadata.clear();
    frame.code = static_cast<uint32_t>(::grpc::StatusCode::RESOURCE_EXHAUSTED);
    frame.text = "status details or trailing metadata larger than the 16 KiB of a bridged call";
  }
  return frame;
}

::grpc::Status request_lost(const Status& why) {
  const bool full = why == Code::kNoMemory || why == Code::kTryAgain;
  return ::grpc::Status(
      full ? ::grpc::StatusCode::RESOURCE_EXHAUSTED : ::grpc::StatusCode::UNAVAILABLE,
      "sluice: the server could not fetch the request: " + std::string(why.detail()));
}

void ServerCall::start(std::shared_ptr<GenericStub> stub, const Frame& headers,
                       const Metadata& about_the_peer) {
  self_ = shared_from_this();
  stub_ = std::move(stub);
  method_ = headers.text;
  show_headers(headers, about_the_peer, context_);
}

void ServerCall::begin() {
  if (cancelled_) return;
  begun_ = true;
  // Corked metadata waits for the first message, so only where there is one.
  context_.set_initial_metadata_corked(!requests_.empty() && requests_.front()->ready);
  stub_->PrepareBidiStreamingCall(&context_, method_, {}, this);
  stub_.reset();
  AddHold();
  held_ = true;
  reading_ = true;
  StartRead(&read_);
  write_next();
  StartCall();
}

void ServerCall::on_frame(const Frame& frame) {
  switch (frame.kind) {
    case FrameKind::kMessage: return on_message(frame);
    case FrameKind::kHalfClose: half_closed_ = true; return write_next();
    case FrameKind::kCancel: return cancel();
    case FrameKind::kWindow:
      if (frame.count > under_way_.size())
        return host_->connection()->refuse("the client took messages that were never sent");
      for (uint32_t i = 0; i < frame.count; ++i) {
        bytes_under_way_ -= under_way_.front();
        under_way_.pop_front();
      }
      return read_next();
    default: return host_->connection()->refuse("a frame that clients do not send");
  }
}

void ServerCall::on_message(const Frame& frame) {
  if (half_closed_) return host_->connection()->refuse("a message after the half-close");
  if (requests_.size() >= kWindowMessages)
    return host_->connection()->refuse("the client sent messages beyond the window");
  // gRPC would find it on the in-process channel, after the fetch.
  if (over(frame.length, host_->receive_limit())) {
    host_->connection()->drop_parts(frame);
    end(too_large("Received", frame.length, host_->receive_limit()), {});
    return cancel();
  }
  auto incoming = std::make_shared<Incoming>();
  requests_.push_back(incoming);
  gather(*host_->connection(), frame,
         [self = shared_from_this(), incoming](const Status& status, ::grpc::ByteBuffer& bytes) {
           if (!status.ok()) {
             self->end(request_lost(status), {});
             return self->cancel();
           }
           incoming->bytes.Swap(&bytes);
           incoming->ready = true;
           self->write_next();
         });
}

void ServerCall::write_next() {
  if (!held_ || writing_ || closed_) return;
  if (!requests_.empty()) {
    if (!requests_.front()->ready) return;
    writing_ = true;
    write_.Swap(&requests_.front()->bytes);
    if (!half_closed_ || requests_.size() > 1) return StartWrite(&write_);
    closed_ = true;
    last_is_small_ = write_.Length() <= kSmallBytes;
    return StartWriteLast(&write_, ::grpc::WriteOptions());
  }
  if (!half_closed_) return;
  closed_ = true;
  StartWritesDone();
}

void ServerCall::OnWriteDone(bool ok) {
  if (last_is_small_) return;
  host_->post([self = self_, ok] {
    self->writing_ = false;
    self->write_.Clear();
    if (!self->requests_.empty()) self->requests_.pop_front();
    if (!ok) return;
    // A client that said it sends no more has no use for room.
    if (self->host_->connection() != nullptr && !self->cancelled_ && !self->half_closed_) {
      self->host_->connection()->send(
          {.kind = FrameKind::kWindow, .stream = self->stream_, .count = 1});
    }
    self->write_next();
  });
}

void ServerCall::OnReadInitialMetadataDone(bool ok) {
  if (!ok) return;
  host_->post(
      [self = self_, metadata = metadata_of(context_.GetServerInitialMetadata())]() mutable {
        self->send_metadata(std::move(metadata));
      });
}

void ServerCall::send_metadata(Metadata metadata) {
  if (host_->connection() == nullptr || cancelled_) return;
  Frame frame{
      .kind = FrameKind::kInitialMetadata, .stream = stream_, .metadata = std::move(metadata)};
  if (fits(frame)) return host_->connection()->send(frame);
  end(::grpc::Status(::grpc::StatusCode::RESOURCE_EXHAUSTED,
                     "initial metadata larger than the 16 KiB that a bridged call has"),
      {});
  cancel();
}

void ServerCall::OnReadDone(bool ok) {
  if (!ok) {
    host_->post([self = self_] {
      self->reading_ = false;
      self->let_go();
    });
    return;
  }
  auto message = std::make_shared<Outgoing>(make_outgoing(read_, host_->arena()));
  read_.Clear();
  host_->post([self = self_, message] { self->on_response(std::move(*message)); });
}

void ServerCall::on_response(Outgoing message) {
  reading_ = false;
  if (cancelled_ || host_->connection() == nullptr) return let_go();
  if (!message.status.ok()) {
    end(message.status, {});
    return cancel();
  }
  response_ = std::move(message);
  read_next();
}

// One response is read ahead, so that the end of the call is found behind the last one. A client
// that does not read stops the service: that one waits here, and the next stays where it is.
void ServerCall::read_next() {
  if (!held_ || reading_) return;
  const bool window_open = under_way_.size() < kWindowMessages &&
                           (under_way_.empty() || bytes_under_way_ < kWindowBytes);
  if (response_ && !window_open) return;
  if (response_) send_response(std::move(*std::exchange(response_, std::nullopt)));
  reading_ = true;
  StartRead(&read_);
}

void ServerCall::send_response(Outgoing message) {
  under_way_.push_back(message.length);
  bytes_under_way_ += message.length;
  send(*host_->connection(), stream_, std::move(message));
}

void ServerCall::cancel() {
  if (std::exchange(cancelled_, true)) return;
  if (!begun_) {
    auto self = std::exchange(self_, nullptr);
    return host_->remove(stream_);
  }
  context_.TryCancel();
  if (!reading_) let_go();
}

void ServerCall::let_go() {
  if (std::exchange(held_, false)) RemoveHold();
}

void ServerCall::OnDone(const ::grpc::Status& status) {
  host_->post([self = self_, status,
               trailing = metadata_of(context_.GetServerTrailingMetadata())]() mutable {
    self->end(status, std::move(trailing));
    self->host_->remove(self->stream_);
    self->self_.reset();
  });
}

void ServerCall::end(const ::grpc::Status& status, Metadata trailing) {
  if (cancelled_ || host_->connection() == nullptr) return;
  host_->connection()->send(status_frame(stream_, status, std::move(trailing)));
}

}  // namespace sluice::grpc
