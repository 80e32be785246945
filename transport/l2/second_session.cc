#include <sluice/l2/second_session.h>

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/base/descriptor.h>
#include <sluice/base/settings.h>
#include <sluice/runtime/identity.h>
#include <sluice/runtime/peer_account.h>

namespace sluice::l2 {
namespace {

// In wire::Hello::rendezvous, which names no socket of shared memory on this path.
constexpr char kWish[17] = "slp: and in udp?";
constexpr char kOffer[11] = "slp in udp";  // then 4 bytes of address and 2 of port, as on the wire
constexpr size_t kOfferMark = 10;

Counter late("l2.second_sessions_late");
Counter joined("l2.second_sessions");

}  // namespace

bool second_session_wanted() { return !setting_is("SLUICE_L2_BULK", "frames"); }

std::string ipv4_of(const std::string& interface) {
  Descriptor fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::memcpy(request.ifr_name, interface.data(),
              std::min(interface.size(), sizeof(request.ifr_name) - 1));
  request.ifr_addr.sa_family = AF_INET;
  if (fd.value() < 0 || ::ioctl(fd.value(), SIOCGIFADDR, &request) != 0) return {};
  sockaddr_in address;
  std::memcpy(&address, &request.ifr_addr, sizeof(address));
  char text[INET_ADDRSTRLEN];
  return ::inet_ntop(AF_INET, &address.sin_addr, text, sizeof(text)) != nullptr ? text : "";
}

void wish_second(wire::Hello& hello) {
  hello.has_rendezvous = true;
  std::memcpy(hello.rendezvous.bytes.data(), kWish, 16);
  fill_random(hello.token.bytes);
}

bool wishes_second(const wire::Hello& hello) {
  return hello.has_rendezvous && std::memcmp(hello.rendezvous.bytes.data(), kWish, 16) == 0;
}

void offer_second(wire::Hello& hello, const std::string& ipv4, uint16_t port) {
  in_addr address;
  if (::inet_pton(AF_INET, ipv4.c_str(), &address) != 1) return;
  uint16_t number = htons(port);
  std::byte* bytes = hello.rendezvous.bytes.data();
  std::memcpy(bytes, kOffer, kOfferMark);
  std::memcpy(bytes + kOfferMark, &address, sizeof(address));
  std::memcpy(bytes + kOfferMark + sizeof(address), &number, sizeof(number));
  hello.has_rendezvous = true;
}

SecondPlace offered_second(const wire::Hello& hello) {
  const std::byte* bytes = hello.rendezvous.bytes.data();
  if (!hello.has_rendezvous || std::memcmp(bytes, kOffer, kOfferMark) != 0) return {};
  uint16_t number;
  std::memcpy(&number, bytes + kOfferMark + sizeof(in_addr), sizeof(number));
  char text[INET_ADDRSTRLEN];
  if (number == 0 || ::inet_ntop(AF_INET, bytes + kOfferMark, text, sizeof(text)) == nullptr)
    return {};
  return {text, ntohs(number)};
}

SecondSessions::SecondSessions(ConnectionHost& host, Port& port,
                               std::shared_ptr<const Secret> secret, const wire::Hello& ours,
                               Release release)
    : host_(host),
      port_(port),
      secret_(std::move(secret)),
      ours_(ours),
      coming_(late, std::move(release)) {}

SecondSessions::~SecondSessions() {
  port_.remove_listener();
  for (const Awaiting& each : awaiting_) {
    if (each.pair->pair != nullptr) each.pair->pair->stay_alone();
  }
  coming_.drop_all();
}

Status SecondSessions::begin() { return port_.set_listener(this, secret_); }

bool SecondSessions::on_hello(const PeerAddress& from, uint16_t peer_port, const slp_hello& hello) {
  // Strangers may greet as well: only callers that have sent nothing since make room.
  if (coming_.all().size() >= proto::kMostHalfOpen) {
    late.add();
    if (!coming_.make_room(from, [](const auto& entry) { return !entry.connection->has_news(); }))
      return false;
  }
  std::shared_ptr<PeerAccount> account = host_.machine_at(from)->account();
  if (!account->charge(PeerResource::kHalfOpen).ok()) return false;
  PeerCharge charge(std::move(account), PeerResource::kHalfOpen);
  auto accepted = Connection::accept(host_, {&port_, from, peer_port, secret_}, hello, ours_);
  if (!accepted.ok()) return false;
  (*accepted)->hold(std::move(charge));
  coming_.add(std::move(accepted).value(), after(sluice::now(), proto::kGreetingLimit));
  return true;
}

void SecondSessions::await(const wire::Uuid& token, std::shared_ptr<TwoCarriers::Place> pair,
                           Instant expires) {
  awaiting_.push_back({token, std::move(pair), expires});
}

bool SecondSessions::has_come(const wire::Uuid& token) const {
  const auto& all = coming_.all();
  return std::any_of(all.begin(), all.end(), [&](const auto& entry) {
    return entry.ready() && entry.connection->peer().token == token;
  });
}

// A session counts when its message has come: a caller who gave it up has sent none.
size_t SecondSessions::join_those_that_came(
    Instant now, const std::function<bool(const wire::Uuid&)>& greeting) {
  size_t changed = 0;
  for (size_t i = 0; i < coming_.all().size();) {
    const auto& entry = coming_.all()[i];
    bool counts = entry.ready() && entry.connection->has_news();
    const wire::Uuid& token = entry.connection->peer().token;
    auto of_it = std::find_if(awaiting_.begin(), awaiting_.end(),
                              [&](const Awaiting& a) { return a.token == token; });
    bool early = of_it == awaiting_.end() && greeting(token);
    bool stale = entry.ready() && entry.expires <= now && !early;
    if (stale && !counts) {
      late.add();
      coming_.drop(i);
      continue;
    }
    if (!counts || early) {
      ++i;
      continue;
    }
    ++changed;
    TwoCarriers* pair = of_it != awaiting_.end() ? of_it->pair->pair : nullptr;
    if (of_it != awaiting_.end()) awaiting_.erase(of_it);
    if (pair == nullptr) {
      coming_.drop(i);
      continue;
    }
    joined.add();
    std::unique_ptr<Connection> second = coming_.take(i);
    second->hold({});  // the first is charged for both
    pair->join(std::move(second));
  }
  return changed;
}

size_t SecondSessions::progress(Instant now,
                                const std::function<bool(const wire::Uuid&)>& greeting) {
  port_.mind_floods(now);
  size_t changed = coming_.expire(now);
  if (!coming_.all().empty()) changed += join_those_that_came(now, greeting);
  changed += std::erase_if(awaiting_, [&](const Awaiting& each) {
    // A thread that was busy for so long may find both at once.
    bool waits = each.expires > now || has_come(each.token);
    if (waits && each.pair->pair != nullptr) return false;
    if (each.pair->pair != nullptr) each.pair->pair->stay_alone();
    return true;
  });
  return changed;
}

Instant SecondSessions::next_timeout() const {
  Instant next = coming_.next_timeout();
  for (const Awaiting& each : awaiting_) next = std::min(next, each.expires);
  return next;
}

}  // namespace sluice::l2
