#include "tests/verbs/backend/scene.h"

#include <poll.h>

#include <algorithm>

#include <sluice/base/counters.h>
#include <sluice/base/log.h>
#include <sluice/select/open.h>

namespace sluice::verbs {
namespace {

// An operation is late by at most the fence times.
constexpr Duration kGrace = 2s;

void nowhere(LogLevel, std::string_view, void*) {}

}  // namespace

Fabric::Fabric(FakeOptions options) : fake(std::move(options)) {
  use_verbs_api(&fake);
  set_log_sink(nowhere, nullptr);
}

Fabric::~Fabric() {
  use_verbs_api(nullptr);
  set_log_sink(nullptr, nullptr);
  std::string complaints = fake.complaints();
  if (!expected_complaint.empty() && complaints.find(expected_complaint) != std::string::npos)
    complaints.clear();
  CHECK(complaints == "");
}

void Tally::expect(const Result<OperationId>& posted, OperationKind kind, size_t buffers,
                   uint64_t seed) {
  if (!posted.ok()) {
    refused.push_back(posted.status());
    return;
  }
  all.push_back({*posted, {.kind = kind, .deadline = in(limit), .buffers = buffers, .seed = seed}});
  ++open_;
}

void Tally::on_completion(Completion&& completion) noexcept {
  if (on_end) on_end(completion);
  std::string name = "operation " + std::to_string(completion.id) + " of kind " +
                     std::to_string(static_cast<int>(completion.kind));
  auto found = std::find_if(all.begin(), all.end(),
                            [&](const auto& each) { return each.first == completion.id; });
  if (found == all.end()) {
    wrongs_.push_back(name + " was never posted");
    return;
  }
  Expected& expected = found->second;
  if (expected.ended) wrongs_.push_back(name + " ended twice");
  if (!expected.ended) --open_;
  expected.ended = true;
  expected.status = completion.status;
  expected.receipt = completion.receipt;
  if (now() > after(expected.deadline, kGrace)) wrongs_.push_back(name + " ended late");
  if (completion.buffers.size() != expected.buffers)
    wrongs_.push_back(name + " did not give its buffer back");
  if (!completion.status.ok() && completion.status.detail().empty())
    wrongs_.push_back(name + " does not say why it failed");
  if (!completion.status.ok() || expected.seed == 0 || bytes_may_lie) return;
  auto bytes = completion.buffers.empty()
                   ? completion.tensor.bytes()
                   : std::span<const std::byte>(completion.buffers[0].bytes());
  if (bytes.empty() || !test::holds(bytes, expected.seed))
    wrongs_.push_back(name + " has wrong bytes");
}

size_t Tally::count(Code code) const {
  return static_cast<size_t>(std::count_if(
      all.begin(), all.end(), [&](const auto& each) { return each.second.status == code; }));
}
size_t Tally::failures() const { return all.size() - count(Code::kOk); }

void Tally::check() const {
  CHECK(wrongs_ == std::vector<std::string>{});
  for (const auto& [id, expected] : all) {
    INFO("operation " << id << " of kind " << static_cast<int>(expected.kind));
    CHECK(expected.ended);
  }
}

std::string Tally::text() const {
  std::string text;
  for (const auto& [id, expected] : all) {
    if (expected.ended && expected.status.ok()) continue;
    text += "\n  " + std::to_string(static_cast<int>(expected.kind)) + ": " +
            (expected.ended ? expected.status.to_string() : "has not ended");
  }
  for (const Status& status : refused) text += "\n  refused: " + status.to_string();
  return text;
}

void Shelf::on_want(EndpointCore& endpoint, const WantRequest& request) noexcept {
  Result<Buffer> made = context_.allocate({static_cast<int64_t>(size)}, uint8);
  if (!made.ok()) return (void)endpoint.refuse_want(request.token, made.code());
  test::fill(made->bytes(), request.key_id + 1);
  tally_.expect(endpoint.post_supply(request.token, std::move(*made).freeze(), tally_.options()),
                OperationKind::kSupply);
}

Duo::Duo(DuoOptions options) : options_(std::move(options)) {
  near = test::open(Waiting::kSpin, options_.arena);
  far = test::open(Waiting::kSpin, options_.arena);
  near_hook_.other = far.get();
  far_hook_.other = near.get();
  near->add_hook(&near_hook_);
  far->add_hook(&far_hook_);
}

Duo::~Duo() { close(); }

Status Duo::open() {
  auto listening = far->listen(options_.address, options_.listen);
  SLUICE_RETURN_IF_ERROR(listening);
  listener = std::move(listening).value();
  auto made = connect();
  SLUICE_RETURN_IF_ERROR(made);
  std::tie(client, server) = std::move(made).value();
  return Status();
}

Result<std::pair<Endpoint, Endpoint>> Duo::connect() {
  auto made = near->connect(listener.address(), options_.connect);
  SLUICE_RETURN_IF_ERROR(made);
  // Others may wait there whose client has given up.
  while (true) {
    auto theirs = listener.accept(in(made->state() == EndpointState::kConnected ? 500ms : 1ms));
    SLUICE_RETURN_IF_ERROR(theirs);
    if (theirs->info().peer == made->info().local)
      return std::pair(std::move(made).value(), std::move(theirs).value());
  }
}

// As a foreign event loop does it: both contexts arm, then one poll(2) waits for either.
bool Duo::sleep(Instant deadline) {
  if (!near->prepare_to_sleep() || !far->prepare_to_sleep()) return false;
  Instant wake = std::min({deadline, near->next_timeout(), far->next_timeout()});
  auto left = std::chrono::ceil<std::chrono::milliseconds>(wake - now()).count();
  pollfd fds[2] = {{near->fd(), POLLIN, 0}, {far->fd(), POLLIN, 0}};
  ++sleeps;
  if (::poll(fds, 2, static_cast<int>(std::clamp<int64_t>(left, 0, 1000))) == 0) ++sleeps_overslept;
  return true;
}

bool Duo::until(const std::function<bool()>& done, Instant deadline) {
  while (!done()) {
    size_t work = near->progress() + far->progress();
    if (now() > deadline) return done();
    if (sleeping && work == 0 && !done()) (void)sleep(deadline);
  }
  return true;
}

void Duo::settle() {
  for (int idle = 0; idle < 400;) idle = near->progress() + far->progress() > 0 ? 0 : idle + 1;
}

bool Duo::both_closed() {
  return (!client || client.state() == EndpointState::kClosed) &&
         (!server || server.state() == EndpointState::kClosed);
}

void Duo::close() {
  if (near == nullptr) return;
  std::shared_ptr<EndpointCore> ends[] = {client.shared(), server.shared()};
  if (client) CHECK(client.close(soon()).ok());
  CHECK(until([&] { return both_closed(); }));
  for (const auto& core : ends) {
    if (core) CHECK(core->counters().posted == core->counters().completed);
  }
  client = Endpoint();
  server = Endpoint();
  listener = Listener();
  CHECK(near->close(soon()).ok());
  CHECK(far->close(soon()).ok());
  near->remove_hook(&near_hook_);
  far->remove_hook(&far_hook_);
  for (auto& context : {std::ref(near), std::ref(far)}) {
    std::shared_ptr<Arena> arena = context.get()->shared_arena();
    context.get().reset();
    CHECK(arena->statistics().outstanding == 0);
  }
}

Traffic::Traffic(Duo& duo, Endpoint& client, Endpoint& server, Duration limit)
    : client_tally(duo.tally()),
      server_tally(duo.tally()),
      duo_(duo),
      client_(client),
      server_(server),
      client_shelf_(duo.shelf(*duo.near, client_tally)),
      server_shelf_(duo.shelf(*duo.far, server_tally)) {
  client_tally.limit = server_tally.limit = limit;
  client.core().set_want_handler(&client_shelf_);
  server.core().set_want_handler(&server_shelf_);
}

Traffic::~Traffic() {
  for (Endpoint* end : {&client_, &server_}) {
    if (*end) end->core().set_want_handler(nullptr);
  }
}

void Traffic::post(size_t large) {
  client_shelf_.size = server_shelf_.size = large;
  post_one_sided(large);
  post_messages(large);
  post_wants(large);
}

void Traffic::post_messages(size_t large) {
  struct Way {
    Endpoint &from, &to;
    Context &source, &sink;
    Tally &sent, &received;
  };
  Way ways[] = {{client_, server_, *duo_.near, *duo_.far, client_tally, server_tally},
                {server_, client_, *duo_.far, *duo_.near, server_tally, client_tally}};
  for (Way& way : ways) {
    for (size_t size : {size_t{100}, size_t{4000}, large}) {
      Tag tag = next_tag_++;
      Tensor message = test::tensor(way.source, size, tag);
      way.sent.expect(way.from.send(tag, std::move(message), way.sent.options()),
                      OperationKind::kSend);
      Buffer room = test::room(way.sink, size);
      way.received.expect(way.to.receive({.tag = tag}, std::move(room), way.received.options()),
                          OperationKind::kReceive, 1, tag);
    }
  }
}

void Traffic::post_wants(size_t large) {
  for (bool into : {false, true}) {
    uint32_t id = next_key_++;
    std::string name = "key-" + std::to_string(id);
    for (Tally* tally : {&client_tally, &server_tally}) {
      bool here = tally == &client_tally;
      WantOptions want{.key_id = id, .key = name, .step = 1, .destination = {}};
      if (into) want.destination = test::room(here ? *duo_.near : *duo_.far, large);
      EndpointCore& core = here ? client_.core() : server_.core();
      tally->expect(core.post_want(want, tally->options()), OperationKind::kWant, into ? 1 : 0,
                    id + 1);
    }
  }
}

void Traffic::post_one_sided(size_t large) {
  Buffer memory = test::filled(*duo_.far, large, 77);
  auto key = server_.grant(memory, {.rights = Right::kRead});
  if (!key.ok()) return server_tally.refused.push_back(key.status());
  granted_.push_back(std::move(memory));
  keys_.push_back(*key);
  client_tally.expect(client_.read(*key, 0, test::room(*duo_.near, large), client_tally.options()),
                      OperationKind::kRead, 1, 77);
  Buffer target = test::room(*duo_.far, large);
  bool atomics = client_.info().path.capabilities.has(Capability::kAtomics);
  auto writable = server_.grant(target, {.rights = atomics ? Right::kAll : Right::kReadWrite});
  if (!writable.ok()) return server_tally.refused.push_back(writable.status());
  granted_.push_back(std::move(target));
  keys_.push_back(*writable);
  client_tally.expect(
      client_.write(*writable, 0, test::tensor(*duo_.near, large, 78), client_tally.options()),
      OperationKind::kWrite);
  if (!atomics) return;
  client_tally.expect(client_.atomic(*writable, 0, {.operand = 1}, test::room(*duo_.near, 8),
                                     client_tally.options()),
                      OperationKind::kAtomic, 1);
  Atomic swap{.kind = Atomic::Kind::kCompareSwap, .operand = 1, .expected = 0};
  client_tally.expect(
      client_.atomic(*writable, 8, swap, test::room(*duo_.near, 8), client_tally.options()),
      OperationKind::kAtomic, 1);
}

void Traffic::finish() {
  Duration limit = std::max(client_tally.limit, server_tally.limit);
  CHECK(duo_.until([&] { return ended(); }, in(limit + kGrace)));
  client_tally.check();
  server_tally.check();
  for (const RemoteKey& key : keys_) {
    Status revoked = server_.revoke(key);
    if (server_.state() != EndpointState::kConnected || server_.info().peer_silent) continue;
    INFO(revoked.to_string());
    if (failures() == 0) CHECK(revoked.ok());
  }
  keys_.clear();
  granted_.clear();
}

void expect_traffic(Duo& duo, Endpoint& client, Endpoint& server) {
  Traffic traffic(duo, client, server);
  traffic.post();
  traffic.finish();
  INFO(traffic.text());
  CHECK(traffic.failures() == 0);
}

Bystander::Bystander(Duo& duo) : duo_(duo) {
  auto made = duo.connect();
  INFO(made.status().to_string());
  REQUIRE(made.ok());
  std::tie(client, server) = std::move(made).value();
}

Bystander::~Bystander() {
  expect_traffic(duo_, client, server);
  CHECK(client.close(soon()).ok());
  CHECK(duo_.until([&] { return server.state() == EndpointState::kClosed; }));
}

void expect_reconnect(Duo& duo) {
  auto made = duo.connect();
  INFO(made.status().to_string());
  REQUIRE(made.ok());
  auto [client, server] = std::move(made).value();
  expect_traffic(duo, client, server);
  CHECK(client.close(soon()).ok());
}

Gain::Gain(const char* name) : name_(name), before_(read_counter(name)) {}
uint64_t Gain::operator()() const { return read_counter(name_) - before_; }

}  // namespace sluice::verbs
