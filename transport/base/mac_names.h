// Names for MAC addresses: a peer file of our own and /etc/ethers, both like /etc/hosts.
// Reads files; knows no socket.
#ifndef SLUICE_BASE_MAC_NAMES_H_
#define SLUICE_BASE_MAC_NAMES_H_

#include <string>
#include <string_view>
#include <vector>

#include <sluice/base/mac_address.h>
#include <sluice/base/result.h>

namespace sluice {

// One name of one line.
struct NamedPeer {
  std::string name;       // as written; looked up without regard to case
  std::string interface;  // by which alone it is meant; empty: by any
  MacAddress address;
  size_t file = 0;  // of PeerNames::files
  size_t line = 0;
};

struct PeerNames {
  std::vector<std::string> files;  // those that were read, in the order in which they count
  std::vector<NamedPeer> peers;
  std::vector<std::string>
      problems;  // "FILE:LINE: why", of lines that were passed over, and of files
};

// Adds the lines of a file: an address (02:00:00:00:00:0b, or eth0/02:00:00:00:00:0b for
// one interface only) and names of 1 to 64 of [A-Za-z0-9._-]; # begins a comment. Bounded:
// a MiB of text, 65,536 names.
void add_peers(std::string_view text, const std::string& file, PeerNames& out);

// $SLUICE_PEERS or else /etc/sluice/peers; then /etc/ethers (ethers(5)). A missing file
// is an error only if $SLUICE_PEERS names it. Blocks: while files are read.
PeerNames read_peers();

// Errors: kInvalidArgument: no such name, or two addresses in one file; the detail names
// files and lines. The first file that has the name decides; there, what is for this
// interface only comes first.
Result<MacAddress> find_peer(const PeerNames& names, const std::string& interface,
                             const std::string& name);

// Whether a file names a peer of that interface so, once or more than once.
bool is_named(const PeerNames& names, const std::string& interface, const std::string& name);

// A MAC address, or a name for one.
Result<MacAddress> mac_at(const std::string& interface, const std::string& mac_or_name);

}  // namespace sluice

#endif  // SLUICE_BASE_MAC_NAMES_H_
