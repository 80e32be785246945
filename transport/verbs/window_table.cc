#include <sluice/verbs/window_table.h>

#include <utility>

#include <sluice/base/counters.h>

namespace sluice::verbs {
namespace {

constexpr const char* kOrigin = "verbs/queue_pair";

Counter narrow_registrations("verbs.narrow_registrations");

}  // namespace

int access_flags(Right rights) {
  int flags = 0;
  if (has_right(rights, Right::kRead)) flags |= IBV_ACCESS_REMOTE_READ;
  if (has_right(rights, Right::kWrite)) flags |= IBV_ACCESS_REMOTE_WRITE;
  if (has_right(rights, Right::kAtomic)) flags |= IBV_ACCESS_REMOTE_ATOMIC;
  return flags;
}

WindowId WindowTable::take_place() {
  if (!free_.empty()) {
    WindowId id = free_.back();
    free_.pop_back();
    return id;
  }
  windows_.emplace_back();
  return static_cast<WindowId>(windows_.size() - 1);
}

bool WindowTable::take(WindowId& id) {
  id = take_place();
  Window& window = windows_[id];
  if (window.mw == nullptr) {
    window.mw = api_.alloc_mw(device_.pd(), IBV_MW_TYPE_2);
    if (window.mw == nullptr) {
      free_.push_back(id);
      return false;
    }
    window.key = window.mw->rkey;
  }
  window.key = ibv_inc_rkey(window.key);
  return true;
}

Result<WindowId> WindowTable::open_narrow(std::byte* data, uint64_t length, Right rights,
                                          uint64_t cookie, wire::Segment& out) {
  int access = access_flags(rights);
  if (has_right(rights, Right::kWrite) || has_right(rights, Right::kAtomic))
    access |= IBV_ACCESS_LOCAL_WRITE;
  SLUICE_TRY(ibv_mr * mr, device_.registrar().pin(data, length, access));
  narrow_registrations.add();
  WindowId id = take_place();
  Window& window = windows_[id];
  window.narrow = mr;
  window.cookie = cookie;
  window.open = true;
  out = {.extent = mr->rkey, .offset = reinterpret_cast<uint64_t>(data), .length = length};
  return id;
}

Status WindowTable::close_narrow(WindowId id) {
  windows_[id].open = false;
  free_.push_back(id);
  return deregister(windows_[id]);
}

// Its key is good on every connection of the device: if it stays, the end of this one is no fence.
Status WindowTable::deregister(Window& window) {
  ibv_mr* region = std::exchange(window.narrow, nullptr);
  int e = api_.dereg_mr(region);
  if (e == 0) return Status();
  if (!device_.dead()) {
    stuck_ = true;
    device_.keep_refused(region);
  }
  return Status(Code::kInternal, Scope::kEndpoint, kOrigin, "the device does not deregister memory",
                e);
}

void WindowTable::revoke_all() {
  for (Window& window : windows_) {
    if (window.mw != nullptr) (void)api_.dealloc_mw(window.mw);
    if (window.narrow != nullptr) (void)deregister(window);
  }
  windows_.clear();
  free_.clear();
}

}  // namespace sluice::verbs
