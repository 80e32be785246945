// The library over the module: programs in two namespaces that know kmod:// addresses only.
#include <catch2/catch.hpp>

#include <chrono>
#include <cstring>
#include <future>
#include <thread>

#include <sluice/select/open.h>

#include "tests/module/wire.h"

namespace sluice::module_test {
namespace {

using namespace std::chrono_literals;

Instant soon() { return after(now(), 20s); }

void fill(Buffer& buffer, unsigned seed) {
  auto bytes = buffer.bytes();
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>((i * 2654435761u + seed) >> 13);
}

bool holds(std::span<const std::byte> bytes, unsigned seed) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != static_cast<std::byte>((i * 2654435761u + seed) >> 13)) return false;
  }
  return true;
}

std::unique_ptr<Context> small_context() {
  auto context = open_context({.arena = {}, .arena_options = {.limit_bytes = 64 << 20, .first_extent_bytes = 4 << 20}, .waiting = Waiting::kAdaptive});
  if (!context.ok()) throw std::runtime_error(context.status().to_string());
  return std::move(context).value();
}

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
  Status serve(const std::string& address, const std::vector<size_t>& sizes) {
    auto context = small_context();
    SLUICE_TRY(Listener listener, context->listen(address));
    told_ = true;
    listening_.set_value(listener.address());
    SLUICE_TRY(Endpoint peer, listener.accept(soon()));
    for (size_t size : sizes) {
      SLUICE_TRY(Buffer room, context->allocate({static_cast<int64_t>(size)}, uint8));
      SLUICE_TRY(Endpoint::Received got, peer.receive_and_wait({.tag = 1}, std::move(room), soon()));
      last_ = got.receipt;
      SLUICE_RETURN_IF_ERROR(peer.send_and_wait(2, std::move(got.buffer).freeze(), soon()).status());
    }
    return peer.close(soon());
  }

  std::promise<std::string> listening_;
  std::atomic<bool> told_ = false;
  Status outcome_;
  Receipt last_;
  std::thread thread_;
};

// The listener's own address, as the other end of the wire sees it: both ends have one name.
struct Sent {
  Receipt out, in;
};
Sent exchange(Context& context, Endpoint& server, size_t size, unsigned seed) {
  auto buffer = context.allocate({static_cast<int64_t>(size)}, uint8);
  REQUIRE(buffer.ok());
  fill(*buffer, seed);
  auto sent = server.send_and_wait(1, std::move(*buffer).freeze(), soon());
  INFO(sent.status().to_string());
  REQUIRE(sent.ok());
  auto room = context.allocate({static_cast<int64_t>(size)}, uint8);
  REQUIRE(room.ok());
  auto got = server.receive_and_wait({.tag = 2}, std::move(*room), soon());
  INFO(got.status().to_string());
  REQUIRE(got.ok());
  CHECK(holds(got->buffer.bytes(), seed));
  return {.out = *sent, .in = got->receipt};
}

TEST_CASE("small and large messages cross by the module, and the receipts say who copied") {
  constexpr size_t kSmall = 1000, kLarge = (3 << 20) + 5;
  Module module;
  Wire wire;
  Echo echo(wire, "kmod://end0:7000", {kSmall, kLarge});
  std::string address = echo.address();
  INFO(address);
  wire.a.space.run([&] {
    auto context = small_context();
    auto server = context->connect(address);
    INFO(server.status().to_string());
    REQUIRE(server.ok());
    Sent small = exchange(*context, *server, kSmall, 1);
    CHECK(small.out.path == Path::kModule);
    CHECK(small.out.copied_bytes == 0);
    CHECK(small.out.kernel_copied_bytes == 3 * kSmall);
    // Once more if it came before it was asked for.
    CHECK((small.in.copied_bytes == kSmall || small.in.copied_bytes == 2 * kSmall));
    CHECK(small.in.kernel_copied_bytes == 3 * kSmall);
    uint64_t in_before = counter(wire.a.space, "bytes_copied_in"), out_before = counter(wire.a.space, "bytes_copied_out");
    Sent large = exchange(*context, *server, kLarge, 2);
    for (const Receipt& receipt : {large.out, large.in}) {
      CHECK(receipt.copied_bytes == 0);
      CHECK(receipt.kernel_copied_bytes == kLarge);
    }
    // The kernel's own count agrees, but for control messages.
    CHECK(counter(wire.a.space, "bytes_copied_in") - in_before < kLarge + kLarge / 10);
    CHECK(counter(wire.a.space, "bytes_copied_out") - out_before < kLarge + kLarge / 10);
    CHECK(server->close(soon()).ok());
  });
  Status served = echo.wait();
  INFO(served.to_string());
  CHECK(served.ok());
}

TEST_CASE("a program without the module's path that listens by packet sockets answers one that has it") {
  Module module;
  Wire wire;
  Echo echo(wire, "l2://end0:7000", {500, 300'000});
  std::string address = echo.address();
  INFO(address);
  REQUIRE(address.starts_with("l2://"));
  wire.a.space.run([&] {
    auto context = small_context();
    auto server = context->connect("kmod" + address.substr(2));
    INFO(server.status().to_string());
    REQUIRE(server.ok());
    exchange(*context, *server, 500, 1);
    exchange(*context, *server, 300'000, 2);
    CHECK(server->close(soon()).ok());
  });
  Status served = echo.wait();
  INFO(served.to_string());
  CHECK(served.ok());
}

TEST_CASE("without the module, and where it keeps strangers out, the error says what to do") {
  auto context = small_context();
  auto absent = context->connect("kmod://lo/02:00:00:00:00:0b:7");
  CHECK(absent.status() == Code::kUnsupported);
  CHECK(absent.status().detail().find("modprobe sluice") != std::string_view::npos);
  CHECK(context->listen("kmod://lo:7000").status() == Code::kUnsupported);
  auto module_report = [] {
    for (const PathReport& report : explain_paths()) {
      if (report.path == Path::kModule) return report;
    }
    return PathReport{};
  };
  CHECK_FALSE(module_report().usable);
  CHECK(module_report().why.find("modprobe") != std::string::npos);

  // Of another number: found by what the module says of itself.
  Module module("family=27");
  CHECK(module_report().usable);
  auto nowhere = context->connect("kmod://none/02:00:00:00:00:0b:7");
  CHECK(nowhere.status() == Code::kInvalidArgument);
  CHECK(nowhere.status().detail().find("no interface") != std::string_view::npos);
  CHECK(context->listen("kmod://lo:7000").status() == Code::kUnsupported);  // no Ethernet
}

}  // namespace
}  // namespace sluice::module_test
