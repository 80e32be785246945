// What `sluice info` tells of RDMA devices: as JSON, and from that as lines for people.
#pragma once

#include <nlohmann/json.hpp>

#include <sluice/verbs/devices.h>

namespace sluice::tools {

nlohmann::json rdma_facts(const verbs::Survey& survey);
nlohmann::json rdma_route(const verbs::RouteFacts& route);

// Without `everything`: a line for each device and each port.
void print_rdma(const nlohmann::json& rdma, bool everything);

}  // namespace sluice::tools
