// One counted run of bytes: what Buffers and Tensors hold. Knows who gives the
// bytes back, not what is in them.
#ifndef SLUICE_ALLOCATOR_STORAGE_H_
#define SLUICE_ALLOCATOR_STORAGE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace sluice {

enum class StorageKind : uint8_t {
  kArena,    // our own arena: can be mapped by peers and registered with devices
  kPeer,     // read-only view of a peer's arena; ends with a RELEASE to it
  kForeign,  // the program's own memory, wrapped
  kDevice,   // a device's: the processor must not use its addresses (device_memory.h)
};

// Shared ownership, because a published tensor is read by several receivers, the
// program and the transport at once, and any of them may be last. The count is
// atomic: the last one may be on any thread.
class Storage {
 public:
  using Release = void (*)(Storage* storage) noexcept;

  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  StorageKind kind() const { return kind_; }
  // Whether the last holder may write again.
  bool writable() const { return writable_; }

  void retain() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void drop() noexcept {
    // The last holder must see all that earlier holders did with the bytes. Where it is the only
    // one nobody else can count, and a load does: a locked instruction less.
    if (unique() || references_.fetch_sub(1, std::memory_order_acq_rel) == 1) release_(this);
  }
  // True if the caller's reference is the only one. With acquire, so that a true
  // answer lets the caller write.
  bool unique() const noexcept { return references_.load(std::memory_order_acquire) == 1; }

 protected:
  Storage() = default;
  ~Storage() = default;
  // Starts a new life with one reference. Arena and device memory is writable, a peer's is not;
  // `foreign_writable` says it for the program's own.
  void reset(std::byte* data, size_t size, StorageKind kind, Release release,
             bool foreign_writable = false) noexcept {
    writable_ = kind == StorageKind::kArena || kind == StorageKind::kDevice ||
                (kind == StorageKind::kForeign && foreign_writable);
    data_ = data;
    size_ = size;
    kind_ = kind;
    release_ = release;
    references_.store(1, std::memory_order_relaxed);
  }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  Release release_ = nullptr;
  std::atomic<uint32_t> references_{0};
  StorageKind kind_ = StorageKind::kForeign;
  bool writable_ = false;
};

// Owning pointer to a Storage.
class StorageRef {
 public:
  StorageRef() = default;
  // Takes over one reference.
  static StorageRef adopt(Storage* storage) noexcept {
    StorageRef ref;
    ref.storage_ = storage;
    return ref;
  }
  StorageRef(const StorageRef& other) noexcept : storage_(other.storage_) {
    if (storage_ != nullptr) storage_->retain();
  }
  StorageRef(StorageRef&& other) noexcept : storage_(std::exchange(other.storage_, nullptr)) {}
  StorageRef& operator=(const StorageRef& other) noexcept {
    StorageRef copy(other);
    std::swap(storage_, copy.storage_);
    return *this;
  }
  StorageRef& operator=(StorageRef&& other) noexcept {
    if (this != &other) {
      reset();
      storage_ = std::exchange(other.storage_, nullptr);
    }
    return *this;
  }
  ~StorageRef() { reset(); }

  void reset() noexcept {
    if (Storage* storage = std::exchange(storage_, nullptr)) storage->drop();
  }
  Storage* get() const noexcept { return storage_; }
  Storage* operator->() const noexcept { return storage_; }
  explicit operator bool() const noexcept { return storage_ != nullptr; }

 private:
  Storage* storage_ = nullptr;
};

}  // namespace sluice

#endif  // SLUICE_ALLOCATOR_STORAGE_H_
