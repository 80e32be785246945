#include <sluice/base/mac_names.h>
#include <sluice/base/settings.h>

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace sluice {
namespace {

constexpr const char* kOrigin = "base/mac_names";
constexpr const char* kOwnFile = "/etc/sluice/peers";
constexpr const char* kEthers = "/etc/ethers";
constexpr size_t kMostText = 1 << 20;
constexpr size_t kMostNames = 65'536;
constexpr size_t kMostProblems = 32;
constexpr size_t kLongestName = 64;       // as an address has it (api/address.h)
constexpr size_t kLongestInterface = 15;  // IFNAMSIZ
constexpr size_t kMostQuoted = 40;
constexpr std::string_view kBlanks = " \t\r\v\f";

bool name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}
bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= kLongestName && std::ranges::all_of(text, name_character);
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
bool same_name(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](char x, char y) { return lower(x) == lower(y); });
}

// A file may hold anything: what a terminal would obey is not repeated.
std::string quoted(std::string_view text) {
  std::string out = "'";
  for (char c : text.substr(0, kMostQuoted)) out += c >= ' ' && c <= '~' ? c : '?';
  return out + (text.size() > kMostQuoted ? "...'" : "'");
}

std::string_view next_word(std::string_view& line) {
  line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
  std::string_view word = line.substr(0, line.find_first_of(kBlanks));
  line.remove_prefix(word.size());
  return word;
}

// ethers(5) leaves zeros out: 8:0:20:1:2:3.
bool read_mac(std::string_view text, MacAddress& out) {
  out = {};
  for (size_t i = 0; i < 6; ++i) {
    size_t digits = 0;
    unsigned value = 0;
    for (; digits < text.size() && digits < 3; ++digits) {
      char c = lower(text[digits]);
      if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) break;
      value = value * 16 + static_cast<unsigned>(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    if (digits == 0 || digits > 2) return false;
    out[i] = static_cast<uint8_t>(value);
    text.remove_prefix(digits);
    if (i < 5 && !text.starts_with(':')) return false;
    if (i < 5) text.remove_prefix(1);
  }
  return text.empty();
}

class File {
 public:
  File(const std::string& name, PeerNames& out) : out_(out), index_(out.files.size()) {
    out.files.push_back(name);
  }

  void take(std::string_view line) {
    ++line_;
    line = line.substr(0, line.find('#'));
    std::string_view address = next_word(line), name = next_word(line);
    if (address.empty()) return;
    NamedPeer peer{.file = index_, .line = line_};
    if (size_t slash = address.find('/'); slash != std::string_view::npos) {
      peer.interface = address.substr(0, slash);
      if (!is_name(peer.interface) || peer.interface.size() > kLongestInterface)
        return complain(quoted(peer.interface) + " is no interface's name");
      address.remove_prefix(slash + 1);
    }
    if (!read_mac(address, peer.address))
      return complain(quoted(address) + " is no MAC address, as 02:00:00:00:00:0b is");
    // A sender would reach everybody, or nobody.
    if ((peer.address[0] & 1) != 0)
      return complain(quoted(address) + " is the address of a group, not of a peer");
    if (name.empty()) return complain("no name after the address");
    for (; !name.empty(); name = next_word(line)) {
      if (!is_name(name))
        return complain(quoted(name) + " is no name: 1 to 64 letters, digits, '.', '_' and '-'");
      if (out_.peers.size() == kMostNames) return complain("more than 65536 names");
      peer.name = name;
      out_.peers.push_back(peer);
    }
  }
  void complain(const std::string& why) {
    if (out_.problems.size() < kMostProblems)
      out_.problems.push_back(out_.files[index_] + ":" + std::to_string(line_) + ": " + why);
  }

 private:
  PeerNames& out_;
  size_t index_;
  size_t line_ = 0;
};

// The errno, or 0.
int read_file(const std::string& path, std::string& out) {
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return errno;
  char part[4096];
  int error = 0;
  while (out.size() <= kMostText) {
    ssize_t n = ::read(fd, part, sizeof(part));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) error = errno;
    if (n <= 0) break;
    out.append(part, static_cast<size_t>(n));
  }
  ::close(fd);
  return error;
}

void add_file(const std::string& path, bool must_exist, PeerNames& out) {
  std::string text;
  int error = read_file(path, text);
  if (error == ENOENT && !must_exist) return;
  if (error == 0) return add_peers(text, path, out);
  out.files.push_back(path);
  out.problems.push_back(path + ": cannot be read: " + std::strerror(error));
}

std::string place(const PeerNames& names, const NamedPeer& peer) {
  return names.files[peer.file] + ":" + std::to_string(peer.line);
}

// Null: none.
const NamedPeer* best_of(const PeerNames& names, const std::string& interface,
                         const std::string& name) {
  const NamedPeer* best = nullptr;
  for (const NamedPeer& peer : names.peers) {
    if (!same_name(peer.name, name) || (!peer.interface.empty() && peer.interface != interface))
      continue;
    if (best == nullptr ||
        (peer.file == best->file && best->interface.empty() && !peer.interface.empty()))
      best = &peer;
  }
  return best;
}

Status unknown(const PeerNames& names, const std::string& interface, const std::string& name) {
  std::string why = "no peer of " + interface + " is called " + quoted(name) + " in ";
  for (const std::string& file : names.files) why += file + ", ";
  why += names.files.empty() ? std::string(kOwnFile) + " or " + kEthers + ", which are not there"
                             : "nor elsewhere";
  why += "; add a line such as '02:00:00:00:00:0b " + name + "'";
  for (const std::string& problem : names.problems) why += "; not read: " + problem;
  return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin, why);
}

}  // namespace

void add_peers(std::string_view text, const std::string& name, PeerNames& out) {
  File file(name, out);
  if (text.size() > kMostText) return file.complain("more than a MiB; nothing of it was read");
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    file.take(line);
  }
}

PeerNames read_peers() {
  PeerNames names;
  const std::string own = setting_text("SLUICE_PEERS").value_or("");
  add_file(own.empty() ? kOwnFile : own.c_str(), !own.empty(), names);
  add_file(kEthers, false, names);
  return names;
}

Result<MacAddress> find_peer(const PeerNames& names, const std::string& interface,
                             const std::string& name) {
  const NamedPeer* best = best_of(names, interface, name);
  if (best == nullptr) return unknown(names, interface, name);
  for (const NamedPeer& other : names.peers) {
    bool as_good = other.file == best->file && other.interface == best->interface &&
                   same_name(other.name, name);
    if (!as_good || other.address == best->address) continue;
    return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin,
                  quoted(name) + " is " + mac_text(best->address) + " in " + place(names, *best) +
                      " and " + mac_text(other.address) + " in " + place(names, other) +
                      "; one of them has to go");
  }
  return best->address;
}

bool is_named(const PeerNames& names, const std::string& interface, const std::string& name) {
  return best_of(names, interface, name) != nullptr;
}

Result<MacAddress> mac_at(const std::string& interface, const std::string& mac_or_name) {
  if (mac_or_name.find(':') != std::string::npos) return parse_mac(mac_or_name);
  return find_peer(read_peers(), interface, mac_or_name);
}

}  // namespace sluice
