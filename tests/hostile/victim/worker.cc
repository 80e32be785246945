#include "tests/hostile/victim/worker.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <memory>
#include <optional>
#include <vector>

#include <nlohmann/json.hpp>

#include <sluice/exchange/exchange.h>
#include <sluice/select/open.h>

#include "tests/hostile/victim/service.h"
#include "tests/support/pattern.h"

namespace sluice::hostile {
namespace {

constexpr Duration kPatience = std::chrono::seconds(10);  // of one operation: a bound on a hang
constexpr size_t kMadeBytes = 64 << 10, kUpBytes = 48 << 10, kParcelBytes = 256 << 10,
                 kSidedBytes = 16 << 10;
constexpr size_t kMostFailures = 4;

class Worker {
 public:
  Worker(const std::string& address, const std::string& secret, uint64_t first_step, bool visits)
      : address_(address), secret_(secret), first_step_(first_step), visits_(visits) {}

  int run() {
    if (!begin()) return finish();
    while (!ended_ && failures_.size() < kMostFailures) {
      one_round();
      ++rounds_;
      if (rounds_ == 1) std::cout << "working" << std::endl;
      if (due_ > 0 && rounds_ >= due_) {
        std::cout << "did" << std::endl;
        due_ = 0;
      }
      look_at_input();
    }
    return finish();
  }

 private:
  Instant limit() { return after(now(), kPatience); }

  bool begin() {
    auto context = open_context(context_options());
    if (!note("open", context.status())) return false;
    context_ = std::move(*context);
    exchange_.emplace(*context_);
    auto endpoint = context_->connect(address_);
    if (!note("connect", endpoint.status())) return false;
    endpoint_ = std::move(*endpoint);
    if (!note("add", exchange_->add(endpoint_))) return false;
    if (!told("friend " + secret_, "welcome")) return false;
    std::optional<std::string> key = ask("grant");
    if (!key || !key->starts_with("granted"))
      return note("grant", Status(Code::kInternal, Scope::kOperation, "worker", key.value_or("")));
    auto decoded = RemoteKey::decode(std::as_bytes(std::span(*key)).subspan(7));
    if (!note("key", decoded.status())) return false;
    key_ = *decoded;
    return true;
  }

  // Counts an operation. Returns whether it ended well.
  bool note(const char* what, const Status& status) {
    uint64_t took = static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(now() - began_).count());
    if (rounds_ > 0) longest_us_ = std::max(longest_us_, took);
    began_ = now();
    if (status.ok()) {
      ++completed_;
      return true;
    }
    failures_.push_back(std::string(what) + ": " + status.to_string());
    return false;
  }
  bool note(const char* what, bool good, std::string_view why) {
    return note(what, good
                          ? Status()
                          : Status(Code::kInternal, Scope::kOperation, "worker", std::string(why)));
  }

  Buffer room(size_t bytes) {
    auto buffer = context_->arena().allocate(bytes);
    if (!buffer.ok()) {
      (void)note("allocate", buffer.status());
      ::_exit(finish());
    }
    return std::move(*buffer);
  }

  // A command, and its answer; empty: it failed, and is noted.
  std::optional<std::string> ask(const std::string& command) {
    Buffer text = room(command.size());
    std::memcpy(text.data(), command.data(), command.size());
    began_ = now();
    auto sent = endpoint_.send_and_wait(kCommand, std::move(text).freeze(), limit());
    if (!note(command.c_str(), sent.status())) return std::nullopt;
    auto got = endpoint_.receive_and_wait({.tag = kAnswer}, room(kCommandBytes), limit());
    if (!note(command.c_str(), got.status())) return std::nullopt;
    return std::string(reinterpret_cast<const char*>(got->buffer.data()), got->receipt.bytes);
  }
  bool told(const std::string& command, std::string_view expected) {
    std::optional<std::string> answer = ask(command);
    return answer && note(command.c_str(), *answer == expected, *answer);
  }

  void one_round() {
    uint64_t step = first_step_ + rounds_;
    if (told("publish " + std::to_string(step) + " " + std::to_string(kMadeBytes), "published"))
      fetch(kMade, step, kMadeBytes, kMadeSeed + step);
    supply(step);
    parcel(step);
    one_sided(step);
    fetch(kWeights, 0, kWeightsBytes, kWeightsSeed);
    if (visits_ && rounds_ % 8 == 7) visit();
  }

  void fetch(const char* name, uint64_t step, size_t bytes, uint64_t seed) {
    began_ = now();
    auto delivery = context_->run_until(exchange_->fetch({name, step}, limit()));
    if (!note(name, delivery.status())) return;
    bool good = delivery->value.size_bytes() == bytes && test::holds(delivery->value.bytes(), seed);
    if (note(name, good, "other bytes came than were published")) bytes_ += bytes;
  }

  void supply(uint64_t step) {
    Buffer buffer = room(kUpBytes);
    test::fill(buffer.bytes(), kUpSeed + step);
    auto publication = exchange_->publish({kUp + std::to_string(step % kUpNames), step},
                                          std::move(buffer).freeze());
    if (!note("publish", publication.status())) return;
    if (told("fetch " + std::to_string(step), "good")) bytes_ += kUpBytes;
    Status ended = context_->wait_until([&] { return publication->ready(); }, limit());
    note("publication", ended);
  }

  void parcel(uint64_t step) {
    if (!told("send " + std::to_string(step) + " " + std::to_string(kParcelBytes), "sent")) return;
    auto got = endpoint_.receive_and_wait({.tag = kParcel}, room(kParcelBytes), limit());
    if (!note("parcel", got.status())) return;
    if (note("parcel", test::holds(got->buffer.bytes(), kParcelSeed + step),
             "other bytes came than were sent"))
      bytes_ += kParcelBytes;
  }

  void one_sided(uint64_t step) {
    uint64_t offset = step % 32 * kSidedBytes;
    Buffer from = room(kSidedBytes);
    test::fill(from.bytes(), step);
    began_ = now();
    if (!note("write",
              endpoint_.write_and_wait(key_, offset, std::move(from).freeze(), limit()).status()))
      return;
    auto read = endpoint_.read_and_wait(key_, offset, room(kSidedBytes), limit());
    if (!note("read", read.status())) return;
    if (note("read", test::holds(read->buffer.bytes(), step), "other bytes were read than written"))
      bytes_ += 2 * kSidedBytes;
  }

  // Somebody new must get in as well.
  void visit() {
    began_ = now();
    auto second = context_->connect(address_);
    if (note("a second connection", second.status())) note("its end", second->close(limit()));
  }

  void look_at_input() {
    pollfd wait{.fd = 0, .events = POLLIN, .revents = 0};
    while (!ended_ && ::poll(&wait, 1, 0) > 0) {
      char line[64] = {};
      ssize_t got = ::read(0, line, sizeof(line) - 1);
      std::string_view said(line, static_cast<size_t>(std::max<ssize_t>(got, 0)));
      if (said.starts_with("more ")) {
        due_ = rounds_ + std::strtoull(line + 5, nullptr, 10);
      } else if (said.starts_with("begin")) {
        bytes_ = longest_us_ = 0;
      } else if (said.starts_with("figures")) {
        print_figures();
      } else {
        ended_ = true;
      }
    }
  }

  int finish() {
    if (endpoint_ && failures_.empty()) {
      exchange_->remove(endpoint_);
      (void)endpoint_.close(limit());
    }
    print_figures();
    return failures_.empty() ? 0 : 1;
  }

  void print_figures() {
    std::cout << nlohmann::json{{"completed", completed_},
                                {"failed", failures_},
                                {"rounds", rounds_},
                                {"bytes", bytes_},
                                {"longest_us", longest_us_}}
                     .dump()
              << std::endl;
  }

  std::string address_, secret_;
  uint64_t first_step_;
  bool visits_;
  std::unique_ptr<Context> context_;
  std::optional<Exchange> exchange_;
  Endpoint endpoint_;
  RemoteKey key_;
  Instant began_ = now();
  uint64_t completed_ = 0, rounds_ = 0, due_ = 0, bytes_ = 0, longest_us_ = 0;
  std::vector<std::string> failures_;
  bool ended_ = false;
};

}  // namespace

int work(const std::string& address, const std::string& secret, uint64_t first_step, bool visits) {
  return Worker(address, secret, first_step, visits).run();
}

}  // namespace sluice::hostile
