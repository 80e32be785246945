// Contexts and addresses of the two ends (see library_ends.h).
#include "benchmarks/library_ends.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include <sluice/base/counters.h>
#include <sluice/select/open.h>

namespace bench {
namespace {

using namespace sluice;

struct Addresses {
  std::string listen, connect;
};

// Set before there are two processes: their names for each other.
const pid_t owner = getpid();

std::string device_address() {
  const char* guest = std::getenv("SLUICE_LAB_ADDRESS");
  return "rdma://" + std::string(guest != nullptr ? guest : "127.0.0.1") + ":7000";
}

Addresses addresses_of(Carrier carrier) {
  const auto both = [](const std::string& address) { return Addresses{address, address}; };
  switch (carrier) {
    case Carrier::kPacket: return {"l2://far:7000", "l2://near/02:00:00:00:00:0b:7000"};
    case Carrier::kUdp: return both("l2://udp/10.9.0.2:7000");
    case Carrier::kTcp: return both("tcp://10.9.0.2:7000");
    case Carrier::kShm: return both("shm:library-ends-" + std::to_string(owner));
    case Carrier::kLoopback:
      return both("tcp://127.0.0.1:" + std::to_string(20'000 + owner % 10'000));
    case Carrier::kModule: return {"kmod://far:7000", "kmod://near/02:00:00:00:00:0b:7000"};
    case Carrier::kXdp: return {"l2://xdp/far:7000", "l2://xdp/near/02:00:00:00:00:0b:7000"};
    case Carrier::kRdma: return both(device_address());
  }
  return {};
}

void tell_counters(const char* who) {
  if (std::getenv("SLUICE_BENCH_COUNTERS") == nullptr) return;
  for (const auto& [name, value] : read_counters()) {
    if (value != 0)
      std::fprintf(stderr, "%s %.*s %llu\n", who, static_cast<int>(name.size()), name.data(),
                   static_cast<unsigned long long>(value));
  }
}

int listen_and_run(const bare::Options& options, const Way& way, int ready, const Measured& run,
                   bare::PeerReport& report) {
  Side side(way, bare::End::kFar, options.size);
  Listener listener = must(side.context->listen(addresses_of(way.carrier).listen), "listen");
  if (write(ready, "", 1) != 1) bare::die("telling that it listens");
  side.endpoint = must(listener.accept(later()), "accept");
  const int result = run(side, report);
  (void)side.endpoint.close(later());
  tell_counters("far");
  return result;
}

int connect_and_run(const bare::Options& options, const Way& way, int ready, const Measured& run,
                    bare::PeerReport& report) {
  Side side(way, bare::End::kNear, options.size);
  char byte;
  if (read(ready, &byte, 1) != 1) bare::die("waiting for the listener");
  side.endpoint = must(side.context->connect(addresses_of(way.carrier).connect), "connect");
  const int result = run(side, report);
  tell_counters("near");
  (void)side.endpoint.close(later());
  return result;
}

}  // namespace

const std::vector<std::string>& carrier_names() {
  static const std::vector<std::string> names = {"packet", "udp",  "tcp",  "shm",
                                                 "lo",     "kmod", "rdma", "xdp"};
  return names;
}

Way way_of(const std::string& mode) {
  Way way;
  for (size_t i = 0; i < carrier_names().size(); ++i) {
    if (mode == carrier_names()[i] || mode.starts_with(carrier_names()[i] + "_"))
      way.carrier = static_cast<Carrier>(i);
  }
  if (mode.find("sleep") != std::string::npos) way.waiting = Waiting::kSleep;
  if (mode.find("adaptive") != std::string::npos) way.waiting = Waiting::kAdaptive;
  return way;
}

bool has_wire(Carrier carrier) {
  return carrier != Carrier::kShm && carrier != Carrier::kLoopback && carrier != Carrier::kRdma;
}

void give_up(const char* what, const Status& status) {
  std::fprintf(stderr, "%s: %s\n", what, status.to_string().c_str());
  std::_Exit(bare::kExitFailed);
}

void Box::on_completion(Completion&& completion) noexcept {
  if (!completion.status.ok()) give_up("an operation", completion.status);
  last = std::move(completion);
  ++count;
}

Instant later() { return after(now(), std::chrono::seconds(100)); }

Side::Side(const Way& way, bare::End end, uint64_t bytes) : size(bytes) {
  if (has_wire(way.carrier)) bare::enter(end);
  // A guest has little memory, touches it slowly, and its kernel pins what a device is told of.
  const bool guest = std::getenv("SLUICE_LAB_ADDRESS") != nullptr;
  ArenaOptions arena{.first_extent_bytes = size_t{guest ? 32u : 256u} << 20};
  context = must(open_context({.arena = {}, .arena_options = arena, .waiting = way.waiting}),
                 "open_context");
}

Buffer Side::buffer() {
  return must(context->allocate({static_cast<int64_t>(size)}, uint8), "allocate");
}

void Side::receive(Buffer&& into, Box& box) {
  must(endpoint.receive({.tag = kTag}, std::move(into), {.sink = &box, .deadline = later()}),
       "receive");
}

void Side::send(const Tensor& tensor, Box& box, Level level) {
  must(endpoint.send(kTag, tensor, {.sink = &box, .deadline = later(), .level = level}), "send");
}

int run_ends(const bare::Options& options, const Way& way, const Measured& far,
             const Measured& near) {
  int ends[2];
  if (pipe(ends) != 0) bare::die("pipe");
  return bare::run_pair(
      options,
      [&](bare::PeerReport& report) { return listen_and_run(options, way, ends[1], far, report); },
      [&](bare::PeerReport& report) {
        return connect_and_run(options, way, ends[0], near, report);
      });
}

}  // namespace bench
