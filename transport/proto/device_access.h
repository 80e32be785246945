// What a device transfer keeps of one operation, and of the peer's requests that name memory.
#ifndef SLUICE_PROTO_DEVICE_ACCESS_H_
#define SLUICE_PROTO_DEVICE_ACCESS_H_

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>

#include <sluice/api/remote_key.h>
#include <sluice/base/inline_vector.h>
#include <sluice/base/status.h>
#include <sluice/base/tensor_descriptor.h>
#include <sluice/spi/link.h>
#include <sluice/wire/messages.h>

namespace sluice::proto {

// Of an operation whose bytes devices move.
struct DeviceAccess {
  // The peer's windows that we read or write; or ours that it was told of.
  InlineVector<wire::Segment, 1> windows;
  InlineVector<uint64_t, 1> moved;   // of each of them, where they are used in turn
  size_t next_window = 0;            // whose turn it is
  InlineVector<WindowId, 1> opened;  // ours, not yet asked to close
  uint32_t windows_open = 0;         // those, and those that are closing
  bool notify = false;               // the peer hears of the last byte
  bool answer_due = false;           // kFencing: the peer was asked to let go, and has not answered
  bool reply_due = false;  // kFencing: the peer asked us to let go and is told when we have
  AtomicRequest atomic;

  void clear() {
    windows.clear();
    opened.clear();
    windows_open = 0;
    notify = answer_due = reply_due = false;
  }
  void opened_window(WindowId window) {
    opened.emplace_back(window);
    ++windows_open;
  }
  // Nothing of the windows is moved yet.
  void start() {
    moved.clear();
    next_window = 0;
    for (size_t i = 0; i < windows.size(); ++i) moved.emplace_back(uint64_t{0});
  }

  struct Chunk {
    size_t window = 0;
    uint64_t at = 0;     // bytes of the operation that lie before it
    uint64_t left = 0;   // bytes of the window from there on
    wire::Segment peer;  // where it starts at the peer; its length is to be set
  };
  // The next chunk; in the windows' turn if they are to be used side by side. Requires: bytes that
  // are not moved yet.
  Chunk next_chunk(bool in_turn) const {
    Chunk chunk{.window = in_turn ? next_window % windows.size() : 0};
    while (moved[chunk.window] >= windows[chunk.window].length)
      chunk.window = (chunk.window + 1) % windows.size();
    const wire::Segment& window = windows[chunk.window];
    const uint64_t skip = moved[chunk.window];
    for (size_t i = 0; i < chunk.window; ++i) chunk.at += windows[i].length;
    chunk.at += skip;
    chunk.left = window.length - skip;
    chunk.peer = {.extent = window.extent, .offset = window.offset + skip, .length = 0};
    return chunk;
  }
  void note_moved(const Chunk& chunk) {
    moved[chunk.window] += chunk.peer.length;
    next_window = chunk.window + 1;
  }
};

// Where the peer's waiting requests want their bytes, by token.
class WantWindows {
 public:
  void keep(const wire::Want& want) {
    Wanted& kept = wanted_[want.id];
    kept.layout = want.layout;
    kept.windows.clear();
    for (uint32_t i = 0; i < want.segment_count; ++i) kept.windows.emplace_back(want.segments[i]);
  }
  void drop(uint64_t token) { wanted_.erase(token); }
  void clear() { wanted_.clear(); }

  // Ends the request. True if its asker named windows and they fit `layout` of `total` bytes: the
  // bytes can be written there.
  bool take(uint64_t token, const TensorDescriptor& layout, uint64_t total,
            InlineVector<wire::Segment, 1>& windows) {
    auto found = wanted_.find(token);
    if (found == wanted_.end()) return false;
    Wanted& wanted = found->second;
    uint64_t length = 0;
    bool sane = true;
    for (const wire::Segment& window : wanted.windows)
      sane = sane && !__builtin_add_overflow(length, window.length, &length);
    bool fits = sane && length == total && layout.is_compact() && layout.same_layout(wanted.layout);
    if (fits) windows = std::move(wanted.windows);
    wanted_.erase(found);
    return fits;
  }

 private:
  struct Wanted {
    TensorDescriptor layout;
    InlineVector<wire::Segment, 1> windows;
  };
  std::unordered_map<uint64_t, Wanted> wanted_;
};

// Requires: what check_device_key() does not take.
Status wrong_device_key(const RemoteKey& key, Right right);
// Errors: kInvalidArgument, kAccessDenied, of what would end the connection if the peer's device
// had to refuse it.
inline Status check_device_key(const RemoteKey& key, Right right) {
  uint64_t end;
  const bool right_one = (key.device_key | key.address) != 0 && has_right(key.rights, right) &&
                         !__builtin_add_overflow(key.address, key.length, &end);
  return right_one ? Status() : wrong_device_key(key, right);
}

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_DEVICE_ACCESS_H_
