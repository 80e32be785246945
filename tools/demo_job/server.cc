// A parameter server's steps with the tensors it has: publish, gather, average, verify.
#include <algorithm>
#include <string>
#include <vector>

#include "tools/demo_job/arithmetic.h"
#include "tools/demo_job/graph_roles.h"
#include "tools/demo_job/links.h"
#include "tools/demo_job/roles.h"

namespace sluice::tools::demo {
namespace {

class Server {
 public:
  Server(const Visit& visit, uint32_t server, ControlLine& line)
      : visit_(visit), server_(server), line_(line), model_(shard_of(visit, server)) {
    link_ =
        is_grpc(visit.mode) ? make_grpc_server(visit, model_) : make_exchange_server(visit, model_);
  }

  Status run() {
    SLUICE_TRY(std::string address, link_->listen());
    for (uint32_t t = 0; t < model_.tensors.size(); ++t) {
      fill_initial_weights(model_.tensors[t].id, {link_->weights(t), model_.tensors[t].elements});
    }
    Message listening{.word = Word::kListening};
    listening.set_text(address);
    SLUICE_RETURN_IF_ERROR(line_.send(listening));
    for (int64_t step = 0; step <= visit_.last_step(); ++step)
      SLUICE_RETURN_IF_ERROR(run_step(step));
    SLUICE_RETURN_IF_ERROR(expect(Word::kStop));
    link_->close();
    return Status();
  }

 private:
  static Model shard_of(const Visit& visit, uint32_t server) {
    const Model whole = spread_model(model_named(visit.model), visit.spreading);
    return place_tensors(whole, visit.spreading.servers).shards[server];
  }

  Instant deadline() const { return after(now(), visit_.patience()); }

  Status expect(Word word) {
    SLUICE_TRY(Message order, link_->wait_order(line_, deadline()));
    if (order.word == word) return Status();
    return Status(Code::kInternal, Scope::kContext, "demo/server", "an order out of turn");
  }

  Status run_step(int64_t step) {
    SLUICE_RETURN_IF_ERROR(link_->prepare(step));
    SLUICE_RETURN_IF_ERROR(line_.send({.word = Word::kReady, .step = step}));
    SLUICE_RETURN_IF_ERROR(expect(Word::kGo));
    if (visit_.corruption == Corruption::kWeights && step == visit_.last_step() &&
        server_ + 1 == visit_.spreading.servers) {
      // The last byte but one: a checker that leaves out the rest of a block misses it.
      const uint32_t tensor = static_cast<uint32_t>(std::max<size_t>(model_.tensors.size(), 2) - 2);
      reinterpret_cast<uint8_t*>(link_->weights(tensor))[model_.tensors[tensor].bytes() - 2] ^= 1;
    }
    Message report{.word = Word::kApplied, .step = step};
    const Duration cpu_before = process_cpu_time();
    report.begin_ns = now().time_since_epoch().count();
    SLUICE_RETURN_IF_ERROR(link_->publish(step));
    SLUICE_RETURN_IF_ERROR(link_->gather(deadline()));
    report.cpu_ns = (process_cpu_time() - cpu_before).count();
    SLUICE_RETURN_IF_ERROR(apply());
    report.end_ns = now().time_since_epoch().count();
    SLUICE_RETURN_IF_ERROR(line_.send(report));
    for (uint32_t t = 0; t < model_.tensors.size() && *report.text == '\0'; ++t) {
      report.set_text(check_gradients(model_, t, step, gradients_of(t)));
    }
    link_->release_gradients();
    report.word = Word::kReport;
    report.copied_bytes = link_->copied_bytes() - copied_before_;
    copied_before_ += report.copied_bytes;
    report.arena_bytes = link_->arena_bytes();
    return line_.send(report);
  }

  std::vector<const float*> gradients_of(uint32_t tensor) const {
    std::vector<const float*> gradients;
    for (int w = 0; w < visit_.workers; ++w)
      gradients.push_back(link_->gradient(static_cast<uint32_t>(w), tensor));
    return gradients;
  }

  Status apply() {
    for (uint32_t t = 0; t < model_.tensors.size(); ++t) {
      SLUICE_TRY(float* next, link_->next_weights(t, deadline()));
      average_and_update(gradients_of(t), link_->weights(t), next, model_.tensors[t].elements);
    }
    link_->swap_weights();
    return Status();
  }

  const Visit& visit_;
  uint32_t server_;
  ControlLine& line_;
  Model model_;
  std::unique_ptr<ServerLink> link_;
  uint64_t copied_before_ = 0;
};

}  // namespace

int serve(const Visit& visit, uint32_t server, ControlLine line) {
  Status status = visit.mode == Mode::kGraph ? serve_graph(visit, server, line)
                                             : Server(visit, server, line).run();
  if (status.ok()) return 0;
  Message failed{.word = Word::kFailed};
  failed.set_text("server " + std::to_string(server) + ": " + status.to_string());
  (void)line.send(failed);
  return 1;
}

}  // namespace sluice::tools::demo
