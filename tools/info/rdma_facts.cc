#include "tools/info/rdma_facts.h"

#include <fmt/format.h>

#include <string>

#include <sluice/base/settings.h>
#include <sluice/verbs/moderation.h>

namespace sluice::tools {
namespace {

using Json = nlohmann::json;

Json or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

Json gid_facts(const verbs::GidFacts& gid) {
  return {{"index", gid.index},
          {"value", gid.value},
          {"type", gid.type},
          {"netdev", or_null(gid.netdev)}};
}

Json port_facts(const verbs::PortFacts& port) {
  Json out = {{"number", port.number},
              {"active", port.active},
              {"state", port.state},
              {"link_layer", port.link_layer},
              {"mtu_bytes", port.mtu_bytes},
              {"largest_mtu_bytes", port.largest_mtu_bytes},
              {"largest_message_bytes", port.message_bytes},
              {"gigabits_per_second", port.gigabits > 0 ? Json(port.gigabits) : Json()},
              {"addresses", port.addresses},
              {"gids", Json::array()}};
  for (const verbs::GidFacts& gid : port.gids) out["gids"].push_back(gid_facts(gid));
  return out;
}

Json device_facts(const verbs::DeviceFacts& device) {
  const verbs::DeviceLimits& l = device.limits;
  Json out = {{"name", device.name},
              {"kind", device.kind},
              {"node_type", device.node_type},
              {"firmware", device.firmware},
              {"vendor_id", device.vendor_id},
              {"part_id", device.part_id},
              {"trouble", or_null(device.trouble)},
              {"ports", Json::array()}};
  out["limits"] = {{"queue_depth", l.queue_depth},
                   {"completion_depth", l.completion_depth},
                   {"pieces", l.pieces},
                   {"reads_out", l.reads_out},
                   {"reads_in", l.reads_in},
                   {"memory_windows", l.windows},
                   {"atomics", l.atomics},
                   {"on_demand_paging", l.on_demand},
                   {"event_moderation", device.moderates}};
  for (const verbs::PortFacts& port : device.ports) out["ports"].push_back(port_facts(port));
  return out;
}

// What the environment asks of all devices; null: nothing.
Json moderation_facts() {
  const std::optional<std::string> asked = setting_text("SLUICE_RDMA_MODERATION");
  return !asked
             ? Json()
             : Json{{"asked", *asked}, {"understood", verbs::moderation_wish(*asked).has_value()}};
}

std::string text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string yes_or_no(const Json& value, const char* name) {
  return (value.get<bool>() ? "" : "no ") + std::string(name);
}

std::string joined(const Json& list) {
  std::string out;
  for (const Json& item : list) out += (out.empty() ? "" : " ") + text(item);
  return out;
}

void print_port(const std::string& device, const Json& port, bool everything) {
  std::string speed = port["gigabits_per_second"].is_null()
                          ? ""
                          : fmt::format(", {} Gb/s", port["gigabits_per_second"].get<double>());
  std::string addresses = port["addresses"].empty() ? "" : ", " + joined(port["addresses"]);
  fmt::print("port       {}/{} {}, {}, MTU {}, messages to {} MiB{}{}\n", device,
             port["number"].get<int>(), text(port["state"]), text(port["link_layer"]),
             port["mtu_bytes"].get<int>(), port["largest_message_bytes"].get<uint64_t>() >> 20,
             speed, addresses);
  if (!everything) return;
  for (const Json& gid : port["gids"]) {
    std::string netdev = gid["netdev"].is_null() ? "" : ", " + text(gid["netdev"]);
    fmt::print("GID        {}/{}[{}] {}, {}{}\n", device, port["number"].get<int>(),
               gid["index"].get<int>(), text(gid["value"]), text(gid["type"]), netdev);
  }
}

void print_device(const Json& device, bool everything) {
  std::string name = text(device["name"]);
  if (!device["trouble"].is_null()) {
    fmt::print("RDMA       {}: {}\n", name, text(device["trouble"]));
    return;
  }
  fmt::print("RDMA       {}: {}, {}, firmware {}, vendor 0x{:x} part {}\n", name,
             text(device["kind"]), text(device["node_type"]), text(device["firmware"]),
             device["vendor_id"].get<uint32_t>(), device["part_id"].get<uint32_t>());
  if (everything) {
    const Json& l = device["limits"];
    fmt::print(
        "limits     {}: {} requests a queue, {} completions, {} pieces, {} reads out, {} in, {}, "
        "{}, {}, {}\n",
        name, text(l["queue_depth"]), text(l["completion_depth"]), text(l["pieces"]),
        text(l["reads_out"]), text(l["reads_in"]), yes_or_no(l["memory_windows"], "memory windows"),
        yes_or_no(l["atomics"], "atomics"), yes_or_no(l["on_demand_paging"], "on-demand paging"),
        yes_or_no(l["event_moderation"], "event moderation"));
  }
  for (const Json& port : device["ports"]) print_port(name, port, everything);
}

void print_moderation(const Json& rdma) {
  const Json& moderation = rdma["moderation"];
  if (moderation.is_null()) return;
  if (!moderation["understood"].get<bool>()) {
    fmt::print("moderation SLUICE_RDMA_MODERATION is ignored: '{}' is neither auto nor like 16/8\n",
               text(moderation["asked"]));
    return;
  }
  std::string without;
  for (const Json& device : rdma["devices"]) {
    if (!device["limits"]["event_moderation"].get<bool>())
      without += (without.empty() ? ", without effect on " : " ") + text(device["name"]);
  }
  fmt::print("moderation {}, as SLUICE_RDMA_MODERATION asks{}\n", text(moderation["asked"]),
             without);
}

}  // namespace

Json rdma_facts(const verbs::Survey& survey) {
  Json out = {{"usable", survey.usable()},
              {"obstacle", or_null(survey.obstacle)},
              {"devices", Json::array()},
              {"moderation", moderation_facts()}};
  for (const verbs::DeviceFacts& device : survey.devices)
    out["devices"].push_back(device_facts(device));
  return out;
}

Json rdma_route(const verbs::RouteFacts& route) {
  Json out = {{"host", route.host}, {"found", route.found}, {"why", route.why}};
  if (!route.found) return out;
  out["device"] = route.device;
  out["port"] = route.port;
  out["local"] = route.local;
  out["gid"] = gid_facts(route.gid);
  return out;
}

void print_rdma(const Json& rdma, bool everything) {
  for (const Json& device : rdma["devices"]) print_device(device, everything);
  if (rdma["devices"].empty())
    fmt::print("RDMA       {}\n",
               everything ? text(rdma["obstacle"]) : "no device (why: sluice info --explain)");
  if (everything) print_moderation(rdma);
  if (!rdma.contains("route")) return;
  const Json& route = rdma["route"];
  bool found = route["found"].get<bool>();
  std::string by = found
                       ? fmt::format("by {}/{}: ", text(route["device"]), route["port"].get<int>())
                       : "not by RDMA: ";
  fmt::print("towards    {} {}{}\n", text(route["host"]), by, text(route["why"]));
}

}  // namespace sluice::tools
