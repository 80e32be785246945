// A worker's steps: pull, compute, push, verify.
#include <signal.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "tools/demo_job/arithmetic.h"
#include "tools/demo_job/graph_roles.h"
#include "tools/demo_job/links.h"
#include "tools/demo_job/roles.h"

namespace sluice::tools::demo {
namespace {

class Worker {
 public:
  Worker(const Visit& visit, const WorkerPlace& place, ControlLine& line)
      : visit_(visit),
        place_(place),
        line_(line),
        model_(spread_model(model_named(visit.model), visit.spreading)),
        placement_(place_tensors(model_, visit.spreading.servers)),
        reference_(model_, static_cast<uint32_t>(visit.workers), place.first_step) {
    KillSwitch kill = [this](KillPoint point) { kill_if_due(point); };
    const WorkerParameters parameters{model_, placement_, place.index};
    link_ = is_grpc(visit.mode) ? make_grpc_worker(visit, parameters, kill)
                                : make_exchange_worker(visit, parameters, kill);
  }

  Status run() {
    if (visit_.compute.count() > 0) compute_for(std::chrono::microseconds(1));  // calibrates
    SLUICE_RETURN_IF_ERROR(link_->connect(place_.addresses));
    for (step_ = place_.first_step; step_ <= visit_.last_step(); ++step_)
      SLUICE_RETURN_IF_ERROR(run_step());
    link_->close();
    return Status();
  }

 private:
  Instant deadline() const { return after(now(), visit_.patience()); }

  void kill_if_due(KillPoint point) {
    if (step_ != visit_.kill_step || point != visit_.kill_point) return;
    if (static_cast<int>(place_.index) == visit_.kill_worker) ::kill(::getpid(), SIGKILL);
  }

  void make_gradients() {
    for (uint32_t t = 0; t < model_.tensors.size(); ++t) {
      const GradientName name{model_.tensors[t].id, place_.index, step_};
      fill_gradient(name, {link_->gradient(t), model_.tensors[t].elements});
    }
    if (visit_.corruption == Corruption::kGradient && step_ == visit_.last_step()) {
      reinterpret_cast<uint8_t*>(link_->gradient(0))[model_.tensors[0].bytes() - 2] ^= 1;
    }
  }

  Status run_step() {
    make_gradients();
    SLUICE_RETURN_IF_ERROR(link_->prepare(step_, deadline()));
    SLUICE_RETURN_IF_ERROR(line_.send({.word = Word::kReady, .step = step_}));
    kill_if_due(KillPoint::kBeforePull);
    const Duration cpu_before = process_cpu_time();
    SLUICE_RETURN_IF_ERROR(link_->pull(step_, deadline()));
    uint64_t touched = 0;
    for (uint32_t t = 0; t < model_.tensors.size(); ++t) {
      touched += touch_pages(
          {reinterpret_cast<const std::byte*>(link_->weights(t)), model_.tensors[t].bytes()});
    }
    Message report{.word = Word::kReport, .step = step_};
    report.end_ns = now().time_since_epoch().count();
    touched_ = touched_ + touched;
    Duration stand_in{0};
    if (visit_.compute.count() > 0) {
      const Duration start = process_cpu_time();
      compute_for(visit_.compute);
      stand_in = process_cpu_time() - start;
    }
    kill_if_due(KillPoint::kBeforePush);
    SLUICE_RETURN_IF_ERROR(link_->push(step_, deadline()));
    kill_if_due(KillPoint::kAfterPush);
    SLUICE_TRY(Message order, link_->wait_order(line_, deadline()));
    if (order.word != Word::kFinished || order.step != step_) {
      return Status(Code::kInternal, Scope::kContext, "demo/worker", "an order out of turn");
    }
    report.cpu_ns = (process_cpu_time() - cpu_before - stand_in).count();
    return verify(report);
  }

  Status verify(Message& report) {
    for (uint32_t t = 0; t < model_.tensors.size() && *report.text == '\0'; ++t) {
      report.set_text(reference_.check(t, link_->weights(t)));
    }
    if (step_ < visit_.last_step()) reference_.advance();
    SLUICE_RETURN_IF_ERROR(link_->finish(deadline()));
    report.copied_bytes = link_->copied_bytes() - copied_before_;
    copied_before_ += report.copied_bytes;
    report.arena_bytes = link_->arena_bytes();
    report.chunk_bytes = link_->chunk_bytes();
    return line_.send(report);
  }

  const Visit& visit_;
  const WorkerPlace& place_;
  ControlLine& line_;
  Model model_;
  Placement placement_;
  Reference reference_;
  std::unique_ptr<WorkerLink> link_;
  int64_t step_ = 0;
  uint64_t copied_before_ = 0;
  volatile uint64_t touched_ = 0;
};

}  // namespace

int work(const Visit& visit, const WorkerPlace& place, ControlLine line) {
  Status status = visit.mode == Mode::kGraph ? work_graph(visit, place.index, place.addresses, line)
                                             : Worker(visit, place, line).run();
  if (status.ok()) return 0;
  Message failed{.word = Word::kFailed};
  failed.set_text("worker " + std::to_string(place.index) + ": " + status.to_string());
  (void)line.send(failed);
  return 1;
}

}  // namespace sluice::tools::demo
