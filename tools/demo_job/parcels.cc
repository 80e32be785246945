#include "tools/demo_job/parcels.h"

#include <sys/epoll.h>

#include <cstring>
#include <utility>

#include <sluice/runtime/context_core.h>

namespace sluice::tools::demo {
namespace {

Result<Buffer> allocate_tensor(Context& context, const TensorSpec& spec) {
  return context.allocate({static_cast<int64_t>(spec.elements)}, float32);
}

}  // namespace

Status Outlet::allocate() {
  for (const TensorSpec& spec : model_.tensors) {
    Item item;
    SLUICE_TRY(item.buffer, allocate_tensor(context_, spec));
    if (bounce_) {
      SLUICE_TRY(item.master, allocate_tensor(context_, spec));
    }
    memory_.push_back(reinterpret_cast<float*>((bounce_ ? item.master : item.buffer).data()));
    items_.push_back(std::move(item));
  }
  return Status();
}

Status Outlet::publish(int64_t step, const PublishOptions& options,
                       const std::function<void(size_t)>& after_each) {
  for (size_t t = 0; t < items_.size(); ++t) {
    Item& item = items_[t];
    if (!item.buffer) {
      return Status(Code::kInternal, Scope::kContext, "demo/outlet",
                    "a tensor is published before it came back");
    }
    if (bounce_) {
      std::memcpy(item.buffer.data(), item.master.data(), item.master.size_bytes());
      bounced_bytes_ += item.master.size_bytes();
    }
    const std::string key = prefix_ + model_.tensors[t].name;
    SLUICE_TRY(Publication publication,
               exchange_.publish({key, static_cast<uint64_t>(step)},
                                 std::move(item.buffer).freeze(), options));
    item.publication = std::move(publication);
    if (after_each) after_each(t + 1);
  }
  return Status();
}

void Outlet::retire() {
  for (Item& item : items_) {
    if (item.publication) item.publication->retire();
  }
}

bool Outlet::reclaim() {
  bool all = true;
  for (Item& item : items_) {
    if (item.publication && item.publication->ready()) {
      item.tensor = item.publication->take();
      item.publication.reset();
    }
    if (item.tensor) {
      if (std::optional<Buffer> buffer = item.tensor.try_thaw()) {
        item.buffer = std::move(*buffer);
        item.tensor = Tensor();
      }
    }
    all = all && item.buffer;
  }
  return all;
}

Status Outlet::reclaim_by(Instant deadline) {
  return context_.wait_until([&] { return reclaim(); }, deadline);
}

Status Inlet::allocate() {
  items_.resize(model_.tensors.size());
  for (size_t t = 0; t < items_.size(); ++t) {
    if (!options_.views) {
      SLUICE_TRY(items_[t].destination, allocate_tensor(context_, model_.tensors[t]));
    }
    if (options_.bounce) {
      SLUICE_TRY(items_[t].copy, allocate_tensor(context_, model_.tensors[t]));
    }
  }
  return Status();
}

Status Inlet::post(const Endpoint& from, int64_t step, Instant deadline) {
  release();
  failure_ = Status();
  for (size_t t = 0; t < items_.size(); ++t) {
    Item& item = items_[t];
    const std::string name = prefix_ + model_.tensors[t].name;
    const Key key{name, static_cast<uint64_t>(step)};
    if (options_.views) {
      item.view = exchange_.fetch(key, deadline, {.from = &from});
    } else {
      if (!item.destination) {
        return Status(Code::kInternal, Scope::kContext, "demo/inlet",
                      "a destination is still under way");
      }
      item.into = exchange_.fetch_into(key, std::move(item.destination), deadline, {.from = &from});
    }
    ++pending_;
  }
  return Status();
}

void Inlet::collect() {
  if (pending_ == 0) return;
  for (Item& item : items_) take(item);
}

void Inlet::take(Item& item) {
  if (item.view && item.view->ready()) {
    Result<Delivery<Tensor>> delivery = item.view->take();
    item.view.reset();
    --pending_;
    if (!delivery.ok()) {
      failure_ = delivery.status();
      return;
    }
    item.tensor = std::move(delivery->value);
    arrive(item, item.tensor.data(), item.tensor.size_bytes());
    if (options_.bounce) item.tensor = Tensor();
  } else if (item.into && item.into->ready()) {
    Placed placed = item.into->take();
    item.into.reset();
    --pending_;
    item.destination = placed.take_buffer();
    if (!placed.ok()) {
      failure_ = placed.status();
      return;
    }
    arrive(item, item.destination.data(), item.destination.size_bytes());
  }
}

void Inlet::arrive(Item& item, const std::byte* bytes, size_t length) {
  if (options_.bounce) {
    std::memcpy(item.copy.data(), bytes, length);
    bounced_bytes_ += length;
    bytes = item.copy.data();
  }
  item.data = reinterpret_cast<const float*>(bytes);
  ++arrived_;
}

void Inlet::release() {
  arrived_ = 0;
  for (Item& item : items_) {
    item.tensor = Tensor();
    item.data = nullptr;
  }
}

void Inlet::cancel() {
  for (Item& item : items_) {
    if (item.view) item.view->cancel();
    if (item.into) item.into->cancel();
  }
}

void OrderWatch::on_event(uint32_t) noexcept {
  if (order_) return;
  Result<Message> message = line_->try_receive();
  if (message.code() != Code::kTryAgain) order_.emplace(std::move(message));
}

Result<Message> OrderWatch::wait(Context& context, ControlLine& line, Instant deadline,
                                 const std::function<void()>& serve) {
  line_ = &line;
  order_.reset();
  SLUICE_RETURN_IF_ERROR(ContextCore::of(context).watch(line.fd(), EPOLLIN, this));
  Status waited = context.wait_until(
      [&] {
        if (serve) serve();
        return order_.has_value();
      },
      deadline);
  ContextCore::of(context).unwatch(line.fd(), this);
  if (!order_) return waited;
  return std::move(*order_);
}

}  // namespace sluice::tools::demo
