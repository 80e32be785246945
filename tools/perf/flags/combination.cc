#include "tools/perf/flags/combination.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include <sluice/api/address.h>
#include <sluice/exchange/exchange.h>
#include <sluice/l2/carrier/interfaces.h>

#include "tools/perf/flags/condition_flags.h"
#include "tools/perf/flags/refusal.h"
#include "tools/perf/load/registration.h"
#include "tools/perf/run/roles.h"

namespace sluice::tools {
namespace {

// A huge page, and the least that an arena grows by.
constexpr uint64_t kDefaultRegistered = uint64_t{2} << 20;

void check_atomic(PerfOptions& o) {
  const std::string example =
      "sluice perf " + std::string(o.test->name) + " --transport rdma --self";
  for (const char* without : {"shm", "kmod", "l2", "xdp", "udp", "tcp", "loopback"}) {
    if (o.transport == without) refuse("--transport", o.transport, "has no atomics", example);
  }
  if (o.sizes.empty()) o.sizes = {Load::kAtomicBytes};
  if (o.sizes.size() > 1)
    refuse("--all", std::string(o.test->name), "has one size, 8 bytes", example);
  if (o.sizes[0] != Load::kAtomicBytes)
    refuse("--size", std::to_string(o.sizes[0]), "is no atomic's size, which is 8",
           example + " -s 8");
  o.compare = o.atomic_type == "CMP_AND_SWAP";
}

// Plain Ethernet has interfaces where others have addresses.
void check_interface(PerfOptions& o) {
  const std::string example =
      "sluice perf " + std::string(o.test->name) + " --transport " + o.transport;
  if (!o.host.empty()) {
    Result<Address> there = Address::parse(meeting_address(o));
    if (!there.ok() ||
        ((there->scheme == Scheme::kL2 || there->scheme == Scheme::kKmod) && !there->name.empty()))
      return;  // the former is told below
    refuse("HOST", o.host, "names no interface and MAC address",
           example + " eth0/02:00:00:00:00:0b");
  }
  bool self = o.self && !is_local(*o.test);
  if (o.bind != kAnyAddress) return;
  if (self && o.transport == "kmod") return;  // told where the module is there at all
  o.bind = self ? "lo" : "";
  if (self) return;
  std::string names;
  for (const l2::Interface& found : l2::survey_interfaces()) {
    if (found.loopback || !found.obstacle.empty()) continue;
    names += (names.empty() ? "" : " ") + found.name;
    o.bind = found.name;
  }
  if (names.empty() || o.bind != names) {
    refuse("--bind", "",
           names.empty()
               ? "an interface is needed, and none here carries frames: sluice info says why"
               : "an interface is needed: " + names,
           example + " --bind " + (o.bind.empty() ? "eth0" : o.bind));
  }
}

void check_verification(PerfOptions& o) {
  bool known = o.verify_by.empty() || o.verify_by == "bytes" || o.verify_by == "crc32c" ||
               o.verify_by == "false";
  if (!known) refuse_word("--verify", o.verify_by, "bytes crc32c", "--verify=crc32c");
  o.verify = o.verify_by != "false";
  o.checksum = o.verify_by == "crc32c";
}

// What a test of one process cannot be told.
void check_local(PerfOptions& o) {
  const std::string name(o.test->name);
  const bool copies = o.test->verb == Verb::kCopy;
  const std::string example =
      copies ? "sluice perf memcpy -a" : "sluice perf reg --transport rdma -s 64M";
  if (!o.host.empty())
    refuse("HOST", o.host, "has no part in " + name + ", which one process does alone", example);
  if (copies && o.transport != "auto")
    refuse("--transport", o.transport, "carries nothing of memcpy, which copies within one process",
           example);
  if (!copies && !registers_memory(o.transport)) {
    refuse("--transport", o.transport,
           "registers no memory: what it sends and receives is copied by the kernel; reg is for "
           "rdma, kmod and shm",
           example);
  }
  if (!copies && o.source_offset) refuse("--offset", name, "is of whole pages", example);
  const std::pair<const char*, bool> others[] = {
      {"--confidence", o.confidence.has_value()},
      {"--interval", o.interval.has_value()},
      {"--system-calls", o.system_calls},
      {"--under-load", o.under_load.has_value()},
      {"--perturb", o.pause_ns > 0},
      {"--verify", o.checksum || (!copies && o.verify && !o.verify_by.empty())}};
  for (const auto& [flag, given] : others) {
    if (given) refuse(flag, name, "is a test of one process, without messages", example);
  }
  o.self = true;
}

void check_calls(const PerfOptions& o) {
  if (!o.reply_bytes) return;
  const std::string example = "sluice perf rpc_lat --self -s 64 --reply-size 4K";
  if (o.test->verb != Verb::kRpc)
    refuse("--reply-size", std::string(o.test->name), "has no answers; rpc_lat and rpc_bw have",
           example);
  if (!o.self && o.host.empty())
    refuse("--reply-size", std::to_string(*o.reply_bytes),
           "has no use at a server, which follows its client", example);
}

// worker3:18515, 10.0.0.1:18515, [fd00::1]:18515, which would be taken for a name, or for nothing.
bool has_port(const PerfOptions& o) {
  size_t colon = o.host.rfind(':');
  if (takes_interface(o.transport) || colon == std::string::npos || colon == 0 ||
      is_whole_address(o.host))
    return false;
  bool digits = colon + 1 < o.host.size() &&
                o.host.find_first_not_of("0123456789", colon + 1) == std::string::npos;
  return digits && (o.host[colon - 1] == ']' || o.host.find(':') == colon);
}

// As --transport names the path of an address.
std::string transport_of(const Address& address) {
  switch (address.scheme) {
    case Scheme::kSluice: return "auto";
    case Scheme::kL2: return address.is_udp() ? "udp" : address.xdp ? "xdp" : "l2";
    case Scheme::kShm:
    case Scheme::kTcp:
    case Scheme::kLoopback:
    case Scheme::kRdma:
    case Scheme::kKmod: break;
  }
  return std::string(to_string(address.scheme));
}

}  // namespace

void check_combination(PerfOptions& o) {
  check_verification(o);
  if (is_local(*o.test)) check_local(o);
  if (o.self && !o.host.empty())
    refuse("--self", o.host, "is a server, and --self needs none", "sluice perf send_lat --self");
  if (o.forever && (o.self || !o.host.empty()))
    refuse("--forever", o.self ? "--self" : o.host, "makes this no server",
           "sluice perf send_lat --forever");
  if (o.transport == "loopback" && !o.self)
    refuse("--transport", "loopback", "is within one process and needs --self",
           "--transport loopback --self");
  bool striped = can_be_striped(*o.test);
  if (o.qps > 1 && !striped)
    refuse("--qps", std::to_string(o.qps),
           "is for send_bw, write_bw, read_bw, atomic_bw and rpc_bw",
           "sluice perf write_bw --self --qps 4");
  if (o.bidirectional && !can_be_bidirectional(*o.test))
    refuse("--bidirectional", std::string(o.test->name), "is none of send_bw, write_bw and read_bw",
           "sluice perf write_bw --self -b");
  if (o.sizes == std::vector<uint64_t>{0} && !may_be_empty(*o.test))
    refuse("--size", "0", "is for send_lat and rpc tests, whose messages may be empty",
           "sluice perf send_lat --self -s 0");
  if (o.post_list > 1 && !striped)
    refuse("--post_list", std::to_string(o.post_list),
           "is for send_bw, write_bw, read_bw, atomic_bw and rpc_bw",
           "sluice perf write_bw --self --post_list 16");
  if (o.tx_depth > 0 && o.post_list > o.tx_depth)
    refuse("--post_list", std::to_string(o.post_list),
           "is more than --tx-depth, " + std::to_string(o.tx_depth),
           "sluice perf write_bw --self --tx-depth 64 --post_list 16");
  check_calls(o);
  if (o.into && o.test->verb != Verb::kExchange)
    refuse("--into", std::string(o.test->name), "fetches nothing",
           "sluice perf exchange_bw --self --into");
  if (o.subscribe && (o.test->verb != Verb::kExchange || o.test->latency))
    refuse("--subscribe", std::string(o.test->name), "is not exchange_bw",
           "sluice perf exchange_bw --self --subscribe");
  if (o.subscribe && o.into)
    refuse("--subscribe", "--into", "fills no memory of the caller's",
           "sluice perf exchange_bw --self --subscribe");
  if (o.subscribe && o.tx_depth > Subscription::kMostAhead)
    refuse(
        "--tx-depth", std::to_string(o.tx_depth),
        "is more than a subscription asks for at once, " + std::to_string(Subscription::kMostAhead),
        "sluice perf exchange_bw --self --subscribe --tx-depth 32");
  if (o.default_options && !has_default_options(*o.test))
    refuse("--default-options", std::string(o.test->name), "is none of send_lat and exchange_lat",
           "sluice perf send_lat --self --default-options");
  if (o.tensors && !(o.test->verb == Verb::kExchange && o.test->latency))
    refuse("--tensors", std::string(o.test->name), "is not exchange_lat",
           "sluice perf exchange_lat --self --tensors 3");
  if (!o.consume.empty() && o.consume != "line" && o.consume != "page")
    refuse_word("--consume", o.consume, "line page", "--consume=page");
  if (!o.consume.empty() && o.test->verb != Verb::kExchange)
    refuse("--consume", std::string(o.test->name), "fetches nothing",
           "sluice perf exchange_bw --self --into --consume");
  if (takes_interface(o.transport)) check_interface(o);
  if (o.interval && !o.seconds)
    refuse("--interval", fmt::format("{:g}", *o.interval), "is of a run by --duration",
           "sluice perf send_bw --self -D 10 --interval 1");
  if (has_port(o)) {
    size_t colon = o.host.rfind(':');
    const std::string scheme = o.transport == "udp"                            ? "l2://udp/"
                               : o.transport == "tcp" || o.transport == "rdma" ? o.transport + "://"
                                                                               : "sluice://";
    std::string host = o.host.substr(0, colon);
    if (host.front() == '[') host = host.substr(1, host.size() - 2);
    refuse("HOST", o.host, "has a port, which goes beside it or into a whole address",
           host + " --port " + o.host.substr(colon + 1) + ", or " + scheme + o.host);
  }
  if (!o.self) {
    Result<Address> address = Address::parse(meeting_address(o));
    std::string flag = o.host.empty() ? "--bind" : "HOST";
    bool another = address.ok() && is_whole_address(o.host) && o.transport != "auto" &&
                   o.transport != transport_of(*address);
    if (another)
      refuse("--transport", o.transport, "is another path than that of " + o.host,
             "sluice perf " + std::string(o.test->name) + " " + o.host);
    if (!address.ok())
      refuse(flag, o.host.empty() ? o.bind : o.host,
             std::string("gives no address: ") + std::string(address.status().detail()),
             "sluice perf send_lat sluice://127.0.0.1:18515");
  }
  if (o.test->verb == Verb::kAtomic) {
    check_atomic(o);
    if (o.checksum)
      refuse("--verify", "crc32c", "has no room in 8 bytes that atomics work on",
             "sluice perf " + std::string(o.test->name) + " --transport rdma --self --verify");
  } else if (!o.atomic_type.empty()) {
    refuse("--atomic_type", o.atomic_type, "is for atomic tests",
           "sluice perf atomic_lat --transport rdma --self -A " + o.atomic_type);
  }
  if (o.sizes.empty())
    o.sizes = {o.test->verb == Verb::kRegister ? kDefaultRegistered
               : o.test->latency               ? uint64_t{2}
                                               : uint64_t{65536}};
  check_conditions(o);
}

}  // namespace sluice::tools
