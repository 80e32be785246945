#include "tests/wire/address_check.h"

#include <algorithm>
#include <cctype>

#include <sluice/api/address.h>

namespace sluice::wire::test {
namespace {

bool printable(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

std::string refusal_problem(const Status& status) {
  std::string_view detail = status.detail();
  if (status.code() != Code::kInvalidArgument) return "refused with another code";
  if (!detail.starts_with("address '")) return "the text is not quoted";
  if (detail.find("examples: sluice://host:7000") == std::string_view::npos) return "no example";
  if (!printable(detail)) return "a control character is repeated in the message";
  if (detail.size() > 2000) return "the message is without bound";
  return {};
}

std::string accepted_problem(const Address& a) {
  bool named = a.scheme == Scheme::kShm || a.scheme == Scheme::kLoopback;
  auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  };
  if (named) {
    if (a.name.empty() || a.name.size() > 64 || !std::ranges::all_of(a.name, plain))
      return "bad name";
    if (!a.host.empty() || a.port != 0) return "a name with a host or port";
  } else {
    auto of_host = [&](char c) { return plain(c) || c == ':' || c == '%'; };
    if (a.host.empty() || a.host.size() > 255 || !std::ranges::all_of(a.host, of_host))
      return "bad host";
    auto of_mac = [](char c) {
      return c == ':' || std::isdigit(static_cast<unsigned char>(c)) || (c >= 'a' && c <= 'f');
    };
    bool ethernet = a.scheme == Scheme::kL2 || a.scheme == Scheme::kKmod;
    bool mac = ethernet && a.name.size() == 17 && std::ranges::all_of(a.name, of_mac);
    mac = mac ||
          (ethernet && a.name.size() <= 64 && std::ranges::all_of(a.name, plain));  // a peer's name
    bool udp = a.is_udp() && a.name.size() <= 255 && std::ranges::all_of(a.name, of_host);
    if (!a.name.empty() && (a.is_udp() ? !udp : !mac)) return "a host with a name";
  }
  return {};
}

}  // namespace

std::string address_problem(std::string_view text) {
  auto first = Address::parse(text);
  if (!first.ok()) return refusal_problem(first.status());
  std::string problem = accepted_problem(*first);
  if (!problem.empty()) return problem;
  std::string printed = first->to_string();
  auto second = Address::parse(printed);
  if (!second.ok()) return "its own text is refused: " + printed;
  if (second->scheme != first->scheme || second->host != first->host ||
      second->port != first->port || second->name != first->name || second->xdp != first->xdp ||
      second->to_string() != printed) {
    return "its own text means something else: " + printed;
  }
  return {};
}

}  // namespace sluice::wire::test
