#include <sluice/base/mac_address.h>

#include <cstdio>

namespace sluice {

Result<MacAddress> parse_mac(const std::string& text) {
  MacAddress address;
  unsigned b[address.size()];
  int used = 0;
  int fields = std::sscanf(text.c_str(), "%2x:%2x:%2x:%2x:%2x:%2x%n", &b[0], &b[1], &b[2], &b[3],
                           &b[4], &b[5], &used);
  if (fields != static_cast<int>(address.size()) || static_cast<size_t>(used) != text.size()) {
    return Status(Code::kInvalidArgument, Scope::kOperation, "base/mac_address",
                  "'" + text + "' is no MAC address, as 02:00:00:00:00:0b is");
  }
  for (size_t i = 0; i < address.size(); ++i) address[i] = static_cast<uint8_t>(b[i]);
  return address;
}

std::string mac_text(const MacAddress& b) {
  char text[18];
  std::snprintf(text, sizeof(text), "%02x:%02x:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3], b[4],
                b[5]);
  return text;
}

}  // namespace sluice
