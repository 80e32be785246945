// What a peer has announced of its arena, as ranges of offsets. Knows no memory: the mapper
// maps what this takes.
#ifndef SLUICE_SHM_EXTENT_MAP_H_
#define SLUICE_SHM_EXTENT_MAP_H_

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

namespace sluice::shm {

// Cost of everything here: logarithmic in what was announced, and what add() takes away of
// earlier extents.
class ExtentMap {
 public:
  struct Extent {
    uint64_t offset = 0, length = 0;
  };

  bool contains(uint32_t id) const { return by_id_.contains(id); }
  // Null: never announced, or covered since.
  const Extent* find(uint32_t id) const;
  // Extents are to lie in [offset, offset + length) without a gap.
  bool covers(uint64_t offset, uint64_t length) const;

  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (const auto& [id, extent] : by_id_) visit(extent);
  }

  // How many more pieces there would be with an extent there.
  int64_t pieces_added_by(const Extent& extent) const;
  // What lay there before was given back by its owner: those extents are no more, and what is
  // left of them beside the new one stays mapped, since views may lie there.
  // Requires: !contains(id), length > 0.
  void add(uint32_t id, const Extent& extent);

  // Mappings: one for each extent and each rest of an earlier one.
  uint64_t pieces() const { return pieces_.size(); }
  // Bytes of extents, without rests.
  uint64_t announced_bytes() const { return announced_; }

 private:
  struct Piece {
    uint64_t end = 0;
    uint32_t id = 0;
    bool rest = false;  // of an extent that is no more
  };
  using Pieces = std::map<uint64_t, Piece>;  // by start; they do not overlap
  Pieces::const_iterator first_over(uint64_t offset) const;
  void forget(const Piece& piece, uint64_t start);
  void cover(uint64_t start, uint64_t end);
  void uncover(uint64_t start, uint64_t end);

  Pieces pieces_;
  std::unordered_map<uint32_t, Extent> by_id_;
  mutable const Extent* last_ = nullptr;  // in by_id_: what find() found last
  mutable uint32_t last_id_ = 0;
  std::map<uint64_t, uint64_t> covered_;  // start to end, of extents that lie side by side
  uint64_t announced_ = 0;
};

}  // namespace sluice::shm

#endif  // SLUICE_SHM_EXTENT_MAP_H_
