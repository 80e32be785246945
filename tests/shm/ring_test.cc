// The ring on one mapping and one thread: bytes, laps, bells, and a reader that lies. Its orders
// are tests/shm/ring_model_test's.
#include <sluice/shm/ring.h>

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <vector>

namespace sluice::shm {
namespace {

using Bytes = std::vector<std::byte>;

struct Ring {
  std::unique_ptr<SharedRegion> mine = std::make_unique<SharedRegion>(),
                                theirs = std::make_unique<SharedRegion>();
  RingWriter<std::atomic> writer{mine.get(), theirs.get()};
  RingReader<std::atomic> reader{theirs.get(), mine.get()};

  // As a link does: a full ring grows.
  RingWriter<std::atomic>::Outcome write(const Bytes& header,
                                         std::span<const std::span<const std::byte>> payload) {
    auto outcome = write_once(header, payload);
    if (outcome != RingWriter<std::atomic>::Outcome::kFull || writer.grown()) return outcome;
    writer.grow();
    return write_once(header, payload);
  }
  RingWriter<std::atomic>::Outcome write_once(const Bytes& header,
                                              std::span<const std::span<const std::byte>> payload) {
    const bool is_short = header.size() == 48 && payload.empty();
    return is_short ? writer.write_words<48>(header.data()) : writer.write(header, payload);
  }
  bool write(const Bytes& bytes) {
    return write(bytes, {}) == RingWriter<std::atomic>::Outcome::kWritten;
  }
  bool ready() {
    if (reader.ready() && reader.at_growth()) reader.follow_growth();
    return reader.ready();
  }
};

Bytes random_bytes(std::mt19937& random, size_t length) {
  Bytes bytes(length);
  for (std::byte& one : bytes) one = static_cast<std::byte>(random());
  return bytes;
}

TEST_CASE("messages of all sizes come out as they went in, over many laps") {
  Ring ring;
  std::mt19937 random(14);
  std::deque<Bytes> expected;
  uint64_t slots = 0;
  while (slots < uint64_t{20} * kSlotCount || !expected.empty()) {
    bool room = true;
    if (slots < uint64_t{20} * kSlotCount && random() % 3 != 0) {
      Bytes header = random_bytes(random, 8 * (1 + random() % 20));
      Bytes payload[2] = {
          random_bytes(random, random() % 300),
          random_bytes(random, random() % 8 == 0 ? random() % 40'000 : random() % 3 * 16)};
      const std::span<const std::byte> parts[] = {payload[0], payload[1]};
      size_t count = random() % 3;
      if (header.size() == 48) count = 0;
      room = ring.write(header, std::span(parts).first(count)) ==
             RingWriter<std::atomic>::Outcome::kWritten;
      if (room) {
        for (size_t i = 0; i < count; ++i)
          header.insert(header.end(), payload[i].begin(), payload[i].end());
        slots += slots_for(header.size());
        expected.push_back(std::move(header));
      }
    }
    if (expected.empty()) {
      REQUIRE(room);
      REQUIRE_FALSE(ring.ready());
      continue;
    }
    if (room && random() % 2 == 0) continue;
    REQUIRE(ring.ready());
    Bytes got(expected.front().size());
    size_t cut = random() % (got.size() + 1);
    ring.reader.copy(0, std::span(got).first(cut));
    ring.reader.copy(cut, std::span(got).subspan(cut));
    REQUIRE(got == expected.front());
    ring.reader.pop(slots_for(got.size()));
    expected.pop_front();
  }
  CHECK(ring.reader.position() == slots + 1);  // and the slot that says where the ring has grown
}

// Only what has memory from the beginning is touched: the rest is a hole in a memfd.
TEST_CASE("one message after the other, a thousand times, never leaves the first 8 KiB") {
  Ring ring;
  std::mt19937 random(3);
  for (int i = 0; i < 1000; ++i) {
    const Bytes message = random_bytes(random, 8 + random() % 4000);
    REQUIRE(ring.write(message));
    REQUIRE(ring.ready());
    Bytes got(message.size());
    ring.reader.copy(0, got);
    CHECK(got == message);
    ring.reader.pop(slots_for(message.size()));
  }
  CHECK_FALSE(ring.writer.grown());
  const auto* grown = reinterpret_cast<const std::byte*>(ring.mine->grown);
  CHECK(std::all_of(grown, grown + sizeof(ring.mine->grown),
                    [](std::byte one) { return one == std::byte{}; }));
}

TEST_CASE("a short message needs room like any other, and a reader that lies is seen") {
  Ring ring;
  const Bytes message(48, std::byte{5});
  uint32_t written = 0;
  while (ring.writer.write_words<48>(message.data()) == RingWriter<std::atomic>::Outcome::kWritten)
    ++written;
  CHECK(written == kFirstSlots - 1);  // the last one is for the mark of growth
  ring.theirs->consumed.store(1000);
  CHECK(ring.writer.write_words<48>(message.data()) == RingWriter<std::atomic>::Outcome::kCorrupt);
}

TEST_CASE("a full ring grows once, and nothing that lay in it is lost") {
  Ring ring;
  uint64_t written = 0;
  auto number = [](uint64_t i) {
    Bytes bytes(8);
    std::memcpy(bytes.data(), &i, sizeof(i));
    return bytes;
  };
  while (!ring.writer.grown()) REQUIRE(ring.write(number(written++)));
  CHECK(written == kFirstSlots);  // the last of them was the first that found no room
  while (ring.write(number(written))) ++written;
  CHECK(written == kSlotCount - 1);  // beside the slot that says where
  for (uint64_t i = 0; i < written; ++i) {
    REQUIRE(ring.ready());
    Bytes got(8);
    ring.reader.copy(0, got);
    CHECK(got == number(i));
    ring.reader.pop(1);
  }
  CHECK_FALSE(ring.ready());
  CHECK(ring.write(number(0)));
}

// Whatever a writer says of its growth and of the length of its messages, nothing outside of its
// region is read.
TEST_CASE("a writer that lies about its growth leads the reader nowhere") {
  Ring ring;
  CHECK_FALSE(ring.reader.at_growth());
  for (uint64_t said : {uint64_t{0}, uint64_t{2}, UINT64_MAX}) {
    ring.mine->grown_at.store(said);
    CHECK_FALSE(ring.reader.at_growth());
  }
  ring.mine->grown_at.store(1);
  REQUIRE(ring.reader.at_growth());
  ring.reader.follow_growth();
  ring.mine->grown_at.store(2);
  CHECK_FALSE(ring.reader.at_growth());  // it grows once
  Ring longer;
  for (uint32_t count : {kFirstSlots + 1, kSlotCount, UINT32_MAX}) {
    Bytes out(size_t{2} * kFirstSlots * kSlotDataBytes);
    longer.reader.copy(uint64_t{count} * kSlotDataBytes, out);
    longer.reader.pop(count);
    (void)longer.reader.ready();
  }
}

TEST_CASE(
    "a reader that says it has read what was not written, or less than before, is found out") {
  using Outcome = RingWriter<std::atomic>::Outcome;
  // Half a ring was read and one and a half were written, when the next half is to go out.
  // The first half has made the ring grow, which took a slot.
  constexpr uint64_t kRead = 1 + kSlotCount / 2, kWritten = 1 + kSlotCount / 2 * 3;
  struct Case {
    uint64_t said;
    Outcome outcome;
  };
  for (const Case& one :
       {Case{kRead, Outcome::kFull}, Case{kRead + kSlotCount / 2, Outcome::kWritten},
        Case{kWritten, Outcome::kWritten}, Case{kRead - 1, Outcome::kCorrupt},
        Case{0, Outcome::kCorrupt}, Case{kWritten + 1, Outcome::kCorrupt},
        Case{UINT64_MAX, Outcome::kCorrupt}}) {
    Ring ring;
    const Bytes half(size_t{kSlotCount} / 2 * kSlotDataBytes);
    REQUIRE(ring.write(half));
    REQUIRE(ring.ready());
    ring.reader.pop(kSlotCount / 2);
    REQUIRE(ring.write(half));
    REQUIRE(ring.write(half));
    ring.theirs->consumed.store(one.said);
    INFO(one.said);
    CHECK(ring.writer.write(half, {}) == one.outcome);
  }
}

TEST_CASE("a sleep is rung for once, and nobody rings for who is awake") {
  Ring ring;
  const Bytes message(8);
  REQUIRE(ring.write(message));
  CHECK(ring.writer.bell_due() == 0);
  CHECK_FALSE(ring.reader.begin_sleep());
  ring.reader.end_sleep();
  ring.reader.end_sleep();
  CHECK(ring.writer.bell_due() == 0);
  ring.reader.pop(1);
  for (int sleep = 0; sleep < 3; ++sleep) {
    REQUIRE(ring.reader.begin_sleep());
    REQUIRE(ring.write(message));
    uint64_t due = ring.writer.bell_due();
    CHECK(due != 0);
    CHECK(ring.writer.bell_due() == due);  // until it was sent
    ring.writer.rung(due);
    REQUIRE(ring.write(message));
    CHECK(ring.writer.bell_due() == 0);
    ring.reader.end_sleep();
    REQUIRE(ring.write(message));
    CHECK(ring.writer.bell_due() == 0);
    for (int i = 0; i < 3; ++i) ring.reader.pop(1);
  }
}

TEST_CASE("a copy is begun only if nothing was withdrawn but what is known") {
  auto mine = std::make_unique<SharedRegion>(), theirs = std::make_unique<SharedRegion>();
  CopyGate<std::atomic> copier(mine.get(), theirs.get()), owner(theirs.get(), mine.get());
  REQUIRE(copier.begin_copy(0));
  CHECK(owner.peer_is_copying());
  CHECK_FALSE(copier.peer_is_copying());
  owner.count_withdrawals(2);
  CHECK(owner.peer_is_copying());
  copier.end_copy();
  for (uint64_t seen : {0, 1, 3}) {
    CHECK_FALSE(copier.begin_copy(seen));
    CHECK_FALSE(owner.peer_is_copying());
  }
  CHECK(copier.begin_copy(2));
}

}  // namespace
}  // namespace sluice::shm
