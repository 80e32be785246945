// The runner: graphs by chance and the main job's, carried out by as many contexts as they have
// processes. Each tensor has bytes of its own in each step, and each reader looks at all of them.
#include <sluice/graph/pass.h>
#include <sluice/graph/runner.h>
#include <sluice/sluice.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/graph/random_graph.h"
#include "tools/graph/job_graph.h"
#include "tools/graph/models.h"

namespace sluice::graph {
namespace {

namespace networks = ::sluice::tools::networks;

constexpr Tag kHello = 7;
constexpr uint64_t kSteps = 5;
constexpr std::chrono::seconds kPatience{60};

// What the tensor of an edge holds in a step.
void write_pattern(uint32_t edge, uint64_t step, std::span<std::byte> bytes) {
  std::mt19937 random(static_cast<uint32_t>(edge * 1000 + step));
  for (std::byte& each : bytes) each = static_cast<std::byte>(random());
}
bool has_pattern(uint32_t edge, uint64_t step, std::span<const std::byte> bytes) {
  std::mt19937 random(static_cast<uint32_t>(edge * 1000 + step));
  for (std::byte each : bytes) {
    if (each != static_cast<std::byte>(random())) return false;
  }
  return true;
}

class Patterns final : public Kernels {
 public:
  explicit Patterns(const Plan& plan) : plan_(plan) {}
  Status supply(uint32_t edge, std::span<std::byte> into) override {
    write_pattern(edge, 0, into);
    return Status();
  }
  Status run(uint32_t, uint64_t step, std::span<const Input> inputs,
             std::span<const Output> outputs) override {
    for (const Input& input : inputs) {
      if (!has_pattern(input.edge, step, input.bytes)) {
        return Status(
            Code::kCorrupt, Scope::kOperation, "test",
            plan_.graph.edges[input.edge].name + " is wrong in step " + std::to_string(step));
      }
    }
    for (const Output& output : outputs)
      write_pattern(output.edge, step + plan_.graph.edges[output.edge].delay, output.bytes);
    return Status();
  }

 private:
  const Plan& plan_;
};

struct Hello final : CompletionSink {
  void on_completion(Completion&& completion) noexcept override {
    if (completion.status.ok()) std::memcpy(&process, completion.buffers[0].data(), sizeof process);
    here = completion.status.ok();
  }
  Endpoint endpoint;
  uint32_t process = 0;
  bool here = false;
};

// One process of a plan in a thread of its own: it listens, connects to those before it, runs.
class Member {
 public:
  Member(const Plan& plan, uint32_t process, std::vector<std::string>& addresses)
      : plan_(plan), process_(process), addresses_(addresses), kernels_(plan) {}

  Status open(const std::string& address) {
    SLUICE_TRY(context_, open_context());
    exchange_ = std::make_unique<Exchange>(*context_);
    runner_ = std::make_unique<Runner>(*context_, *exchange_, plan_, process_, kernels_,
                                       RunnerOptions{.patience = kPatience});
    SLUICE_TRY(listener_, context_->listen(address));
    addresses_[process_] = listener_.address();
    return Status();
  }

  void run() {
    status_ = meet();
    if (status_.ok()) status_ = runner_->prepare();
    if (status_.ok()) status_ = runner_->start();
    while (status_.ok() && runner_->step() < kSteps) status_ = runner_->run_step();
    const Status finished = runner_->finish();
    if (status_.ok()) status_ = finished;
    if (context_->arena().statistics().outstanding > plan_.slots.size() + 8) leaked_ = true;
    for (auto& hello : endpoints_) (void)hello->endpoint.close(after(now(), kPatience));
    peak_bytes_ = context_->arena().statistics().peak_used_bytes;
    traffic_.assign(runner_->traffic().begin(), runner_->traffic().end());
    runner_.reset();
    exchange_.reset();
    listener_.close();
    (void)context_->close(after(now(), kPatience));
  }

  const Status& status() const { return status_; }
  const std::vector<Traffic>& traffic() const { return traffic_; }
  bool leaked() const { return leaked_; }

 private:
  Status meet() {
    for (uint32_t p = 0; p < process_; ++p) {
      auto hello = std::make_unique<Hello>();
      SLUICE_TRY(hello->endpoint, context_->connect(addresses_[p], {}));
      SLUICE_RETURN_IF_ERROR(exchange_->add(hello->endpoint));
      SLUICE_TRY(Buffer name, context_->arena().allocate(sizeof process_));
      std::memcpy(name.data(), &process_, sizeof process_);
      SLUICE_TRY(Receipt sent, hello->endpoint.send_and_wait(kHello, std::move(name).freeze(),
                                                             after(now(), kPatience)));
      (void)sent;
      runner_->connect(p, hello->endpoint);
      endpoints_.push_back(std::move(hello));
    }
    const size_t all = plan_.processes.size() - 1;
    SLUICE_RETURN_IF_ERROR(context_->wait_until(
        [&] {
          accept();
          size_t here = process_;
          for (const auto& hello : endpoints_) here += hello->here;
          return here == all;
        },
        after(now(), kPatience)));
    for (const auto& hello : endpoints_) {
      if (hello->here) runner_->connect(hello->process, hello->endpoint);
    }
    return Status();
  }

  void accept() {
    for (;;) {
      Result<Endpoint> accepted = listener_.try_accept();
      if (!accepted.ok()) return;
      auto hello = std::make_unique<Hello>();
      hello->endpoint = std::move(*accepted);
      Result<Buffer> name = context_->arena().allocate(sizeof hello->process);
      const PostOptions options{.sink = hello.get(), .deadline = kNever};
      (void)hello->endpoint.receive(TagMatch{kHello}, std::move(*name), options);
      (void)exchange_->add(hello->endpoint);
      endpoints_.push_back(std::move(hello));
    }
  }

  const Plan& plan_;
  const uint32_t process_;
  std::vector<std::string>& addresses_;
  Patterns kernels_;
  std::unique_ptr<Context> context_;
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<Runner> runner_;
  Listener listener_;
  std::vector<std::unique_ptr<Hello>> endpoints_;
  Status status_;
  std::vector<Traffic> traffic_;
  size_t peak_bytes_ = 0;
  bool leaked_ = false;
};

std::string address_on(const std::string& path) {
  static std::atomic<int> number{0};
  const std::string name =
      "graph-" + std::to_string(std::random_device()()) + "-" + std::to_string(number.fetch_add(1));
  if (path == "tcp") return "tcp://127.0.0.1:0";
  return path + ":" + name;
}

std::vector<std::unique_ptr<Member>> carry_out(const Plan& plan, const std::string& path) {
  std::vector<std::string> addresses(plan.processes.size());
  std::vector<std::unique_ptr<Member>> members;
  for (uint32_t p = 0; p < plan.processes.size(); ++p) {
    members.push_back(std::make_unique<Member>(plan, p, addresses));
    const Status opened = members.back()->open(address_on(path));
    INFO(opened.to_string());
    REQUIRE(opened.ok());
  }
  std::vector<std::thread> threads;
  for (auto& member : members) threads.emplace_back([&member] { member->run(); });
  for (std::thread& thread : threads) thread.join();
  return members;
}

void check_members(const Plan& plan, const std::vector<std::unique_ptr<Member>>& members,
                   bool views) {
  for (uint32_t p = 0; p < members.size(); ++p) {
    INFO("process " << p << ": " << members[p]->status().to_string());
    REQUIRE(members[p]->status().ok());
    CHECK_FALSE(members[p]->leaked());
    for (uint32_t d = 0; d < plan.deliveries.size(); ++d) {
      const Delivery& delivery = plan.deliveries[d];
      const Traffic& traffic = members[p]->traffic()[d];
      if (delivery.process != p) continue;
      CHECK(traffic.tensors == kSteps);
      if (views && delivery.route == Route::kView) {
        CHECK(traffic.views == kSteps);
        CHECK(traffic.copied_bytes == 0);
      }
    }
  }
}

TEST_CASE("graphs by chance run as planned, every byte of every tensor", "[graph]") {
  for (const char* path : {"loopback", "shm"}) {
    for (uint64_t seed = 0; seed < 10; ++seed) {
      std::mt19937_64 random(seed);
      const Result<Plan> plan = make_plan(test::random_graph(random));
      REQUIRE(plan.ok());
      INFO(path << ", seed " << seed);
      check_members(*plan, carry_out(*plan, path), true);
    }
  }
}

TEST_CASE("between hosts the bytes are moved into the plan's own memory", "[graph]") {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    std::mt19937_64 random(seed);
    Graph graph = test::random_graph(random);
    for (Process& process : graph.processes) process.host = process.name;
    const Result<Plan> plan = make_plan(graph);
    REQUIRE(plan.ok());
    INFO("seed " << seed);
    check_members(*plan, carry_out(*plan, "tcp"), false);
  }
}

TEST_CASE("the layers of a network run with two workers and two servers", "[graph]") {
  networks::Network network = networks::network_named("alexnet");
  // The shapes of the graph with a few elements each.
  for (networks::Layer& layer : network.layers) {
    layer.outputs = 16;
    for (networks::Parameter& parameter : layer.parameters) parameter.shape = {64};
  }
  networks::JobShape shape;
  shape.workers = shape.servers = 2;
  const Result<Plan> plan = make_plan(networks::layer_graph(network, shape, 2));
  REQUIRE(plan.ok());
  check_members(*plan, carry_out(*plan, "shm"), true);
}

TEST_CASE("a plan that says view where bytes are copied ends with the receipt", "[graph]") {
  networks::JobShape shape;
  const std::vector<networks::JobTensor> tensors = {{"t", {100'000}, 0}};
  const Result<Plan> plan = make_plan(networks::job_graph(tensors, shape));
  REQUIRE(plan.ok());
  const auto members = carry_out(*plan, "tcp");
  CHECK(members[1]->status().code() == Code::kInternal);
  CHECK(members[1]->status().detail().find("the plan says view, and the receipt says tcp") !=
        std::string_view::npos);
}

// Two processes of a host: 'a' makes a tensor that 'b' reads.
Graph made_and_read() {
  Graph graph;
  graph.processes = {{"a", "h", 0}, {"b", "h", 0}};
  Node node;
  node.name = "make";
  graph.nodes.push_back(node);
  node.name = "read";
  node.process = 1;
  graph.nodes.push_back(node);
  Edge edge;
  edge.name = "t";
  edge.to = {1};
  edge.shape = {4};
  graph.edges.push_back(edge);
  return graph;
}

TEST_CASE("a runner runs once, and no step after a start that failed", "[graph]") {
  Graph graph = made_and_read();
  graph.edges[0].delay = 1;  // start() publishes what step 0 reads
  const Result<Plan> plan = make_plan(graph);
  REQUIRE(plan.ok());
  auto context = open_context();
  REQUIRE(context.ok());
  Exchange exchange(**context);
  Patterns kernels(*plan);
  auto refused = [](const Status& status, const char* text) {
    INFO(status.to_string());
    CHECK(status.code() == Code::kWrongState);
    CHECK(status.detail().find(text) != std::string_view::npos);
  };
  Runner maker(**context, exchange, *plan, 0, kernels);
  REQUIRE(maker.prepare().ok());
  REQUIRE(maker.start().ok());
  // The key is published already: the second runner's start() fails.
  Runner second(**context, exchange, *plan, 0, kernels);
  REQUIRE(second.prepare().ok());
  const Status failed = second.start();
  INFO(failed.to_string());
  REQUIRE_FALSE(failed.ok());
  refused(second.run_step(), "no failure before it");
  CHECK(second.finish().ok());
  refused(second.start(), "another Runner");
  CHECK(maker.finish().ok());
  refused(maker.start(), "another Runner");
  refused(maker.run_step(), "start()");
}

TEST_CASE("what the runner cannot do it says before anything runs", "[graph]") {
  Graph graph = made_and_read();
  graph.nodes[1].device = "cuda:0";
  const Result<Plan> plan = make_plan(graph);
  REQUIRE(plan.ok());
  auto context = open_context();
  REQUIRE(context.ok());
  Exchange exchange(**context);
  Patterns kernels(*plan);
  Runner reader(**context, exchange, *plan, 1, kernels);
  const Status refused = reader.prepare();
  CHECK(refused.code() == Code::kUnsupported);
  CHECK(refused.detail().find("'read' is placed on cuda:0") != std::string_view::npos);
  CHECK(reader.start().code() == Code::kWrongState);
  CHECK(reader.run_step().code() == Code::kWrongState);
  Graph host = plan->graph;
  host.nodes[1].device = "cpu";
  const Result<Plan> other = make_plan(host);
  REQUIRE(other.ok());
  Runner alone(**context, exchange, *other, 1, kernels);
  REQUIRE(alone.prepare().ok());
  const Status started = alone.start();
  CHECK(started.code() == Code::kWrongState);
  CHECK(started.detail().find("no endpoint to process 'a'") != std::string_view::npos);
}

}  // namespace
}  // namespace sluice::graph
