#include <sluice/runtime/names.h>

#include <ares.h>
#include <arpa/inet.h>
#include <netdb.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include <sluice/api/progress_hook.h>
#include <sluice/runtime/context_core.h>
#include <sluice/runtime/event_handler.h>

namespace sluice {
namespace {

constexpr const char* kOrigin = "runtime/names";

std::string& servers_under_test() {
  static std::string servers;
  return servers;
}

const std::string& host_in(const Address& address) {
  return address.is_udp() ? address.name : address.host;
}

ares_channel channel_of(void* channel) { return static_cast<ares_channel>(channel); }

SocketAddress at_port(const sockaddr* address, socklen_t length, uint16_t port) {
  SocketAddress out;
  out.length = std::min<socklen_t>(length, sizeof(out.storage));
  std::memcpy(&out.storage, address, out.length);
  auto* any = &out.storage;
  if (out.family() == AF_INET6)
    reinterpret_cast<sockaddr_in6*>(any)->sin6_port = htons(port);
  else
    reinterpret_cast<sockaddr_in*>(any)->sin_port = htons(port);
  return out;
}

// One question. It goes on while the context is progressed; destroying it gives up. Thread: the
// context's.
class NameQuery final : private ProgressHook {
 public:
  // Reads /etc/resolv.conf and /etc/hosts. Errors: kNoMemory.
  static Result<std::unique_ptr<NameQuery>> start(ContextCore& context, const Address& address);
  ~NameQuery();
  NameQuery(const NameQuery&) = delete;
  NameQuery& operator=(const NameQuery&) = delete;

  bool done() const { return done_; }
  // Requires: done(); once. At least one address, in the order of RFC 6724. Errors: kUnreachable;
  // the detail names the host and the remedy.
  Result<std::vector<SocketAddress>> take();

 private:
  struct Watched;  // one of the sockets to the servers
  struct Callbacks;

  NameQuery(ContextCore& context, const Address& address);
  size_t progress(Instant now) override;
  Instant next_timeout() override { return next_; }
  void settle_timer();
  void watch(int fd, bool readable, bool writable);

  ContextCore& context_;
  std::string host_, whole_;
  uint16_t port_;
  void* channel_ = nullptr;  // ares_channel
  std::vector<std::unique_ptr<Watched>> watched_;
  std::vector<SocketAddress> found_;
  int error_ = 0;
  bool done_ = false;
  Instant next_ = kNever;  // when c-ares asks again, or another server
};

}  // namespace

void use_name_servers(const std::string& servers) { servers_under_test() = servers; }

std::vector<SocketAddress> address_in_digits(const Address& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* list = nullptr;
  std::vector<SocketAddress> found;
  if (::getaddrinfo(host_in(address).c_str(), nullptr, &hints, &list) != 0) return found;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next)
    found.push_back(at_port(entry->ai_addr, entry->ai_addrlen, address.port));
  ::freeaddrinfo(list);
  return found;
}

Instant turn_of_address(Instant now, Instant deadline, size_t left) {
  if (deadline == kNever || deadline <= now) return deadline;
  return now + (deadline - now) / static_cast<int64_t>(left);
}

struct NameQuery::Watched final : EventHandler {
  Watched(NameQuery& query, int fd) : query(query), fd(fd) {}
  // May end the query, whose owner looks at done() later; never destroys it.
  void on_event(uint32_t events) noexcept override {
    const bool broken = (events & (EPOLLERR | EPOLLHUP)) != 0;
    ares_process_fd(channel_of(query.channel_),
                    (events & EPOLLIN) != 0 || broken ? fd : ARES_SOCKET_BAD,
                    (events & EPOLLOUT) != 0 ? fd : ARES_SOCKET_BAD);
    query.settle_timer();
  }
  NameQuery& query;
  int fd;  // -1: c-ares has closed it
};

struct NameQuery::Callbacks {
  static void socket_state(void* query, ares_socket_t fd, int readable, int writable) {
    static_cast<NameQuery*>(query)->watch(fd, readable != 0, writable != 0);
  }
  static void answer(void* of, int status, int, ares_addrinfo* result) {
    auto& query = *static_cast<NameQuery*>(of);
    query.error_ = status;
    query.done_ = true;
    if (result == nullptr) return;
    for (const ares_addrinfo_node* node = result->nodes; node != nullptr; node = node->ai_next) {
      if (node->ai_family == AF_INET || node->ai_family == AF_INET6)
        query.found_.push_back(at_port(node->ai_addr, node->ai_addrlen, query.port_));
    }
    ares_freeaddrinfo(result);
  }
};

NameQuery::NameQuery(ContextCore& context, const Address& address)
    : context_(context),
      host_(host_in(address)),
      whole_(address.to_string()),
      port_(address.port) {}

Result<std::unique_ptr<NameQuery>> NameQuery::start(ContextCore& context, const Address& address) {
  static const int library = ares_library_init(ARES_LIB_INIT_ALL);
  std::unique_ptr<NameQuery> query(new NameQuery(context, address));
  ares_options options{};
  options.sock_state_cb = &Callbacks::socket_state;
  options.sock_state_cb_data = query.get();
  ares_channel channel = nullptr;
  int failed = library != ARES_SUCCESS
                   ? library
                   : ares_init_options(&channel, &options, ARES_OPT_SOCK_STATE_CB);
  if (failed != ARES_SUCCESS) {
    return Status(Code::kNoMemory, Scope::kOperation, kOrigin,
                  std::string("the resolver cannot start: ") + ares_strerror(failed));
  }
  query->channel_ = channel;
  if (const std::string& servers = servers_under_test(); !servers.empty())
    ares_set_servers_ports_csv(channel, servers.c_str());
  ares_addrinfo_hints hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  context.add_hook(query.get());
  ares_getaddrinfo(channel, query->host_.c_str(), nullptr, &hints, &Callbacks::answer, query.get());
  query->settle_timer();
  return query;
}

NameQuery::~NameQuery() {
  if (channel_ == nullptr) return;
  context_.remove_hook(this);
  ares_destroy(channel_of(channel_));  // answers, if it has not, and closes its sockets
}

void NameQuery::settle_timer() {
  timeval left{};
  next_ = kNever;
  if (done_ || ares_timeout(channel_of(channel_), nullptr, &left) == nullptr) return;
  next_ = after(context_.refresh_now(),
                std::chrono::seconds(left.tv_sec) + std::chrono::microseconds(left.tv_usec));
}

size_t NameQuery::progress(Instant now) {
  if (now < next_) return 0;
  ares_process_fd(channel_of(channel_), ARES_SOCKET_BAD, ARES_SOCKET_BAD);
  settle_timer();
  return 1;
}

// A new handler for each socket: a number may come again in the batch of events of the old one.
void NameQuery::watch(int fd, bool readable, bool writable) {
  auto known = std::find_if(watched_.begin(), watched_.end(),
                            [fd](const auto& each) { return each->fd == fd; });
  if (!readable && !writable) {
    if (known == watched_.end()) return;
    // In a forked child the epoll is the parent's.
    if (!context_.forked()) context_.unwatch(fd, known->get());
    (*known)->fd = -1;
    return;
  }
  const uint32_t events = (readable ? EPOLLIN : 0u) | (writable ? EPOLLOUT : 0u);
  if (known != watched_.end()) {
    (void)context_.rewatch(fd, events, known->get());
    return;
  }
  watched_.push_back(std::make_unique<Watched>(*this, fd));
  // Where that fails the question ends by its own time.
  (void)context_.watch(fd, events, watched_.back().get());
}

Result<std::vector<SocketAddress>> NameQuery::take() {
  if (error_ == ARES_SUCCESS && !found_.empty()) return std::move(found_);
  return Status(Code::kUnreachable, Scope::kOperation, kOrigin,
                "the name '" + host_ + "' in " + whole_ + " does not resolve (" +
                    (error_ != ARES_SUCCESS ? ares_strerror(error_) : "it has no address") +
                    "); check its spelling, /etc/hosts and the DNS servers in /etc/resolv.conf");
}

Task<Result<std::vector<SocketAddress>>> addresses_of(Awaits& awaits, Address address,
                                                      Instant deadline) {
  std::vector<SocketAddress> found = address_in_digits(address);
  if (!found.empty()) co_return std::move(found);
  SLUICE_CO_TRY(std::unique_ptr<NameQuery> query, NameQuery::start(awaits.context(), address));
  Status status = co_await awaits.until([&query] { return query->done(); }, deadline);
  if (status == Code::kTimedOut) {
    co_return Status(Code::kTimedOut, Scope::kOperation, kOrigin,
                     "no name server answered where '" + host_in(address) + "' in " +
                         address.to_string() +
                         " is before the deadline; check /etc/resolv.conf, or use the address");
  }
  SLUICE_CO_RETURN_IF_ERROR(status);
  co_return query->take();
}

}  // namespace sluice
