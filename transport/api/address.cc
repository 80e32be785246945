#include <sluice/api/address.h>

#include <charconv>

namespace sluice {
namespace {

constexpr size_t kLongestName = 64;   // with the prefix it must fit sockaddr_un's 107 bytes
constexpr size_t kLongestHost = 255;  // RFC 1035 section 2.3.4

// The text may come from anywhere: what a terminal or a log would obey is escaped.
std::string quoted(std::string_view text) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (char c : text.substr(0, 300)) {
    auto byte = static_cast<unsigned char>(c);
    if (c >= ' ' && c <= '~') {
      out += c;
    } else {
      out += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return text.size() > 300 ? out + "..." : out;
}

Status invalid(std::string_view text, const std::string& why) {
  return Status(Code::kInvalidArgument, Scope::kOperation, "api/address",
                "address '" + quoted(text) + "': " + why +
                    "; examples: sluice://host:7000, rdma://host:7000, tcp://[::1]:7000, "
                    "l2://eth0/02:00:00:00:00:0b:7, shm:name");
}

bool name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}

Result<Address> parse_name(std::string_view text, Scheme scheme, std::string_view name) {
  if (name.empty()) return invalid(text, "the name is empty");
  if (name.size() > kLongestName) return invalid(text, "the name is longer than 64 characters");
  for (char c : name) {
    if (!name_character(c))
      return invalid(text, "a name has letters, digits, '.', '_' and '-' only");
  }
  Address address;
  address.scheme = scheme;
  address.name = name;
  return address;
}

Status parse_port(std::string_view text, std::string_view port, uint16_t& out) {
  unsigned value = 0;
  auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), value);
  if (error != std::errc() || end != port.data() + port.size() || value > 65535) {
    return invalid(text, "the port is not a number from 0 to 65535");
  }
  out = static_cast<uint16_t>(value);
  return Status();
}

Result<Address> parse_host_port(std::string_view text, Scheme scheme, std::string_view rest) {
  Address address;
  address.scheme = scheme;
  std::string_view port;
  if (rest.starts_with('[')) {
    size_t close = rest.find(']');
    if (close == std::string_view::npos)
      return invalid(text, "']' is missing after the IPv6 address");
    address.host = rest.substr(1, close - 1);
    rest.remove_prefix(close + 1);
    if (!rest.starts_with(':')) return invalid(text, "':port' is missing");
    port = rest.substr(1);
  } else {
    size_t colon = rest.rfind(':');
    if (colon == std::string_view::npos) return invalid(text, "':port' is missing");
    address.host = rest.substr(0, colon);
    port = rest.substr(colon + 1);
    if (address.host.find(':') != std::string::npos)
      return invalid(text, "an IPv6 address needs brackets");
  }
  if (address.host.empty()) return invalid(text, "the host is empty");
  if (address.host.size() > kLongestHost)
    return invalid(text, "the host is longer than 255 characters");
  for (char c : address.host) {
    if (!name_character(c) && c != ':' && c != '%')
      return invalid(text, "the host has a character that no host name has");
  }
  SLUICE_RETURN_IF_ERROR(parse_port(text, port, address.port));
  return address;
}

// With colons, or with the dashes that others write and we do not.
bool like_mac(std::string_view name) {
  return name.find(':') != std::string_view::npos ||
         (name.size() == 17 && name[2] == '-' && name[5] == '-');
}

bool hexadecimal(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

// "/10.0.0.1:7", "/[fd00::1]:7", or without the host ":7" and "/:7".
Result<Address> parse_udp(std::string_view text, std::string_view rest) {
  if (rest.starts_with('/')) rest.remove_prefix(1);
  Address address;
  if (rest.starts_with(':') && rest.rfind(':') == 0) {
    address.scheme = Scheme::kL2;
    SLUICE_RETURN_IF_ERROR(parse_port(text, rest.substr(1), address.port));
  } else {
    SLUICE_TRY(address, parse_host_port(text, Scheme::kL2, rest));
  }
  address.name = std::move(address.host);
  address.host = "udp";
  return address;
}

// A peer's place on an Ethernet: its MAC address in lower case, a name for one, or nothing.
Result<std::string> parse_peer(std::string_view text, std::string_view peer) {
  std::string name(peer);
  if (!like_mac(peer)) {
    if (peer.size() > kLongestName) return invalid(text, "the name is longer than 64 characters");
    for (char c : peer) {
      if (!name_character(c))
        return invalid(text, "a peer's name has letters, digits, '.', '_' and '-' only");
    }
    return name;
  }
  for (char& c : name) c = c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
  bool good = name.size() == 17;
  for (size_t i = 0; i < name.size() && good; ++i)
    good = i % 3 == 2 ? name[i] == ':' : hexadecimal(name[i]);
  if (!good)
    return invalid(text, "a MAC address has six pairs of hexadecimal digits with colons between");
  return name;
}

// "eth0/02:00:00:00:00:0b:7", "eth0/worker3:7", or without a peer "eth0:7" and "eth0/:7".
Result<Address> parse_interface(std::string_view text, Scheme scheme, std::string_view rest) {
  if (scheme == Scheme::kL2 && rest.starts_with("xdp/")) {
    rest.remove_prefix(4);
    if (rest.starts_with("xdp/") || rest.starts_with("udp/") || rest.starts_with("udp:"))
      return invalid(text, "l2://xdp/ takes an interface, and none can be called udp or xdp");
    SLUICE_TRY(Address address, parse_interface(text, scheme, rest));
    address.xdp = true;
    return address;
  }
  if (scheme == Scheme::kL2 && rest.starts_with("xdp:"))
    return invalid(text, "l2://xdp takes an interface, as in l2://xdp/eth0:7");
  bool udp = scheme == Scheme::kL2 && (rest.starts_with("udp/") || rest.starts_with("udp:"));
  if (udp) return parse_udp(text, rest.substr(3));
  if (size_t slash = rest.find('/'); slash != std::string_view::npos) {
    std::string_view peer = rest.substr(slash + 1);
    size_t colon = peer.rfind(':');
    bool portless = colon == std::string_view::npos && !peer.empty() && !like_mac(peer);
    if (colon == std::string_view::npos && !portless) return invalid(text, "':port' is missing");
    SLUICE_TRY(std::string name, parse_peer(text, peer.substr(0, colon)));
    std::string plain =
        std::string(rest.substr(0, slash)) + (portless ? ":0" : std::string(peer.substr(colon)));
    SLUICE_TRY(Address address, parse_host_port(text, scheme, plain));
    if (address.host.find_first_of(":%") != std::string::npos)
      return invalid(text, "the interface has a character that no interface has");
    address.name = std::move(name);
    return address;
  }
  SLUICE_TRY(Address address, parse_host_port(text, scheme, rest));
  if (address.host.find_first_of(":%") != std::string::npos)
    return invalid(text, "the interface has a character that no interface has");
  return address;
}

}  // namespace

Result<Address> Address::parse(std::string_view text) {
  for (size_t i = 0; i < scheme_count(); ++i) {
    const auto scheme = static_cast<Scheme>(i);
    const AddressForm form = form_of(scheme);
    const std::string prefix =
        std::string(sluice::to_string(scheme)) + (form == AddressForm::kName ? ":" : "://");
    if (!text.starts_with(prefix)) continue;
    const std::string_view rest = text.substr(prefix.size());
    switch (form) {
      case AddressForm::kName: return parse_name(text, scheme, rest);
      case AddressForm::kHostPort: return parse_host_port(text, scheme, rest);
      case AddressForm::kInterface: return parse_interface(text, scheme, rest);
    }
  }
  return invalid(text, "unknown scheme");
}

std::string Address::to_string() const {
  std::string text(sluice::to_string(scheme));
  if (form_of(scheme) == AddressForm::kName) return text + ":" + name;
  auto bracketed = [](const std::string& ip) {
    return ip.find(':') != std::string::npos ? "[" + ip + "]" : ip;
  };
  std::string end = ":" + std::to_string(port);
  if (form_of(scheme) == AddressForm::kInterface)
    return text + (xdp ? "://xdp/" : "://") + host +
           (name.empty() ? "" : "/" + (is_udp() ? bracketed(name) : name)) + end;
  return text + "://" + bracketed(host) + end;
}

}  // namespace sluice
