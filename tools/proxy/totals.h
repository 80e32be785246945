// What a proxy has counted, of all its connections.
#pragma once

#include <cstdint>

namespace sluice::tools::proxy {

struct Totals {
  uint64_t connections = 0;  // forwarded: their stream was opened
  uint64_t open = 0;
  uint64_t most_open = 0;
  uint64_t refused_away = 0;     // there was no other proxy
  uint64_t refused_many = 0;     // here or there were as many as allowed
  uint64_t refused_service = 0;  // the service could not be reached
  uint64_t refused_ending = 0;   // came while this proxy waited for its last connections
  uint64_t reset = 0;            // ended by an error, not by two orderly ends
  uint64_t bytes_out = 0;        // from sockets here to the other proxy
  uint64_t bytes_in = 0;         // from the other proxy to sockets here
  uint64_t pieces = 0;           // of them came by reference, or as tensors of their own
  uint64_t piece_bytes = 0;
  uint64_t copied_bytes = 0;         // of the pieces: by sluice in this process
  uint64_t kernel_copied_bytes = 0;  // of the pieces: by this side's kernel, without the sockets'
  uint64_t links = 0;                // connections to other proxies
  uint64_t lies = 0;                 // of them ended since the peer broke the rules
};

}  // namespace sluice::tools::proxy
