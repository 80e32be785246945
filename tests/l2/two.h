// Two contexts at the two ends of a cable, or of a bad network, on one thread: whoever waits
// on the near one also runs the far one and what lies between them.
#ifndef SLUICE_TESTS_L2_TWO_H_
#define SLUICE_TESTS_L2_TWO_H_

#include <catch2/catch.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sluice/api/context.h>

#include "tests/l2/relay.h"
#include "tests/l2/wire.h"
#include "tests/support/pattern.h"

namespace sluice::test {

Instant soon();  // a minute: under a sanitizer, on a bad network
inline Instant in(Duration d) { return after(now(), d); }

Buffer filled(Context& context, size_t size, uint64_t seed);

struct Box final : CompletionSink {
  void on_completion(Completion&& completion) noexcept override {
    all.push_back(std::move(completion));
  }
  std::vector<Completion> all;
};

struct TwoOptions {
  std::string near = "left", far = "right";
  Relay* relay = nullptr;
  // Where the far interface is, if not here.
  const OtherNode* node = nullptr;
  // Also when it runs, not only when it opens its sockets.
  bool far_runs_there = false;
  // Where the far one listens; empty: at any port of its interface.
  std::string listen_at = {};
  // Where the near one finds it that listens at an address; empty: by the near interface.
  std::function<std::string(Context& near, const std::string& listening)> way = {};
};

class Two {
 public:
  explicit Two(const TwoOptions& options = {});
  ~Two();
  Two(const Two&) = delete;
  Two& operator=(const Two&) = delete;

  // Another connection between the two: {near end, far end}.
  std::pair<Endpoint, Endpoint> connect_again();
  bool until(const std::function<bool()>& done, Instant deadline = soon());
  // Both sides run for so long.
  void pass(Duration time) {
    (void)until([] { return false; }, in(time));
  }
  // From now on the far one does not run, as if its process were stopped.
  void freeze_far(bool frozen) { hook_.frozen = frozen; }

  // One message each way, compared byte for byte, and its receipts if a path is said.
  void exchange_messages(size_t size, std::optional<Path> path = {});
  // Messages of all kinds of sizes, a read and a write.
  void exchange_everything(Path path);
  // The same on a connection of its own, from its HELLO to its BYE.
  void exchange_anew();
  // Fetches with and without a destination, reads and writes, of `size` bytes.
  void exchange_tensors(size_t size);
  // The near end says BYE; the far one hears it.
  void say_goodbye();

  std::unique_ptr<Context> near, far;
  Listener listener;
  std::string address;  // as the near one connects to it
  Endpoint client, server;

 private:
  class Hook final : public ProgressHook {
   public:
    size_t progress(Instant now) override;
    Instant next_timeout() override { return kNever; }
    Context* other = nullptr;
    Relay* relay = nullptr;
    const OtherNode* node = nullptr;
    bool frozen = false;
  };
  Hook hook_;
  void exchange(Endpoint& near_end, Endpoint& far_end, size_t size, std::optional<Path> path);
  uint64_t step_ = 0;
};

// Of the environment, for as long as this lives.
class Setting {
 public:
  Setting(const char* name, const std::string& value);
  ~Setting();
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* name_;
};

// How much a counter has grown since this was made.
class Grown {
 public:
  Grown();
  uint64_t operator()(std::string_view name) const;
  // All that have grown, for INFO().
  std::string story(std::string_view prefix) const;

 private:
  std::vector<std::pair<std::string_view, uint64_t>> before_;
};

}  // namespace sluice::test

#endif  // SLUICE_TESTS_L2_TWO_H_
