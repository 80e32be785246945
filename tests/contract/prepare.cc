// What the first RDMA connection of a process opens for good (librdmacm keeps each device)
// is open before the first audit.
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include "tests/contract/pair.h"

#include <sluice/select/open.h>

namespace sluice::test {
namespace {

struct Prepare final : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;
  void testRunStarting(const Catch::TestRunInfo&) override {
    if (!path_is_direct()) return;
    (void)fake_device_under_test();
    auto near = open_context(), far = open_context();
    if (!near.ok() || !far.ok()) return;
    auto listener = (*far)->listen(fresh_address());
    if (listener.ok()) (void)connect_to(**near, **far, listener->address());
  }
};
CATCH_REGISTER_LISTENER(Prepare)

}  // namespace
}  // namespace sluice::test
