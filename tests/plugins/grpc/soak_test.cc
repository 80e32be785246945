// Many short calls over the bridge leave nothing behind: no memory, no descriptors, no threads. Ten
// thousand by default; SLUICE_GRPC_ROUNDS says how many thousands. And a channel outlives its
// numbers of calls.
#include <malloc.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

#include <catch2/catch.hpp>

#include <sluice/base/clock.h>
#include <sluice/base/counters.h>
#include <sluice/grpc/client_link.h>

#include "tests/plugins/grpc/service.h"

namespace sluice::test {
namespace {

using ::grpc::ClientContext;

int rounds() {
  const char* text = std::getenv("SLUICE_GRPC_ROUNDS");
  return text == nullptr ? 10 : std::atoi(text);
}

struct Held {
  size_t heap_bytes, descriptors, threads;
};

size_t entries(const char* folder) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

Held held() {
  const struct mallinfo2 heap = ::mallinfo2();
  return {heap.uordblks + heap.hblkhd, entries("/proc/self/fd"), entries("/proc/self/task")};
}

// A thousand short calls, and some of each other kind.
void make_calls(interop::TestService::Stub& stub) {
  for (int i = 0; i < 1000; ++i) {
    ClientContext context;
    interop::SimpleRequest request;
    interop::SimpleResponse response;
    request.set_echo(true);
    request.mutable_payload()->set_body(std::string(i % 100 == 99 ? 100'000 : 100, 's'));
    REQUIRE(stub.UnaryCall(&context, request, &response).ok());
    REQUIRE(response.payload().body().size() == request.payload().body().size());
  }
  for (int i = 0; i < 20; ++i) {
    ClientContext context;
    auto stream = stub.FullDuplexCall(&context);
    interop::StreamingOutputCallRequest request;
    request.add_response_parameters()->set_size(i * 5000);
    interop::StreamingOutputCallResponse response;
    REQUIRE(stream->Write(request));
    REQUIRE(stream->Read(&response));
    if (i % 2 == 0) {
      context.TryCancel();
      REQUIRE(stream->Finish().error_code() == ::grpc::StatusCode::CANCELLED);
    } else {
      REQUIRE(stream->WritesDone());
      REQUIRE(stream->Finish().ok());
    }
  }
}

}  // namespace

TEST_CASE("ten thousand short calls leave nothing behind", "[grpc][soak]") {
  const By by = GENERATE(By::kShm, By::kTcp);
  InteropServer server(by);
  auto stub = server.stub();
  // What is kept for good, such as caches of gRPC's and of the allocator's, is there after these.
  for (int round = 0; round < 3; ++round) make_calls(*stub);
  REQUIRE(server.service().becomes_idle());
  const Held before = held();
  const int all = rounds();
  for (int round = 0; round < all; ++round) make_calls(*stub);
  REQUIRE(server.service().becomes_idle());
  const Held after = held();
  INFO("rounds " << all << ", heap " << before.heap_bytes << " to " << after.heap_bytes);
  // Fifty bytes of each of ten thousand calls: less than any object of a call's. No more for more.
  CHECK(after.heap_bytes < before.heap_bytes + (512 << 10));
  CHECK(after.descriptors <= before.descriptors + 4);
  CHECK(after.threads <= before.threads + 16);  // gRPC starts and ends its own as it likes
}

// A channel may make more calls than there are stream numbers.
TEST_CASE("a channel whose numbers of calls run out takes another connection", "[grpc][soak]") {
  struct Restored {
    std::atomic<uint32_t>& limit = grpc::ClientLink::streams_by_connection;
    const uint32_t usual = limit.exchange(5);
    ~Restored() { limit = usual; }
  } restored;
  InteropServer server(GENERATE(By::kShm, By::kTcp));
  auto stub = server.stub();
  const uint64_t before = read_counter("grpc.calls_bridged");
  const auto bridged = [&] { return read_counter("grpc.calls_bridged") - before; };
  for (const Instant end = after(now(), std::chrono::seconds(30)); bridged() < 12 && now() < end;) {
    ClientContext context;
    interop::Empty request, response;
    REQUIRE(stub->EmptyCall(&context, request, &response).ok());
  }
  CHECK(bridged() >= 12);
}

}  // namespace sluice::test
