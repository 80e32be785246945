// A frame as a line for people, and as JSON with the names of docs/slp.md.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tools/dump/frame.h"
#include "tools/dump/packet.h"

namespace sluice::tools::dump {

struct Told {
  const Captured& packet;
  const Envelope& envelope;
  const Frame& frame;
};

// One line, without its end. `payload`: its bytes, too, in hexadecimal.
std::string as_line(const Told& told, bool payload);
nlohmann::ordered_json as_json(const Told& told, bool payload);

// "CE ACK": the bits' names, with what lies between.
std::string flag_names(uint8_t flags, const char* between);

}  // namespace sluice::tools::dump
