#include "tests/l2/two.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/exchange/exchange.h>
#include <sluice/select/open.h>

namespace sluice::test {
namespace {

std::unique_ptr<Context> open_one() {
  auto context = open_context({.arena = {}, .arena_options = {}, .waiting = Waiting::kSpin});
  REQUIRE(context.ok());
  return std::move(context).value();
}

// Differs at every place and with every seed.
uint64_t word(uint64_t seed, size_t i) {
  uint64_t x = (seed << 48 ^ i) * 0x9E3779B97F4A7C15u;
  return x ^ x >> 31;
}

}  // namespace

Instant soon() { return after(now(), std::chrono::seconds(60)); }

Buffer filled(Context& context, size_t size, uint64_t seed) {
  auto buffer = context.allocate({static_cast<int64_t>(size)}, uint8);
  REQUIRE(buffer.ok());
  std::byte* data = buffer->data();
  for (size_t i = 0; i < size; i += 8) {
    uint64_t value = word(seed, i);
    std::memcpy(data + i, &value, std::min<size_t>(8, size - i));
  }
  return std::move(*buffer);
}

bool holds(std::span<const std::byte> bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes.size(); i += 8) {
    uint64_t value = word(seed, i);
    if (std::memcmp(bytes.data() + i, &value, std::min<size_t>(8, bytes.size() - i)) != 0) return false;
  }
  return true;
}

size_t Two::Hook::progress(Instant now) {
  size_t work = relay != nullptr ? relay->turn(now) : 0;
  return work + (other != nullptr && !frozen ? other->progress() : 0);
}

Two::Two(const TwoOptions& options) : near(open_one()), far(open_one()) {
  Result<Listener> listening = Status(Code::kInternal, Scope::kOperation, "tests/l2");
  auto listen = [&] { listening = far->listen("l2://" + options.far + ":0"); };
  options.node != nullptr ? options.node->inside(listen) : listen();
  INFO(listening.status().to_string());
  REQUIRE(listening.ok());
  listener = std::move(listening).value();
  address = "l2://" + options.near + listener.address().substr(std::strlen("l2://") + options.far.size());
  hook_.other = far.get();
  hook_.relay = options.relay;
  near->add_hook(&hook_);
  std::tie(client, server) = connect_again();
}

Two::~Two() {
  hook_.frozen = false;
  near->remove_hook(&hook_);
}

std::pair<Endpoint, Endpoint> Two::connect_again() {
  auto connected = near->connect(address, {.timeout = std::chrono::seconds(30)});
  INFO(connected.status().to_string());
  REQUIRE(connected.ok());
  Endpoint accepted;
  REQUIRE(until([&] {
    auto next = listener.try_accept();
    if (next.ok()) accepted = std::move(*next);
    return static_cast<bool>(accepted);
  }));
  return {std::move(*connected), std::move(accepted)};
}

bool Two::until(const std::function<bool()>& done, Instant deadline) { return near->wait_until(done, deadline).ok(); }

void Two::exchange_messages(size_t size) { exchange(client, server, size); }

void Two::exchange_anew() {
  auto [mine, theirs] = connect_again();
  exchange(mine, theirs, 30'000);
  CHECK(mine.close(soon()).ok());
  CHECK(until([&, &end = theirs] { return end.state() == EndpointState::kClosed; }));
}

void Two::exchange(Endpoint& near_end, Endpoint& far_end, size_t size) {
  for (bool forth : {true, false}) {
    INFO(size << " bytes " << (forth ? "forth" : "back"));
    Context &from = forth ? *near : *far, &to = forth ? *far : *near;
    Box box, sent;
    auto into = to.allocate({static_cast<int64_t>(size)}, uint8);
    REQUIRE(into.ok());
    uint64_t seed = ++step_;
    REQUIRE((forth ? far_end : near_end).receive({.tag = 5}, std::move(*into), {.sink = &box, .deadline = soon()}).ok());
    REQUIRE((forth ? near_end : far_end).send(5, filled(from, size, seed).freeze(), {.sink = &sent, .deadline = soon(), .level = Level::kPlaced}).ok());
    bool ended = until([&] { return box.all.size() + sent.all.size() == 2; });
    INFO((box.all.empty() ? "not received" : box.all[0].status.to_string()) << ", " << (sent.all.empty() ? "not sent" : sent.all[0].status.to_string()));
    REQUIRE(ended);
    REQUIRE(box.all[0].status.ok());
    REQUIRE(sent.all[0].status.ok());
    CHECK(holds(box.all[0].buffers[0].bytes(), seed));
  }
}

void Two::exchange_tensors(size_t size) {
  INFO(size << " bytes");
  Exchange ours(*near), theirs(*far);
  ours.add(client);
  theirs.add(server);
  uint64_t step = ++step_;
  Fetch early = ours.fetch({"early", step}, soon());
  auto one = theirs.publish({"early", step}, filled(*far, size, step).freeze());
  auto two = theirs.publish({"late", step}, filled(*far, size, step + 1).freeze());
  REQUIRE(one.ok());
  REQUIRE(two.ok());
  FetchInto late = ours.fetch_into({"late", step}, filled(*near, size, 0), soon());
  REQUIRE(until([&] { return early.ready() && late.ready(); }));
  auto fetched = early.take();
  INFO(fetched.status().to_string());
  REQUIRE(fetched.ok());
  CHECK(holds(fetched->value.bytes(), step));
  Placed placed = late.take();
  INFO(placed.status().to_string());
  REQUIRE(placed.ok());
  CHECK(holds(placed.take_buffer().bytes(), step + 1));

  Buffer memory = filled(*far, size, step + 2);
  auto key = server.grant(memory, {.rights = Right::kReadWrite});
  REQUIRE(key.ok());
  auto read = client.read_and_wait(*key, 0, filled(*near, size, 0), soon());
  REQUIRE(read.ok());
  CHECK(holds(read->buffer.bytes(), step + 2));
  REQUIRE(client.write_and_wait(*key, 0, filled(*near, size, step + 3).freeze(), soon()).ok());
  CHECK(holds(memory.bytes(), step + 3));
  CHECK(server.revoke(*key).ok());
}

Grown::Grown() : before_(read_counters()) {}

uint64_t Grown::operator()(std::string_view name) const {
  auto found = std::find_if(before_.begin(), before_.end(), [&](const auto& counter) { return counter.first == name; });
  return read_counter(name) - (found != before_.end() ? found->second : 0);
}

std::string Grown::story(std::string_view prefix) const {
  std::string text;
  for (const auto& [name, value] : before_) {
    if (uint64_t more = (*this)(name); more > 0 && name.starts_with(prefix)) text += std::string(name) + " " + std::to_string(more) + "\n";
  }
  return text;
}

}  // namespace sluice::test
