// What a recorder sees of a device's writes: one message for all pieces of one, and no memory for
// those that have ended.
#include <sluice/recording/links.h>

#include <catch2/catch.hpp>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "tests/profile/recordings.h"
#include "tests/proto/direct_link.h"

namespace sluice {
namespace {

using recording::Event;
using recording::EventKind;
using recording::RecordedDeviceLink;

struct NoTransfer final : DeviceClient {
  void transfer_done(uint64_t, uint64_t, const Status&, Instant) override { ++done; }
  Status arrived(uint32_t, Instant) override { return Status(); }
  void window_closed(uint64_t, Instant) override {}
  uint64_t done = 0;
};

struct Writing {
  Writing() {
    recording::FileHeader header = test::header_of_test();
    header.started_ns = static_cast<uint64_t>(now().time_since_epoch().count());
    auto file = recording::File::open(folder.path, header, 1);
    REQUIRE(file.ok());
    recorder = std::make_shared<recording::Recorder>(std::move(*file), 0, 1000);
    device = new test::DirectLink;
    std::unique_ptr<DeviceLink> inner(device);
    link.reset(static_cast<RecordedDeviceLink*>(recorder->decorate(std::move(inner)).release()));
    link->set_client(nullptr, &transfer);
  }
  void write(uint64_t cookie, uint64_t length, const uint32_t* notice = nullptr) {
    auto written = link->write({}, {.extent = 1, .offset = 0, .length = length}, cookie, notice);
    REQUIRE(written.ok());
    REQUIRE(*written);
  }
  void end_all() {
    for (const auto& piece : std::exchange(device->out, {}))
      device->client->transfer_done(piece.cookie, piece.length, Status(), now());
  }
  std::vector<uint64_t> sent() {
    link.reset();
    recorder.reset();
    std::vector<uint64_t> lengths;
    for (const auto& each : std::filesystem::directory_iterator(folder.path)) {
      auto read = recording::read_recording(each.path().string());
      REQUIRE(read.ok());
      for (const auto& [number, context] : read->contexts) {
        for (const Event& event : context.events) {
          if (event.kind == EventKind::kSent) lengths.push_back(event.bytes);
        }
      }
    }
    return lengths;
  }

  test::Folder folder;
  std::shared_ptr<recording::Recorder> recorder;
  NoTransfer transfer;
  test::DirectLink* device = nullptr;
  std::unique_ptr<RecordedDeviceLink> link;
};

TEST_CASE("a write in pieces is one message, also if pieces have ended before the last is posted") {
  Writing writing;
  const uint32_t notice = 9;
  writing.write(1, 1000);
  writing.write(2, 500);
  writing.end_all();
  writing.write(1, 1000);
  writing.write(1, 10, &notice);
  writing.write(2, 5, &notice);
  CHECK(writing.link->remembered() == 0);
  CHECK(writing.sent() == std::vector<uint64_t>{2010, 505});
}

TEST_CASE("writes without a notice are not remembered for ever") {
  Writing writing;
  const uint64_t writes = 10 * RecordedDeviceLink::kMostWritten;
  for (uint64_t cookie = 1; cookie <= writes; ++cookie) {
    writing.write(cookie, 64);
    writing.end_all();
    CHECK(writing.link->remembered() <= RecordedDeviceLink::kMostWritten);
  }
  CHECK(writing.transfer.done == writes);
}

TEST_CASE("a write that is under way is remembered, however many others have ended") {
  Writing writing;
  const uint32_t notice = 9;
  writing.write(1, 1000);
  const auto slow = std::exchange(writing.device->out, {});
  for (uint64_t cookie = 2; cookie <= 4 * RecordedDeviceLink::kMostWritten; ++cookie) {
    writing.write(cookie, 64);
    writing.end_all();
  }
  writing.write(1, 24, &notice);
  CHECK(writing.sent() == std::vector<uint64_t>{1024});
}

}  // namespace
}  // namespace sluice
