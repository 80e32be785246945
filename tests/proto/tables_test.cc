// The small parts of a session: operations, grants, unexpected messages, views.
#include <catch2/catch.hpp>

#include <algorithm>
#include <memory>
#include <random>
#include <unordered_map>

#include <sluice/base/id_index.h>
#include <sluice/proto/device_access.h>
#include <sluice/proto/grants.h>
#include <sluice/proto/operation_table.h>
#include <sluice/proto/peer_view.h>
#include <sluice/proto/unexpected.h>
#include <sluice/runtime/identity.h>
#include <sluice/runtime/mailbox.h>

namespace sluice::proto {
namespace {

Buffer some_bytes(std::vector<std::byte>& memory) {
  return Buffer::wrap(memory.data(), memory.size(), nullptr, nullptr).value();
}

class CountedMapping final : public PeerMapping {
 public:
  void retain() noexcept override { ++references; }
  void drop() noexcept override { --references; }
  int references = 1;
};

class RecordedOwner final : public ViewOwner {
 public:
  void view_ended(uint64_t offer_id) noexcept override { ended.push_back(offer_id); }
  std::vector<uint64_t> ended;
};

}  // namespace

TEST_CASE("a table holds exactly as many operations as its limit says", "[proto]") {
  for (uint32_t limit : {1u, 3u, 8u, 9u, 20u}) {
    OperationTable table(limit);
    std::vector<Operation*> taken;
    while (Operation* op = table.take()) {
      op->state = OperationState::kPosted;
      taken.push_back(op);
    }
    CHECK(taken.size() == limit);
    CHECK(table.used() == limit);
    table.give_back(taken[0]);
    CHECK(table.take() == taken[0]);
    CHECK(table.take() == nullptr);
  }
}

TEST_CASE("an id finds its operation only while that is outstanding", "[proto]") {
  OperationTable table(4);
  Operation* op = table.take();
  op->state = OperationState::kPosted;
  OperationId first = op->id;
  CHECK(table.find(first) == op);
  table.give_back(op);
  CHECK(table.find(first) == nullptr);
  Operation* again = table.take();
  again->state = OperationState::kPosted;
  REQUIRE(again == op);
  CHECK(again->id != first);
  CHECK(table.find(first) == nullptr);
  // Whatever a peer may send.
  for (OperationId hostile :
       {uint64_t{0}, uint64_t{8}, uint64_t{9}, uint64_t{1} << 32, ~uint64_t{0}, again->id + 1}) {
    CHECK(table.find(hostile) == nullptr);
  }
}

TEST_CASE("a notice finds its operation only while that is outstanding", "[proto]") {
  OperationTable table(20);
  std::vector<Operation*> taken;
  while (Operation* op = table.take()) {
    op->state = OperationState::kPosted;
    taken.push_back(op);
  }
  for (Operation* op : taken) {
    uint32_t notice = OperationTable::notice_of(op->id);
    CHECK((notice & 0xFFFF) == (op->id & 0xFFFF));
    CHECK(notice >> 16 == (op->id >> 32 & 0xFFFF));
    CHECK(table.find_notice(notice) == op);
  }
  uint32_t notice = OperationTable::notice_of(taken[7]->id);
  table.give_back(taken[7]);
  CHECK(table.find_notice(notice) == nullptr);
}

TEST_CASE("a notice finds no operation of another generation until 65536 have passed", "[proto]") {
  OperationTable table(1);
  Operation* op = table.take();
  op->state = OperationState::kPosted;
  const uint32_t first = OperationTable::notice_of(op->id);
  uint32_t wrong = 0, lost = 0;
  for (int generation = 1; generation < 65536; ++generation) {
    table.give_back(op);
    op = table.take();
    op->state = OperationState::kPosted;
    if (table.find_notice(first) != nullptr) ++wrong;
    if (table.find_notice(OperationTable::notice_of(op->id)) != op) ++lost;
  }
  CHECK(wrong == 0);
  CHECK(lost == 0);
  table.give_back(op);
  op = table.take();
  op->state = OperationState::kPosted;
  CHECK(table.find_notice(first) == op);  // half of the generation is all that 32 bits hold
}

TEST_CASE("a notice of any value finds what it names or nothing", "[proto]") {
  OperationTable empty(4);
  OperationTable table(20);
  std::vector<Operation*> taken;
  for (uint32_t generation = 0; generation < 3; ++generation) {
    while (Operation* op = table.take()) {
      op->state = OperationState::kPosted;
      taken.push_back(op);
    }
    if (generation == 2) break;
    for (Operation* op : taken) table.give_back(op);
    taken.clear();
  }
  uint32_t wrong = 0, found = 0;
  auto ask = [&](uint32_t notice) {
    if (empty.find_notice(notice) != nullptr) ++wrong;
    Operation* op = table.find_notice(notice);
    if (op == nullptr) return;
    ++found;
    if (OperationTable::notice_of(op->id) != notice || op->state != OperationState::kPosted)
      ++wrong;
  };
  // Every slot, and generations that are, were and never will be.
  for (uint32_t slot = 0; slot < 65536; ++slot) {
    for (uint32_t generation : {0u, 1u, 2u, 3u, 4u, 0x7FFFu, 0x8000u, 0xFFFEu, 0xFFFFu})
      ask(generation << 16 | slot);
  }
  CHECK(found == taken.size());
  for (uint32_t generation = 0; generation < 65536; ++generation) {
    for (uint32_t slot : {0u, 1u, 20u, 21u, 24u, 25u, 0x7FFFu, 0xFFFFu})
      ask(generation << 16 | slot);
  }
  CHECK(found == taken.size() + 2);
  CHECK(wrong == 0);
}

TEST_CASE("a grant is good for its rights, range, epoch and time alone", "[proto]") {
  std::vector<std::byte> memory(100);
  Buffer buffer = some_bytes(memory);
  Grants grants(fill_random);
  Instant now{std::chrono::seconds(5)};
  auto clock = [&] { return now; };
  RemoteKey key = grants
                      .add({.storage = buffer.storage(),
                            .data = buffer.data(),
                            .length = 100,
                            .rights = Right::kRead,
                            .deadline = now + 1s})
                      .value();
  CHECK(grants.check(key.grant, key.epoch, Right::kRead, 0, 100, clock) != nullptr);
  CHECK(grants.check(key.grant, key.epoch, Right::kRead, 100, 0, clock) != nullptr);
  CHECK(grants.check(key.grant, key.epoch, Right::kWrite, 0, 1, clock) == nullptr);
  CHECK(grants.check(key.grant, key.epoch + 1, Right::kRead, 0, 1, clock) == nullptr);
  CHECK(grants.check(key.grant + 1, key.epoch, Right::kRead, 0, 1, clock) == nullptr);
  CHECK(grants.check(key.grant, key.epoch, Right::kRead, 1, 100, clock) == nullptr);
  CHECK(grants.check(key.grant, key.epoch, Right::kRead, ~uint64_t{0}, 2, clock) == nullptr);
  now += 1s;
  CHECK(grants.check(key.grant, key.epoch, Right::kRead, 0, 1, clock) == nullptr);
  CHECK(grants.remove(key.grant));
  CHECK_FALSE(grants.remove(key.grant));
}

TEST_CASE("unexpected messages keep their order, and their bytes go with them", "[proto]") {
  std::vector<std::byte> memory(10);
  UnexpectedQueue queue;
  for (uint64_t i = 1; i <= 3; ++i) queue.push_back().offer_id = i;
  Buffer buffer = some_bytes(memory);
  StorageRef kept = buffer.storage();
  auto second = std::next(queue.begin());
  second->payload = std::move(buffer);
  CHECK_FALSE(kept->unique());
  queue.erase(second);
  CHECK(kept->unique());
  CHECK(queue.begin()->offer_id == 1);
  CHECK(std::next(queue.begin())->offer_id == 3);
  queue.push_back().offer_id = 4;
  CHECK(std::prev(queue.end())->offer_id == 4);
}

TEST_CASE("a dropped view lets go of the mapping and tells its session once", "[proto]") {
  std::vector<std::byte> memory(64);
  auto mailbox = std::make_shared<Mailbox>(-1);
  RecordedOwner owner;
  CountedMapping mapping;
  ViewPool* pool = ViewPool::create(&owner, mailbox);
  StorageRef view = pool->make({.data = memory.data(), .mapping = &mapping}, memory.size(), 7);
  StorageRef copy = view;
  view.reset();
  mailbox->open_all();
  CHECK(owner.ended.empty());
  CHECK(pool->outstanding() == 1);
  copy.reset();
  CHECK(mapping.references == 1);  // the context's thread does it
  mailbox->open_all();
  CHECK(owner.ended == std::vector<uint64_t>{7});
  CHECK(mapping.references == 0);
  CHECK(pool->outstanding() == 0);
  pool->abandon();
}

TEST_CASE("a view may outlive its session and its context", "[proto]") {
  std::vector<std::byte> memory(64);
  auto mailbox = std::make_shared<Mailbox>(-1);
  RecordedOwner owner;
  CountedMapping first, second;
  ViewPool* pool = ViewPool::create(&owner, mailbox);
  StorageRef before = pool->make({.data = memory.data(), .mapping = &first}, memory.size(), 1);
  StorageRef after = pool->make({.data = memory.data(), .mapping = &second}, memory.size(), 2);
  pool->abandon();
  before.reset();
  mailbox->open_all();
  CHECK(first.references == 0);
  mailbox->close();
  after.reset();
  CHECK(second.references == 0);
  CHECK(owner.ended.empty());
}

TEST_CASE("an index finds what a map would, whatever the ids", "[proto]") {
  struct Record {
    IndexLink<Record> index;
    uint64_t id = 0;
  };
  for (uint64_t stride : {uint64_t{1}, uint64_t{8}, uint64_t{1} << 32, uint64_t{1} << 56}) {
    std::minstd_rand random(3);
    IdIndex<Record> index(0x1234567);
    std::unordered_map<uint64_t, std::unique_ptr<Record>> model;
    for (int i = 0; i < 3000; ++i) {
      const uint64_t id = random() % 200 * stride;
      auto known = model.find(id);
      CHECK((index.find(id) != nullptr) == (known != model.end()));
      if (known == model.end()) {
        auto record = std::make_unique<Record>();
        index.insert(record.get(), id);
        model.emplace(id, std::move(record));
      } else if (random() % 2 == 0) {
        index.remove(known->second.get());
        index.remove(known->second.get());  // harmless
        model.erase(known);
      }
      REQUIRE(index.size() == model.size());
    }
  }
}

TEST_CASE("of two with one id an index finds the one that is accepted", "[proto]") {
  struct Record {
    IndexLink<Record> index;
    bool good = false;
  };
  Record first{.index = {}, .good = true}, second;
  IdIndex<Record> index(99);
  index.insert(&first, 7);
  index.insert(&second, 7);
  CHECK(index.find(7, [](const Record& record) { return record.good; }) == &first);
  index.remove(&first);
  CHECK(index.find(7, [](const Record& record) { return record.good; }) == nullptr);
}

TEST_CASE("what a transfer keeps of an operation stays with its slot while others are added",
          "[proto]") {
  OperationTable table(100);
  OperationStates<uint64_t> states;
  std::vector<std::pair<Operation*, uint64_t*>> kept;
  for (uint64_t i = 0; i < 100; ++i) {
    Operation* op = table.take();
    op->state = OperationState::kPosted;
    uint64_t& state = states.of(*op);
    CHECK(state == 0);
    state = i + 1;
    kept.emplace_back(op, &state);
  }
  for (uint64_t i = 0; i < kept.size(); ++i) {
    CHECK(&states.of(*kept[i].first) == kept[i].second);
    CHECK(*kept[i].second == i + 1);
  }
  // Another operation in the same slot has the same state: the transfer clears it.
  table.give_back(kept[50].first);
  CHECK(&states.of(*table.take()) == kept[50].second);
}

TEST_CASE("windows of unequal length are moved whole, one after the other or in turn", "[proto]") {
  for (bool in_turn : {false, true}) {
    DeviceAccess access;
    for (uint64_t length : {10u, 0u, 25u, 7u})
      access.windows.emplace_back(wire::Segment{.extent = 1, .offset = 1000, .length = length});
    access.start();
    std::vector<bool> moved(42);
    std::vector<size_t> order;
    for (uint64_t left = moved.size(); left > 0;) {
      DeviceAccess::Chunk chunk = access.next_chunk(in_turn);
      chunk.peer.length = std::min<uint64_t>(chunk.left, 4);
      REQUIRE(chunk.peer.length > 0);
      REQUIRE(chunk.at + chunk.peer.length <= moved.size());
      // Where it lies in its window is where it lies in the operation.
      uint64_t before = 0;
      for (size_t i = 0; i < chunk.window; ++i) before += access.windows[i].length;
      CHECK(chunk.peer.offset - 1000 == chunk.at - before);
      for (uint64_t i = 0; i < chunk.peer.length; ++i) {
        CHECK_FALSE(moved[chunk.at + i]);
        moved[chunk.at + i] = true;
      }
      order.push_back(chunk.window);
      access.note_moved(chunk);
      left -= chunk.peer.length;
    }
    CHECK(std::is_sorted(order.begin(), order.end()) == !in_turn);
  }
}

TEST_CASE("a tensor is written only into windows that were opened for one like it", "[proto]") {
  const TensorDescriptor wanted = TensorDescriptor::bytes(100), other = TensorDescriptor::bytes(99);
  wire::Want want{.id = 5, .has_layout = true, .layout = wanted};
  auto ask = [&](std::vector<uint64_t> lengths) {
    want.segment_count = 0;
    for (uint64_t length : lengths) want.segments[want.segment_count++] = {7, 0, length};
  };
  WantWindows windows;
  InlineVector<wire::Segment, 1> taken;
  CHECK_FALSE(windows.take(5, wanted, 100, taken));
  ask({60, 40});
  windows.keep(want);
  REQUIRE(windows.take(5, wanted, 100, taken));
  CHECK(taken.size() == 2);
  CHECK_FALSE(windows.take(5, wanted, 100, taken));  // once
  for (std::vector<uint64_t> lengths : std::vector<std::vector<uint64_t>>{
           {60, 39}, {60, 41}, {UINT64_MAX, 101}, {UINT64_MAX - 1, 1, 101}}) {
    ask(lengths);
    windows.keep(want);
    CHECK_FALSE(windows.take(5, wanted, 100, taken));
  }
  ask({100});
  windows.keep(want);
  CHECK_FALSE(windows.take(5, other, 100, taken));
  windows.keep(want);
  windows.drop(5);
  CHECK_FALSE(windows.take(5, wanted, 100, taken));
}

}  // namespace sluice::proto
