#include "tools/info/ethernet_facts.h"

#include <fmt/format.h>

namespace sluice::tools {
namespace {

using Json = nlohmann::json;

Json or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }
std::string text(const Json& value) { return value.get<std::string>(); }

void print_interface(const Json& interface, bool allowed) {
  std::string mac = interface["mac"].is_null() ? "" : text(interface["mac"]) + ", ";
  std::string state =
      interface["obstacle"].is_null() ? "usable" : "not usable: " + text(interface["obstacle"]);
  if (interface["obstacle"].is_null() && !allowed) state = "usable with CAP_NET_RAW";
  std::string reach = interface["loopback"].get<bool>() ? ", reaches this machine only" : "";
  fmt::print("Ethernet   {}: {}MTU {}, {}{}\n", text(interface["name"]), mac,
             interface["mtu_bytes"].get<int>(), state, reach);
}

}  // namespace

Json ethernet_facts(const std::vector<l2::Interface>& interfaces, const std::string& obstacle,
                    const PeerNames& peers) {
  Json out = {{"packet_sockets", obstacle.empty()}, {"obstacle", or_null(obstacle)},
              {"interfaces", Json::array()},        {"peers", Json::array()},
              {"peer_files", peers.files},          {"peer_problems", peers.problems}};
  for (const l2::Interface& interface : interfaces) {
    out["interfaces"].push_back({{"name", interface.name},
                                 {"mac", or_null(interface.mac)},
                                 {"mtu_bytes", interface.mtu},
                                 {"up", interface.up},
                                 {"carrier", interface.carrier},
                                 {"loopback", interface.loopback},
                                 {"usable", interface.obstacle.empty()},
                                 {"obstacle", or_null(interface.obstacle)}});
  }
  for (const NamedPeer& peer : peers.peers) {
    out["peers"].push_back({{"name", peer.name},
                            {"mac", mac_text(peer.address)},
                            {"interface", or_null(peer.interface)},
                            {"from", peers.files[peer.file] + ":" + std::to_string(peer.line)}});
  }
  return out;
}

void print_ethernet(const Json& ethernet, bool everything) {
  bool allowed = ethernet["packet_sockets"].get<bool>(), any = false;
  for (const Json& interface : ethernet["interfaces"]) {
    if (interface["loopback"].get<bool>() && !everything) continue;
    print_interface(interface, allowed);
    any = true;
  }
  if (!any) fmt::print("Ethernet   no interface but this machine's own\n");
  if (!allowed && everything) fmt::print("Ethernet   {}\n", text(ethernet["obstacle"]));
  for (const Json& problem : ethernet["peer_problems"])
    fmt::print("peers      not read: {}\n", text(problem));
  if (!everything) return;
  for (const Json& peer : ethernet["peers"]) {
    std::string by = peer["interface"].is_null() ? "" : " by " + text(peer["interface"]);
    fmt::print("peer       {} is {}{} ({})\n", text(peer["name"]), text(peer["mac"]), by,
               text(peer["from"]));
  }
}

}  // namespace sluice::tools
