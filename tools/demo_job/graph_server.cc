// A server of mode graph: what its nodes do, and the connections of its workers.
#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <sluice/sluice.h>

#include "tools/demo_job/arithmetic.h"
#include "tools/demo_job/exchange_link.h"
#include "tools/demo_job/graph_host.h"

namespace sluice::tools::demo {
namespace {

struct Guest final : CompletionSink {
  void on_completion(Completion&& completion) noexcept override {
    if (completion.status.ok() && completion.buffers.size() == 1) {
      std::memcpy(&worker, completion.buffers[0].data(), sizeof worker);
      introduced = true;
    }
  }
  Endpoint endpoint;
  uint32_t worker = 0;
  bool introduced = false;
};

class GraphServer final : public graph::Kernels {
 public:
  GraphServer(const Visit& visit, uint32_t server, ControlLine& line)
      : visit_(visit), server_(server), line_(line), host_(visit, line) {}

  Status run() {
    SLUICE_RETURN_IF_ERROR(host_.open(server_, *this));
    SLUICE_TRY(Listener listener,
               host_.context().listen(address(), {.operation_timeout = visit_.patience()}));
    Message listening{.word = Word::kListening};
    listening.set_text(listener.address());
    SLUICE_RETURN_IF_ERROR(line_.send(listening));
    SLUICE_RETURN_IF_ERROR(meet_workers(listener));
    SLUICE_RETURN_IF_ERROR(host_.runner().start());
    for (step_ = 0; step_ <= visit_.last_step(); ++step_)
      SLUICE_RETURN_IF_ERROR(host_.runner().run_step());
    SLUICE_RETURN_IF_ERROR(host_.expect(Word::kStop));
    listener.close();
    std::vector<Endpoint*> endpoints;
    for (auto& guest : guests_) endpoints.push_back(&guest->endpoint);
    host_.close(endpoints);
    return Status();
  }

  Status supply(uint32_t edge, std::span<std::byte> into) override {
    const TensorSpec& spec = host_.model().tensors[host_.tensor_of(edge)];
    fill_initial_weights(spec.id, {reinterpret_cast<float*>(into.data()), spec.elements});
    return Status();
  }

  Status run(uint32_t node, uint64_t, std::span<const Input> inputs,
             std::span<const Output> outputs) override {
    const std::string& op = host_.op_of(node);
    if (op == "publish") return begin_step(outputs);
    if (op == "update") return update(inputs, outputs[0]);
    return verify(inputs);
  }

 private:
  std::string address() const {
    if (visit_.route == Route::kShm)
      return "shm:sluice-demo-" + std::to_string(std::random_device()());
    const bool brackets = visit_.host.find(':') != std::string::npos;
    const std::string host = brackets ? "[" + visit_.host + "]" : visit_.host;
    return std::string(to_string(visit_.route)) + "://" + host + ":0";
  }

  Status meet_workers(Listener& listener) {
    Status failure;
    const Status waited = host_.context().wait_until(
        [&] {
          failure = accept(listener);
          const auto introduced = std::count_if(guests_.begin(), guests_.end(),
                                                [](const auto& g) { return g->introduced; });
          return !failure.ok() || introduced == visit_.workers;
        },
        host_.deadline());
    SLUICE_RETURN_IF_ERROR(failure);
    SLUICE_RETURN_IF_ERROR(waited);
    for (const auto& guest : guests_) {
      if (guest->worker < static_cast<uint32_t>(visit_.workers))
        host_.runner().connect(visit_.spreading.servers + guest->worker, guest->endpoint);
    }
    return Status();
  }

  Status accept(Listener& listener) {
    for (;;) {
      Result<Endpoint> accepted = listener.try_accept();
      if (!accepted.ok()) return Status();
      auto guest = std::make_unique<Guest>();
      guest->endpoint = std::move(*accepted);
      SLUICE_TRY(Buffer hello, host_.context().arena().allocate(sizeof guest->worker));
      const PostOptions options{.sink = guest.get(), .deadline = kNever};
      Result<OperationId> posted =
          guest->endpoint.receive(TagMatch{kHelloTag}, std::move(hello), options);
      const Status added = host_.exchange().add(guest->endpoint);
      if (posted.ok() && added.ok()) guests_.push_back(std::move(guest));
    }
  }

  // The weights go out when this returns.
  Status begin_step(std::span<const Output> weights) {
    SLUICE_RETURN_IF_ERROR(line_.send({.word = Word::kReady, .step = step_}));
    SLUICE_RETURN_IF_ERROR(host_.expect(Word::kGo));
    if (visit_.corruption == Corruption::kWeights && step_ == visit_.last_step() &&
        server_ + 1 == visit_.spreading.servers) {
      const Output& last = weights[std::max<size_t>(weights.size(), 2) - 2];
      last.bytes[last.bytes.size() - 2] ^= std::byte{1};
    }
    averaging_ = Duration(0);
    cpu_before_ = process_cpu_time();
    applied_ = {.word = Word::kApplied, .step = step_};
    applied_.begin_ns = now().time_since_epoch().count();
    return Status();
  }

  Status update(std::span<const Input> inputs, const Output& next) {
    const Duration begin = process_cpu_time();
    std::vector<const float*> gradients;
    for (const Input& input : inputs.subspan(1)) gradients.push_back(floats(input));
    average_and_update(gradients, floats(inputs[0]), reinterpret_cast<float*>(next.bytes.data()),
                       next.bytes.size() / sizeof(float));
    averaging_ += process_cpu_time() - begin;
    return Status();
  }

  static const float* floats(const Input& input) {
    return reinterpret_cast<const float*>(input.bytes.data());
  }

  Status verify(std::span<const Input> inputs) {
    applied_.cpu_ns = (process_cpu_time() - cpu_before_ - averaging_).count();
    applied_.end_ns = now().time_since_epoch().count();
    SLUICE_RETURN_IF_ERROR(line_.send(applied_));
    Message report = applied_;
    report.word = Word::kReport;
    std::vector<std::vector<const float*>> gradients(host_.model().tensors.size());
    for (const Input& input : inputs)
      gradients[host_.tensor_of(input.edge)].push_back(floats(input));
    for (uint32_t t = 0; t < gradients.size() && *report.text == '\0'; ++t) {
      if (!gradients[t].empty())
        report.set_text(check_gradients(host_.model(), t, step_, gradients[t]));
    }
    std::vector<const Endpoint*> endpoints;
    for (const auto& guest : guests_) endpoints.push_back(&guest->endpoint);
    host_.count(report, endpoints);
    return line_.send(report);
  }

  const Visit& visit_;
  const uint32_t server_;
  ControlLine& line_;
  GraphHost host_;
  std::vector<std::unique_ptr<Guest>> guests_;
  int64_t step_ = 0;
  Duration cpu_before_{0}, averaging_{0};
  Message applied_;
};

}  // namespace

Status serve_graph(const Visit& visit, uint32_t server, ControlLine& line) {
  return GraphServer(visit, server, line).run();
}

}  // namespace sluice::tools::demo
