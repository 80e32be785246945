// What the peer's device may reach of our memory by one queue pair, by number: memory windows, and
// where the device has none, regions that are registered for this alone. Posts nothing.
#ifndef SLUICE_VERBS_WINDOW_TABLE_H_
#define SLUICE_VERBS_WINDOW_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include <sluice/spi/link.h>
#include <sluice/verbs/device.h>

namespace sluice::verbs {

// What remote access is called at the device (ibv_access_flags).
int access_flags(Right rights);

// Thread: the context's.
class WindowTable {
 public:
  struct Window {
    ibv_mw* mw = nullptr;
    ibv_mr* narrow = nullptr;  // the region, where it is one
    uint32_t key = 0;
    uint64_t cookie = 0;
    bool open = false;
  };

  explicit WindowTable(Device& device) : device_(device), api_(device.api()) {}
  WindowTable(const WindowTable&) = delete;
  WindowTable& operator=(const WindowTable&) = delete;

  // No allocation until so many are in use.
  void reserve(size_t count) { windows_.reserve(count); }
  // As many are in use as one connection may have.
  bool full() const { return windows_.size() - free_.size() >= kMaxWindows; }
  // Null unless it is open. Safe for any value.
  Window* find_open(WindowId id) {
    return id < windows_.size() && windows_[id].open ? &windows_[id] : nullptr;
  }
  Window& at(WindowId id) { return windows_[id]; }
  bool is_narrow(WindowId id) const {
    return id < windows_.size() && windows_[id].narrow != nullptr;
  }

  // A memory window with a new key, to be bound. False: the device has no more of them.
  bool take(WindowId& id);
  // Nothing reaches it any more, and no request names it: it may be taken again. Ids that
  // revoke_all() has ended are ignored.
  void give_back(WindowId id) {
    if (id < windows_.size()) free_.push_back(id);
  }
  // A region of [data, data + length). Errors: kNoMemory.
  Result<WindowId> open_narrow(std::byte* data, uint64_t length, Right rights, uint64_t cookie,
                               wire::Segment& out);
  // Deregisters it, and gives it back. Errors: kInternal: the device does not, and keeps the
  // memory. Blocks: a system call.
  Status close_narrow(WindowId id);
  // Blocks: a system call for each.
  void revoke_all();
  // The device refused to deregister a region: the peer reaches it until the device is closed.
  bool stuck() const { return stuck_; }

 private:
  static constexpr size_t kMaxWindows = 8192;

  WindowId take_place();
  Status deregister(Window& window);

  Device& device_;
  VerbsApi& api_;
  std::vector<Window> windows_;
  std::vector<WindowId> free_;
  bool stuck_ = false;
};

}  // namespace sluice::verbs

#endif  // SLUICE_VERBS_WINDOW_TABLE_H_
