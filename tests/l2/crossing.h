// Two contexts on one thread with a wire between them, and all that is to cross it. Knows no
// carrier: addresses say which.
#ifndef SLUICE_TESTS_L2_CROSSING_H_
#define SLUICE_TESTS_L2_CROSSING_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sluice/api/context.h>

namespace sluice::test {

// A command of the shell; its complaints are dropped.
bool run(const std::string& command);

inline Instant soon() { return after(now(), std::chrono::seconds(20)); }

struct Box final : CompletionSink {
  void on_completion(Completion&& completion) noexcept override { all.push_back(std::move(completion)); }
  std::vector<Completion> all;
};

class Crossing {
 public:
  Crossing();
  ~Crossing();
  // Called around everything that the far side does; for namespaces.
  std::function<void()> enter_far = [] {}, enter_near = [] {};
  void listen(const std::string& address);   // the far side
  void connect(const std::string& address);  // the near side, then the far side accepts
  bool until(const std::function<bool()>& done) { return near->wait_until(done, soon()).ok(); }

  std::unique_ptr<Context> near, far;
  Listener listener;
  Endpoint client, server;

 private:
  class Other final : public ProgressHook {
   public:
    explicit Other(Crossing& owner) : owner_(owner) {}
    size_t progress(Instant) override;
    Instant next_timeout() override { return kNever; }

   private:
    Crossing& owner_;
  };
  Other hook_{*this};
};

Buffer filled(Context& context, size_t size, uint8_t seed);
bool same(std::span<const std::byte> a, std::span<const std::byte> b);

// One message each way, with its receipts.
void exchange(Crossing& two, size_t size, Path path);
// Messages of many sizes, reads and writes.
void everything(Crossing& two, Path path);

}  // namespace sluice::test

#endif  // SLUICE_TESTS_L2_CROSSING_H_
