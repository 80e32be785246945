// The library over the module, in tests: contexts, and an echo in the other namespace.
#ifndef SLUICE_TESTS_MODULE_CARRIER_H_
#define SLUICE_TESTS_MODULE_CARRIER_H_

#include <atomic>
#include <cstddef>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <sluice/select/open.h>

#include "tests/module/wire.h"

namespace sluice::module_test {

Instant soon();

// Errors: throws.
std::unique_ptr<Context> small_context();

// In the other namespace: takes a message of each size and sends it back.
class Echo {
 public:
  Echo(const Wire& wire, const std::string& address, std::vector<size_t> sizes)
      : thread_([this, &wire, address, sizes = std::move(sizes)] {
          wire.b.space.run([&] { outcome_ = serve(address, sizes); });
          if (!outcome_.ok() && !told_) listening_.set_value(outcome_.to_string());
        }) {}
  ~Echo() { thread_.join(); }
  std::string address() { return listening_.get_future().get(); }
  Status wait() {
    thread_.join();
    thread_ = std::thread([] {});
    return outcome_;
  }
  Receipt last() const { return last_; }

 private:
  Status serve(const std::string& address, const std::vector<size_t>& sizes);

  std::promise<std::string> listening_;
  std::atomic<bool> told_ = false;
  Status outcome_;
  Receipt last_;
  std::thread thread_;
};

// The receipts of a message and of its echo.
struct Sent {
  Receipt out, in;
};
// Sends `size` bytes to an Echo and checks what comes back.
Sent exchange(Context& context, Endpoint& server, size_t size, unsigned seed);

}  // namespace sluice::module_test

#endif  // SLUICE_TESTS_MODULE_CARRIER_H_
