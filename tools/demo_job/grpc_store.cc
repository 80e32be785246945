#include "tools/demo_job/grpc_store.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

namespace sluice::tools::demo {

GrpcStore::ParameterSet GrpcStore::allocate(const Model& model) {
  ParameterSet set;
  for (const TensorSpec& spec : model.tensors)
    set.push_back(std::make_unique_for_overwrite<float[]>(spec.elements));
  return set;
}

GrpcStore::GrpcStore(const Model& model, size_t workers) : model_(model), seats_(workers) {
  for (ParameterSet& set : weights_) set = allocate(model);
  for (Seat& seat : seats_) {
    seat.gradients = allocate(model);
    seat.received.resize(model.tensors.size());
  }
}

void GrpcStore::prepare(int64_t step) {
  std::lock_guard lock(mutex_);
  collecting_ = step;
  for (Seat& seat : seats_) {
    seat.complete = 0;
    std::fill(seat.received.begin(), seat.received.end(), 0);
  }
}

void GrpcStore::publish(int64_t step) {
  std::unique_lock lock(mutex_);
  published_ = step;
  wake(std::move(lock));
}

void GrpcStore::stop() {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  wake(std::move(lock));
}

void GrpcStore::wake(std::unique_lock<std::mutex> lock) {
  changed_.notify_all();
  const auto due = std::stable_partition(
      waiting_.begin(), waiting_.end(),
      [this](const Waiting& waiting) { return !stopping_ && waiting.step > published_; });
  std::vector<std::pair<std::function<void(bool)>, bool>> calls;
  for (auto at = due; at != waiting_.end(); ++at)
    calls.emplace_back(std::move(at->then), !stopping_ && at->step == published_);
  waiting_.erase(due, waiting_.end());
  lock.unlock();
  for (auto& [then, there] : calls) then(there);
}

bool GrpcStore::wait_published(int64_t step) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stopping_ || published_ >= step; });
  return !stopping_ && published_ == step;
}

void GrpcStore::when_published(int64_t step, std::function<void(bool)> then) {
  std::unique_lock lock(mutex_);
  waiting_.push_back({step, std::move(then)});
  wake(std::move(lock));
}

bool GrpcStore::wait_gathered(Instant deadline) {
  const auto limit = std::chrono::steady_clock::now() + (deadline - now());
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, limit, [&] {
    return std::all_of(seats_.begin(), seats_.end(),
                       [&](const Seat& seat) { return seat.complete == model_.tensors.size(); });
  });
}

bool GrpcStore::put(const PartPlace& place, std::span<const std::string_view> pieces) {
  if (place.worker >= seats_.size() || place.tensor >= model_.tensors.size()) return false;
  const size_t bytes = model_.tensors[place.tensor].bytes();
  size_t length = 0;
  for (std::string_view piece : pieces) length += piece.size();
  if (place.offset > bytes || length > bytes - place.offset) return false;
  Seat& seat = seats_[place.worker];
  std::lock_guard writer(seat.writer);
  {
    std::lock_guard lock(mutex_);
    if (place.step != collecting_ || seat.complete == model_.tensors.size()) return true;
  }
  char* to = reinterpret_cast<char*>(seat.gradients[place.tensor].get()) + place.offset;
  for (std::string_view piece : pieces) {
    std::memcpy(to, piece.data(), piece.size());
    to += piece.size();
  }
  // The last byte completes a tensor.
  if (place.offset + length < bytes) return true;
  std::lock_guard lock(mutex_);
  if (!std::exchange(seat.received[place.tensor], 1)) ++seat.complete;
  changed_.notify_all();
  return true;
}

}  // namespace sluice::tools::demo
