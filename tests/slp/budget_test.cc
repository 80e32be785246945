// The pull budget that peers share: what one of them does not bring is not the others' loss.
// Virtual time, and a link of 20 us each way and 350 MB/s that all who bring share.
#include <catch2/catch.hpp>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "tests/slp/table.h"

namespace sluice::slp::table {
namespace {

constexpr uint64_t kBudget = 1 << 20, kOneWay = 20 * kMicrosecond, kFrameTime = 4 * kMicrosecond;
constexpr uint64_t kPulled = 64 << 20;  // of who brings it: more than any test waits for

// What a server does with its frames of DATA.
enum class Manner { kHonest, kStopped, kLies, kDrips };

class Table {
 public:
  explicit Table(uint64_t budget = kBudget) { slp_node_init(&node_, budget); }

  struct Peer {
    Peer(Table& table, Manner manner, slp_share* share)
        : pair(1452, 1 << 20, {}, {.node = &table.node_, .share = share, .now = table.now_}),
          manner(manner) {}
    Pair pair;
    Manner manner;
    uint64_t dripped_at = 0;
    std::deque<std::pair<uint64_t, Frame>> to_client, to_server;
    uint64_t placed() const { return pair.client.placed; }
    uint64_t stalled() const { return slp_counters_of(pair.client.session)->pulls_stalled; }
  };
  Peer& add(Manner manner, slp_share* share = nullptr) {
    Peer& peer = *peers_.emplace_back(std::make_unique<Peer>(*this, manner, share));
    return peer;
  }
  // A pull of more than the test will see.
  void pull(Peer& peer, uint64_t cookie = 2) {
    uint32_t handle = 0;
    peer.pair.server.memory[1].resize(64 << 10);
    const uint64_t bytes = peer.manner == Manner::kHonest ? kPulled : kPulled / 16;
    REQUIRE(slp_open_handle(peer.pair.server.session, 1, bytes, SLP_READ, &handle));
    peer.pair.client.memory[cookie].resize(bytes);
    REQUIRE(slp_pull(peer.pair.client.session, handle, 0, bytes, cookie) == SLP_OK);
  }
  void run(uint64_t time) {
    for (uint64_t end = now_ + time; now_ < end;) {
      for (auto& peer : peers_) turn(*peer);
      most_ = std::max(most_, node_.pulling);
      uint64_t next = end;
      for (auto& peer : peers_) next = std::min(next, due(*peer));
      now_ = std::max(now_ + kMicrosecond, next);
    }
  }
  uint64_t now() const { return now_; }
  uint64_t most() const { return most_; }
  uint64_t pulling() const { return node_.pulling; }
  Peer& at(size_t i) { return *peers_[i]; }

 private:
  static uint64_t due(const Peer& peer) {
    uint64_t next = std::min(slp_next_timeout(peer.pair.client.session),
                             slp_next_timeout(peer.pair.server.session));
    if (!peer.to_client.empty()) next = std::min(next, peer.to_client.front().first);
    if (!peer.to_server.empty()) next = std::min(next, peer.to_server.front().first);
    return next;
  }
  bool lets_pass(Peer& peer, const Frame& frame) {
    if (type_of(frame) != SLP_DATA) return peer.manner != Manner::kStopped;
    if (peer.manner == Manner::kHonest) return true;
    if (peer.manner != Manner::kDrips || now_ - peer.dripped_at < 5 * kMillisecond) return false;
    peer.dripped_at = now_;
    return true;
  }
  void turn(Peer& peer) {
    for (auto& [from, queue, is_server] : {std::tuple{&peer.pair.client, &peer.to_server, false},
                                           std::tuple{&peer.pair.server, &peer.to_client, true}}) {
      if (slp_next_timeout(from->session) <= now_) slp_on_timer(from->session, now_);
      slp_tx tx;
      while (slp_poll_tx(from->session, now_, &tx)) {
        // What the bytes are does not matter here.
        const uint8_t* bytes = tx.from_memory ? from->memory.at(tx.cookie).data() : nullptr;
        Frame frame = assemble(from->session, tx, bytes);
        if (is_server && !lets_pass(peer, frame)) continue;
        if (is_server && type_of(frame) == SLP_DATA)
          link_free_ = std::max(link_free_, now_) + kFrameTime;
        queue->emplace_back((is_server ? std::max(link_free_, now_) : now_) + kOneWay,
                            std::move(frame));
      }
    }
    for (; !peer.to_client.empty() && peer.to_client.front().first <= now_;
         peer.to_client.pop_front())
      (void)peer.pair.client.hear(peer.to_client.front().second, now_);
    if (peer.manner == Manner::kStopped) peer.to_server.clear();
    for (; !peer.to_server.empty() && peer.to_server.front().first <= now_;
         peer.to_server.pop_front())
      (void)peer.pair.server.hear(peer.to_server.front().second, now_);
  }

  slp_node node_;
  uint64_t now_ = 1, most_ = 0, link_free_ = 0;
  std::vector<std::unique_ptr<Peer>> peers_;
};

// What an honest peer brings in 20 ms that has the node for itself.
uint64_t alone() {
  static const uint64_t bytes = [] {
    Table table;
    Table::Peer& honest = table.add(Manner::kHonest);
    table.pull(honest);
    table.run(5 * kMillisecond);
    uint64_t before = honest.placed();
    table.run(20 * kMillisecond);
    return honest.placed() - before;
  }();
  return bytes;
}

// The same beside others, over so many ms; of alone() as a share.
double beside(Table& table, Table::Peer& honest, uint64_t ms = 20) {
  uint64_t before = honest.placed();
  table.run(ms * kMillisecond);
  return static_cast<double>(honest.placed() - before) * 20 / static_cast<double>(ms) /
         static_cast<double>(alone());
}

}  // namespace

TEST_CASE(
    "a peer that stops in the middle of a pull holds no more of the budget than its time, and the "
    "others go on at once",
    "[slp][budget]") {
  Table table;
  Table::Peer& bad = table.add(Manner::kHonest);
  for (uint64_t cookie : {2, 3}) table.pull(bad, cookie);
  table.run(20 * kMillisecond);  // it is trusted with all that one peer may have
  bad.manner = Manner::kStopped;
  table.run(kMillisecond);
  REQUIRE(table.pulling() >= kBudget / 8 * 7 - 6 * SLP_UNIT_BYTES);  // asked for at once
  Table::Peer& honest = table.add(Manner::kHonest);
  table.pull(honest);
  // At once, by the reserve; and then by all that there is.
  CHECK(beside(table, honest, 4) > 0.5);
  CHECK(bad.stalled() == 0);
  table.run(20 * kMillisecond);
  CHECK(bad.stalled() == 1);
  CHECK(beside(table, honest) > 0.9);
  CHECK(honest.stalled() == 0);
  CHECK(table.most() <= kBudget + SLP_UNIT_BYTES);
  // It comes back, brings what it owed, and has its share again.
  uint64_t before = bad.placed();
  bad.manner = Manner::kHonest;
  table.run(60 * kMillisecond);
  CHECK(bad.placed() > before + alone() / 2);
}

TEST_CASE(
    "peers that acknowledge everything and send nothing, or a frame now and then, cost the others "
    "nothing",
    "[slp][budget]") {
  for (Manner manner : {Manner::kLies, Manner::kDrips}) {
    Table table;
    for (int i = 0; i < 20; ++i) table.pull(table.add(manner));
    table.run(15 * kMillisecond);
    Table::Peer& honest = table.add(Manner::kHonest);
    table.pull(honest);
    table.run(20 * kMillisecond);
    CHECK(beside(table, honest) > 0.75);
    CHECK(honest.stalled() == 0);
    for (size_t i = 0; i < 20; ++i) CHECK(slp_state_of(table.at(i).pair.client.session) == SLP_UP);
  }
}

TEST_CASE("a lying peer is asked for less with each pull, however many sessions it has",
          "[slp][budget]") {
  Table table;
  slp_share share;
  slp_share_init(&share);
  uint64_t before = UINT64_MAX;
  for (int round = 0; round < 4; ++round) {
    Table::Peer& bad = table.add(Manner::kLies, &share);
    table.pull(bad);
    table.run(kMillisecond);
    uint64_t held = table.pulling();
    INFO("round " << round << " held " << held);
    CHECK(held > 0);
    CHECK((held < before || held == 8 * SLP_UNIT_BYTES));
    before = held;
    table.run(20 * kMillisecond);
    CHECK(table.pulling() == 0);
    CHECK(slp_cancel(bad.pair.client.session, 2));
    CHECK(table.pulling() == 0);
  }
  CHECK(before == 8 * SLP_UNIT_BYTES);
}

TEST_CASE("many sessions of one peer have together what one session of another has",
          "[slp][budget]") {
  // So little that all wait for it.
  Table table(40 * SLP_UNIT_BYTES);
  slp_share many, one;
  slp_share_init(&many);
  slp_share_init(&one);
  for (int i = 0; i < 8; ++i) table.pull(table.add(Manner::kHonest, &many));
  Table::Peer& single = table.add(Manner::kHonest, &one);
  table.pull(single);
  table.run(10 * kMillisecond);
  std::vector<uint64_t> before;
  for (size_t i = 0; i < 9; ++i) before.push_back(table.at(i).placed());
  table.run(50 * kMillisecond);
  uint64_t of_many = 0, least = UINT64_MAX, most = 0;
  for (size_t i = 0; i < 8; ++i) {
    uint64_t bytes = table.at(i).placed() - before[i];
    of_many += bytes;
    least = std::min(least, bytes);
    most = std::max(most, bytes);
  }
  uint64_t of_one = single.placed() - before[8];
  INFO("one " << of_one << ", eight " << of_many << ", of these from " << least << " to " << most);
  CHECK(of_one > of_many / 2);
  CHECK(of_many > of_one / 2);
  CHECK(least > most / 2);
  CHECK(table.most() <= 41 * SLP_UNIT_BYTES);
}

TEST_CASE("a pull that waits behind one that never came goes on when that one is given up",
          "[slp][budget]") {
  Table table;
  Table::Peer& peer = table.add(Manner::kLies);
  for (uint64_t cookie : {2, 3}) table.pull(peer, cookie);
  table.run(30 * kMillisecond);
  CHECK(peer.stalled() > 0);
  CHECK(peer.placed() == 0);
  peer.manner = Manner::kHonest;
  slp_cancel(peer.pair.client.session, 2);
  table.run(200 * kMillisecond);
  REQUIRE(peer.pair.client.ended.size() == 1);
  CHECK(peer.pair.client.ended[0] == std::pair{uint64_t{3}, SLP_OK});
}

TEST_CASE("a share that ends while it waits is in nobody's list", "[slp][budget]") {
  Table table(4 * SLP_UNIT_BYTES);
  Table::Peer& first = table.add(Manner::kHonest);
  table.pull(first);
  for (int i = 0; i < 3; ++i) table.pull(table.add(Manner::kHonest));
  table.run(100 * kMicrosecond);
  slp_abort(table.at(1).pair.client.session);
  slp_abort(table.at(3).pair.client.session);
  std::fill(table.at(1).pair.client.room.begin(), table.at(1).pair.client.room.end(),
            0xdeadbeefdeadbeefull);
  table.at(1).pair.client.session =
      table.at(3).pair.client.session;  // nobody reads the first any more
  uint64_t before = first.placed(), other = table.at(2).placed();
  table.run(20 * kMillisecond);
  CHECK(first.placed() > before);
  CHECK(table.at(2).placed() > other);
}

}  // namespace sluice::slp::table
