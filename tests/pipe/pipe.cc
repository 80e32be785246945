// A path that exists only in tests: "pipe:name", endpoints of one process over two pipes, one for
// each direction. Moves bytes by read() and write() of its own; shares nothing with another path.
#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sluice/api/path_names.h>
#include <sluice/base/descriptor.h>
#include <sluice/proto/connection_set.h>
#include <sluice/proto/hello.h>
#include <sluice/proto/listener_limits.h>
#include <sluice/proto/whole_message.h>
#include <sluice/runtime/context_core.h>
#include <sluice/spi/endpoint_core.h>
#include <sluice/spi/link.h>
#include <sluice/spi/path_descriptor.h>

namespace sluice::pipe {
namespace {

constexpr const char* kOrigin = "pipe";
// Waiting for room in the pipe: control messages; DATA, of which a session then waits.
constexpr size_t kMostWaiting = 256 << 10;
constexpr size_t kReadsPerPoll = 64;

Path pipe_path() {
  static const Path path = add_path("pipe");
  return path;
}

const LinkTraits& pipe_traits() {
  static const LinkTraits traits = [] {
    LinkTraits t;
    t.properties = {.path = pipe_path(), .capabilities = {}, .copies_per_fetch = 2};
    t.inline_bytes = 4096;
    t.data_bytes = 256 << 10;
    t.inline_out = t.inline_in = {.user = 1, .kernel = 1};
    t.bulk_out = t.bulk_in = {.user = 0, .kernel = 1};
    return t;
  }();
  return traits;
}

struct Ends {
  Descriptor in, out;
};

// The ends of a new connection: ours, theirs. Errors: kNoMemory.
Result<std::pair<Ends, Ends>> open_pipes() {
  int there[2], back[2];
  if (::pipe2(there, O_CLOEXEC | O_NONBLOCK) != 0) return no_descriptor(errno);
  Descriptor there_in(there[0]), there_out(there[1]);
  if (::pipe2(back, O_CLOEXEC | O_NONBLOCK) != 0) return no_descriptor(errno);
  // Fewer turns for bulk; refused past the user's limit of such memory.
  for (int fd : {there[1], back[1]}) (void)::fcntl(fd, F_SETPIPE_SZ, 1 << 20);
  return std::pair<Ends, Ends>(Ends{Descriptor(back[0]), std::move(there_out)},
                               Ends{std::move(there_in), Descriptor(back[1])});
}

// One end of a connection.
class PipeLink final : public StreamLink, private EventHandler {
 public:
  PipeLink(ContextCore& context, Ends ends, std::string name)
      : context_(context), ends_(std::move(ends)), name_(std::move(name)) {}
  ~PipeLink() override { close(); }
  Status watch() {
    SLUICE_RETURN_IF_ERROR(context_.watch(ends_.in.value(), EPOLLIN | EPOLLET, this));
    return context_.watch(ends_.out.value(), EPOLLOUT | EPOLLET, this);
  }
  void set_client(LinkClient* session, StreamClient* transfer) override {
    client_ = session;
    transfer_ = transfer;
  }
  bool closed() const { return closed_; }
  // Writes and reads what it can, up to a bound; returns how much.
  size_t poll(Instant now) {
    if (!usable()) return 0;
    write_out();
    size_t work = report(now);
    if (usable()) work += receive(now);
    return work;
  }
  // poll() would do something.
  bool due() const {
    return usable() && (readable_ || can_write() || !pushed_.empty() || (writable_ && wants_room_));
  }
  const LinkTraits& traits() const override { return pipe_traits(); }
  bool send(ConstBytes header, std::span<const ConstBytes> payload) override {
    if (!has_room()) return !usable();  // lost, like what was sent just before
    std::vector<std::byte> message(header.begin(), header.end());
    for (ConstBytes part : payload) message.insert(message.end(), part.begin(), part.end());
    append(std::move(message));
    write_out();
    return true;
  }
  bool push(ConstBytes header, std::span<const ConstBytes> payload, uint64_t cookie) override {
    if (!has_room()) return !usable();  // link_down() follows and gives the payload back
    append({header.begin(), header.end()});
    for (ConstBytes part : payload) {
      out_.push_back({.own = {}, .bytes = part, .cookie = cookie, .length = part.size()});
      out_bytes_ += part.size();
    }
    return true;
  }
  void settle(uint64_t cookie) override {
    for (Piece& piece : out_) {
      if (piece.cookie != cookie || !piece.own.empty()) continue;
      piece.own.assign(piece.bytes.begin(), piece.bytes.end());
      piece.bytes = piece.own;
    }
  }
  void flush() override { write_out(); }
  bool has_unsent() const override { return !out_.empty(); }
  void quarantine(StorageRef) override {}  // no peer can reach our memory
  void close() override {
    if (closed_) return;
    write_out();
    closed_ = true;
    context_.unwatch(ends_.in.value(), this);
    context_.unwatch(ends_.out.value(), this);
    out_.clear();
    ends_ = {};
  }
  std::string local_name() const override { return name_; }
  std::string peer_name() const override { return name_; }

 private:
  // Bytes that have still to be written: ours, or a program's until pushed() says so.
  struct Piece {
    std::vector<std::byte> own;
    ConstBytes bytes;
    std::optional<uint64_t> cookie;
    size_t length = 0;  // of all of it
  };
  bool usable() const { return !closed_ && !down_; }
  bool has_room() {
    wants_room_ = wants_room_ || out_bytes_ >= kMostWaiting;
    return usable() && out_bytes_ < kMostWaiting;
  }
  bool can_write() const { return writable_ && !out_.empty(); }
  void on_event(uint32_t events) noexcept override {
    if ((events & EPOLLOUT) != 0) writable_ = true;
    if ((events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) readable_ = writable_ = true;
  }
  void append(std::vector<std::byte> own) {
    const size_t length = own.size();
    out_.push_back({.own = std::move(own), .bytes = {}, .cookie = {}, .length = length});
    out_.back().bytes = out_.back().own;
    out_bytes_ += length;
  }
  void write_out() {
    while (usable() && can_write()) {
      Piece& piece = out_.front();
      if (!piece.bytes.empty()) {
        const ssize_t sent = ::write(ends_.out.value(), piece.bytes.data(), piece.bytes.size());
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) {
          // A peer that has ended: that is told once what it had written is read.
          writable_ = false;
          if (errno == EPIPE) readable_ = true;
          return;
        }
        piece.bytes = piece.bytes.subspan(static_cast<size_t>(sent));
        out_bytes_ -= static_cast<size_t>(sent);
        if (!piece.bytes.empty()) continue;
      }
      if (piece.cookie) pushed_.emplace_back(*piece.cookie, piece.length);
      out_.pop_front();
    }
  }
  size_t report(Instant now) {
    size_t told = 0;
    while (usable() && !pushed_.empty()) {
      const auto [cookie, length] = pushed_.front();
      pushed_.erase(pushed_.begin());
      transfer_->pushed(cookie, length, now);
      ++told;
    }
    if (usable() && wants_room_ && out_bytes_ <= kMostWaiting / 2) {
      wants_room_ = false;
      client_->writable(now);
      ++told;
    }
    return told;
  }
  size_t receive(Instant now) {
    size_t work = 0;
    for (size_t reads = 0; reads < kReadsPerPoll && usable() && readable_; ++reads) {
      if (data_left_ > 0) {
        work += receive_data(now) > 0 ? 1 : 0;
        continue;
      }
      const size_t had = in_.size();
      in_.resize(needed_);
      const size_t got = taken(::read(ends_.in.value(), in_.data() + had, needed_ - had), now);
      if (!usable()) return work + 1;
      in_.resize(had + got);
      if (got == 0) continue;
      ++work;
      while (usable() && data_left_ == 0 && in_.size() == needed_)
        if (!take_message(now)) break;
    }
    return work;
  }
  // What read() or readv() said: bytes, 0 for none now; ends the connection at the peer's end.
  size_t taken(ssize_t got, Instant now) {
    if (got > 0) return static_cast<size_t>(got);
    if (got < 0 && errno == EINTR) return 0;
    readable_ = false;
    if (got < 0 && errno == EAGAIN) return 0;
    fail(Status(Code::kUnreachable, Scope::kEndpoint, kOrigin,
                name_ + " closed the connection: it ended, or closed its endpoint; connect again"),
         now);
    return 0;
  }
  size_t receive_data(Instant now) {
    const uint64_t length = std::min<uint64_t>(data_left_, pipe_traits().data_bytes);
    Placement place = transfer_->place(data_.id, data_.offset, length);
    std::array<std::byte, 4096> dropped;
    if (place.count == 0) {  // nobody wants these
      place.runs[0] = std::span(dropped).first(std::min<size_t>(length, dropped.size()));
      place.count = 1;
    }
    std::array<iovec, kMaxPlaces> runs;
    for (size_t i = 0; i < place.count; ++i) runs[i] = {place.runs[i].data(), place.runs[i].size()};
    const size_t got =
        taken(::readv(ends_.in.value(), runs.data(), static_cast<int>(place.count)), now);
    if (got == 0) return 0;
    const uint64_t offset = data_.offset;
    data_.offset += got;
    data_left_ -= got;
    Status status = transfer_->placed(data_.id, offset, got, now);
    if (!status.ok()) fail(status, now);
    return got;
  }
  // Requires: `needed_` bytes have come. False: the connection has ended.
  bool take_message(Instant now) {
    Result<wire::Header> common = wire::decode_header(in_);
    Status status = common.status();
    if (status.ok()) {
      const bool data = common->type == wire::MessageType::kData;
      const size_t whole = common->header_bytes + (data ? 0 : common->payload_bytes);
      if (in_.size() < whole) {
        needed_ = whole;
        return true;
      }
      // The client may close us: the message is not ours any more.
      std::vector<std::byte> message = std::exchange(in_, {});
      needed_ = wire::kHeaderBytes;
      if (data) {
        status = wire::decode(message, data_);
        if (status.ok()) data_left_ = data_.payload_bytes;
      } else {
        status = proto::hand_on(*client_, message, now);
      }
    }
    if (!status.ok()) fail(status, now);
    return usable();
  }
  void fail(const Status& why, Instant now) {
    if (!usable()) return;
    (void)report(now);
    if (!usable()) return;
    down_ = true;
    out_.clear();
    client_->link_down(why, now);
  }

  ContextCore& context_;
  Ends ends_;
  std::string name_;
  LinkClient* client_ = nullptr;
  StreamClient* transfer_ = nullptr;
  std::deque<Piece> out_;
  size_t out_bytes_ = 0;
  std::vector<std::pair<uint64_t, uint64_t>> pushed_;  // cookie, length; to be told
  bool writable_ = true, wants_room_ = false;
  std::vector<std::byte> in_;           // the beginning of a message
  size_t needed_ = wire::kHeaderBytes;  // bytes of it
  wire::Data data_;                     // whose payload is arriving
  uint64_t data_left_ = 0;
  bool readable_ = true, down_ = false, closed_ = false;
};

Scheme pipe_scheme() {
  static const Scheme scheme = add_scheme("pipe", AddressForm::kName);
  return scheme;
}

Status check_requirements(const Requirements& require) {
  const std::string why = unmet(require, pipe_traits().properties);
  return why.empty() ? Status() : Status(Code::kUnsupported, Scope::kOperation, kOrigin, why);
}

// A caller, on its way to the listener's thread: its address travels through the port's pipe.
struct Caller {
  Ends ends;
  wire::Hello hello;
};
struct Port {
  Ends callers;
  wire::Hello hello;
};
std::mutex ports_mutex;
std::map<std::string, Port*>& ports() {
  static auto* all = new std::map<std::string, Port*>();
  return *all;
}

class PipeProvider final : public Provider {
 public:
  explicit PipeProvider(ContextCore& context) : context_(context), connections_(context.now()) {}
  ~PipeProvider() override { connections_.detach_all(); }

  Scheme scheme() const override { return pipe_scheme(); }
  Task<Result<std::shared_ptr<EndpointCore>>> start_connect(
      const Address& address, const ConnectOptions& options) override {
    co_return connect(address, options);
  }
  Result<std::shared_ptr<EndpointCore>> connect(const Address& address,
                                                const ConnectOptions& options) {
    const proto::SessionOptions session = proto::session_options(options);
    SLUICE_RETURN_IF_ERROR(check_requirements(options.require));
    std::lock_guard all(ports_mutex);
    auto port = ports().find(address.name);
    if (port == ports().end()) {
      return Status(Code::kUnreachable, Scope::kOperation, kOrigin,
                    "nobody in this process listens at " + address.to_string() +
                        "; start the listener first");
    }
    SLUICE_TRY(auto ends, open_pipes());
    SLUICE_TRY(auto endpoint, make_endpoint(std::move(ends.first), address.to_string(), session,
                                            port->second->hello));
    auto caller = std::make_unique<Caller>(
        Caller{std::move(ends.second), proto::hello_for(context_, session)});
    Caller* raw = caller.get();
    // Else its ends close, and the endpoint finds that out.
    if (::write(port->second->callers.out.value(), &raw, sizeof(raw)) == sizeof(raw))
      (void)caller.release();
    return endpoint;
  }
  Result<std::unique_ptr<ListenerCore>> listen(const Address& address,
                                               const ListenOptions& options) override;
  Result<std::shared_ptr<EndpointCore>> make_endpoint(Ends ends, const std::string& name,
                                                      const proto::SessionOptions& options,
                                                      const wire::Hello& peer) {
    auto link = std::make_unique<PipeLink>(context_, std::move(ends), name);
    SLUICE_RETURN_IF_ERROR(link->watch());
    in_use_ = true;
    proto::SessionParts parts{.arena = context_.shared_arena(),
                              .mailbox = context_.mailbox(),
                              .ours = proto::hello_for(context_, options),
                              .peer = peer,
                              .options = options,
                              .reason = "pipe: was asked for"};
    parts.account = context_.peer_accounts().open(PeerIdentity::of_process());
    return connections_.open(std::move(link), context_.link_decorator(), std::move(parts));
  }
  size_t progress(Instant now) override {
    size_t work = 0;
    for (size_t i = 0; i < connections_.held().size(); ++i)
      work += connections_.held()[i].link->poll(now);
    work += connections_.sessions().progress(now);
    connections_.forget_closed();
    in_use_ = connections_.in_use();
    return work;
  }
  bool begin_sleep() override {
    return !connections_.sessions().has_work() &&
           std::ranges::none_of(connections_.held(), [](auto& held) { return held.link->due(); });
  }
  Instant next_timeout() override { return connections_.next_timeout(); }
  bool has_unsent() const override { return connections_.sessions().has_unsent(); }
  void shut_down() override {
    connections_.sessions().abort_all(
        Status(Code::kCancelled, Scope::kContext, kOrigin, "the context was closed"));
  }

 private:
  ContextCore& context_;
  proto::ConnectionSet<PipeLink, PipeLink> connections_;
};

class PipeListener final : public ListenerCore, private EventHandler {
 public:
  PipeListener(PipeProvider& provider, ContextCore& context, std::string name, Ends callers,
               const ListenOptions& options)
      : provider_(provider),
        context_(context),
        name_(std::move(name)),
        port_{std::move(callers), proto::hello_for(context, proto::session_options(options))},
        options_(proto::session_options(options)),
        limits_(context, options, address()) {}
  ~PipeListener() override { close(); }
  Status begin() {
    std::lock_guard all(ports_mutex);
    if (!ports().emplace(name_, &port_).second) {
      return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin,
                    address() + " is taken by another listener; choose another name");
    }
    return context_.watch(port_.callers.in.value(), EPOLLIN | EPOLLET, this);
  }

  std::shared_ptr<EndpointCore> accept() override {
    while (std::unique_ptr<Caller> caller = next()) {
      auto session =
          provider_.make_endpoint(std::move(caller->ends), address(), options_, caller->hello);
      if (session.ok() && limits_.let_in(static_cast<proto::Session&>(**session))) return *session;
    }
    return nullptr;
  }
  std::string address() const override { return "pipe:" + name_; }
  void close() override {
    std::lock_guard all(ports_mutex);
    auto found = ports().find(name_);
    if (found == ports().end() || found->second != &port_) return;
    ports().erase(found);
    context_.unwatch(port_.callers.in.value(), this);
    while (next() != nullptr) {}
    port_.callers = {};
  }

 private:
  std::unique_ptr<Caller> next() {
    Caller* caller = nullptr;
    const bool any = ::read(port_.callers.in.value(), &caller, sizeof(caller)) == sizeof(caller);
    return std::unique_ptr<Caller>(any ? caller : nullptr);
  }
  void on_event(uint32_t) noexcept override {}  // it wakes; accept() looks

  PipeProvider& provider_;
  ContextCore& context_;
  std::string name_;
  Port port_;
  proto::SessionOptions options_;
  proto::ListenerLimits limits_;
};

Result<std::unique_ptr<ListenerCore>> PipeProvider::listen(const Address& address,
                                                           const ListenOptions& options) {
  SLUICE_RETURN_IF_ERROR(check_requirements(options.require));
  SLUICE_TRY(auto pipes, open_pipes());
  Ends callers{.in = std::move(pipes.second.in), .out = std::move(pipes.first.out)};
  auto listener =
      std::make_unique<PipeListener>(*this, context_, address.name, std::move(callers), options);
  SLUICE_RETURN_IF_ERROR(listener->begin());
  return std::unique_ptr<ListenerCore>(std::move(listener));
}

const PathDescriptor kPath{
    .path = pipe_path(),
    .scheme = pipe_scheme(),
    .name = "pipe",
    .explain =
        [] {
          return PathState{true, "for endpoints of this process", pipe_traits().properties};
        },
    .open = [](ContextCore& context) -> std::unique_ptr<Provider> {
      return std::make_unique<PipeProvider>(context);
    },
};
const AddedPath added(kPath);
// The peer may have ended before we write.
const auto ignored = ::signal(SIGPIPE, SIG_IGN);

}  // namespace
}  // namespace sluice::pipe
