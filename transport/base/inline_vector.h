// A short vector whose first N elements need no allocation.
#ifndef SLUICE_BASE_INLINE_VECTOR_H_
#define SLUICE_BASE_INLINE_VECTOR_H_

#include <cstddef>
#include <new>
#include <utility>

namespace sluice {

// Move-only elements allowed. Grows on the heap past N.
template <typename T, size_t N>
class InlineVector {
 public:
  InlineVector() = default;
  InlineVector(InlineVector&& other) noexcept { take(std::move(other)); }
  InlineVector& operator=(InlineVector&& other) noexcept {
    if (this != &other) {
      release();
      take(std::move(other));
    }
    return *this;
  }
  InlineVector(const InlineVector&) = delete;
  InlineVector& operator=(const InlineVector&) = delete;
  ~InlineVector() { release(); }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  T& back() { return data_[size_ - 1]; }

  template <typename... Args>
  T& emplace_back(Args&&... args) {
    if (size_ == capacity_) [[unlikely]]
      grow();
    return *new (data_ + size_++) T(std::forward<Args>(args)...);
  }
  void clear() {
    for (size_t i = 0; i < size_; ++i) data_[i].~T();
    size_ = 0;
  }

 private:
  T* inline_data() { return reinterpret_cast<T*>(storage_); }
  void grow() {
    size_t capacity = capacity_ * 2;
    T* data = static_cast<T*>(::operator new(capacity * sizeof(T), std::align_val_t(alignof(T))));
    for (size_t i = 0; i < size_; ++i) {
      new (data + i) T(std::move(data_[i]));
      data_[i].~T();
    }
    free_heap();
    data_ = data;
    capacity_ = capacity;
  }
  void free_heap() {
    if (data_ != inline_data()) ::operator delete(data_, std::align_val_t(alignof(T)));
  }
  void release() {
    clear();
    free_heap();
    data_ = inline_data();
    capacity_ = N;
  }
  void take(InlineVector&& other) {
    if (other.data_ != other.inline_data()) {
      data_ = std::exchange(other.data_, other.inline_data());
      size_ = std::exchange(other.size_, 0);
      capacity_ = std::exchange(other.capacity_, N);
      return;
    }
    for (size_t i = 0; i < other.size_; ++i) new (data_ + i) T(std::move(other.data_[i]));
    size_ = other.size_;
    other.clear();
  }

  alignas(T) std::byte storage_[N * sizeof(T)];
  T* data_ = inline_data();
  size_t size_ = 0;
  size_t capacity_ = N;
};

}  // namespace sluice

#endif  // SLUICE_BASE_INLINE_VECTOR_H_
