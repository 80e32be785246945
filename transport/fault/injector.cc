#include <sluice/fault/injector.h>

#include <algorithm>
#include <utility>

#include <sluice/fault/kinds.h>
#include <sluice/fault/link.h>
#include <sluice/runtime/context_core.h>

namespace sluice::fault {

std::shared_ptr<Injector> inject(Context& context, const Plan& plan) {
  auto injector = std::make_shared<Injector>(plan);
  ContextCore::of(context).decorate_links(injector);
  context.add_hook(injector.get());
  return injector;
}

template <typename Faulty, typename Kind>
std::unique_ptr<Kind> Injector::make(std::unique_ptr<Kind> inner) {
  auto link = std::make_unique<Faulty>(shared_from_this(), std::move(inner), connections_++);
  links_.push_back(link.get());
  return link;
}
std::unique_ptr<ViewLink> Injector::decorate(std::unique_ptr<ViewLink> inner) {
  return make<FaultyViewLink>(std::move(inner));
}
std::unique_ptr<StreamLink> Injector::decorate(std::unique_ptr<StreamLink> inner) {
  return make<FaultyStreamLink>(std::move(inner));
}
std::unique_ptr<DeviceLink> Injector::decorate(std::unique_ptr<DeviceLink> inner) {
  return make<FaultyDeviceLink>(std::move(inner));
}

size_t Injector::progress(Instant now) {
  if (running_) return 0;  // a completion called progress()
  running_ = true;
  size_t work = 0;
  // The turns go round in another order each time something is held back. A turn may open and
  // close connections.
  size_t count = links_.size();
  size_t first = count > 1 && next_timeout() != kNever ? random_.below(count) : 0;
  for (size_t i = 0; i < count; ++i) {
    FaultyLink* link = links_[(first + i) % count];
    if (link != nullptr) work += link->turn(now);
  }
  std::erase(links_, nullptr);
  running_ = false;
  return work;
}

Instant Injector::next_timeout() {
  bool waiting = std::any_of(links_.begin(), links_.end(),
                             [](FaultyLink* link) { return link != nullptr && link->waiting(); });
  return waiting ? Instant{} : kNever;
}

Action Injector::strike(Call call, uint32_t connection) {
  if (strike_.action == Action::kNothing || connection != to_strike_ || call != strike_.call)
    return Action::kNothing;
  if (++calls_ != strike_.nth) return Action::kNothing;
  struck_ = true;
  return strike_.action;
}

void Injector::strike_next(const Strike& strike) {
  strike_ = strike;
  to_strike_ = connections_;
  calls_ = 0;
  struck_ = false;
}

void Injector::forget(FaultyLink& link) {
  std::replace(links_.begin(), links_.end(), &link, static_cast<FaultyLink*>(nullptr));
}

}  // namespace sluice::fault
