// Two contexts on one thread that hand messages and tensors back and forth without any
// allocation or system call of their own: what is proven of them is proven of sluice.
#ifndef SLUICE_TESTS_PROOF_PING_PONG_H_
#define SLUICE_TESTS_PROOF_PING_PONG_H_

#include <memory>
#include <string>

#include <sluice/exchange/exchange.h>
#include <sluice/select/open.h>

namespace sluice::test {

// Keeps the last completion.
struct Last final : CompletionSink {
  void on_completion(Completion&& completion) noexcept override {
    value = std::move(completion);
    ++count;
  }
  Completion value;
  uint64_t count = 0;
};

class PingPong {
 public:
  // Errors leave ready() false.
  explicit PingPong(const std::string& address, const ContextOptions& options);
  ~PingPong();
  bool ready() const { return static_cast<bool>(near_) && static_cast<bool>(far_); }

  // One message of `size` bytes there and back. False: something failed.
  bool message_round(size_t size);
  // One tensor published here, fetched there (as a view, or a fresh tensor), given back.
  bool tensor_round();
  // As tensor_round(), into memory of the fetcher.
  bool placed_round();

 private:
  bool pass(Endpoint& from, Endpoint& to, Buffer& out, Buffer& in);
  template <typename Done>
  bool until(Done&& done);

  std::unique_ptr<Context> left_, right_;
  Listener listener_;
  Endpoint near_, far_;
  std::unique_ptr<Exchange> publisher_, fetcher_;
  Buffer here_, there_, weights_, place_;
  Last received_, sent_;
  uint64_t step_ = 0;
};

}  // namespace sluice::test

#endif  // SLUICE_TESTS_PROOF_PING_PONG_H_
