// Counting down to each planned fault.
#include "tests/verbs/fake_faults.h"

#include <algorithm>
#include <utility>

namespace sluice::verbs {

const std::vector<std::string_view>& FakeFaults::calls_that_may_fail() {
  static const std::vector<std::string_view> names = {"device_list",
                                                      "open_device",
                                                      "query_device",
                                                      "query_port",
                                                      "query_gid",
                                                      "async_event",
                                                      "alloc_pd",
                                                      "reg_mr",
                                                      "reg_dmabuf_mr",
                                                      "alloc_mw",
                                                      "create_comp_channel",
                                                      "create_cq",
                                                      "modify_cq",
                                                      "req_notify_cq",
                                                      "cq_event",
                                                      "poll_cq",
                                                      "create_qp",
                                                      "modify_qp",
                                                      "query_qp",
                                                      "post_send",
                                                      "post_recv",
                                                      "create_event_channel",
                                                      "create_id",
                                                      "bind_addr",
                                                      "listen",
                                                      "resolve_addr",
                                                      "resolve_route",
                                                      "init_qp_attr",
                                                      "connect",
                                                      "establish",
                                                      "accept",
                                                      "reject",
                                                      "disconnect",
                                                      "cm_event"};
  return names;
}

const std::vector<std::string_view>& FakeFaults::call_names() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all = calls_that_may_fail();
    for (std::string_view name :
         {"free_device_list", "close_device", "pages_on_demand", "ack_async_event", "dealloc_pd",
          "dereg_mr", "dealloc_mw", "destroy_comp_channel", "destroy_cq", "ack_cq_events",
          "destroy_qp", "status_text", "destroy_event_channel", "destroy_id", "source_port",
          "ack_cm_event"}) {
      all.push_back(name);
    }
    return all;
  }();
  return names;
}

uint64_t FakeFaults::calls(std::string_view name) const {
  auto found = counts_.find(name);
  return found == counts_.end() ? 0 : found->second;
}

void FakeFaults::fail(std::string_view call, uint64_t nth, int error, uint64_t times) {
  call_faults_.emplace(std::string(call), CallFault{nth, times, error});
}
void FakeFaults::fail_any(uint64_t nth, int error) { any_faults_.push_back({nth, 1, error}); }
void FakeFaults::refuse_request(uint64_t nth, int error) {
  request_faults_.emplace_back(nth, error);
}
void FakeFaults::complete(uint64_t nth, ibv_wc_status status, std::optional<ibv_wr_opcode> opcode,
                          bool executed) {
  work_faults_.push_back({nth, opcode, {status, executed}});
}
void FakeFaults::hold(uint64_t nth, Held held, uint64_t ticks,
                      std::optional<ibv_wr_opcode> opcode) {
  WorkFate fate;
  (held == Held::kUndone ? fate.undone : fate.unsaid) = ticks;
  work_faults_.push_back({nth, opcode, fate});
}
void FakeFaults::complete_receive(uint64_t nth, ibv_wc_status status) {
  receive_faults_.emplace_back(nth, status);
}
void FakeFaults::change_receive(uint64_t nth, Change change) {
  completion_faults_.push_back({nth, true, std::move(change)});
}
void FakeFaults::change_send(uint64_t nth, Change change) {
  completion_faults_.push_back({nth, false, std::move(change)});
}
void FakeFaults::duplicate_receive(uint64_t nth) {
  completion_faults_.push_back({nth, true, nullptr});
}
void FakeFaults::change_cm_event(uint64_t nth, CmChange change) {
  event_faults_.push_back({nth, std::move(change)});
}

int FakeFaults::call_error(std::string_view name) {
  auto count = counts_.find(name);
  if (count == counts_.end()) count = counts_.emplace(std::string(name), 0).first;
  ++count->second;

  int error = 0;
  auto step = [&error](CallFault& fault) {
    if (fault.countdown > 1) {
      --fault.countdown;
      return false;
    }
    error = fault.error;
    return --fault.times == 0;
  };
  auto [first, last] = call_faults_.equal_range(name);
  while (first != last) first = step(first->second) ? call_faults_.erase(first) : std::next(first);

  const auto& fallible = calls_that_may_fail();
  if (std::find(fallible.begin(), fallible.end(), name) != fallible.end()) {
    ++in_all_;
    std::erase_if(any_faults_, step);
  }
  return error;
}

int FakeFaults::request_error() {
  int error = 0;
  std::erase_if(request_faults_, [&](auto& fault) {
    if (--fault.first > 0) return false;
    error = fault.second;
    return true;
  });
  return error;
}

FakeFaults::WorkFate FakeFaults::work_fate(ibv_wr_opcode opcode) {
  WorkFate fate;
  std::erase_if(work_faults_, [&](WorkFault& fault) {
    if (fault.opcode && *fault.opcode != opcode) return false;
    if (--fault.countdown > 0) return false;
    // One may be held back in both ways, and fail all the same.
    fate.undone = std::max(fate.undone, fault.fate.undone);
    fate.unsaid = std::max(fate.unsaid, fault.fate.unsaid);
    if (fault.fate.status == IBV_WC_SUCCESS) return true;
    fate.status = fault.fate.status;
    fate.executed = fault.fate.executed;
    return true;
  });
  return fate;
}

ibv_wc_status FakeFaults::receive_fate() {
  ibv_wc_status status = IBV_WC_SUCCESS;
  std::erase_if(receive_faults_, [&](auto& fault) {
    if (--fault.first > 0) return false;
    status = fault.second;
    return true;
  });
  return status;
}

bool FakeFaults::change_completion(bool receive, ibv_wc& completion) {
  bool twice = false;
  std::erase_if(completion_faults_, [&](CompletionFault& fault) {
    if (fault.receive != receive || --fault.countdown > 0) return false;
    if (fault.change)
      fault.change(completion);
    else
      twice = true;
    return true;
  });
  return twice;
}

void FakeFaults::change_event(rdma_cm_event& event) {
  std::erase_if(event_faults_, [&](EventFault& fault) {
    if (--fault.countdown > 0) return false;
    fault.change(event);
    return true;
  });
}

void FakeFaults::rewrite_message(uint64_t nth, Rewrite rewrite) {
  rewrites_.emplace_back(nth, std::move(rewrite));
}

FakeFaults::Rewrite FakeFaults::message_rewrite() {
  Rewrite due;
  std::erase_if(rewrites_, [&](auto& fault) {
    if (--fault.first > 0) return false;
    due = std::move(fault.second);
    return true;
  });
  return due;
}

size_t FakeFaults::plans_left() const {
  return call_faults_.size() + any_faults_.size() + request_faults_.size() + work_faults_.size() +
         receive_faults_.size() + completion_faults_.size() + event_faults_.size() +
         rewrites_.size();
}

void FakeFaults::forget_plans() {
  call_faults_.clear();
  any_faults_.clear();
  request_faults_.clear();
  work_faults_.clear();
  receive_faults_.clear();
  completion_faults_.clear();
  event_faults_.clear();
  rewrites_.clear();
}

}  // namespace sluice::verbs
