// Finds records by a number that the peer chose, without allocation for each: a hash table
// whose links lie in the records. A peer cannot make its numbers collide.
#ifndef SLUICE_BASE_ID_INDEX_H_
#define SLUICE_BASE_ID_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sluice {

// Lies in the record, as member `index`.
template <typename T>
struct IndexLink {
  T* next = nullptr;
  uint64_t id = 0;
  bool in = false;
};

template <typename T>
class IdIndex {
 public:
  // `secret`: random; the peer does not know it.
  explicit IdIndex(uint64_t secret) : secret_(secret | 1) {}

  // Requires: the record is not in. Several may have one id.
  void insert(T* record, uint64_t id) {
    if (count_ >= buckets_.size()) grow();
    record->index = {.next = bucket(id), .id = id, .in = true};
    bucket(id) = record;
    ++count_;
  }
  void remove(T* record) {
    if (!record->index.in) return;
    T** link = &bucket(record->index.id);
    while (*link != record) link = &(*link)->index.next;
    *link = record->index.next;
    record->index = {};
    --count_;
  }
  // The first with this id for which accept(record) holds; null: none.
  template <typename Accept>
  T* find(uint64_t id, Accept&& accept) const {
    if (buckets_.empty()) return nullptr;
    for (T* record = buckets_[slot(id)]; record != nullptr; record = record->index.next) {
      if (record->index.id == id && accept(*record)) return record;
    }
    return nullptr;
  }
  T* find(uint64_t id) const {
    return find(id, [](const T&) { return true; });
  }
  size_t size() const { return count_; }
  // Requires: the records are gone or not used with an index again.
  void clear() {
    buckets_.clear();
    count_ = 0;
  }

 private:
  static constexpr uint32_t kFirstShift = 61;
  static constexpr size_t kFirstBuckets = size_t{1} << (64 - kFirstShift);

  // Multiply-shift with a secret odd factor: two ids meet with a chance of at most 2 in the number
  // of buckets (Dietzfelbinger and others, "A reliable randomized algorithm for the closest-pair
  // problem", 1997).
  size_t slot(uint64_t id) const { return static_cast<size_t>(id * secret_ >> shift_); }
  T*& bucket(uint64_t id) { return buckets_[slot(id)]; }
  void grow() {
    std::vector<T*> old = std::move(buckets_);
    buckets_.assign(old.empty() ? kFirstBuckets : 2 * old.size(), nullptr);
    shift_ = old.empty() ? kFirstShift : shift_ - 1;
    for (T* record : old) {
      while (record != nullptr) {
        T* next = record->index.next;
        record->index.next = bucket(record->index.id);
        bucket(record->index.id) = record;
        record = next;
      }
    }
  }

  std::vector<T*> buckets_;  // a power of two
  size_t count_ = 0;
  uint64_t secret_;
  uint32_t shift_ = kFirstShift;
};

}  // namespace sluice

#endif  // SLUICE_BASE_ID_INDEX_H_
