// Named counters: every refusal and every copy raises one. A counter is a static
// object; reading them all is for tests, `sluice info` and monitoring.
#ifndef SLUICE_BASE_COUNTERS_H_
#define SLUICE_BASE_COUNTERS_H_

#include <atomic>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice {

class Counter {
 public:
  // `name` must have static storage, for example "tcp.frames_corrupt".
  explicit Counter(const char* name);
  Counter(const Counter&) = delete;
  Counter& operator=(const Counter&) = delete;

  void add(uint64_t amount = 1) { value_.fetch_add(amount, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }
  const char* name() const { return name_; }

 private:
  friend std::vector<std::pair<std::string_view, uint64_t>> read_counters();
  const char* name_;
  std::atomic<uint64_t> value_{0};
  Counter* next_;
};

// All counters of the process, by name.
std::vector<std::pair<std::string_view, uint64_t>> read_counters();
// Value of one counter; 0 where no such counter exists.
uint64_t read_counter(std::string_view name);

}  // namespace sluice

#endif  // SLUICE_BASE_COUNTERS_H_
