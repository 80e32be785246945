// A worker of mode graph: what its nodes do.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <sluice/sluice.h>

#include "tools/demo_job/arithmetic.h"
#include "tools/demo_job/exchange_link.h"
#include "tools/demo_job/graph_host.h"

namespace sluice::tools::demo {
namespace {

class GraphWorker final : public graph::Kernels {
 public:
  GraphWorker(const Visit& visit, uint32_t worker, ControlLine& line)
      : visit_(visit),
        worker_(worker),
        line_(line),
        host_(visit, line),
        reference_(host_.model(), static_cast<uint32_t>(visit.workers), 0) {}

  Status run(const std::vector<std::string>& addresses) {
    if (visit_.compute.count() > 0) compute_for(std::chrono::microseconds(1));  // calibrates
    SLUICE_RETURN_IF_ERROR(host_.open(visit_.spreading.servers + worker_, *this));
    for (size_t s = 0; s < addresses.size(); ++s) {
      SLUICE_RETURN_IF_ERROR(connect(addresses[s]));
      host_.runner().connect(static_cast<uint32_t>(s), *servers_.back());
    }
    SLUICE_RETURN_IF_ERROR(host_.runner().start());
    for (step_ = 0; step_ <= visit_.last_step(); ++step_)
      SLUICE_RETURN_IF_ERROR(host_.runner().run_step());
    std::vector<Endpoint*> endpoints;
    for (auto& server : servers_) endpoints.push_back(server.get());
    host_.close(endpoints);
    return Status();
  }

  Status supply(uint32_t, std::span<std::byte>) override {
    return Status(Code::kInternal, Scope::kContext, "demo/graph", "a worker supplies nothing");
  }

  Status run(uint32_t node, uint64_t, std::span<const Input> inputs,
             std::span<const Output> outputs) override {
    const std::string& op = host_.op_of(node);
    if (op == "make") return make(outputs);
    if (op == "step") return compute(inputs);
    return verify(inputs);
  }

 private:
  Status connect(const std::string& address) {
    ConnectOptions options{.operation_timeout = visit_.patience()};
    // On shared memory the product must not copy: the connection fails rather than do.
    if (visit_.route == Route::kShm) options.require = zero_copy;
    SLUICE_TRY(Endpoint endpoint, host_.context().connect(address, options));
    SLUICE_RETURN_IF_ERROR(host_.exchange().add(endpoint));
    SLUICE_TRY(Buffer hello, host_.context().arena().allocate(sizeof worker_));
    std::memcpy(hello.data(), &worker_, sizeof worker_);
    SLUICE_TRY(Receipt sent,
               endpoint.send_and_wait(kHelloTag, std::move(hello).freeze(), host_.deadline()));
    (void)sent;
    servers_.push_back(std::make_unique<Endpoint>(std::move(endpoint)));
    return Status();
  }

  // Before anything is measured, as in the job by hand.
  Status make(std::span<const Output> outputs) {
    for (const Output& output : outputs) {
      const TensorSpec& spec = host_.model().tensors[host_.tensor_of(output.edge)];
      fill_gradient({spec.id, worker_, step_},
                    {reinterpret_cast<float*>(output.bytes.data()), spec.elements});
    }
    if (visit_.corruption == Corruption::kGradient && step_ == visit_.last_step())
      outputs[0].bytes[outputs[0].bytes.size() - 2] ^= std::byte{1};
    SLUICE_RETURN_IF_ERROR(line_.send({.word = Word::kReady, .step = step_}));
    cpu_before_ = process_cpu_time();
    return Status();
  }

  // The weights are here. The gradients, which lie where they were made, go out when this returns.
  Status compute(std::span<const Input> inputs) {
    uint64_t touched = 0;
    for (const Input& input : inputs) {
      if (from_server(input)) touched += touch_pages(input.bytes);
    }
    report_ = {.word = Word::kReport, .step = step_};
    report_.end_ns = now().time_since_epoch().count();
    touched_ = touched_ + touched;
    stand_in_ = Duration(0);
    if (visit_.compute.count() > 0) {
      const Duration start = process_cpu_time();
      compute_for(visit_.compute);
      stand_in_ = process_cpu_time() - start;
    }
    return Status();
  }

  bool from_server(const Input& input) const {
    return host_.plan().process_of(input.edge) < visit_.spreading.servers;
  }

  Status verify(std::span<const Input> inputs) {
    SLUICE_RETURN_IF_ERROR(host_.expect(Word::kFinished));
    report_.cpu_ns = (process_cpu_time() - cpu_before_ - stand_in_).count();
    for (const Input& input : inputs) {
      if (*report_.text != '\0') break;
      report_.set_text(reference_.check(host_.tensor_of(input.edge),
                                        reinterpret_cast<const float*>(input.bytes.data())));
    }
    if (step_ < visit_.last_step()) reference_.advance();
    std::vector<const Endpoint*> endpoints;
    for (const auto& server : servers_) endpoints.push_back(server.get());
    host_.count(report_, endpoints);
    return line_.send(report_);
  }

  const Visit& visit_;
  const uint32_t worker_;
  ControlLine& line_;
  GraphHost host_;
  Reference reference_;
  std::vector<std::unique_ptr<Endpoint>> servers_;
  int64_t step_ = 0;
  Duration cpu_before_{0}, stand_in_{0};
  Message report_;
  volatile uint64_t touched_ = 0;
};

}  // namespace

Status work_graph(const Visit& visit, uint32_t worker, const std::vector<std::string>& addresses,
                  ControlLine& line) {
  return GraphWorker(visit, worker, line).run(addresses);
}

}  // namespace sluice::tools::demo
