#include <sluice/shm/extent_map.h>

#include <iterator>

namespace sluice::shm {

const ExtentMap::Extent* ExtentMap::find(uint32_t id) const {
  // Message upon message comes from one extent.
  if (last_ != nullptr && last_id_ == id) [[likely]]
    return last_;
  auto found = by_id_.find(id);
  if (found == by_id_.end()) return nullptr;
  last_id_ = id;
  return last_ = &found->second;
}

bool ExtentMap::covers(uint64_t offset, uint64_t length) const {
  auto after = covered_.upper_bound(offset);
  if (after == covered_.begin()) return false;
  uint64_t end = std::prev(after)->second;
  return offset < end && length <= end - offset;
}

ExtentMap::Pieces::const_iterator ExtentMap::first_over(uint64_t offset) const {
  auto piece = pieces_.upper_bound(offset);
  if (piece != pieces_.begin() && std::prev(piece)->second.end > offset) --piece;
  return piece;
}

int64_t ExtentMap::pieces_added_by(const Extent& extent) const {
  int64_t added = 1;
  const uint64_t end = extent.offset + extent.length;
  for (auto piece = first_over(extent.offset); piece != pieces_.end() && piece->first < end;
       ++piece) {
    added += (piece->first < extent.offset ? 1 : 0) + (piece->second.end > end ? 1 : 0) - 1;
  }
  return added;
}

void ExtentMap::forget(const Piece& piece, uint64_t start) {
  if (piece.rest) return;
  by_id_.erase(piece.id);
  last_ = nullptr;
  announced_ -= piece.end - start;
  uncover(start, piece.end);
}

void ExtentMap::add(uint32_t id, const Extent& extent) {
  const uint64_t end = extent.offset + extent.length;
  for (auto piece = first_over(extent.offset); piece != pieces_.end() && piece->first < end;) {
    const uint64_t start = piece->first;
    const Piece old = piece->second;
    forget(old, start);
    piece = pieces_.erase(piece);
    if (start < extent.offset) pieces_[start] = {.end = extent.offset, .id = 0, .rest = true};
    if (old.end > end) pieces_[end] = {.end = old.end, .id = 0, .rest = true};
  }
  pieces_[extent.offset] = {.end = end, .id = id, .rest = false};
  by_id_[id] = extent;
  announced_ += extent.length;
  cover(extent.offset, end);
}

void ExtentMap::cover(uint64_t start, uint64_t end) {
  auto next = covered_.lower_bound(start);
  if (next != covered_.end() && next->first == end) {
    end = next->second;
    next = covered_.erase(next);
  }
  if (next != covered_.begin() && std::prev(next)->second == start) {
    std::prev(next)->second = end;
  } else {
    covered_[start] = end;
  }
}

void ExtentMap::uncover(uint64_t start, uint64_t end) {
  auto around = std::prev(covered_.upper_bound(start));
  const uint64_t from = around->first, to = around->second;
  covered_.erase(around);
  if (from < start) covered_[from] = start;
  if (to > end) covered_[end] = to;
}

}  // namespace sluice::shm
