// What a test sees and does besides VerbsApi: counts, misuse, time, injected events.
#include "tests/verbs/fake_fabric.h"
#include "tests/verbs/fake_provider.h"

namespace sluice::verbs {

std::string FakeCensus::text() const {
  std::string text;
  auto add = [&](uint64_t n, const char* what) {
    if (n > 0) text += (text.empty() ? "" : ", ") + std::to_string(n) + " " + what;
  };
  add(device_lists, "device_lists");
  add(contexts, "contexts");
  add(pds, "pds");
  add(mrs, "mrs");
  add(mws, "mws");
  add(bound_windows, "bound_windows");
  add(open_regions, "open_regions");
  add(open_bytes, "open_bytes");
  add(cqs, "cqs");
  add(channels, "channels");
  add(qps, "qps");
  add(event_channels, "event_channels");
  add(ids, "ids");
  add(cm_events, "cm_events");
  add(cq_events, "cq_events");
  add(async_events, "async_events");
  add(pinned_bytes, "pinned_bytes");
  return text.empty() ? "nothing" : text;
}

namespace fake {

void Fabric::misuse(std::string what) { misuses.push_back(std::move(what)); }

FakeCensus Fabric::census() const {
  FakeCensus c;
  c.device_lists = lists_.size();
  c.contexts = contexts_.count([](const Context& context) { return !context.of_cm; });
  c.pds = pds_.size();
  c.mrs = mrs_.size();
  c.mws = mws_.size();
  c.bound_windows = mws_.count([](const Mw& mw) { return mw.mr != nullptr; });
  mws_.each([&](const Mw& mw) { c.open_bytes += mw.mr != nullptr ? mw.length : 0; });
  mrs_.each([&](const Mr& mr) {
    if (mr.base.rkey == 0) return;
    ++c.open_regions;
    c.open_bytes += mr.base.length;
  });
  c.cqs = cqs_.size();
  c.channels = channels_.size();
  c.qps = qps_.size();
  c.event_channels = event_channels_.size();
  c.ids = ids_.count([](const Id& id) { return id.listener == nullptr; });
  c.cm_events = taken_events_.size();
  c.pinned_bytes = pinned_;
  cqs_.each([&](const Cq& cq) {
    c.cq_events += cq.unacknowledged;
    c.async_events += cq.async_unacknowledged;
  });
  qps_.each([&](const Qp& qp) { c.async_events += qp.async_unacknowledged; });
  contexts_.each([&](const Context& context) { c.async_events += context.unacknowledged; });
  return c;
}

void Fabric::set_port(ibv_port_state state, size_t device) {
  devices_.at(device)->options.port_state = state;
  raise_device(device, state == IBV_PORT_ACTIVE ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR);
}

void Fabric::set_gids(std::vector<FakeGid> gids, size_t device) {
  devices_.at(device)->options.gids = std::move(gids);
  raise_device(device, IBV_EVENT_GID_CHANGE);
}

std::vector<uint32_t> Fabric::qp_numbers() const {
  std::vector<uint32_t> numbers;
  for (const auto& [number, qp] : by_number_) numbers.push_back(number);
  return numbers;
}

ibv_qp_state Fabric::qp_state(uint32_t number) const {
  auto found = by_number_.find(number);
  return found == by_number_.end() ? IBV_QPS_UNKNOWN : found->second->base.state;
}

}  // namespace fake

FakeCensus FakeVerbs::census() const {
  std::lock_guard lock(mutex_);
  return fabric_->census();
}
std::vector<std::string> FakeVerbs::misuses() const {
  std::lock_guard lock(mutex_);
  return fabric_->misuses;
}
void FakeVerbs::forget_misuses() {
  std::lock_guard lock(mutex_);
  fabric_->misuses.clear();
}
uint64_t FakeVerbs::rnr_events() const {
  std::lock_guard lock(mutex_);
  return fabric_->rnr_events;
}
std::string FakeVerbs::complaints() const {
  std::lock_guard lock(mutex_);
  std::string text;
  if (FakeCensus left = fabric_->census(); !left.empty()) text += "alive: " + left.text() + "\n";
  for (const std::string& misuse : fabric_->misuses) text += "misuse: " + misuse + "\n";
  if (fabric_->rnr_events > 0)
    text += std::to_string(fabric_->rnr_events) + " messages met no receive\n";
  return text;
}
uint64_t FakeVerbs::retransmissions() const {
  std::lock_guard lock(mutex_);
  return fabric_->retransmissions;
}
uint64_t FakeVerbs::bytes_carried() const {
  std::lock_guard lock(mutex_);
  return fabric_->bytes_carried;
}
std::vector<std::pair<uint16_t, uint16_t>> FakeVerbs::moderations() const {
  std::lock_guard lock(mutex_);
  return fabric_->moderations;
}
uint64_t FakeVerbs::largest_send_list() const {
  std::lock_guard lock(mutex_);
  return fabric_->largest_send_list;
}
uint64_t FakeVerbs::calls(std::string_view name) const {
  std::lock_guard lock(mutex_);
  return fabric_->faults.calls(name);
}
uint64_t FakeVerbs::calls_in_all() const {
  std::lock_guard lock(mutex_);
  return fabric_->faults.calls_in_all();
}
void FakeVerbs::set_policy(FakePolicy policy) {
  std::lock_guard lock(mutex_);
  fabric_->options.policy = policy;
}
void FakeVerbs::advance(uint64_t ticks) {
  std::lock_guard lock(mutex_);
  fabric_->advance(ticks);
}
void FakeVerbs::raise_device(ibv_event_type type, size_t device) {
  std::lock_guard lock(mutex_);
  fabric_->raise_device(device, type);
}
bool FakeVerbs::raise_qp(ibv_event_type type, uint32_t qp_number) {
  std::lock_guard lock(mutex_);
  return fabric_->raise_qp(qp_number, type);
}
bool FakeVerbs::raise_cq(ibv_event_type type, ibv_cq* cq) {
  std::lock_guard lock(mutex_);
  return fabric_->raise_cq(cq, type);
}
bool FakeVerbs::raise_cq_of(ibv_event_type type, uint32_t qp_number) {
  std::lock_guard lock(mutex_);
  return fabric_->raise_cq_of(qp_number, type);
}
void FakeVerbs::set_port(ibv_port_state state, size_t device) {
  std::lock_guard lock(mutex_);
  fabric_->set_port(state, device);
}
void FakeVerbs::remove_device(size_t device) {
  std::lock_guard lock(mutex_);
  fabric_->remove_device(device);
}
void FakeVerbs::restore_device(size_t device) {
  std::lock_guard lock(mutex_);
  fabric_->restore_device(device);
}
void FakeVerbs::set_gids(std::vector<FakeGid> gids, size_t device) {
  std::lock_guard lock(mutex_);
  fabric_->set_gids(std::move(gids), device);
}
size_t FakeVerbs::raise_cm(rdma_cm_event_type type, int status) {
  std::lock_guard lock(mutex_);
  return fabric_->raise_cm(type, status);
}
void FakeVerbs::disconnect_all() {
  std::lock_guard lock(mutex_);
  fabric_->disconnect_all();
}
std::vector<uint32_t> FakeVerbs::qp_numbers() const {
  std::lock_guard lock(mutex_);
  return fabric_->qp_numbers();
}
ibv_qp_state FakeVerbs::qp_state(uint32_t number) const {
  std::lock_guard lock(mutex_);
  return fabric_->qp_state(number);
}

}  // namespace sluice::verbs
