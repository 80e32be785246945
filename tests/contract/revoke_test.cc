// What revoke() promises on every path: when it has returned, nothing that is written to the memory
// afterwards reaches the peer, and nothing of the peer's arrives in it, at whatever moment of a
// read or a write it is called.
#include "tests/contract/pair.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <thread>

namespace sluice::test {
namespace {

constexpr std::byte kBefore{0x5A}, kAfter{0xA5}, kForeign{0x3C};
// Soft-RoCE looks at the key before each packet of a READ or a WRITE, and does not wait for the
// packet that it copies: 4 KiB at most, for each of eight queue pairs at most.
constexpr size_t kBeingCopied = 8 * 4096;

// How many times each case revokes; more by SLUICE_REVOCATIONS (the long tier: 10,000).
int revocations(int usually) {
  const char* text = std::getenv("SLUICE_REVOCATIONS");
  return text != nullptr ? std::atoi(text) : usually;
}

// By how many powers of two the memory is smaller than it is here: in a guest bytes are slow.
int halvings() {
  const char* text = std::getenv("SLUICE_REVOKE_HALVINGS");
  return text != nullptr ? std::atoi(text) : 0;
}

size_t count(std::span<const std::byte> bytes, std::byte value) {
  return static_cast<size_t>(std::count(bytes.begin(), bytes.end(), value));
}

// Whether memory was read that has this value. Where a read ends early, single bytes may have any:
// `udp` receives messages where it expects the next bytes of the memory (UdpCarrier::scatter).
bool has_memory_of(std::span<const std::byte> bytes, std::byte value) {
  return std::search_n(bytes.begin(), bytes.end(), 16, value) != bytes.end();
}

Buffer of(Context& context, size_t size, std::byte value) {
  Buffer buffer = room(context, size);
  std::memset(buffer.data(), static_cast<int>(value), size);
  return buffer;
}

// One memory after the other, each granted, reached for and revoked.
class Revoking {
 public:
  explicit Revoking(uint32_t seed) : random_(seed) {}
  ~Revoking() {
    std::printf("%s: %d in the middle, %d whole, %d not at all\n", path_under_test().c_str(),
                in_the_middle_, whole_, none_);
    CHECK(in_the_middle_ + whole_ > 0);
  }

  void begin(size_t size) {
    // Where a device refused the rest of an access, the connection has ended with that.
    if (!pair_ || pair_->client.state() != EndpointState::kConnected ||
        pair_->server.state() != EndpointState::kConnected)
      pair_.emplace();
    size_ = size;
    memory_ = of(*pair_->server_context, size_, kBefore);
    auto key = pair_->server.grant(memory_, {.rights = Right::kReadWrite});
    INFO(key.status().to_string());
    REQUIRE(key.ok());
    key_ = *key;
    near_ = of(*pair_->client_context, size_, kForeign);
  }
  Result<OperationId> post(bool write, const PostOptions& options) {
    return write ? pair_->client.write(key_, 0, std::move(near_).freeze(), options)
                 : pair_->client.read(key_, 0, std::move(near_), options);
  }
  void revoke() {
    Status revoked = pair_->server.revoke(key_);
    arrived_ = count(memory_.bytes(), kForeign);
    std::memset(memory_.data(), static_cast<int>(kAfter), size_);
    INFO(size_ << " bytes: " << revoked.to_string());
    // A peer that had no processor in the middle of a piece, and may read what is there now.
    overdue_ = revoked == Code::kTimedOut;
    if (overdue_) {
      CHECK(pair_->server.state() != EndpointState::kConnected);
    } else {
      REQUIRE(revoked.ok());
    }
  }
  // Whatever became of the access, and wherever it was.
  void judge(bool write, Completion& ended) {
    INFO(size_ << (write ? " bytes written: " : " bytes read: ") << ended.status.to_string());
    size_t crossed = arrived_;
    if (overdue_) {
      crossed = 0;
    } else if (write) {
      pair_->settle();
      const size_t written_late = size_ - count(memory_.bytes(), kAfter);
      CHECK(written_late <= (copying_device_under_test() ? kBeingCopied : 0));
    } else {
      REQUIRE(ended.buffers.size() == 1);
      std::span<const std::byte> bytes = ended.buffers[0].bytes();
      if (copying_device_under_test()) {
        CHECK(count(bytes, kAfter) <= kBeingCopied);
      } else {
        CHECK_FALSE(has_memory_of(bytes, kAfter));
      }
      crossed = count(bytes, kBefore);
    }
    if (ended.status.ok() && !overdue_) CHECK(crossed == size_);
    ended.buffers.clear();
    memory_ = Buffer();
    ++(crossed == size_ ? whole_ : crossed > 0 ? in_the_middle_ : none_);
  }
  void alternating(bool write, int rounds) {
    for (int i = 0; i < rounds; ++i) {
      begin(size_t{4096} << random_() % (13 - halvings_));  // to 16 MiB
      Box& box = pair_->box();
      auto posted = post(write, box.options());
      REQUIRE(posted.ok());
      for (uint32_t turns = random_() % (8u << random_() % 6); turns > 0; --turns)
        (random_() % 2 == 0 ? pair_->client_context : pair_->server_context)->progress();
      revoke();
      judge(write, pair_->wait(box, *posted));
    }
  }
  // The peer's thread is in the middle of a turn when it is revoked, or between two.
  void at_once(int rounds) {
    for (int i = 0; i < rounds; ++i) {
      bool write = i % 2 != 0;
      begin(size_t{2} << (20 - halvings_) << random_() % 3);
      Box& box = pair_->box();
      std::atomic<bool> begun = false, ended = false;
      pair_->part();
      std::thread peer([&] {
        bool posted = post(write, box.options()).ok();
        begun = true;
        while (posted && box.all.empty()) pair_->client_context->progress();
        ended = true;
      });
      while (!begun) pair_->server_context->progress();
      // Within as many turns as the whole takes, or at once.
      uint32_t& all = turns_of_all_[write];
      uint32_t turns = random_() % (all + 1), turn = 0;
      for (; turn < turns && !ended; ++turn) pair_->server_context->progress();
      all = ended ? std::max(turn, 1u) : std::min(all * 2, 1u << 20);
      revoke();
      while (!ended) pair_->server_context->progress();
      peer.join();
      pair_->meet();
      REQUIRE(box.all.size() == 1);
      judge(write, box.all[0]);
    }
  }

 private:
  std::minstd_rand random_;
  const int halvings_ = halvings();
  std::optional<Pair> pair_;
  size_t size_ = 0, arrived_ = 0;
  bool overdue_ = false;
  Buffer memory_, near_;
  RemoteKey key_;
  uint32_t turns_of_all_[2] = {4096, 4096};  // of a read, of a write
  int in_the_middle_ = 0, whole_ = 0, none_ = 0;
};

TEST_CASE("not one byte that is written after revoke reaches a peer that was reading",
          "[contract][one-sided][revoke]") {
  NothingLeftBehind audit;
  Revoking(7).alternating(false, revocations(40));
}

TEST_CASE("not one byte of a peer that was writing arrives after revoke",
          "[contract][one-sided][revoke]") {
  NothingLeftBehind audit;
  Revoking(8).alternating(true, revocations(40));
}

TEST_CASE("revoke is a fence also for a peer whose thread reads or writes at that moment",
          "[contract][one-sided][revoke]") {
  NothingLeftBehind audit;
  Revoking(9).at_once(revocations(20));
}

}  // namespace
}  // namespace sluice::test
