// `sluice dump` itself: packets from a file or an interface, to lines and to a file. Knows
// no command line.
#pragma once

#include <string>

#include "tools/dump/teller.h"

namespace sluice::tools::dump {

struct DumpOptions {
  std::string file;        // "-": stdin; empty: live
  std::string interface;   // live
  std::string write_file;  // pcap; empty: none
  bool promiscuous = false;
  Wishes wishes;
};

// Frames go to stdout; what is wrong, and a sum at the end, to stderr. 0, or 1: a capture
// that is damaged or cannot be made.
int run_dump(const DumpOptions& options);

}  // namespace sluice::tools::dump
