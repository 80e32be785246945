#include <sluice/base/counters.h>
#include <sluice/base/fault_point.h>
#include <sluice/base/log.h>
#include <sluice/l2/provider.h>
#include <sluice/proto/hello.h>
#include <sluice/runtime/peer_account.h>
#include <sluice/spi/endpoint_core.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "kernel_compat/slp/slp.h"

namespace sluice::l2 {
namespace {

Counter half_open_dropped("l2.half_open_dropped");

}  // namespace

L2Listener::L2Listener(L2Provider& owner, Port& port, const ListenOptions& asked,
                       const proto::SessionOptions& options, std::shared_ptr<const Secret> secret)
    : owner_(&owner),
      port_(&port),
      address_(port.name()),
      require_(asked.require),
      limits_(owner.context_, asked, address_),
      options_(options),
      secret_(std::move(secret)),
      ours_(proto::hello_for_strangers(owner.context_, options)),
      half_open_(half_open_dropped, [&owner](std::unique_ptr<Connection> connection) {
        owner.linger(std::move(connection));
      }) {
  owner.listeners_.push_back(this);
}

Status L2Listener::begin(const std::string& interface) {
  if (!interface.empty()) seconds_ = owner_->open_second(interface, secret_, ours_);
  return port_->set_listener(this, secret_);
}

void L2Listener::close() {
  if (owner_ == nullptr) return;
  L2Provider& owner = *std::exchange(owner_, nullptr);
  std::erase(owner.listeners_, this);
  port_->remove_listener();
  findable_.reset();
  half_open_.drop_all();
  if (seconds_ != nullptr && seconds_->awaited())
    owner.left_seconds_.push_back(std::move(seconds_));
  owner.listeners_due_ = {};
  seconds_.reset();
  owner.untidy_ = true;
  if (owner.inside_) return;  // from a completion: the rest when the turn is over
  owner.see_off(sluice::now());
  owner.tidy();
}

bool L2Listener::on_hello(const PeerAddress& from, uint16_t peer_port, const slp_hello& hello) {
  if (half_open_.all().size() >= proto::kMostHalfOpen) {
    half_open_dropped.add();
    // Those that have greeted wait for accept().
    if (!half_open_.make_room(from, [](const auto& entry) { return !entry.ready(); }))
      return true;  // it asks again
  }
  std::shared_ptr<PeerAccount> account = owner_->machine_at(from)->account();
  if (!account->charge(PeerResource::kHalfOpen).ok()) {
    half_open_dropped.add();
    return true;  // as above
  }
  PeerCharge charge(std::move(account), PeerResource::kHalfOpen);
  auto accepted = Connection::accept(*owner_, {port_, from, peer_port, secret_}, hello, ours_);
  if (!accepted.ok()) {
    lost_.log(LogLevel::kWarning,
              "a connection over l2 was refused: " + accepted.status().to_string());
    return false;
  }
  (*accepted)->hold(std::move(charge));
  fault_point("l2.accepted");
  half_open_.add(std::move(accepted).value(), after(sluice::now(), proto::kGreetingLimit));
  return true;
}

size_t L2Listener::progress(Instant now) {
  port_->mind_floods(now);
  size_t work = half_open_.expire(now);
  if (seconds_ == nullptr) return work;
  return work + seconds_->progress(now, [&](const wire::Uuid& token) {
    const auto& all = half_open_.all();
    return std::any_of(all.begin(), all.end(), [&](const auto& e) {
      return e.ready() && e.connection->peer().token == token;
    });
  });
}

Instant L2Listener::next_timeout() const {
  Instant next = half_open_.next_timeout();
  return seconds_ != nullptr ? std::min(next, seconds_->next_timeout()) : next;
}

std::shared_ptr<EndpointCore> L2Listener::accept() {
  while (owner_ != nullptr) {
    std::unique_ptr<Connection> connection = half_open_.take_ready();
    if (connection == nullptr) return nullptr;
    const std::string who = connection->peer_name();
    connection->hold({});  // its session is counted, if it is let in
    L2Provider::Met met = L2Provider::about(*connection, options_.why);
    if (seconds_ != nullptr && wishes_second(met.peer)) {
      auto both = std::make_unique<TwoCarriers>(std::move(connection));
      seconds_->await(met.peer.token, both->place(), after(sluice::now(), proto::kGreetingLimit));
      owner_->listeners_due_ = {};  // it may have come already
      met.connection = std::move(both);
      met.reason += "; memory goes in UDP when the peer has begun that";
    } else {
      met.connection = std::move(connection);
    }
    auto endpoint = owner_->make_endpoint(std::move(met), require_, options_);
    if (endpoint.ok() && limits_.let_in(*owner_->connections_.held().back().session))
      return std::move(endpoint).value();
    if (endpoint.ok()) continue;  // it was told why
    lost_.log(LogLevel::kWarning,
              "lost the peer " + who + " at " + address() + ": " + endpoint.status().to_string());
  }
  return nullptr;
}

}  // namespace sluice::l2
