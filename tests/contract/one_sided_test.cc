// One-sided access: what a grant allows, to whom, for how long.
#include "tests/contract/pair.h"

#include <algorithm>
#include <cstring>

namespace sluice::test {
namespace {

constexpr size_t kLarge = 2'000'003;

RemoteKey grant(Pair& pair, const Buffer& memory, const GrantOptions& options) {
  auto key = pair.server.grant(memory, options);
  INFO(key.status().to_string());
  REQUIRE(key.ok());
  // As a program would pass it on.
  auto travelled = RemoteKey::decode(key->encode());
  REQUIRE(travelled.ok());
  return *travelled;
}

bool has(const Endpoint& endpoint, Capability capability) {
  return endpoint.info().path.capabilities.has(capability);
}

// Whether an access that ended with `code` was refused. Where frames are lost the device's answer
// can be among them, and the end of the connection is what is heard.
bool refused(const Endpoint& endpoint, Code code) {
  if (fabric_loses() && code != Code::kOk) return true;
  if (!path_is_direct() || has(endpoint, Capability::kRefusalsTold))
    return code == Code::kAccessDenied;
  return code == Code::kUnreachable || code == Code::kOutcomeUnknown;
}

TEST_CASE("a granted range is read, whole and in part, without a call at the target",
          "[contract][one-sided]") {
  NothingLeftBehind audit;
  Pair pair;
  Buffer memory = filled(*pair.server_context, kLarge, 3);
  RemoteKey key = grant(pair, memory, {});
  for (auto [offset, length] : std::vector<std::pair<uint64_t, size_t>>{
           {0, kLarge}, {0, 0}, {kLarge, 0}, {17, 100}, {5, 1'000'000}, {kLarge - 1, 1}}) {
    INFO(offset << "+" << length);
    auto got = pair.client.read_and_wait(key, offset, room(*pair.client_context, length), soon());
    INFO(got.status().to_string());
    REQUIRE(got.ok());
    CHECK(got->receipt.bytes == length);
    CHECK(std::equal(got->buffer.bytes().begin(), got->buffer.bytes().end(),
                     memory.bytes().begin() + static_cast<long>(offset)));
  }
}

TEST_CASE("few bytes are read and written right wherever they lie", "[contract][one-sided]") {
  NothingLeftBehind audit;
  Pair pair;
  Buffer memory = filled(*pair.server_context, 16384, 3);
  RemoteKey key = grant(pair, memory, {.rights = Right::kReadWrite});
  std::vector<std::byte> expected(memory.bytes().begin(), memory.bytes().end());
  // Around the ends of pages: of 4096 bytes, from wherever the memory begins.
  size_t page = 4096 - reinterpret_cast<uintptr_t>(memory.data()) % 4096;
  for (size_t length :
       {size_t{2}, size_t{7}, size_t{8}, size_t{31}, size_t{32}, size_t{33}, size_t{100}}) {
    for (size_t before : {size_t{1}, length / 2, length - 1}) {
      INFO(length << " bytes, " << before << " of them before the end of a page");
      size_t offset = page + 4096 - before;
      auto got = pair.client.read_and_wait(key, offset, room(*pair.client_context, length), soon());
      REQUIRE(got.ok());
      CHECK(std::equal(got->buffer.bytes().begin(), got->buffer.bytes().end(),
                       expected.begin() + static_cast<long>(offset)));
      // From memory that crosses a page as well.
      Buffer source = filled(*pair.client_context, 8192, length);
      size_t end = 4096 - reinterpret_cast<uintptr_t>(source.data()) % 4096;
      auto from = std::move(source).freeze().slice_bytes(end - before, length);
      REQUIRE(from.ok());
      REQUIRE(pair.client.write_and_wait(key, offset, *from, soon()).ok());
      std::copy(from->bytes().begin(), from->bytes().end(),
                expected.begin() + static_cast<long>(offset));
      CHECK(std::equal(expected.begin(), expected.end(), memory.bytes().begin()));
    }
  }
}

TEST_CASE("a granted range is written, and only where it was said", "[contract][one-sided]") {
  NothingLeftBehind audit;
  Pair pair;
  Buffer memory = filled(*pair.server_context, kLarge, 3);
  RemoteKey key = grant(pair, memory, {.rights = Right::kReadWrite});
  std::vector<std::byte> expected(memory.bytes().begin(), memory.bytes().end());
  for (auto [offset, length] : std::vector<std::pair<uint64_t, size_t>>{
           {0, 0}, {9, 50}, {1000, 1'500'000}, {kLarge - 3, 3}}) {
    INFO(offset << "+" << length);
    Tensor from = tensor(*pair.client_context, length, length);
    std::copy(from.bytes().begin(), from.bytes().end(),
              expected.begin() + static_cast<long>(offset));
    auto written = pair.client.write_and_wait(key, offset, from, soon());
    INFO(written.status().to_string());
    REQUIRE(written.ok());
    CHECK(written->bytes == length);
    CHECK(std::equal(expected.begin(), expected.end(), memory.bytes().begin()));
  }
}

// A device that is asked for what it may not do breaks the connection with its refusal; SLP,
// in the place of a device, does not.
void denied_by_device(const std::function<void(RemoteKey&)>& forge, bool write) {
  Pair pair;
  Buffer memory = filled(*pair.server_context, 4096, 3);
  Buffer beside = filled(*pair.server_context, 4096, 4);
  RemoteKey key = grant(pair, memory, {.rights = write ? Right::kRead : Right::kWrite});
  key.rights = Right::kAll;
  forge(key);
  INFO((write ? "write" : "read") << " at " << key.address << " by " << key.device_key);
  Code code =
      write
          ? pair.client.write_and_wait(key, 0, tensor(*pair.client_context, 4096, 9), soon()).code()
          : pair.client.read_and_wait(key, 0, room(*pair.client_context, 4096), soon()).code();
  CHECK(refused(pair.client, code));
  CHECK(holds(memory.bytes(), 3));
  CHECK(holds(beside.bytes(), 4));
  if (path_has_device()) {
    CHECK(pair.until([&] {
      return pair.client.state() == EndpointState::kClosed &&
             pair.server.state() == EndpointState::kClosed;
    }));
    return;
  }
  RemoteKey good = grant(pair, memory, {.rights = Right::kReadWrite});
  auto read = pair.client.read_and_wait(good, 0, room(*pair.client_context, 4096), soon());
  REQUIRE(read.ok());
  CHECK(holds(read->buffer.bytes(), 3));
  CHECK(pair.server.state() == EndpointState::kConnected);
}

TEST_CASE("what a grant does not allow is denied and leaves the memory alone",
          "[contract][one-sided]") {
  NothingLeftBehind audit;
  if (path_is_direct()) {
    denied_by_device([](RemoteKey&) {}, true);
    if (Pair pair; has(pair.client, Capability::kReadRights))
      denied_by_device([](RemoteKey&) {}, false);
    denied_by_device(
        [](RemoteKey& key) {
          key = {.length = 4096,
                 .address = key.address + 1,
                 .device_key = key.device_key,
                 .rights = Right::kAll};
        },
        false);
    denied_by_device([](RemoteKey& key) { key.device_key ^= 0x100; }, true);
    denied_by_device([](RemoteKey& key) { key.device_key ^= 1; }, true);
    denied_by_device([](RemoteKey& key) { key.address -= 4096; }, true);
    return;
  }
  Pair pair;
  for (size_t size : {size_t{64}, kLarge}) {
    INFO(size << " bytes");
    Buffer memory = filled(*pair.server_context, size, 3);
    RemoteKey read_only = grant(pair, memory, {.rights = Right::kRead});
    RemoteKey write_only = grant(pair, memory, {.rights = Right::kWrite});
    CHECK(pair.client.write_and_wait(read_only, 0, tensor(*pair.client_context, size, 9), soon())
              .code() == Code::kAccessDenied);
    CHECK(
        pair.client.read_and_wait(write_only, 0, room(*pair.client_context, size), soon()).code() ==
        Code::kAccessDenied);
    // Beyond the range: by the key's own length, and by a length that was made up.
    CHECK(
        pair.client.read_and_wait(read_only, 1, room(*pair.client_context, size), soon()).code() ==
        Code::kAccessDenied);
    RemoteKey forged = read_only;
    forged.length = size * 2;
    CHECK(pair.client.read_and_wait(forged, 1, room(*pair.client_context, size), soon()).code() ==
          Code::kAccessDenied);
    CHECK(pair.client.read_and_wait(forged, ~uint64_t{0}, room(*pair.client_context, 2), soon())
              .code() == Code::kAccessDenied);
    forged = write_only;
    forged.epoch ^= 1;
    CHECK(pair.client.write_and_wait(forged, 0, tensor(*pair.client_context, size, 9), soon())
              .code() == Code::kAccessDenied);
    forged = write_only;
    forged.grant += 1000;
    CHECK(pair.client.write_and_wait(forged, 0, tensor(*pair.client_context, size, 9), soon())
              .code() == Code::kAccessDenied);
    CHECK(holds(memory.bytes(), 3));
  }
  CHECK(pair.client.state() == EndpointState::kConnected);
}

TEST_CASE("a key is void on every connection but its own", "[contract][one-sided]") {
  NothingLeftBehind audit;
  Pair pair;
  auto [other_client, other_server] = pair.connect_again();
  Buffer memory = filled(*pair.server_context, 1000, 3);
  RemoteKey key = grant(pair, memory, {.rights = Right::kReadWrite});
  // The other connection has a grant with the same number, for other memory.
  Buffer theirs = filled(*pair.server_context, 1000, 4);
  auto other_key = other_server.grant(theirs, {.rights = Right::kReadWrite});
  REQUIRE(other_key.ok());
  if (path_is_direct() && !has(pair.client, Capability::kKeysOfConnection)) {
    // Of the context's connections; those of other contexts are strangers.
    Pair stranger;
    CHECK(refused(
        stranger.client,
        stranger.client.write_and_wait(key, 0, tensor(*stranger.client_context, 1000, 9), soon())
            .code()));
    CHECK(holds(memory.bytes(), 3));
    CHECK(stranger.until([&] { return stranger.server.state() == EndpointState::kClosed; }));
    CHECK(other_client.write_and_wait(key, 0, tensor(*pair.client_context, 1000, 9), soon()).ok());
    CHECK(holds(memory.bytes(), 9));
    return;
  }
  if (path_is_direct()) {
    CHECK(
        other_client.write_and_wait(key, 0, tensor(*pair.client_context, 1000, 9), soon()).code() ==
        Code::kAccessDenied);
    CHECK(holds(memory.bytes(), 3));
    CHECK(pair.client.state() == EndpointState::kConnected);
    if (path_has_device()) {
      CHECK(pair.until([&] { return other_server.state() == EndpointState::kClosed; }));
      return;
    }
    CHECK(other_client.write_and_wait(*other_key, 0, tensor(*pair.client_context, 1000, 8), soon())
              .ok());
    CHECK(holds(theirs.bytes(), 8));
    return;
  }
  auto read = other_client.read_and_wait(key, 0, room(*pair.client_context, 1000), soon());
  if (read.ok()) CHECK(holds(read->buffer.bytes(), 4));  // never the memory of the first grant
  REQUIRE(other_server.revoke(*other_key).ok());
  CHECK(other_client.read_and_wait(key, 0, room(*pair.client_context, 1000), soon()).code() ==
        Code::kAccessDenied);
  CHECK(other_client.write_and_wait(key, 0, tensor(*pair.client_context, 1000, 9), soon()).code() ==
        Code::kAccessDenied);
  CHECK(holds(memory.bytes(), 3));
  REQUIRE(other_client.close(soon()).ok());
  REQUIRE(other_server.close(soon()).ok());
}

TEST_CASE("after revoke nothing reads or writes through the key, also what was under way",
          "[contract][one-sided]") {
  NothingLeftBehind audit;
  Pair pair;
  Box& box = pair.box();
  constexpr size_t size = size_t{40} << 20;
  Buffer memory = filled(*pair.server_context, size, 3);
  RemoteKey key = grant(pair, memory, {.rights = Right::kReadWrite});
  auto write = pair.client.write(key, 0, tensor(*pair.client_context, size, 9), box.options());
  REQUIRE(write.ok());
  // Until the target has begun, or for some rounds.
  for (int i = 0; i < 200 && pair.server.counters().messages_received == 0; ++i)
    pair.client_context->progress();
  REQUIRE(pair.server.revoke(key).ok());
  std::vector<std::byte> as_left(memory.bytes().begin(), memory.bytes().end());
  Completion& ended = pair.wait(box, *write);
  INFO(ended.status.to_string());
  // A device may have written all of it by then.
  CHECK((refused(pair.client, ended.status.code()) || (path_is_direct() && ended.status.ok())));
  pair.settle();
  CHECK(std::equal(as_left.begin(), as_left.end(), memory.bytes().begin()));
  // Where a device refused the write, the connection has ended with that.
  Code after = pair.client.read_and_wait(key, 0, room(*pair.client_context, 8), soon()).code();
  CHECK((refused(pair.client, after) || (path_is_direct() && after == Code::kWrongState)));
  CHECK(pair.server.revoke(key).code() == Code::kInvalidArgument);
}

TEST_CASE("a grant is void after its deadline", "[contract][one-sided]") {
  NothingLeftBehind audit;
  Pair pair;
  Buffer memory = filled(*pair.server_context, 100, 3);
  Instant deadline = in(60ms);
  RemoteKey key = grant(pair, memory, {.rights = Right::kReadWrite, .deadline = deadline});
  auto early = pair.client.read_and_wait(key, 0, room(*pair.client_context, 100), soon());
  if (now() < deadline) CHECK(early.ok());
  while (now() <= deadline) {}
  pair.server_context->refresh_now();
  // A device does not look at the clock: the target's progress closes the window.
  while (path_is_direct() && pair.server_context->progress() > 0) {}
  CHECK(refused(
      pair.client,
      pair.client.write_and_wait(key, 0, tensor(*pair.client_context, 100, 9), soon()).code()));
  CHECK(holds(memory.bytes(), 3));
}

TEST_CASE("a tensor can be granted for reading only, and nothing empty can",
          "[contract][one-sided]") {
  NothingLeftBehind audit;
  Pair pair;
  Tensor fixed = tensor(*pair.server_context, 500, 3);
  CHECK(pair.server.grant(fixed, {.rights = Right::kReadWrite}).code() == Code::kInvalidArgument);
  CHECK(pair.server.grant(Buffer(), {}).code() == Code::kInvalidArgument);
  auto key = pair.server.grant(fixed);
  REQUIRE(key.ok());
  auto got = pair.client.read_and_wait(*key, 100, room(*pair.client_context, 400), soon());
  REQUIRE(got.ok());
  CHECK(std::equal(got->buffer.bytes().begin(), got->buffer.bytes().end(),
                   fixed.bytes().begin() + 100));
}

TEST_CASE("granted memory stays while the grant does and goes with the connection",
          "[contract][one-sided]") {
  NothingLeftBehind audit;
  Pair pair;
  RemoteKey key = grant(pair, filled(*pair.server_context, 5000, 3), {});
  auto got = pair.client.read_and_wait(key, 0, room(*pair.client_context, 5000), soon());
  REQUIRE(got.ok());
  CHECK(holds(got->buffer.bytes(), 3));
  // ~Pair: nothing of the server's arena is out once the endpoint is closed.
}

TEST_CASE("many reads and writes of one range under way at once all end", "[contract][one-sided]") {
  NothingLeftBehind audit;
  Pair pair;
  Box& box = pair.box();
  constexpr size_t kPart = 50'000;
  Buffer memory = filled(*pair.server_context, kPart * 20, 3);
  RemoteKey key = grant(pair, memory, {.rights = Right::kReadWrite});
  for (uint64_t i = 0; i < 20; ++i) {
    REQUIRE(pair.client.write(key, i * kPart, tensor(*pair.client_context, kPart, i), box.options())
                .ok());
    REQUIRE(
        pair.client.read(key, i * kPart, room(*pair.client_context, kPart), box.options(i)).ok());
  }
  REQUIRE(pair.until([&] { return box.all.size() == 40; }));
  for (Completion& completion : box.all) CHECK(completion.status.ok());
  for (uint64_t i = 0; i < 20; ++i) CHECK(holds(memory.bytes().subspan(i * kPart, kPart), i));
}

}  // namespace
}  // namespace sluice::test
