#include <catch2/catch.hpp>

#include <sys/syscall.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "tests/support/skip.h"
#include "tools/perf/run/system_calls.h"

namespace sluice::tools {
namespace {

void call(int times) {
  for (int i = 0; i < times; ++i) (void)::syscall(SYS_getppid);
}

TEST_CASE(
    "system calls are counted one by one, of threads that there were and of those that they start",
    "[system_calls]") {
  std::promise<void> begin, done;
  std::thread early([&, ready = begin.get_future()] {
    ready.wait();
    call(1000);
    done.set_value();
  });
  auto counter = SystemCallCounter::open();
  if (!counter.ok()) {
    begin.set_value();
    early.join();
    CHECK(counter.status().code() == Code::kUnsupported);
    return test::skip("tracepoints", counter.status().detail());
  }
  counter->start();
  CHECK(counter->stop() == 0);
  counter->start();
  call(777);
  CHECK(counter->stop() == 777);

  counter->start();
  begin.set_value();
  done.get_future().wait();
  std::thread late([] { call(2000); });
  late.join();
  uint64_t counted = counter->stop();
  early.join();
  // What waking, starting and joining threads take is the library's business.
  CHECK(counted >= 3000);
  CHECK(counted < 3200);
}

}  // namespace
}  // namespace sluice::tools
