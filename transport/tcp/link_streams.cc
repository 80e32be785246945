// The further streams of a TcpLink: which of them takes DATA, and the orders that hold across them.
#include <errno.h>
#include <sys/socket.h>

#include <array>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/tcp/link.h>

namespace sluice::tcp {
namespace {

constexpr const char* kOrigin = "tcp/link";

// How long the further streams may bring nothing before the end of the connection is not held back
// for them any more: longer than an outage that TCP survives.
constexpr Duration kPatience = kUnpluggedAfter + std::chrono::seconds(1);

Counter overdue("tcp.streams_overdue");

}  // namespace

TcpLink::~TcpLink() { close(); }

uint32_t TcpLink::streams() const {
  return further_ != nullptr ? static_cast<uint32_t>(further_->streams.size()) : 1;
}

Status TcpLink::add_stream(Descriptor fd, proto::ConnectionTicket ticket) {
  auto stream = std::make_unique<TcpLink>(*group_, std::move(fd), *traits_);
  stream->set_client(client_, transfer_);
  stream->first_ = this;
  Status watched = stream->watch();
  if (!watched.ok()) {
    note_broken(ENOBUFS);  // the peer has it, and may send by it
    return watched;
  }
  if (ending_) {
    stream->ending_ = true;
    stream->end_writing_if_empty();
  }
  if (further_ == nullptr) further_ = std::make_unique<Further>();
  further_->streams.push_back({std::move(stream), std::move(ticket)});
  // It has room.
  if (want_room_) group_->add_todo(this);
  return Status();
}

void TcpLink::ask_for_streams(uint64_t length) {
  if (length < bulk_until_asked_) {
    bulk_until_asked_ -= length;
    return;
  }
  bulk_until_asked_ = 0;
  group_->ask_for_streams(*this);
}

// The first in turn that has room: one that has lost a frame is full until it was sent again, and
// the others go on without it.
bool TcpLink::push_further(ConstBytes header, std::span<const ConstBytes> payload, uint64_t cookie,
                           bool lendable) {
  wire::Data data;
  (void)wire::decode(header, data);  // it is ours
  data.has_after = true;
  data.after = sent_;
  std::array<std::byte, wire::kMaxHeaderBytes> with_order;
  const ConstBytes encoded(with_order.data(), wire::encode(data, with_order));
  std::vector<Stream>& streams = further_->streams;
  bool any = false;
  for (size_t i = 0; i < streams.size(); ++i) {
    const size_t place = (further_->next + i) % streams.size();
    TcpLink& stream = *streams[place].link;
    if (stream.read_out_) continue;  // the peer may have closed it
    any = true;
    if (!stream.enqueue(encoded, payload, cookie, lendable)) continue;
    further_->next = (place + 1) % streams.size();
    return true;
  }
  return !any && enqueue(header, payload, cookie, lendable);
}

void TcpLink::close_further() {
  if (further_ == nullptr) return;
  for (Stream& stream : further_->streams) {
    stream.link->close();
    stream.ticket.end();
  }
}

// What is pushed behind BYE is read by nobody: it goes as if there were one stream.
void TcpLink::end_further() {
  ending_ = true;
  stop_opening();
  for_each_further([](TcpLink& stream) {
    stream.ending_ = true;
    stream.end_writing_if_empty();
  });
  streams_changed();
}

void TcpLink::end_writing_if_empty() {
  if (first_ == nullptr || !usable() || (queue_ != nullptr && !queue_->empty())) return;
  ::shutdown(fd_.value(), SHUT_WR);
}

// Behind our BYE no DATA is wanted. So one that is still joining is not waited for: a peer whose
// endpoint is closed may never look at it.
bool TcpLink::further_read_out() const {
  bool all = true;
  for_each_further([&all](const TcpLink& stream) { all = all && stream.read_out_; });
  return overdue_ || (all && (ending_ || !group_->joining(*this)));
}

void TcpLink::streams_changed() {
  if (held_ && further_read_out()) let_go();
}

void TcpLink::read_out() {
  read_out_ = true;
  if (first_->held_ && first_->further_read_out()) first_->let_go();
}

// The connection ends with it. But the peer may have closed it in good order: then BYE is on the
// first stream, or on its way there. Requires: what has arrived by it was read.
void TcpLink::stream_broken() {
  if (first_->usable() && !first_->stream_broke_) {
    first_->stream_broke_ = true;
    if (first_->broken_ == 0) first_->note_broken(broken_);
    first_->await_end(group_->context().now());
    // Nothing more is written by any: the peer need not wait for us.
    ::shutdown(first_->fd_.value(), SHUT_WR);
    first_->for_each_further([](TcpLink& stream) {
      if (stream.usable()) ::shutdown(stream.fd_.value(), SHUT_WR);
    });
  }
  read_out();
}

// Messages were handled: DATA that came early may be due.
void TcpLink::wake_further() {
  for_each_further([](TcpLink& stream) {
    if (!stream.waits_for_first_ || stream.early()) return;
    stream.waits_for_first_ = false;
    stream.group_->add_todo(&stream);
  });
}

// check_patience() bounds it: a peer that says BYE and keeps its streams open is not waited for.
void TcpLink::hold(Instant now) {
  held_ = true;
  stop_opening();
  await_end(now);
}

void TcpLink::stop_opening() {
  bulk_until_asked_ = 0;
  group_->stop_opening(*this);
}

void TcpLink::await_end(Instant now) {
  note_progress(now);
  group_->await_answer(this);
}

// Asked once a second, as long as the end is waited for. Two looks in a row must find it over:
// between them the streams are read, also by a program that was away for longer than kPatience.
void TcpLink::check_patience(Instant now) {
  if (now - last_progress_ < kPatience) return;
  if (!std::exchange(patience_over_, true)) return;
  for_each_further([now](TcpLink& stream) {
    if (!stream.read_out_) stream.poll(now);
  });
  if (!patience_over_ || !usable()) return;  // something had come
  if (held_ && !further_read_out()) overdue.add();
  overdue_ = true;
  let_go();
}

void TcpLink::let_go() {
  held_ = false;
  readable_ = true;
  group_->add_todo(this);
}

Status TcpLink::check_order(const wire::Data& data) const {
  if (data.has_after == (first_ != nullptr)) return Status();
  return Status(Code::kCorrupt, Scope::kEndpoint, kOrigin,
                data.has_after ? "DATA of the first stream says what it comes after"
                               : "DATA of a further stream does not say what it comes after");
}

}  // namespace sluice::tcp
