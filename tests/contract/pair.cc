#include "tests/contract/pair.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include <sluice/api/connecting.h>
#include <sluice/fault/injector.h>
#include <sluice/select/open.h>
#include <sluice/select/paths.h>
#include <sluice/spi/endpoint_core.h>

#include "tests/support/fresh_name.h"
#include "tests/verbs/fake_provider.h"

namespace sluice::test {

namespace {
// A path that is not built in; null: another one.
const PathDescriptor* added_path(std::string_view name) {
  for (const PathDescriptor* path : added_paths()) {
    if (path->name == name) return path;
  }
  return nullptr;
}
const PathDescriptor* added_under_test() { return added_path(path_under_test()); }
}  // namespace

const std::string& path_under_test() {
  static const std::string path = [] {
    const char* chosen = std::getenv("SLUICE_CONTRACT_PATH");
    std::string text = chosen != nullptr ? chosen : "";
    // sluice:// is one of the others; udp6 is udp at ::1.
    if (find_path(text) == nullptr && text != "sluice" && text != "udp6") {
      std::string known = "sluice, udp6";
      for (const PathDescriptor* path : known_paths()) known += ", " + std::string(path->name);
      std::fprintf(stderr, "SLUICE_CONTRACT_PATH='%s': set one of %s\n", text.c_str(),
                   known.c_str());
      std::exit(2);
    }
    return text;
  }();
  return path;
}

bool faults_under_test() {
  static const bool delayed = [] {
    const char* chosen = std::getenv("SLUICE_CONTRACT_FAULTS");
    std::string text = chosen != nullptr ? chosen : "none";
    if (text != "none" && text != "delayed") {
      std::fprintf(stderr, "SLUICE_CONTRACT_FAULTS='%s': set none or delayed\n", text.c_str());
      std::exit(2);
    }
    return text == "delayed";
  }();
  return delayed;
}

namespace {
std::vector<std::shared_ptr<fault::Injector>>& injectors() {
  static std::vector<std::shared_ptr<fault::Injector>> all;
  return all;
}

// A new seed for each context, the same ones in each run.
void suffer(Context& context) {
  if (!faults_under_test()) return;
  static const uint64_t first = [] {
    const char* chosen = std::getenv("SLUICE_CONTRACT_SEED");
    return chosen != nullptr ? std::strtoull(chosen, nullptr, 10) : uint64_t{1};
  }();
  static uint64_t contexts = 0;
  injectors().push_back(
      fault::inject(context, fault::Plan::delayed(first * 1'000'003 + ++contexts)));
}
}  // namespace

FaultsDone faults_done() {
  FaultsDone done;
  for (const auto& injector : injectors()) {
    done.held_back += injector->held_back();
    done.refused += injector->refused();
    done.split += injector->split();
    done.spurious += injector->spurious();
  }
  done.sockets_narrowed = sockets_narrowed();
  return done;
}

bool path_has_views() {
  if (const PathDescriptor* added = added_under_test())
    return added->explain().properties.capabilities.has(Capability::kViews);
  return path_under_test() != "tcp" && !path_is_direct();
}
bool path_streams() {
  if (added_under_test() != nullptr) return !path_has_views();  // added paths have no devices
  return path_under_test() == "tcp";
}
bool path_copies() {
  if (const PathDescriptor* added = added_under_test())
    return added->explain().properties.copies_per_fetch > 0;
  return path_under_test() == "tcp" || path_is_slp() || path_is_module() ||
         copying_device_under_test();
}
bool path_is_sealed() {
  if (const PathDescriptor* added = added_under_test())
    return added->explain().properties.capabilities.has(Capability::kSealed);
  return path_under_test() == "shm" || path_under_test() == "loopback" ||
         path_under_test() == "sluice";
}
Path expected_path() {
  if (path_under_test() == "sluice") return Path::kShm;
  return path_under_test() == "udp6" ? Path::kUdp : find_path(path_under_test())->path;
}
bool path_is_slp() {
  return path_under_test() == "l2" || path_under_test() == "xdp" || path_under_test() == "udp" ||
         path_under_test() == "udp6";
}
bool path_is_module() { return path_under_test() == "kmod"; }
bool path_is_direct() { return path_under_test() == "rdma" || path_is_slp() || path_is_module(); }
bool path_has_device() { return path_under_test() == "rdma"; }
namespace {
// "fake", and how it differs from an honest soft-RoCE: fake-lossy-small.
verbs::FakeOptions fabric_of(std::string_view name) {
  using Order = verbs::FakePolicy::Order;
  verbs::FakeOptions options;
  verbs::FakeDeviceOptions& device = options.devices[0];
  auto is = [&](std::string_view word) { return name.find(word) != name.npos; };
  if (is("-slow")) options.policy = {.order = Order::kSlow, .ticks = 8};
  if (is("-reordering")) options.policy = {.order = Order::kReordering, .ticks = 8};
  // One packet in ten: seven in a row, which would end a connection, are one in ten million.
  if (is("-lossy")) options.policy = {.order = Order::kLossy, .loss_per_mille = 100};
  if (size_t at = name.find("-seed"); at != name.npos)
    options.policy.seed = std::strtoull(name.data() + at + 5, nullptr, 10);
  if (is("-narrow")) device.windows = false;
  if (is("-small"))
    device.max_sge = 1, device.max_inline_data = 0, device.max_msg_sz = 64 << 10,
    device.max_qp_wr = 128;
  if (is("-single")) options.poll_limit = 1;
  return options;
}
}  // namespace

bool fake_device_under_test() {
  static const bool fake = [] {
    const char* chosen = std::getenv("SLUICE_CONTRACT_VERBS");
    std::string_view name = chosen != nullptr ? chosen : "";
    if (!name.starts_with("fake")) return false;
    // Kept, also when a test puts another in its place.
    static auto* fabric = new verbs::FakeVerbs(fabric_of(name));
    verbs::use_verbs_api(fabric);
    return true;
  }();
  return path_has_device() && fake;
}
bool fabric_loses() {
  const char* chosen = std::getenv("SLUICE_CONTRACT_VERBS");
  return chosen != nullptr && std::string_view(chosen).find("lossy") != std::string_view::npos;
}
bool copying_device_under_test() { return path_has_device() && !fake_device_under_test(); }
size_t inline_limit() {
  return path_under_test() == "tcp"   ? Tuning().tcp_eager_bytes
         : path_under_test() == "shm" ? Tuning().shm_eager_bytes
                                      : 4096;
}

namespace {
std::string named() { return fresh_name(path_under_test() + ":contract"); }
std::string host() {
  const char* given = std::getenv("SLUICE_CONTRACT_HOST");
  return given != nullptr ? given : "127.0.0.1";
}
std::string by_udp() {
  return path_under_test() == "udp6" ? "l2://udp/[::1]" : "l2://udp/127.0.0.1";
}
bool by_name() {
  const PathDescriptor* path = find_path(path_under_test());
  return path != nullptr && form_of(path->scheme) == AddressForm::kName;
}
}  // namespace

std::string fresh_address() {
  if (path_under_test() == "l2") return "l2://lo:0";
  if (path_under_test() == "xdp") return "l2://xdp/end0:0";
  if (path_is_module()) return "kmod://end0:0";
  if (path_is_slp()) return by_udp() + ":0";
  return by_name() ? named() : path_under_test() + "://" + host() + ":0";
}
// Port 1 (tcpmux) is below the ephemeral range and unused.
std::string deserted_address() {
  if (path_under_test() == "l2") return "l2://lo/00:00:00:00:00:00:1";
  if (path_under_test() == "xdp") return "l2://xdp/end0/02:00:00:00:00:99:1";
  if (path_is_module()) return "kmod://end0/02:00:00:00:00:99:1";
  if (path_is_slp()) return by_udp() + ":1";
  return by_name() ? named() : path_under_test() + "://" + host() + ":1";
}

size_t Box::count(OperationId id) const {
  return static_cast<size_t>(
      std::count_if(all.begin(), all.end(), [id](const Completion& c) { return c.id == id; }));
}
Completion* Box::find(OperationId id) {
  for (Completion& completion : all) {
    if (completion.id == id) return &completion;
  }
  return nullptr;
}

ArenaOptions small_arena() {
  return {.limit_bytes = size_t{512} << 20,
          .first_extent_bytes = size_t{4} << 20,
          .largest_extent_bytes = size_t{64} << 20,
          .receive_reserve_bytes = size_t{1} << 20};
}

std::unique_ptr<Context> open(Waiting waiting, const ArenaOptions& arena) {
  auto context = open_context({.arena = {}, .arena_options = arena, .waiting = waiting});
  INFO(context.status().to_string());
  REQUIRE(context.ok());
  suffer(**context);
  return std::move(context).value();
}

Buffer room(Context& context, size_t size) {
  Result<Buffer> buffer = context.allocate({static_cast<int64_t>(size)}, uint8);
  INFO(buffer.status().to_string());
  REQUIRE(buffer.ok());
  return std::move(buffer).value();
}
Buffer filled(Context& context, size_t size, uint64_t seed) {
  Buffer buffer = room(context, size);
  fill(buffer.bytes(), seed);
  return buffer;
}
Tensor tensor(Context& context, size_t size, uint64_t seed) {
  return filled(context, size, seed).freeze();
}

Tensor floats(Context& context, std::initializer_list<int64_t> shape, float first) {
  Result<Buffer> buffer = context.allocate(shape, float32);
  REQUIRE(buffer.ok());
  for (float& value : buffer->as<float>()) value = first++;
  return std::move(*buffer).freeze();
}

size_t ProgressOther::progress(Instant) {
  if (inside_ || frozen || other == nullptr) return 0;
  inside_ = true;
  size_t work = other->progress();
  inside_ = false;
  return work;
}

Result<Endpoint> connect_to(Context& from, Context& to, const std::string& address,
                            const ConnectOptions& options) {
  ProgressOther hook;
  hook.other = &to;
  from.add_hook(&hook);
  Result<Endpoint> endpoint = from.connect(address, options);
  from.remove_hook(&hook);
  return endpoint;
}

Pair::Pair(const PairOptions& options) {
  client_context = open(options.waiting, options.arena);
  if (options.same_arena) {
    auto shared = open_context(
        {.arena = client_context->shared_arena(), .arena_options = {}, .waiting = options.waiting});
    REQUIRE(shared.ok());
    server_context = std::move(shared).value();
    suffer(*server_context);
  } else {
    server_context = open(options.waiting, options.arena);
  }
  Result<Listener> listening = server_context->listen(fresh_address(), options.listen);
  INFO(listening.status().to_string());
  REQUIRE(listening.ok());
  listener = std::make_unique<Listener>(std::move(listening).value());
  address = listener->address();
  client_hook_.other = server_context.get();
  server_hook_.other = client_context.get();
  meet();
  std::tie(client, server) = connect_again(options.connect);
}

std::pair<Endpoint, Endpoint> Pair::connect_again(const ConnectOptions& options) {
  // Nothing wakes a context that sleeps for the turn of the other one.
  Connecting connecting = start_connect(*client_context, address, options);
  for (const Instant limit = soon(); !connecting.ready() && now() < limit;)
    client_context->progress();
  Result<Endpoint> near = client_context->run_until(connecting);
  INFO("connect to " << address << ": " << near.status().to_string());
  REQUIRE(near.ok());
  Result<Endpoint> far = listener->accept(soon());
  INFO("accept: " << far.status().to_string());
  REQUIRE(far.ok());
  return {std::move(near).value(), std::move(far).value()};
}

void Pair::meet() {
  client_context->add_hook(&client_hook_);
  server_context->add_hook(&server_hook_);
}

void Pair::part() {
  client_context->remove_hook(&client_hook_);
  server_context->remove_hook(&server_hook_);
}

bool Pair::until(const std::function<bool()>& done, Instant deadline) {
  while (!done()) {
    client_context->progress();
    server_context->progress();
    if (now() > deadline) return done();
  }
  return true;
}

void Pair::settle() {
  // 64 polls in a row look at descriptors once. What the kernel's own threads have to do for the
  // module's sockets takes them a few ticks under emulation, if we leave them a CPU at all.
  Instant busy = now();
  auto quiet = [&] {
    return !path_is_module() || now() > after(busy, std::chrono::milliseconds(50));
  };
  for (int idle = 0; idle < 400 || !quiet();) {
    size_t work = client_context->progress();
    if (!client_hook_.frozen) work += server_context->progress();
    idle = work > 0 ? 0 : idle + 1;
    if (work > 0) busy = now();
  }
}

Completion& Pair::wait(Box& box, OperationId id) {
  bool came = until([&] { return box.find(id) != nullptr; });
  INFO("operation " << id);
  REQUIRE(came);
  return *box.find(id);
}

void Pair::finish() {
  if (finished_) return;
  finished_ = true;
  thaw_server();
  std::shared_ptr<EndpointCore> near = client.shared(), far = server.shared();
  if (client) CHECK(client.close(soon()).ok());
  bool both = until([&] {
    return (!near || near->state() == EndpointState::kClosed) &&
           (!far || far->state() == EndpointState::kClosed);
  });
  CHECK(both);
  if (server) CHECK(server.close(soon()).ok());
  for (const auto& core : {near, far}) {
    if (!core) continue;
    EndpointCounters counters = core->counters();
    CHECK(counters.posted == counters.completed);
    CHECK(counters.loans_outstanding == 0);
  }
  listener.reset();
  settle();
  CHECK(client_context->close(soon()).ok());
  CHECK(server_context->close(soon()).ok());
}

void Pair::drop_contexts() {
  finished_ = true;
  listener.reset();
  part();
  client_context.reset();
  server_context.reset();
}

Pair::~Pair() {
  finish();
  if (client_context == nullptr) return;
  part();
  boxes_.clear();
  for (Context* context : {client_context.get(), server_context.get()}) {
    ArenaStatistics statistics = context->arena().statistics();
    CHECK(statistics.outstanding == 0);
  }
}

}  // namespace sluice::test
