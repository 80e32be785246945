#include <sluice/l2/discovery/discovery.h>

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include <sluice/base/counters.h>
#include <sluice/base/mac_names.h>
#include <sluice/base/settings.h>
#include <sluice/l2/carrier/packet_socket.h>
#include <sluice/runtime/awaits.h>
#include <sluice/runtime/identity.h>

#include "kernel_compat/slp/slp_wire.h"

namespace sluice::l2 {
namespace {

constexpr const char* kOrigin = "l2/discovery";
constexpr size_t kMacBytes = 6;
// Questions of one event of the loop: what has come beyond them waits for its next turn.
constexpr int kQuestionsPerEvent = 32;
// The first repetition of a question; each later one after twice the time.
constexpr Duration kFirstRepeat = std::chrono::milliseconds(10);
constexpr Duration kSearchLimit = std::chrono::seconds(1);
// And so many questions, so that a process that was itself asleep does not judge by its first.
constexpr uint32_t kLeastQuestions = 6;
// After the first answer, for a second node that has the name.
constexpr Duration kOthersLimit = std::chrono::milliseconds(50);
// Two are an error; more are not listened to.
constexpr size_t kMostAnswers = 2;

Counter asked("l2.finds_asked");
Counter answered("l2.finds_answered");
Counter held_back("l2.finds_held_back");
Counter malformed("l2.finds_malformed");
Counter ignored("l2.founds_ignored");

Status invalid(std::string why) {
  return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin, std::move(why));
}

// Ok: as it is on the wire, in small letters.
Result<std::string> wire_name(const std::string& name) {
  slp_find find{.type = SLP_FIND, .source_port = 1, .destination_port = 0, .nonce = 1, .name = {}};
  uint8_t frame[SLP_FIND_FRAME];
  name.copy(find.name, SLP_NAME_BYTES);
  bool good = name.size() <= SLP_NAME_BYTES && slp_encode_find(frame, &find) &&
              slp_decode_find(frame, sizeof(frame), sizeof(frame), &find) == SLP_TAKEN;
  if (!good) return invalid("a name to be found by has 1 to 64 letters, digits, '.', '_' and '-'");
  return std::string(find.name);
}

// A group's address is nobody's.
bool is_single(const uint8_t* mac) { return (mac[0] & 1) == 0; }

std::string place_text(const PeerPlace& place) {
  return mac_text(place.address) + " at port " + std::to_string(place.port);
}

// One question, and its answers.
class Search final : public ProgressHook, private EventHandler {
 public:
  Search(ContextCore& context, OpenedCarrier opened, std::string name, uint16_t port,
         Instant deadline)
      : context_(context),
        carrier_(std::move(opened.carrier)),
        own_port_(opened.port),
        name_(std::move(name)),
        port_(port),
        next_(context.now()),
        end_(std::min(deadline, after(context.now(), kSearchLimit))),
        deadline_(deadline) {
    fill_random(std::as_writable_bytes(std::span(&nonce_, 1)));
    nonce_ |= 1;
    everybody_.size = kMacBytes;
    std::fill_n(everybody_.bytes.begin(), kMacBytes, uint8_t{0xff});
    room_.reserve(carrier_->slot_bytes());
  }
  ~Search() {
    if (!begun_) return;
    context_.remove_hook(this);
    context_.unwatch(carrier_->fd(), this);
  }
  Status begin() {
    SLUICE_RETURN_IF_ERROR(context_.watch(carrier_->fd(), EPOLLIN, this));
    context_.add_hook(this);
    begun_ = true;
    return Status();
  }
  bool over() const {
    Instant now = sluice::now();
    return answers_.size() == kMostAnswers || now >= deadline_ ||
           (now >= end_ && (!answers_.empty() || asked_ >= kLeastQuestions));
  }
  const std::vector<PeerPlace>& answers() const { return answers_; }

  size_t progress(Instant now) override {
    std::span<const FrameIn> frames = carrier_->receive(room_);
    for (const FrameIn& frame : frames) take(frame, now);
    carrier_->release();
    if (now >= next_ && answers_.empty()) ask(now);
    return frames.size();
  }
  // The end comes nearer with the first answer.
  Instant next_timeout() override {
    return !answers_.empty() ? end_ : asked_ >= kLeastQuestions ? std::min(next_, end_) : next_;
  }

 private:
  void on_event(uint32_t epoll_events) noexcept override {
    if ((epoll_events & EPOLLERR) != 0) carrier_->take_error();
  }
  void ask(Instant now) {
    slp_find find{.type = SLP_FIND,
                  .source_port = own_port_,
                  .destination_port = port_,
                  .nonce = nonce_,
                  .name = {}};
    name_.copy(find.name, SLP_NAME_BYTES);
    uint8_t bytes[SLP_FIND_FRAME];
    (void)slp_encode_find(bytes, &find);
    FrameOut frame;
    frame.to = &everybody_;
    frame.pieces[0] = {bytes, sizeof(bytes)};
    frame.count = 1;
    carrier_->send({&frame, 1});
    asked.add();
    ++asked_;
    next_ = after(now, repeat_);
    repeat_ *= 2;
  }
  void take(const FrameIn& in, Instant now) {
    slp_find found;
    bool good = slp_decode_find(in.data, in.bytes, in.bytes, &found) == SLP_TAKEN &&
                found.type == SLP_FOUND && found.nonce == nonce_ &&
                found.destination_port == own_port_ && name_ == found.name &&
                (port_ == 0 || found.source_port == port_) && is_single(in.from->bytes.data());
    PeerPlace place{*in.from, found.source_port};
    bool known = good && std::find(answers_.begin(), answers_.end(), place) != answers_.end();
    if (!good || answers_.size() == kMostAnswers) return ignored.add();
    if (known) return;
    if (answers_.empty()) end_ = std::min(end_, after(now, kOthersLimit));
    answers_.push_back(place);
  }

  ContextCore& context_;
  std::unique_ptr<Carrier> carrier_;
  uint16_t own_port_;
  std::string name_;
  uint16_t port_;
  uint64_t nonce_ = 0;
  PeerAddress everybody_;
  ReceiveRoom room_;
  Instant next_, end_;
  Instant deadline_;
  Duration repeat_ = kFirstRepeat;
  uint32_t asked_ = 0;
  std::vector<PeerPlace> answers_;
  bool begun_ = false;
};

}  // namespace

bool discovery_wanted(const ConnectOptions& options) {
  return options.discover || setting_is("SLUICE_L2_DISCOVER", "1");
}

std::string name_to_be_found_by(const ListenOptions& options) {
  if (!options.discoverable_as.empty()) return options.discoverable_as;
  return setting_text("SLUICE_L2_NAME").value_or("");
}

Result<std::unique_ptr<Findable>> Findable::open(ContextCore& context, const std::string& interface,
                                                 uint16_t port, const std::string& name) {
  SLUICE_TRY(std::string small, wire_name(name));
  SLUICE_TRY(Descriptor socket, open_find_socket(interface, port));
  std::unique_ptr<Findable> made(new Findable(context, port, small, std::move(socket)));
  SLUICE_RETURN_IF_ERROR(context.watch(made->socket_.value(), EPOLLIN, made.get()));
  return made;
}

Findable::~Findable() { context_.unwatch(socket_.value(), this); }

void Findable::on_event(uint32_t epoll_events) noexcept {
  if ((epoll_events & EPOLLERR) != 0) {
    int error = 0;
    socklen_t length = sizeof(error);
    (void)::getsockopt(socket_.value(), SOL_SOCKET, SO_ERROR, &error, &length);
  }
  Instant now = sluice::now();
  for (int i = 0; i < kQuestionsPerEvent; ++i) {
    uint8_t frame[SLP_FIND_FRAME];
    sockaddr_ll from{};
    socklen_t length = sizeof(from);
    ssize_t bytes = ::recvfrom(socket_.value(), frame, sizeof(frame), MSG_DONTWAIT,
                               reinterpret_cast<sockaddr*>(&from), &length);
    if (bytes < 0) return;
    slp_find find;
    auto size = static_cast<size_t>(bytes);
    bool good = slp_decode_find(frame, size, size, &find) == SLP_TAKEN && find.type == SLP_FIND &&
                from.sll_halen == kMacBytes && is_single(from.sll_addr);
    if (!good) malformed.add();
    if (!good || name_ != find.name ||
        (find.destination_port != 0 && find.destination_port != port_))
      continue;
    if (!answers_.take(now)) {
      held_back.add();
      continue;
    }
    slp_find found{.type = SLP_FOUND,
                   .source_port = port_,
                   .destination_port = find.source_port,
                   .nonce = find.nonce,
                   .name = {}};
    name_.copy(found.name, SLP_NAME_BYTES);
    (void)slp_encode_find(frame, &found);
    from.sll_protocol = htons(SLP_ETHERTYPE);
    // What finds no room is asked for again.
    if (::sendto(socket_.value(), frame, sizeof(frame), MSG_DONTWAIT,
                 reinterpret_cast<sockaddr*>(&from), sizeof(from)) > 0)
      answered.add();
  }
}

Task<Result<PeerPlace>> find_by_broadcast(ContextCore& context, const std::string& interface,
                                          const std::string& name, uint16_t port,
                                          Instant deadline) {
  SLUICE_CO_TRY(std::string small, wire_name(name));
  SLUICE_CO_TRY(OpenedCarrier opened, open_packet_carrier(interface, 0, false));
  context.refresh_now();
  Search search(context, std::move(opened), small, port, deadline);
  SLUICE_CO_RETURN_IF_ERROR(search.begin());
  // It has its own turns, and wakes the context for them.
  Status waited = co_await context.awaits().until([&] { return search.over(); }, deadline);
  if (waited == Code::kCancelled) co_return waited;
  const std::vector<PeerPlace>& answers = search.answers();
  if (answers.size() == 1) co_return answers[0];
  std::string who = "'" + name + "'" + (port != 0 ? " at port " + std::to_string(port) : "");
  if (answers.empty()) {
    co_return Status(
        Code::kUnreachable, Scope::kOperation, kOrigin,
        "nobody on the network of " + interface + " answers to the name " + who +
            "; its listener has to wish it (ListenOptions::discoverable_as, or SLUICE_L2_NAME=" +
            name + "), or a line of /etc/sluice/peers names it");
  }
  co_return invalid("two listeners on the network of " + interface + " answer to the name " + who +
                    ": " + place_text(answers[0]) + " and " + place_text(answers[1]) +
                    "; one of them has to go, or connect to the address of the one that is meant");
}

Task<Result<Address>> with_names_found(ContextCore& context, const Address& address,
                                       Instant deadline) {
  bool named =
      !address.is_udp() && !address.name.empty() && address.name.find(':') == std::string::npos;
  if (!named || is_named(read_peers(), address.host, address.name)) co_return address;
  SLUICE_CO_TRY(PeerPlace place, co_await find_by_broadcast(context, address.host, address.name,
                                                            address.port, deadline));
  Address found = address;
  found.name = mac_text(place.address);
  found.port = place.port;
  co_return found;
}

}  // namespace sluice::l2
