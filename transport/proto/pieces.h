// The part of a list of segments that one call takes. Private to proto.
#ifndef SLUICE_PROTO_PIECES_H_
#define SLUICE_PROTO_PIECES_H_

#include <algorithm>
#include <array>
#include <cstdint>

#include <sluice/spi/link.h>

namespace sluice::proto {

// Adds the pieces of bytes [skip, skip + want) of Buffers or Tensors that follow each other
// to `pieces`, as many as there is room for. Returns how many bytes they have.
template <typename Segments, typename Piece>
uint64_t take_pieces(Segments& segments, uint64_t skip, uint64_t want,
                     std::array<Piece, kMaxPlaces>& pieces, size_t& count) {
  uint64_t taken = 0;
  for (auto& segment : segments) {
    if (taken == want || count == pieces.size()) break;
    uint64_t size = segment.size_bytes();
    if (skip >= size) {
      skip -= size;
      continue;
    }
    uint64_t take = std::min(size - skip, want - taken);
    pieces[count++] = segment.bytes().subspan(skip, take);
    taken += take;
    skip = 0;
  }
  return taken;
}

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_PIECES_H_
