// The requests that wait for one key, filed by step. Private to the exchange.
#ifndef SLUICE_EXCHANGE_WAITING_STEPS_H_
#define SLUICE_EXCHANGE_WAITING_STEPS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace sluice::internal {

struct WaitingWant;

// In order of arrival.
struct WantList {
  WaitingWant* first = nullptr;
  WaitingWant* last = nullptr;
};

// A dataflow waits for a step or two of a key: these have a place in the object itself. Others are
// in a tree, since peers choose the steps and no request may cost a scan over the others.
// A list has one address while it is not empty.
class WaitingSteps {
 public:
  using Spares = std::vector<std::map<uint64_t, WantList>::node_type>;

  bool empty() const {
    for (const Near& near : near_) {
      if (near.list.first != nullptr) return false;
    }
    return far_.empty();
  }
  // Null: nobody waits for the step.
  WantList* find(uint64_t step) {
    for (Near& near : near_) {
      if (near.step == step && near.list.first != nullptr) return &near.list;
    }
    if (far_.empty()) [[likely]]
      return nullptr;
    auto found = far_.find(step);
    return found != far_.end() ? &found->second : nullptr;
  }
  // The caller puts a request into a list that it makes. `spares`: nodes to use again.
  WantList* find_or_make(uint64_t step, Spares& spares) {
    if (WantList* list = find(step)) return list;
    for (Near& near : near_) {
      if (near.list.first != nullptr) continue;
      near.step = step;
      return &near.list;
    }
    if (spares.empty()) return &far_.try_emplace(step).first->second;
    spares.back().key() = step;
    auto made = far_.insert(std::move(spares.back())).position;
    spares.pop_back();
    return &made->second;
  }
  // The list of `step` is empty now. Keeps its node if there are fewer than `most` spares.
  void end(WantList* list, uint64_t step, Spares& spares, size_t most) {
    for (Near& near : near_) {
      if (&near.list == list) return;
    }
    auto node = far_.extract(step);
    node.mapped() = WantList();
    if (spares.size() < most) spares.push_back(std::move(node));
  }
  // A step below `limit` that somebody waits for.
  std::optional<uint64_t> any_below(uint64_t limit) const {
    for (const Near& near : near_) {
      if (near.step < limit && near.list.first != nullptr) return near.step;
    }
    if (!far_.empty() && far_.begin()->first < limit) return far_.begin()->first;
    return std::nullopt;
  }

 private:
  struct Near {
    uint64_t step = 0;
    WantList list;  // empty: the place is free
  };
  std::array<Near, 4> near_;
  std::map<uint64_t, WantList> far_;
};

}  // namespace sluice::internal

#endif  // SLUICE_EXCHANGE_WAITING_STEPS_H_
