// What `sluice info` tells of plain Ethernet: interfaces, the right to packet sockets, and
// peers' names. As JSON, and from that as lines for people.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <sluice/base/mac_names.h>
#include <sluice/l2/carrier/interfaces.h>

namespace sluice::tools {

// `obstacle`: to packet sockets; empty: they may be opened.
nlohmann::json ethernet_facts(const std::vector<l2::Interface>& interfaces,
                              const std::string& obstacle, const PeerNames& peers);

// Without `everything`: a line for each interface that is more than this machine's own.
void print_ethernet(const nlohmann::json& ethernet, bool everything);

}  // namespace sluice::tools
