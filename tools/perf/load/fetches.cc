// exchange_lat: a tensor is published, fetched, checked, and answered by another one.
// exchange_bw: the server publishes, the client fetches a window ahead. The producer
// changes one random word of a tensor before each publication; the consumer knows which
// and to what, and looks at that very word.
#include <chrono>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/perf/load/pattern.h"
#include "tools/perf/load/rotation.h"
#include "tools/perf/load/workload.h"

namespace sluice::tools {
namespace {

// One fetch after the other through one place: as a view, or into memory of our own.
class Incoming {
 public:
  Status take_into(Result<Buffer> memory) {
    SLUICE_TRY(buffer_, std::move(memory));
    destination_ = buffer_.data();
    return Status();
  }
  void post(Exchange& exchange, const Key& key, Instant deadline) {
    if (destination_ != nullptr) {
      placing_.emplace(exchange.fetch_into(key, std::move(buffer_), deadline));
    } else {
      viewing_.emplace(exchange.fetch(key, deadline));
    }
  }
  bool ready() const { return destination_ != nullptr ? placing_->ready() : viewing_->ready(); }
  // Requires: ready(). The bytes stay until release().
  Result<const std::byte*> take() {
    if (destination_ != nullptr) {
      Placed placed = placing_->take();
      placing_.reset();
      Status status = placed.status();
      buffer_ = placed.take_buffer();
      SLUICE_RETURN_IF_ERROR(status);
      return static_cast<const std::byte*>(buffer_.data());
    }
    Result<Delivery<Tensor>> delivery = viewing_->take();
    viewing_.reset();
    SLUICE_RETURN_IF_ERROR(delivery);
    view_ = std::move(delivery->value);
    return view_.data();
  }
  void release() { view_ = Tensor(); }
  // Null where what comes is a view. The library's, while a fetch is under way.
  const std::byte* destination() const { return destination_; }

 private:
  std::optional<Fetch> viewing_;
  std::optional<FetchInto> placing_;
  Tensor view_;
  Buffer buffer_;
  const std::byte* destination_ = nullptr;
};

class ExchangeWorkload : public Workload {
 public:
  ExchangeWorkload(const Side& side, const Load& load)
      : Workload(side, load), exchange_(side.context), added_(exchange_.add(side.endpoint)) {}
  // The last release is on its way when the peer takes the exchange apart.
  ~ExchangeWorkload() override {
    if (side_.endpoint) exchange_.remove(side_.endpoint);
  }

 protected:
  Status allocate_tensors() {
    SLUICE_RETURN_IF_ERROR(added_);
    SLUICE_RETURN_IF_ERROR(rotation_.allocate(side_.context.arena(), load_.size_bytes,
                                              load_.tensors, load_.source_offset));
    if (load_.source_offset) buffers_.source_at = rotation_.place_in_page();
    return Status();
  }
  // Gets step's tensor ready to be published.
  Status produce(const Round& round, uint64_t step, Role producer) {
    SLUICE_TRY(std::byte * data, rotation_.bring_home(side_, step));
    if (round.mode == Round::Mode::kCheck) {
      fill(data, step, damages(round));
    } else {
      word(step, producer).write(data);
    }
    next_ = rotation_.frozen(step);
    return Status();
  }
  Status publish(std::string_view name, uint64_t step) {
    SLUICE_TRY(Publication publication, exchange_.publish({name, step}, std::move(next_)));
    rotation_.published(step, std::move(publication));
    return Status();
  }
  void check(const Round& round, uint64_t step, Role producer, const std::byte* data) {
    if (round.mode == Round::Mode::kCheck) {
      compare(data, step);
      return;
    }
    StepWord expected = word(step, producer);
    verdict_.verified_bytes += expected.length;
    if (!expected.matches(data)) verdict_.mismatched_bytes += expected.length;
    if (load_.consume_stride != 0) consume(data);
    if (round.mode != Round::Mode::kTouch) return;
    for (uint64_t at = 0; at < load_.size_bytes; at += 4096)
      (void)*static_cast<const volatile std::byte*>(data + at);
  }
  // A load from every cache line, or every page: what a program that computes with the tensor
  // takes at least.
  void consume(const std::byte* data) {
    uint64_t sum = 0;
    for (uint64_t at = 0; at < load_.size_bytes; at += load_.consume_stride)
      sum += static_cast<uint64_t>(data[at]);
    consumed_ = sum;
  }
  // Both directions have words of their own.
  StepWord word(uint64_t step, Role producer) const {
    return step_word(producer == Role::kClient ? load_.seed : ~load_.seed, step, load_.size_bytes);
  }

  // Of a fetch. A program says one each time, so it asks for the time each time.
  Instant deadline() const { return load_.default_options ? from_now(kUsualDeadline) : kNever; }

  Exchange exchange_;
  Status added_;
  Rotation rotation_;
  Tensor next_;

 private:
  static constexpr Duration kUsualDeadline = std::chrono::seconds(10);

  volatile uint64_t consumed_ = 0;  // so that nobody can leave the reading out
};

class ExchangeLatency final : public ExchangeWorkload {
 public:
  using ExchangeWorkload::ExchangeWorkload;

  Result<Json> prepare() override {
    SLUICE_RETURN_IF_ERROR(allocate_tensors());
    for (Incoming& incoming : incoming_) {
      if (load_.into) SLUICE_RETURN_IF_ERROR(incoming.take_into(destination(load_.size_bytes)));
    }
    return Json::object();
  }

  Status arm(const Round& round) override {
    for (uint64_t i = 0; i < kEarly && i < round.iterations; ++i) ask(round.first_step + i);
    return produce(round, round.first_step, side_.role);
  }

  Status run(const Round& round, Samples* samples) override {
    uint64_t end = round.first_step + round.iterations;
    Laps laps(samples);
    laps.start();
    for (uint64_t step = round.first_step; step < end; ++step) {
      if (side_.client()) {
        cool_down(step);
        pause(round);
        if (load_.cold || pauses_) laps.start();
        SLUICE_RETURN_IF_ERROR(hand_over(round, step, end));
      }
      Incoming& incoming = incoming_[step % kEarly];
      SLUICE_RETURN_IF_ERROR(side_.wait_until([&] { return incoming.ready(); }));
      SLUICE_TRY(const std::byte* data, incoming.take());
      check(round, step, peer_role(), data);
      if (!side_.client()) {
        SLUICE_RETURN_IF_ERROR(hand_over(round, step, end));
        cool_down(step + 1);  // as the client does before it hands over
      }
      laps.lap();
      if (side_.client() && step + 1 == end) tidy(step, end);
    }
    return rotation_.bring_all_home(side_);
  }

  std::span<const uint32_t> first_of_extent() const override { return rotation_.first_of_extent(); }

 private:
  // Fetches posted ahead of what is published: the peer never waits to be asked.
  static constexpr uint64_t kEarly = 2;

  Role peer_role() const { return side_.client() ? Role::kServer : Role::kClient; }
  void ask(uint64_t step) {
    incoming_[step % kEarly].post(exchange_, {side_.client() ? "pong" : "ping", step}, deadline());
  }

  // Publishes first: the rest happens while the peer has it.
  Status hand_over(const Round& round, uint64_t step, uint64_t end) {
    SLUICE_RETURN_IF_ERROR(publish(side_.client() ? "ping" : "pong", step));
    // The client's last view is of the step before; the server's of this one.
    uint64_t seen = side_.client() ? step - 1 : step;
    if (seen >= round.first_step) tidy(seen, end);
    return step + 1 < end ? produce(round, step + 1, side_.role) : Status();
  }
  // What is published next, and where the answer to it goes.
  void cool_down(uint64_t step) {
    if (next_) make_cold(next_.data());
    if (const std::byte* into = incoming_[step % kEarly].destination()) make_cold(into);
  }
  void tidy(uint64_t seen, uint64_t end) {
    incoming_[seen % kEarly].release();
    if (seen + kEarly < end) ask(seen + kEarly);
  }

  std::array<Incoming, kEarly> incoming_;
};

class ExchangeProducer final : public ExchangeWorkload {
 public:
  using ExchangeWorkload::ExchangeWorkload;

  Result<Json> prepare() override {
    SLUICE_RETURN_IF_ERROR(allocate_tensors());
    return Json::object();
  }
  Status run(const Round& round, Samples*) override {
    for (uint64_t step = round.first_step; step < round.first_step + round.iterations; ++step) {
      SLUICE_RETURN_IF_ERROR(produce(round, step, Role::kServer));
      SLUICE_RETURN_IF_ERROR(publish("bulk", step));
    }
    return rotation_.bring_all_home(side_);
  }
};

class ExchangeConsumer final : public ExchangeWorkload {
 public:
  ExchangeConsumer(const Side& side, const Load& load)
      : ExchangeWorkload(side, load), incoming_(load.depth), posted_at_(load.depth) {}

  Result<Json> prepare() override {
    for (Incoming& incoming : incoming_) {
      if (load_.into) SLUICE_RETURN_IF_ERROR(incoming.take_into(destination(load_.size_bytes)));
    }
    return Json::object();
  }
  Status arm(const Round& round) override {
    for (uint64_t i = 0; i < load_.depth && i < round.iterations; ++i) ask(round.first_step + i);
    return Status();
  }
  // A sample is the time from the fetch to the tensor: of the first ones, from the start.
  Status run(const Round& round, Samples* samples) override {
    uint64_t end = round.first_step + round.iterations;
    uint64_t last = ticks();
    posted_at_.assign(posted_at_.size(), last);
    for (uint64_t step = round.first_step; step < end; ++step) {
      size_t slot = step % incoming_.size();
      Incoming& incoming = incoming_[slot];
      SLUICE_RETURN_IF_ERROR(side_.wait_until([&] { return incoming.ready(); }));
      SLUICE_TRY(const std::byte* data, incoming.take());
      check(round, step, Role::kServer, data);
      incoming.release();
      if (samples != nullptr) {
        last = ticks();
        samples->add(last - posted_at_[slot]);
        posted_at_[slot] = last;
      }
      if (step + load_.depth < end) ask(step + load_.depth);
    }
    return Status();
  }

 private:
  void ask(uint64_t step) {
    incoming_[step % incoming_.size()].post(exchange_, {"bulk", step}, kNever);
  }

  std::vector<Incoming> incoming_;
  std::vector<uint64_t> posted_at_;
};

// The same by a subscription.
class ExchangeSubscriber final : public ExchangeWorkload {
 public:
  ExchangeSubscriber(const Side& side, const Load& load)
      : ExchangeWorkload(side, load), taken_at_(load.depth) {}

  Result<Json> prepare() override { return Json::object(); }
  Status arm(const Round& round) override {
    // It has asked for the steps of the next round already.
    if (subscription_ && subscription_->next_step() == round.first_step) return Status();
    subscription_.emplace(exchange_.subscribe(
        "bulk", {.first_step = round.first_step, .ahead = static_cast<int>(load_.depth)}));
    return Status();
  }
  // A sample is the time of as many steps as are asked for at once.
  Status run(const Round& round, Samples* samples) override {
    const uint64_t end = round.first_step + round.iterations;
    taken_at_.assign(taken_at_.size(), ticks());
    for (uint64_t step = round.first_step; step < end; ++step) {
      SLUICE_RETURN_IF_ERROR(side_.wait_until([&] { return subscription_->ready(); }));
      SLUICE_TRY(Delivery<Tensor> delivery, subscription_->take());
      check(round, step, Role::kServer, delivery.value.data());
      if (samples == nullptr) continue;
      uint64_t& then = taken_at_[step % taken_at_.size()];
      samples->add(ticks() - std::exchange(then, ticks()));
    }
    return Status();
  }

 private:
  std::optional<Subscription> subscription_;
  std::vector<uint64_t> taken_at_;
};

}  // namespace

std::unique_ptr<Workload> make_exchange_workload(const Side& side, const Load& load) {
  if (load.test->latency) return std::make_unique<ExchangeLatency>(side, load);
  if (side.role == Role::kClient && load.subscribe)
    return std::make_unique<ExchangeSubscriber>(side, load);
  if (side.role == Role::kClient) return std::make_unique<ExchangeConsumer>(side, load);
  return std::make_unique<ExchangeProducer>(side, load);
}

}  // namespace sluice::tools
