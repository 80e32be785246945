// The further streams of a TcpLink: which of them takes DATA, and the orders that hold across them.
#include <sys/socket.h>

#include <array>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/tcp/link.h>

namespace sluice::tcp {
namespace {

constexpr const char* kOrigin = "tcp/link";

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
  SLUICE_RETURN_IF_ERROR(stream->watch());
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
bool TcpLink::push_further(ConstBytes header, std::span<const ConstBytes> payload,
                           uint64_t cookie) {
  if (further_read_out()) return enqueue(header, payload, cookie);  // the peer has ended them
  wire::Data data;
  (void)wire::decode(header, data);  // it is ours
  data.has_after = true;
  data.after = sent_;
  std::array<std::byte, wire::kMaxHeaderBytes> with_order;
  const ConstBytes encoded(with_order.data(), wire::encode(data, with_order));
  std::vector<Stream>& streams = further_->streams;
  for (size_t i = 0; i < streams.size(); ++i) {
    const size_t place = (further_->next + i) % streams.size();
    if (!streams[place].link->enqueue(encoded, payload, cookie)) continue;
    further_->next = (place + 1) % streams.size();
    return true;
  }
  return false;
}

// What is pushed behind BYE is read by nobody: it goes as if there were one stream.
void TcpLink::end_further() {
  ending_ = true;
  for_each_further([](TcpLink& stream) {
    stream.ending_ = true;
    stream.end_writing_if_empty();
  });
}

void TcpLink::end_writing_if_empty() {
  if (first_ == nullptr || !usable() || (queue_ != nullptr && !queue_->empty())) return;
  ::shutdown(fd_.value(), SHUT_WR);
}

bool TcpLink::further_read_out() const {
  bool all = true;
  for_each_further([&all](const TcpLink& stream) { all = all && stream.read_out_; });
  return all || further_->overdue;
}

void TcpLink::read_out() {
  read_out_ = true;
  if (first_->held_ && first_->further_read_out()) first_->let_go();
}

// The connection ends with it, but what has arrived on the first stream, BYE perhaps, is read
// before that.
void TcpLink::stream_broken(int os_error) {
  broken_ = os_error;
  readable_ = unparsed_ = false;
  if (first_->usable() && first_->broken_ == 0) first_->note_broken(os_error);
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

// kPatience bounds it, as check_answered() sees: a peer that says BYE and keeps its streams open is
// not waited for.
void TcpLink::hold(Instant now) {
  held_ = true;
  held_since_ = now;
  group_->await_answer(this);
}

void TcpLink::let_go() {
  if (!further_read_out()) {
    overdue.add();
    further_->overdue = true;
  }
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
