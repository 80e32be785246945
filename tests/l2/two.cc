#include "tests/l2/two.h"

#include <algorithm>
#include <cstdlib>
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

bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin());
}

}  // namespace

Instant soon() { return after(now(), std::chrono::seconds(60)); }

Buffer filled(Context& context, size_t size, uint64_t seed) {
  auto buffer = context.allocate({static_cast<int64_t>(size)}, uint8);
  REQUIRE(buffer.ok());
  fill(buffer->bytes(), seed);
  return std::move(*buffer);
}

size_t Two::Hook::progress(Instant now) {
  size_t work = relay != nullptr ? relay->turn(now) : 0;
  if (other == nullptr || frozen) return work;
  if (node == nullptr) return work + other->progress();
  node->inside([&] { work += other->progress(); });
  return work;
}

Two::Two(const TwoOptions& options) : near(open_one()), far(open_one()) {
  Result<Listener> listening = Status(Code::kInternal, Scope::kOperation, "tests/l2");
  auto listen = [&] {
    listening =
        far->listen(options.listen_at.empty() ? "l2://" + options.far + ":0" : options.listen_at);
  };
  options.node != nullptr ? options.node->inside(listen) : listen();
  INFO(listening.status().to_string());
  REQUIRE(listening.ok());
  listener = std::move(listening).value();
  address = options.way ? options.way(*near, listener.address())
                        : "l2://" + options.near +
                              listener.address().substr(std::strlen("l2://") + options.far.size());
  hook_.other = far.get();
  hook_.relay = options.relay;
  hook_.node = options.far_runs_there ? options.node : nullptr;
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

bool Two::until(const std::function<bool()>& done, Instant deadline) {
  return near->wait_until(done, deadline).ok();
}

void Two::exchange_messages(size_t size, std::optional<Path> path) {
  exchange(client, server, size, path);
}

void Two::exchange_everything(Path path) {
  for (size_t size :
       {size_t{1}, size_t{64}, size_t{4096}, size_t{4097}, size_t{300'000}, size_t{8} << 20})
    exchange_messages(size, path);
  Buffer memory = filled(*far, 1 << 20, 9);
  auto key = server.grant(memory, {.rights = Right::kReadWrite});
  REQUIRE(key.ok());
  auto got = client.read_and_wait(*key, 1000, filled(*near, 100'000, 0), soon());
  REQUIRE(got.ok());
  CHECK(same(got->buffer.bytes(), memory.bytes().subspan(1000, 100'000)));
  Tensor news = filled(*near, 500'000, 1).freeze();
  REQUIRE(client.write_and_wait(*key, 17, Tensor(news), soon()).ok());
  CHECK(same(memory.bytes().subspan(17, 500'000), news.bytes()));
}

void Two::say_goodbye() {
  CHECK(client.close(soon()).ok());
  CHECK(until([&] { return server.state() == EndpointState::kClosed; }));
}

void Two::exchange_anew() {
  auto [mine, theirs] = connect_again();
  exchange(mine, theirs, 30'000, {});
  CHECK(mine.close(soon()).ok());
  CHECK(until([&, &end = theirs] { return end.state() == EndpointState::kClosed; }));
}

void Two::exchange(Endpoint& near_end, Endpoint& far_end, size_t size, std::optional<Path> path) {
  for (bool forth : {true, false}) {
    INFO(size << " bytes " << (forth ? "forth" : "back"));
    Context &from = forth ? *near : *far, &to = forth ? *far : *near;
    Box box, sent;
    auto into = to.allocate({static_cast<int64_t>(size)}, uint8);
    REQUIRE(into.ok());
    uint64_t seed = ++step_;
    REQUIRE((forth ? far_end : near_end)
                .receive({.tag = 5}, std::move(*into), {.sink = &box, .deadline = soon()})
                .ok());
    REQUIRE((forth ? near_end : far_end)
                .send(5, filled(from, size, seed).freeze(),
                      {.sink = &sent, .deadline = soon(), .level = Level::kPlaced})
                .ok());
    bool ended = until([&] { return box.all.size() + sent.all.size() == 2; });
    INFO((box.all.empty() ? "not received" : box.all[0].status.to_string())
         << ", " << (sent.all.empty() ? "not sent" : sent.all[0].status.to_string()));
    REQUIRE(ended);
    REQUIRE(box.all[0].status.ok());
    REQUIRE(sent.all[0].status.ok());
    CHECK(holds(box.all[0].buffers[0].bytes(), seed));
    if (!path) continue;
    CHECK(box.all[0].receipt.path == *path);
    if (*path == Path::kPacket || *path == Path::kXdp || size <= 4096)
      CHECK(box.all[0].receipt.copied_bytes == size);
    CHECK(box.all[0].receipt.copied_bytes <=
          size);  // less where datagrams were received in their place
    CHECK(box.all[0].receipt.kernel_copied_bytes == size);
    // AF_XDP sends out of memory that is shared with the kernel.
    if (size > 4096)
      CHECK(sent.all[0].receipt.copied_bytes == (*path == Path::kXdp ? size : uint64_t{0}));
  }
}

void Two::exchange_tensors(size_t size) {
  INFO(size << " bytes");
  Exchange ours(*near), theirs(*far);
  REQUIRE(ours.add(client).ok());
  REQUIRE(theirs.add(server).ok());
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

Setting::Setting(const char* name, const std::string& value) : name_(name) {
  REQUIRE(::setenv(name, value.c_str(), 1) == 0);
}
Setting::~Setting() { ::unsetenv(name_); }

Grown::Grown() : before_(read_counters()) {}

uint64_t Grown::operator()(std::string_view name) const {
  auto found = std::find_if(before_.begin(), before_.end(),
                            [&](const auto& counter) { return counter.first == name; });
  return read_counter(name) - (found != before_.end() ? found->second : 0);
}

std::string Grown::story(std::string_view prefix) const {
  std::string text;
  for (const auto& [name, value] : before_) {
    if (uint64_t more = (*this)(name); more > 0 && name.starts_with(prefix))
      text += std::string(name) + " " + std::to_string(more) + "\n";
  }
  return text;
}

}  // namespace sluice::test
