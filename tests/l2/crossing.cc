#include "tests/l2/crossing.h"

#include <algorithm>
#include <cstdlib>

#include <catch2/catch.hpp>

#include <sluice/select/open.h>

namespace sluice::test {

bool run(const std::string& command) { return std::system(("PATH=$PATH:/usr/sbin:/sbin " + command + " 2>/dev/null").c_str()) == 0; }

Crossing::Crossing() {
  near = std::move(open_context({.arena = {}, .arena_options = {}, .waiting = Waiting::kSpin})).value();
  far = std::move(open_context({.arena = {}, .arena_options = {}, .waiting = Waiting::kSpin})).value();
  near->add_hook(&hook_);
}

Crossing::~Crossing() { near->remove_hook(&hook_); }

size_t Crossing::Other::progress(Instant) {
  owner_.enter_far();
  size_t work = owner_.far->progress();
  owner_.enter_near();
  return work;
}

void Crossing::listen(const std::string& address) {
  enter_far();
  auto listening = far->listen(address);
  enter_near();
  INFO(listening.status().to_string());
  REQUIRE(listening.ok());
  listener = std::move(listening).value();
}

void Crossing::connect(const std::string& address) {
  auto connected = near->connect(address);
  INFO(connected.status().to_string());
  REQUIRE(connected.ok());
  client = std::move(connected).value();
  REQUIRE(until([&] {
    auto accepted = listener.try_accept();
    if (accepted.ok()) server = std::move(accepted).value();
    return accepted.ok();
  }));
}

Buffer filled(Context& context, size_t size, uint8_t seed) {
  Buffer buffer = std::move(context.allocate({static_cast<int64_t>(size)}, uint8)).value();
  for (size_t i = 0; i < size; ++i) buffer.bytes()[i] = static_cast<std::byte>(i * 7 + i / 251 + seed);
  return buffer;
}

bool same(std::span<const std::byte> a, std::span<const std::byte> b) { return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin()); }

// One message each way; the receipts of the receiver.
void exchange(Crossing& two, size_t size, Path path) {
  for (bool forth : {true, false}) {
    INFO(size << " bytes " << (forth ? "forth" : "back"));
    Context &from = forth ? *two.near : *two.far, &to = forth ? *two.far : *two.near;
    Box box, sent;
    Buffer into = std::move(to.allocate({static_cast<int64_t>(size)}, uint8)).value();
    REQUIRE((forth ? two.server : two.client).receive({.tag = 5}, std::move(into), {.sink = &box, .deadline = soon()}).ok());
    Tensor tensor = filled(from, size, 3).freeze();
    REQUIRE((forth ? two.client : two.server).send(5, tensor, {.sink = &sent, .deadline = soon(), .level = Level::kPlaced}).ok());
    REQUIRE(two.until([&] { return box.all.size() + sent.all.size() == 2; }));
    INFO(box.all[0].status.to_string() << sent.all[0].status.to_string());
    REQUIRE(box.all[0].status.ok());
    REQUIRE(sent.all[0].status.ok());
    CHECK(same(box.all[0].buffers[0].bytes(), tensor.bytes()));
    CHECK(box.all[0].receipt.path == path);
    CHECK(box.all[0].receipt.copied_bytes == size);
    CHECK(box.all[0].receipt.kernel_copied_bytes == size);
    if (size > 4096) CHECK(sent.all[0].receipt.copied_bytes == 0);
  }
}

void everything(Crossing& two, Path path) {
  for (size_t size : {size_t{1}, size_t{64}, size_t{4096}, size_t{4097}, size_t{300'000}, size_t{8} << 20}) exchange(two, size, path);
  Buffer memory = filled(*two.far, 1 << 20, 9);
  auto key = two.server.grant(memory, {.rights = Right::kReadWrite});
  REQUIRE(key.ok());
  auto got = two.client.read_and_wait(*key, 1000, std::move(two.near->allocate({100'000}, uint8)).value(), soon());
  REQUIRE(got.ok());
  CHECK(same(got->buffer.bytes(), memory.bytes().subspan(1000, 100'000)));
  Tensor news = filled(*two.near, 500'000, 1).freeze();
  REQUIRE(two.client.write_and_wait(*key, 17, Tensor(news), soon()).ok());
  CHECK(same(memory.bytes().subspan(17, 500'000), news.bytes()));
}

}  // namespace sluice::test
