#include <sluice/base/counters.h>

#include <algorithm>

namespace sluice {
namespace {
std::atomic<Counter*> first_counter{nullptr};
}  // namespace

Counter::Counter(const char* name) : name_(name) {
  next_ = first_counter.load(std::memory_order_relaxed);
  while (!first_counter.compare_exchange_weak(next_, this, std::memory_order_release,
                                              std::memory_order_relaxed)) {}
}

std::vector<std::pair<std::string_view, uint64_t>> read_counters() {
  std::vector<std::pair<std::string_view, uint64_t>> values;
  for (Counter* c = first_counter.load(std::memory_order_acquire); c != nullptr; c = c->next_) {
    values.emplace_back(c->name_, c->value());
  }
  std::sort(values.begin(), values.end());
  return values;
}

uint64_t read_counter(std::string_view name) {
  for (const auto& [counter_name, value] : read_counters()) {
    if (counter_name == name) return value;
  }
  return 0;
}

}  // namespace sluice
