#include <sluice/tcp/streams.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/base/log.h>
#include <sluice/base/settings.h>
#include <sluice/proto/hello.h>
#include <sluice/tcp/link.h>

namespace sluice::tcp {
namespace {

// Four fill a line of 1 Gbit/s and 40 ms each way with the kernel's own buffers
// (docs/performance.md, "A long line").
constexpr uint64_t kUsual = 4;
// Of one connection, whoever opens them.
constexpr uint32_t kMost = 16;
// Within a building a round trip is shorter, and one stream fills the line.
constexpr uint64_t kLongRoundTripUs = 2000;
// As much bulk as one DATA message has, so that connections without bulk stay alone.
constexpr uint64_t kBulkBefore = uint64_t{1} << 20;
constexpr Duration kOpeningTime = std::chrono::seconds(5);

Counter opened("tcp.streams_opened");
Counter joined("tcp.streams_joined");
Counter refused("tcp.streams_refused");

}  // namespace

Streams::Streams(ContextCore& context)
    : context_(context),
      most_(setting_number("SLUICE_TCP_STREAMS").value_or(kUsual)),
      from_round_trip_(std::chrono::microseconds(
          setting_number("SLUICE_TCP_STREAMS_FROM_US").value_or(kLongRoundTripUs))) {}

size_t Streams::ByToken::operator()(const wire::Uuid& token) const {
  size_t hash;
  std::memcpy(&hash, token.bytes.data(), sizeof(hash));
  return hash;
}

void Streams::expect(TcpLink& link, const wire::Uuid& token) {
  expected_[token] = &link;
  tokens_[&link] = token;
}

void Streams::may_open(TcpLink& link, const wire::Uuid& token) {
  if (!wanted()) return;
  tokens_[&link] = token;
  link.ask_for_streams_after(from_round_trip_ > Duration(0) ? kBulkBefore : 1);
}

bool Streams::expects(const wire::Uuid& token) const {
  auto found = expected_.find(token);
  return found != expected_.end() &&
         (!found->second->may_reorder() || found->second->streams() < kMost);
}

void Streams::take_stream(Greeting&& greeting) {
  const wire::Uuid token = greeting.peer.streams_token;
  if (!expects(token)) return tcp::refuse(greeting.take_fd(), Code::kUnreachable);
  if (!confirm_join(greeting)) return;
  joined.add();
  add(*expected_.at(token), std::move(greeting));
}

void Streams::forget(TcpLink& link) {
  auto found = tokens_.find(&link);
  if (found == tokens_.end()) return;
  auto expected = expected_.find(found->second);
  if (expected != expected_.end() && expected->second == &link) expected_.erase(expected);
  tokens_.erase(found);
  std::erase(asking_, &link);
  std::erase_if(openings_, [&link](const Opening& opening) { return opening.link == &link; });
}

bool Streams::joining(const TcpLink& link) const {
  return std::any_of(openings_.begin(), openings_.end(), [&link](const Opening& opening) {
    return opening.link == &link && opening.asked;
  });
}

void Streams::stop_opening(TcpLink& link) {
  std::erase(asking_, &link);
  std::erase_if(openings_, [&link](const Opening& opening) {
    return opening.link == &link && !opening.asked;
  });
}

bool Streams::has_work() const {
  return !asking_.empty() || std::any_of(openings_.begin(), openings_.end(),
                                         [](const Opening& o) { return o.task->ready(); });
}

size_t Streams::open_and_give() {
  size_t work = 0;
  for (TcpLink* link : std::exchange(asking_, {})) {
    open(*link);
    ++work;
  }
  for (auto it = openings_.begin(); it != openings_.end();) {
    if (!it->task->ready()) {
      ++it;
      continue;
    }
    ++work;
    TcpLink& link = *it->link;
    Result<Greeting> greeting = it->task->take();
    it = openings_.erase(it);
    give(link, std::move(greeting));
  }
  return work;
}

void Streams::open(TcpLink& link) {
  if (round_trip(link.fd()) < from_round_trip_) return;
  const SocketAddress peer = peer_address(link.fd());
  wire::Hello ours = proto::hello_for(context_, {});
  ours.features |= wire::kFeatureStreams;
  ours.has_streams = true;
  ours.streams_token = tokens_.at(&link);
  const Instant deadline = after(context_.now(), kOpeningTime);
  for (uint64_t i = 0; i < std::min<uint64_t>(most_, kMost); ++i) {
    Address address;
    address.scheme = Scheme::kTcp;
    address.host = peer.host();
    address.port = peer.port();
    Opening& opening = openings_.emplace_back(&link, std::move(address), false, std::nullopt);
    opening.task.emplace(
        start_join(context_.awaits(), opening.address, ours, deadline, opening.asked));
  }
}

// A peer that refuses them, or a network that does, leaves the connection as it is.
void Streams::give(TcpLink& link, Result<Greeting> greeting) {
  if (greeting.ok()) {
    opened.add();
    add(link, std::move(greeting).value());
  } else {
    refused.add();
    if (log_enabled(LogLevel::kInfo)) {
      log(LogLevel::kInfo,
          "tcp: no further stream to " + link.peer_name() + ": " + greeting.status().to_string());
    }
  }
  link.streams_changed();
}

void Streams::add(TcpLink& link, Greeting&& greeting) {
  Status added = link.add_stream(greeting.take_fd(), std::move(greeting.ticket));
  if (!added.ok()) {
    log(LogLevel::kWarning,
        "tcp: lost a further stream of " + link.peer_name() + ": " + added.to_string());
  }
}

void Streams::shut_down() {
  asking_.clear();
  openings_.clear();
}

}  // namespace sluice::tcp
