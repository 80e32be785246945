// Messages that came before a receive was posted for them, in order of arrival.
#ifndef SLUICE_PROTO_UNEXPECTED_H_
#define SLUICE_PROTO_UNEXPECTED_H_

#include <array>
#include <cstdint>
#include <iterator>
#include <list>

#include <sluice/allocator/buffer.h>
#include <sluice/api/completion.h>
#include <sluice/base/id_index.h>
#include <sluice/wire/messages.h>

namespace sluice::proto {

struct Unexpected {
  uint64_t offer_id = 0;
  Tag tag = 0;
  uint64_t total = 0;
  bool is_inline = false;
  bool report = false;
  Buffer payload;     // inline bytes
  uint64_t kept = 0;  // bytes that it takes here
  uint32_t segment_count = 0;
  std::array<wire::Segment, wire::kMaxSegments> segments;
  IndexLink<Unexpected> index;            // by offer_id, if it can be cancelled
  std::list<Unexpected>::iterator place;  // in the queue
};

// Bounded by the credits the peer was given. Nodes are recycled.
class UnexpectedQueue {
 public:
  using Iterator = std::list<Unexpected>::iterator;

  Unexpected& push_back() {
    if (free_.empty()) free_.emplace_back();
    messages_.splice(messages_.end(), free_, free_.begin());
    messages_.back().place = std::prev(messages_.end());
    return messages_.back();
  }
  Iterator begin() { return messages_.begin(); }
  Iterator end() { return messages_.end(); }
  bool empty() const { return messages_.empty(); }
  void erase(Iterator message) {
    message->payload = Buffer();
    free_.splice(free_.begin(), messages_, message);
  }
  void clear() {
    messages_.clear();
    free_.clear();
  }

 private:
  std::list<Unexpected> messages_;
  std::list<Unexpected> free_;
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_UNEXPECTED_H_
