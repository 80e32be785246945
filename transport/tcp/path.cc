#include <sluice/tcp/path.h>

#include <sluice/runtime/context_core.h>
#include <sluice/tcp/link.h>
#include <sluice/tcp/provider.h>

namespace sluice::tcp {
namespace {

PathState explain() {
  return {.usable = true,
          .why = "for every peer that an IP address reaches",
          .properties = link_traits().properties};
}
std::string trial_address() { return "tcp://127.0.0.1:0"; }
std::unique_ptr<Provider> open(ContextCore& context) {
  return std::make_unique<TcpProvider>(context);
}

}  // namespace

// sluice:// greets over TCP, so it takes it where no other path is better.
const PathDescriptor kPath{
    .path = Path::kTcp,
    .scheme = Scheme::kTcp,
    .name = "tcp",
    .explain = explain,
    .trial_address = trial_address,
    .remedy =
        "`sudo ip link set lo up`; then see `ip address show lo` and the firewall's rules "
        "(`sudo nft list ruleset`)",
    .open = open,
};

}  // namespace sluice::tcp
