// The last view goes on a thread of its own, and the owner ends as soon as it hears of it.
#include <catch2/catch.hpp>

#include <sys/eventfd.h>

#include <atomic>
#include <memory>
#include <thread>

#include <sluice/proto/peer_view.h>
#include <sluice/runtime/mailbox.h>

namespace sluice::proto {
namespace {

struct Owner final : ViewOwner {
  void view_ended(uint64_t) noexcept override { ++ended; }
  int ended = 0;
};

}  // namespace

// What the thread that posts still touches afterwards must be alive: TSan judges.
TEST_CASE(
    "an owner that ends with its last view takes no memory away from the thread that dropped it",
    "[proto]") {
  static const std::byte memory[64] = {};
  std::atomic<StorageRef*> next{nullptr};
  std::atomic<bool> over{false};
  std::thread dropper([&] {
    while (!over.load()) {
      if (StorageRef* view = next.exchange(nullptr)) delete view;
    }
  });
  for (int i = 0; i < 1'000; ++i) {
    Owner owner;
    auto mailbox = std::make_shared<Mailbox>(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    ViewPool* pool = ViewPool::create(&owner, mailbox);
    Mailbox* letters = mailbox.get();
    auto* view =
        new StorageRef(pool->make({.data = memory, .mapping = nullptr}, sizeof(memory), 7));
    mailbox.reset();  // the pool alone holds it
    next.store(view);
    while (owner.ended == 0) letters->open_all();
    pool->abandon();
  }
  over = true;
  dropper.join();
}

}  // namespace sluice::proto
