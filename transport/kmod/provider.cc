#include <sluice/kmod/provider.h>

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/base/log.h>
#include <sluice/base/mac_names.h>
#include <sluice/kmod/traits.h>
#include <sluice/proto/hello.h>
#include <sluice/runtime/awaits.h>
#include <sluice/runtime/secret.h>

namespace sluice::kmod {
namespace {

constexpr const char* kOrigin = "kmod/provider";
// Nobody answers for so long: nobody is there. The kernel tells it neither sooner nor better,
// since a port that it does not know may be a packet socket's.
constexpr Duration kAnswerLimit = std::chrono::seconds(3);
constexpr size_t kMostHalfOpenOfOne = 64;  // of one machine
// Connections that are looked at in every turn, each by a system call; beyond them epoll says when.
constexpr size_t kMostHot = 4;
constexpr size_t kCallsPerTurn = 16;

Counter half_open_dropped("kmod.half_open_dropped");
Counter bad_calls("kmod.bad_calls");

Status invalid(std::string why) {
  return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin, std::move(why));
}

// The module has no cipher: who set a secret must not go without in silence.
Status no_secret_is_set() {
  if (!secret_is_set("")) return Status();
  return Status(Code::kUnsupported, Scope::kOperation, kOrigin,
                std::string(kSecretFileVariable) +
                    " is set, and the kernel module cannot encrypt; unset it, or use l2://");
}

}  // namespace

KmodProvider::KmodProvider(ContextCore& context) : context_(context), connections_(context.now()) {}

KmodProvider::~KmodProvider() {
  connections_.detach_all();
  while (!listeners_.empty()) listeners_.back()->close();
  connections_.drop_leaving();
}

void KmodProvider::shut_down() {
  connections_.sessions().abort_all(
      Status(Code::kCancelled, Scope::kContext, kOrigin, "the context was closed"));
}

// Keeps the provider turning while somebody greets, also in a task that is dropped.
class KmodProvider::Meeting {
 public:
  explicit Meeting(KmodProvider& owner) : owner_(owner) {
    ++owner_.greeting_;
    owner_.note_use();
  }
  ~Meeting() {
    --owner_.greeting_;
    owner_.untidy_ = true;
    owner_.note_use();
  }
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

 private:
  KmodProvider& owner_;
};

Task<Result<std::unique_ptr<KmodConnection>>> KmodProvider::meet(const Address& address,
                                                                 wire::Hello ours,
                                                                 Instant deadline) {
  SLUICE_CO_TRY(MacAddress peer, mac_at(address.host, address.name));
  SLUICE_CO_TRY(KmodSocket socket, KmodSocket::open(address.host, 0));
  const KmodPlace listener{.mac = peer, .port = address.port};
  SLUICE_CO_TRY(std::unique_ptr<KmodConnection> connection,
                KmodConnection::call(context_, *this, std::move(socket), listener, ours));
  auto over = [called = connection.get()] {
    return called->state() != KmodConnection::State::kMeeting;
  };
  const Instant silent = after(context_.refresh_now(), kAnswerLimit);
  Status waited;
  {
    Meeting meeting(*this);
    waited = co_await context_.awaits().until(over, std::min(deadline, silent));
  }
  if (waited == Code::kCancelled) co_return waited;
  if (connection->failed()) co_return connection->failure();
  if (over()) co_return std::move(connection);
  if (now() >= silent) {
    co_return Status(Code::kUnreachable, Scope::kOperation, kOrigin,
                     "nobody answers at " + address.to_string() +
                         "; listen there first, on an interface of the same network, or have the "
                         "program that listens call progress()");
  }
  co_return Status(waited.code(), Scope::kOperation, kOrigin,
                   "no connection to " + address.to_string() +
                       " before the deadline; have its program call progress() and accept(), or "
                       "give connect() more time");
}

Task<Result<std::shared_ptr<EndpointCore>>> KmodProvider::start_connect(
    const Address& address, const ConnectOptions& options) {
  return start_connect(address, options, proto::session_options(options));
}

Task<Result<std::shared_ptr<EndpointCore>>> KmodProvider::start_connect(
    const Address& address, const ConnectOptions& options, proto::SessionOptions session) {
  if (address.name.empty() || address.port == 0) {
    co_return invalid(address.to_string() + " names no peer; connect to kmod://" + address.host +
                      "/02:00:00:00:00:0b:7, with its MAC address and port");
  }
  if (inside_)
    co_return Status(Code::kWrongState, Scope::kOperation, kOrigin,
                     "connect() from inside a completion; post it to after progress()");
  SLUICE_CO_RETURN_IF_ERROR(no_secret_is_set());
  const Instant deadline = after(context_.refresh_now(), options.timeout);
  auto connection = co_await meet(address, proto::hello_for_strangers(context_, session), deadline);
  tidy();
  if (!connection.ok()) co_return connection.status();
  co_return make_endpoint(std::move(connection).value(), options.require, session);
}

Result<std::unique_ptr<ListenerCore>> KmodProvider::listen(const Address& address,
                                                           const ListenOptions& options) {
  return listen(address, options, proto::session_options(options),
                std::make_unique<proto::ListenerLimits>(context_, options, address.to_string()));
}

Result<std::unique_ptr<ListenerCore>> KmodProvider::listen(const Address& address,
                                                           const ListenOptions& options,
                                                           const proto::SessionOptions& session) {
  return listen(address, options, session, nullptr);
}

Result<std::unique_ptr<ListenerCore>> KmodProvider::listen(
    const Address& address, const ListenOptions& options, const proto::SessionOptions& session,
    std::unique_ptr<proto::ListenerLimits> limits) {
  SLUICE_RETURN_IF_ERROR(no_secret_is_set());
  SLUICE_TRY(KmodSocket socket, KmodSocket::open(address.host, address.port));
  if (!address.name.empty()) {
    SLUICE_TRY(MacAddress meant, mac_at(address.host, address.name));
    if (meant != socket.own().mac) {
      return invalid(address.host + " has another address than " + address.name +
                     "; listen at kmod://" + address.host + ":" + std::to_string(address.port));
    }
  }
  auto listener = std::make_unique<KmodListener>(*this, std::move(socket), options.require, session,
                                                 std::move(limits));
  SLUICE_RETURN_IF_ERROR(listener->begin());
  return std::unique_ptr<ListenerCore>(std::move(listener));
}

Result<std::shared_ptr<EndpointCore>> KmodProvider::make_endpoint(
    std::unique_ptr<KmodConnection> connection, const Requirements& require,
    const proto::SessionOptions& options) {
  const LinkTraits traits = kmod_traits();
  if (std::string why = unmet(require, traits.properties); !why.empty()) {
    linger(std::move(connection));
    tidy();
    return Status(Code::kUnsupported, Scope::kOperation, kOrigin, why);
  }
  wire::Hello ours = connection->ours(), theirs = connection->theirs();
  std::shared_ptr<PeerAccount> account = account_of(connection->peer());
  connection->hold({});
  std::string reason = "kmod: " + options.why + "; " + connection->door().text();
  auto link = std::make_unique<proto::DirectLink>(*this, std::move(connection), traits);
  auto endpoint = connections_.open(std::move(link), context_.link_decorator(),
                                    proto::SessionParts{
                                        .arena = context_.shared_arena(),
                                        .population = &context_.population(),
                                        .mailbox = context_.mailbox(),
                                        .ours = ours,
                                        .peer = theirs,
                                        .options = options,
                                        .reason = std::move(reason),
                                        .account = std::move(account),
                                    });
  note_use();
  return endpoint;
}

size_t KmodProvider::progress(Instant now) {
  if (inside_) return 0;
  ContextCore::LoneTurn lone(context_);
  inside_ = true;
  size_t work = 0;
  // A link that is told of news may wake others.
  for (size_t i = 0; i < awake_.size(); ++i) {
    KmodConnection* connection = awake_[i];
    if (connection == nullptr) continue;
    connection->hot = awake_.size() <= kMostHot;
    work += connection->link != nullptr ? connection->link->poll(now) : connection->turn(now);
  }
  for (size_t i = 0; i < listeners_.size(); ++i) work += listeners_[i]->progress(now);
  work += connections_.sessions().progress(now);
  std::erase_if(awake_, [](KmodConnection* connection) {
    if (connection != nullptr && connection->link != nullptr &&
        (connection->wants_turn() || connection->has_untold()))
      return false;
    if (connection != nullptr) connection->marked_active = false;
    return true;
  });
  inside_ = false;
  if (untidy_) tidy();
  return work;
}

void KmodProvider::activate(KmodConnection& connection) noexcept {
  if (!std::exchange(connection.marked_active, true)) awake_.push_back(&connection);
}

void KmodProvider::forget(KmodConnection& connection) noexcept {
  std::replace(awake_.begin(), awake_.end(), &connection, static_cast<KmodConnection*>(nullptr));
}

void KmodProvider::linger(std::unique_ptr<proto::DirectConnection> connection) noexcept {
  connection->leave();
  connections_.linger(std::move(connection), Instant{});  // the kernel has all of it
  untidy_ = true;
  note_use();
}

// Lets go of what nobody uses any more.
void KmodProvider::tidy() {
  if (inside_) return;
  untidy_ = false;
  connections_.drop_leaving();
  connections_.forget_closed();
  note_use();
}

void KmodProvider::note_use() {
  in_use_ = greeting_ > 0 || !listeners_.empty() || connections_.in_use() || untidy_;
}

bool KmodProvider::begin_sleep() {
  if (connections_.sessions().has_work()) return false;
  bool quiet = std::none_of(listeners_.begin(), listeners_.end(),
                            [](const KmodListener* l) { return l->has_news(); });
  return quiet && std::none_of(awake_.begin(), awake_.end(), [](const KmodConnection* c) {
           return c != nullptr && (c->has_news() || c->has_untold());
         });
}

Instant KmodProvider::next_timeout() {
  Instant next = connections_.sessions().next_timeout();
  for (const KmodListener* listener : listeners_) next = std::min(next, listener->next_timeout());
  return next;
}

std::string KmodProvider::explain() const {
  Result<KmodDoor> usable = kmod_usable();
  return usable.ok() ? "usable for kmod:// addresses, " + usable->text()
                     : std::string(usable.status().detail());
}

// ---- listening

KmodListener::KmodListener(KmodProvider& owner, KmodSocket socket, const Requirements& require,
                           const proto::SessionOptions& options,
                           std::unique_ptr<proto::ListenerLimits> limits)
    : owner_(&owner),
      socket_(std::move(socket)),
      address_(socket_.text_of(socket_.own())),
      require_(require),
      options_(options),
      limits_(std::move(limits)),
      ours_(proto::hello_for_strangers(owner.context_, options)),
      half_open_(half_open_dropped, [&owner](std::unique_ptr<KmodConnection> connection) {
        owner.linger(std::move(connection));
      }) {
  if (limits_ != nullptr) limits_->set_address(address_);
  owner.listeners_.push_back(this);
  owner.note_use();
}

Status KmodListener::begin() {
  // Sessions are for one message each.
  socket_.allow_most_peers();
  return owner_->context_.watch(socket_.fd(), EPOLLIN, this);
}

void KmodListener::close() {
  if (owner_ == nullptr) return;
  KmodProvider& owner = *std::exchange(owner_, nullptr);
  std::erase(owner.listeners_, this);
  owner.context_.unwatch(socket_.fd(), this);
  half_open_.drop_all();
  socket_ = KmodSocket();
  owner.untidy_ = true;
  if (!owner.inside_) owner.tidy();
}

size_t KmodListener::progress(Instant now) {
  size_t work = 0;
  std::array<std::byte, KmodConnection::kLargestMessage> room;
  for (; readable_ && work < kCallsPerTurn; ++work) {
    KmodPlace from;
    ssize_t bytes = socket_.receive(room, from);
    readable_ = bytes != -EAGAIN;
    if (!readable_) break;
    if (bytes == -ENODEV) {
      log(LogLevel::kWarning, "nobody can call " + address_ + " any more: its interface is gone");
      owner_->context_.unwatch(socket_.fd(), this);
      readable_ = false;
      break;
    }
    if (bytes <= 0) continue;
    auto hello = read_hello({room.data(), static_cast<size_t>(bytes)});
    if (hello.ok() && takes_other_socket(*hello)) {
      answer(*hello, from, now);
    } else {
      bad_calls.add();  // of l2:// as well: packet sockets take answers from this port only
    }
    // It has said what it had to say here.
    (void)socket_.hang_up(from);
  }
  // Who computes for longer than a greeting may take finds events waiting that are looked at only
  // after this.
  for (const auto& entry : half_open_.all()) {
    if (!entry.ready() && entry.expires <= now) work += entry.connection->look() ? 1 : 0;
  }
  return work + half_open_.expire(now);
}

// A socket of its own, at another port, towards the caller's.
void KmodListener::answer(const wire::Hello& theirs, const KmodPlace& caller, Instant now) {
  const auto& all = half_open_.all();
  auto of_its_machine = [&](const proto::HalfOpen<KmodConnection>::Entry& e) {
    return caller.mac == e.connection->peer().mac;
  };
  if (all.size() >= proto::kMostHalfOpen || std::count_if(all.begin(), all.end(), of_its_machine) >=
                                                static_cast<long>(kMostHalfOpenOfOne)) {
    return half_open_dropped.add();
  }
  std::shared_ptr<PeerAccount> account = owner_->account_of(caller);
  if (!account->charge(PeerResource::kHalfOpen).ok()) return half_open_dropped.add();
  PeerCharge charge(std::move(account), PeerResource::kHalfOpen);
  auto socket = KmodSocket::open(socket_.interface(), 0);
  Status status = socket.status();
  if (status.ok()) {
    auto made = KmodConnection::answer(owner_->context_, *owner_, std::move(socket).value(), caller,
                                       theirs, ours_);
    status = made.status();
    if (made.ok()) (*made)->hold(std::move(charge));
    if (made.ok()) half_open_.add(std::move(made).value(), after(now, proto::kGreetingLimit));
  }
  if (!status.ok())
    lost_.log(LogLevel::kWarning,
              "a connection over the kernel module was refused: " + status.to_string());
}

std::shared_ptr<EndpointCore> KmodListener::accept() {
  while (owner_ != nullptr) {
    std::unique_ptr<KmodConnection> connection = half_open_.take_ready();
    if (connection == nullptr) return nullptr;
    const std::string who = socket_.text_of(connection->peer());
    Status fits = wire::negotiate(ours_, connection->theirs()).status();
    Result<std::shared_ptr<EndpointCore>> endpoint =
        fits.ok() ? owner_->make_endpoint(std::move(connection), require_, options_)
                  : Result<std::shared_ptr<EndpointCore>>(fits);
    if (endpoint.ok()) {
      if (limits_ == nullptr || limits_->let_in(static_cast<proto::Session&>(**endpoint)))
        return std::move(endpoint).value();
      continue;  // it was told why
    }
    lost_.log(LogLevel::kWarning,
              "lost the peer " + who + " at " + address() + ": " + endpoint.status().to_string());
  }
  return nullptr;
}

}  // namespace sluice::kmod
