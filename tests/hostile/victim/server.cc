#include "tests/hostile/victim/server.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <vector>

#include <sluice/exchange/exchange.h>
#include <sluice/select/open.h>
#include <sluice/spi/endpoint_core.h>

#include "tests/hostile/victim/measure.h"
#include "tests/hostile/victim/service.h"
#include "tests/support/pattern.h"

namespace sluice::hostile {
namespace {

// A bound on a hang: what clients held is given back by then, or it is said that it was not.
constexpr Duration kSettled = std::chrono::seconds(12);
constexpr size_t kMostPublished = 64;  // of one client's, at once
constexpr size_t kMostAsked = size_t{256} << 10;
// Memory that strangers have us set aside, all of them together: half of the arena. The rest is for
// those who said the secret word, and for the library. No library can bound what a program
// allocates for its peers.
constexpr size_t kMostForStrangers = size_t{48} << 20;

template <typename T>
T must(Result<T>&& result, const char* what) {
  if (!result.ok()) {
    std::cerr << "server: " << what << ": " << result.status().to_string() << std::endl;
    ::_exit(1);
  }
  return std::move(result).value();
}

Tensor tensor_of(Context& context, size_t bytes, uint64_t seed, Status& status) {
  auto buffer = context.arena().allocate(bytes);
  status = buffer.status();
  if (!buffer.ok()) return Tensor();
  test::fill(buffer->bytes(), seed);
  return std::move(*buffer).freeze();
}

class Server;

// One who has connected.
struct Client final : CompletionSink {
  explicit Client(Endpoint&& e) : endpoint(std::move(e)) {}
  ~Client() {
    for (Publication& one : published) one.retire();
  }
  void on_completion(Completion&& completion) noexcept override {
    ended.push_back(std::move(completion));
  }
  Endpoint endpoint;
  std::deque<Completion> ended;
  std::deque<Publication> published;
  std::optional<Fetch> fetch;
  uint64_t fetch_step = 0;
  Buffer granted;
  std::optional<RemoteKey> key;
  size_t taking = 0;  // bytes of receives posted for its gifts
  int sending = 0;
};

class Server {
 public:
  Server(const std::string& address, const std::string& secret)
      : secret_word_(secret),
        context_(must(open_context(context_options()), "open")),
        exchange_(*context_, rules()),
        listener_(must(context_->listen(address), "listen")) {
    Status status;
    weights_ = must(
        exchange_.publish({kWeights, 0}, tensor_of(*context_, kWeightsBytes, kWeightsSeed, status),
                          {.readers = until_retired}),
        "publish");
    secret_ = tensor_of(*context_, kSecretBytes, 0, status);
    scratch_ = must(context_->arena().allocate(kSecretBytes), "allocate");
    std::cout << listener_.address() << std::endl;
  }

  int run() {
    while (!ended_) {
      turn();
      while (std::optional<std::string> line = next_line()) obey(*line);
      if (worked_ == 0 && !ended_) rest();
    }
    return 0;
  }

 private:
  // Anybody may ask for anything, but what is between us and those who said the secret word.
  ExchangeOptions rules() {
    ExchangeOptions options;
    options.allow = [this](const EndpointInfo& peer, const Key& key, KeyAccess) {
      return (key.name != kMade && !key.name.starts_with(kUp)) || is_friend(peer);
    };
    return options;
  }

  bool is_friend(const EndpointInfo& peer) const {
    return std::find(friends_.begin(), friends_.end(),
                     std::pair(peer.peer, peer.peer_incarnation)) != friends_.end();
  }

  // Whether `bytes` more may be set aside at this client's wish.
  bool has_room_for(const Client& client, size_t bytes) const {
    if (is_friend(client.endpoint.info())) return true;
    for (const auto& other : clients_)
      if (!is_friend(other->endpoint.info()))
        bytes += other->taking + other->granted.bytes().size();
    return bytes <= kMostForStrangers;
  }

  void turn() {
    worked_ = turns_.run(*context_);
    while (true) {
      auto endpoint = listener_.try_accept();
      if (!endpoint.ok()) break;
      ++worked_;
      clients_.push_back(std::make_unique<Client>(std::move(endpoint).value()));
      (void)exchange_.add(clients_.back()->endpoint);  // it may have ended by now
      // Nobody is told these keys: who uses one has guessed it.
      (void)clients_.back()->endpoint.grant(secret_, {.rights = Right::kRead});
      (void)clients_.back()->endpoint.grant(scratch_, {.rights = Right::kReadWrite});
      listen_to(*clients_.back());
    }
    for (auto& client : clients_) serve(*client);
    std::erase_if(clients_, [](const auto& client) {
      return client->endpoint.state() == EndpointState::kClosed;
    });
  }

  void rest() {
    if (!context_->prepare_to_sleep()) return;
    Instant next = context_->next_timeout();
    auto left = next == kNever
                    ? 50
                    : std::chrono::duration_cast<std::chrono::milliseconds>(next - now()).count();
    pollfd wait[2] = {{.fd = context_->fd(), .events = POLLIN, .revents = 0},
                      {.fd = 0, .events = POLLIN, .revents = 0}};
    (void)::poll(wait, 2, static_cast<int>(std::clamp<int64_t>(left, 0, 50)));
  }

  std::optional<std::string> next_line() {
    pollfd wait{.fd = 0, .events = POLLIN, .revents = 0};
    while (line_.find('\n') == std::string::npos && ::poll(&wait, 1, 0) > 0) {
      char bytes[256];
      ssize_t got = ::read(0, bytes, sizeof(bytes));
      if (got <= 0) {
        ended_ = true;
        return std::nullopt;
      }
      line_.append(bytes, static_cast<size_t>(got));
    }
    size_t end = line_.find('\n');
    if (end == std::string::npos) return std::nullopt;
    std::string line = line_.substr(0, end);
    line_.erase(0, end + 1);
    return line;
  }

  void obey(const std::string& line) {
    if (line == "audit") return audit();
    if (line == "keys") return print_keys();
    if (line == "turns") {
      std::cout << turns_.to_json().dump() << std::endl;
      turns_ = Turns();
      return;
    }
    ended_ = true;
  }

  void audit() {
    Instant deadline = after(now(), kSettled);
    (void)context_->arena().trim();
    Holdings held = holdings(*context_, clients_.size());
    while (now() < deadline && !(clients_.empty() && (!before_ || as_before(*before_, held)))) {
      turn();
      if (worked_ == 0) rest();
      (void)context_->arena().trim();
      held = holdings(*context_, clients_.size());
    }
    nlohmann::json report = {
        {"after", to_json(held)}, {"turns", turns_.to_json()}, {"counters", counters()}};
    if (before_) {
      report["before"] = to_json(*before_);
      report["as_before"] = as_before(*before_, held);
    } else {
      before_ = held;
    }
    turns_ = Turns();
    std::cout << report.dump() << std::endl;
  }

  // What strangers have left of the exchange's table, until it says no.
  void print_keys() {
    size_t names = 0;
    std::string why;
    std::vector<Publication> all;
    for (; names < Exchange::kMostKeys; ++names) {
      auto one =
          exchange_.publish({"count/" + std::to_string(names), 0},
                            Tensor(must(context_->arena().allocate(1), "a byte").freeze()), {});
      if (!one.ok()) {
        why = one.status().to_string();
        break;
      }
      all.push_back(std::move(*one));
      all.back().retire();
    }
    std::cout << nlohmann::json{{"names", names}, {"why", why}}.dump() << std::endl;
  }

  void listen_to(Client& client) {
    auto room = context_->arena().allocate(kCommandBytes, {.for_receive = true});
    if (!room.ok()) return client.endpoint.core().abort(room.status());
    auto posted = client.endpoint.receive({.tag = kCommand}, std::move(*room),
                                          {.sink = &client, .deadline = kNever});
    if (!posted.ok()) client.endpoint.core().abort(posted.status());
  }

  void send(Client& client, Tag tag, Tensor&& tensor) {
    if (client.endpoint.send(tag, std::move(tensor), {.sink = &client}).ok()) ++client.sending;
  }

  void answer(Client& client, std::string_view text, std::span<const std::byte> more = {}) {
    auto room = context_->arena().allocate(text.size() + more.size());
    if (!room.ok()) return client.endpoint.core().abort(room.status());
    std::memcpy(room->data(), text.data(), text.size());
    if (!more.empty()) std::memcpy(room->data() + text.size(), more.data(), more.size());
    send(client, kAnswer, std::move(*room).freeze());
  }

  void serve(Client& client) {
    while (!client.ended.empty()) {
      Completion one = std::move(client.ended.front());
      client.ended.pop_front();
      ++worked_;
      if (one.kind == OperationKind::kSend) {
        // The next command is listened for when all that the last one asked for has gone.
        if (--client.sending == 0 && one.status.ok() &&
            client.endpoint.state() == EndpointState::kConnected)
          listen_to(client);
      } else if (one.tag == kGift) {
        client.taking -= one.buffers[0].bytes().size();
      } else if (one.status.ok() && one.tag == kCommand) {
        std::span<const std::byte> bytes = one.buffers[0].bytes().first(one.receipt.bytes);
        obey_client(client, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
      }
    }
    if (client.fetch && client.fetch->ready()) {
      auto delivery = client.fetch->take();
      client.fetch.reset();
      if (!delivery.ok()) return answer(client, delivery.status().to_string().substr(0, 200));
      answer(client, test::holds(delivery->value.bytes(), kUpSeed + client.fetch_step)
                         ? "good"
                         : "bad bytes came under the key");
    }
  }

  void obey_client(Client& client, const std::string& command) {
    std::istringstream words(command);
    std::string verb;
    uint64_t step = 0, bytes = 0;
    words >> verb >> step >> bytes;
    bytes = std::min<uint64_t>(std::max<uint64_t>(bytes, 1), kMostAsked);
    Status status;
    if (verb == "friend") {
      std::string word = command.substr(std::min<size_t>(command.size(), 7));
      if (word != secret_word_) return answer(client, "who?");
      EndpointInfo info = client.endpoint.info();
      friends_.emplace_back(info.peer, info.peer_incarnation);
      return answer(client, "welcome");
    }
    if (verb == "publish") {
      Tensor tensor = tensor_of(*context_, bytes, kMadeSeed + step, status);
      auto publication = tensor ? exchange_.publish({kMade, step}, std::move(tensor))
                                : Result<Publication>(status);
      if (!publication.ok()) return answer(client, publication.status().to_string().substr(0, 200));
      client.published.push_back(std::move(*publication));
      if (client.published.size() > kMostPublished) {
        client.published.front().retire();
        client.published.pop_front();
      }
      return answer(client, "published");
    }
    if (verb == "fetch") {
      client.fetch_step = step;
      client.fetch = exchange_.fetch({kUp + std::to_string(step % kUpNames), step},
                                     after(now(), std::chrono::seconds(15)));
      return;
    }
    if (verb == "take") {
      if (!has_room_for(client, bytes)) return answer(client, "full");
      auto room = context_->arena().allocate(bytes, {.for_receive = true});
      if (!room.ok()) return answer(client, room.status().to_string().substr(0, 200));
      size_t taken = room->bytes().size();
      auto posted = client.endpoint.receive({.tag = kGift}, std::move(*room), {.sink = &client});
      if (posted.ok()) client.taking += taken;
      return answer(client, posted.ok() ? "taking" : posted.status().to_string().substr(0, 200));
    }
    if (verb == "send") {
      Tensor tensor = tensor_of(*context_, bytes, kParcelSeed + step, status);
      if (!tensor) return answer(client, status.to_string().substr(0, 200));
      send(client, kParcel, std::move(tensor));
      return answer(client, "sent");
    }
    if (verb == "grant" && !client.key) {
      if (!has_room_for(client, kGrantBytes)) return answer(client, "full");
      client.granted = Buffer();  // of a key before this one
      auto room = context_->arena().allocate(kGrantBytes);
      if (!room.ok()) return answer(client, room.status().to_string().substr(0, 200));
      client.granted = std::move(*room);
      std::memset(client.granted.data(), static_cast<int>(kBeforeRevoke), kGrantBytes);
      auto key = client.endpoint.grant(client.granted, {.rights = Right::kReadWrite});
      if (!key.ok()) return answer(client, key.status().to_string().substr(0, 200));
      client.key = *key;
      return answer(client, "granted", client.key->encode());
    }
    if (verb == "revoke" && client.key) {
      Status revoked = client.endpoint.revoke(*client.key);
      client.key.reset();
      std::memset(client.granted.data(), static_cast<int>(kAfterRevoke), kGrantBytes);
      return answer(client, revoked.ok() ? "revoked" : revoked.to_string().substr(0, 200));
    }
    answer(client, "what?");
  }

  std::string secret_word_;
  std::vector<std::pair<std::string, uint64_t>> friends_;  // name and incarnation
  std::unique_ptr<Context> context_;
  Exchange exchange_;
  Listener listener_;
  Publication weights_;
  Tensor secret_;
  Buffer scratch_;
  std::vector<std::unique_ptr<Client>> clients_;
  Turns turns_;
  std::optional<Holdings> before_;
  std::string line_;
  size_t worked_ = 0;
  bool ended_ = false;
};

}  // namespace

ContextOptions context_options() {
  ArenaOptions arena{.limit_bytes = size_t{96} << 20,
                     .first_extent_bytes = size_t{32} << 20,
                     .largest_extent_bytes = size_t{32} << 20,
                     .receive_reserve_bytes = size_t{4} << 20};
  return {.arena = {}, .arena_options = arena, .waiting = Waiting::kSleep};
}

int serve(const std::string& address, const std::string& secret) {
  return Server(address, secret).run();
}

}  // namespace sluice::hostile
