// An address on Ethernet, and its text.
#ifndef SLUICE_BASE_MAC_ADDRESS_H_
#define SLUICE_BASE_MAC_ADDRESS_H_

#include <array>
#include <cstdint>
#include <string>

#include <sluice/base/result.h>

namespace sluice {

using MacAddress = std::array<uint8_t, 6>;

// "02:00:00:00:00:0b", six pairs of digits as Address::parse() takes them.
Result<MacAddress> parse_mac(const std::string& text);
std::string mac_text(const MacAddress& address);

}  // namespace sluice

#endif  // SLUICE_BASE_MAC_ADDRESS_H_
