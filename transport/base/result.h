// A value or the Status that says why there is none. No exceptions anywhere.
#ifndef SLUICE_BASE_RESULT_H_
#define SLUICE_BASE_RESULT_H_

#include <new>
#include <type_traits>
#include <utility>

#include <sluice/base/status.h>

namespace sluice {

namespace internal {
// Prints it, and ends the process. One function for all types: each use of a Result has this
// branch.
[[noreturn, gnu::cold]] void value_of_failed(const Status& status);
}  // namespace internal

template <typename T>
class [[nodiscard]] Result {
 public:
  using value_type = T;

  Result(T value) : has_value_(true) { new (&storage_.value) T(std::move(value)); }
  // Requires: !status.ok().
  Result(Status status) : has_value_(false) { new (&storage_.status) Status(std::move(status)); }
  Result(Result&& other) noexcept : has_value_(other.has_value_) { take(std::move(other)); }
  Result& operator=(Result&& other) noexcept {
    if (this != &other) {
      destroy();
      has_value_ = other.has_value_;
      take(std::move(other));
    }
    return *this;
  }
  Result(const Result&) = delete;
  Result& operator=(const Result&) = delete;
  ~Result() { destroy(); }

  bool ok() const { return has_value_; }
  explicit operator bool() const { return has_value_; }
  Status status() const { return has_value_ ? Status() : storage_.status; }
  Code code() const { return has_value_ ? Code::kOk : storage_.status.code(); }

  // Reading the value of a failed Result is a bug in the caller: it ends the
  // process with the status on stderr, also in an opt build.
  T& value() & {
    require();
    return storage_.value;
  }
  const T& value() const& {
    require();
    return storage_.value;
  }
  T&& value() && {
    require();
    return std::move(storage_.value);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  void require() const {
    if (!has_value_) [[unlikely]]
      internal::value_of_failed(storage_.status);
  }
  void take(Result&& other) {
    if (has_value_) {
      new (&storage_.value) T(std::move(other.storage_.value));
    } else {
      new (&storage_.status) Status(std::move(other.storage_.status));
    }
  }
  void destroy() {
    if (has_value_) {
      storage_.value.~T();
    } else {
      storage_.status.~Status();
    }
  }

  union Storage {
    Storage() {}
    ~Storage() {}
    T value;
    Status status;
  } storage_;
  bool has_value_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  using value_type = void;
  Result() = default;
  Result(Status status) : status_(std::move(status)) {}
  bool ok() const { return status_.ok(); }
  explicit operator bool() const { return ok(); }
  Status status() const { return status_; }
  Code code() const { return status_.code(); }

 private:
  Status status_;
};

namespace internal {
inline Status status_of(const Status& status) { return status; }
template <typename T>
Status status_of(const Result<T>& result) {
  return result.status();
}
}  // namespace internal

}  // namespace sluice

#define SLUICE_CONCAT_2(a, b) a##b
#define SLUICE_CONCAT(a, b) SLUICE_CONCAT_2(a, b)

// Ends the calling function with the Status when `expression` (a Status or a
// Result<void>) is not ok.
#define SLUICE_RETURN_IF_ERROR(expression)                 \
  do {                                                     \
    auto&& sluice_status = (expression);                   \
    if (!sluice_status.ok()) [[unlikely]]                  \
      return ::sluice::internal::status_of(sluice_status); \
  } while (false)

// SLUICE_TRY(auto value, call()): declares `value` from call()'s Result, or ends
// the calling function with its Status.
#define SLUICE_TRY(declaration, ...) \
  SLUICE_TRY_NAMED(SLUICE_CONCAT(sluice_result_, __COUNTER__), declaration, __VA_ARGS__)
#define SLUICE_TRY_NAMED(name, declaration, ...) \
  auto name = (__VA_ARGS__);                     \
  if (!name.ok()) [[unlikely]]                   \
    return name.status();                        \
  declaration = std::move(name).value()

#endif  // SLUICE_BASE_RESULT_H_
