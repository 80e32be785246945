#include <sluice/runtime/mailbox.h>

#include <unistd.h>

#include <cstddef>
#include <cstdint>

namespace sluice {
namespace {
Letter closed_letter;
}

Letter* Mailbox::closed_mark() noexcept { return &closed_letter; }

Mailbox::~Mailbox() { ::close(doorbell_); }

void Mailbox::post_to(Stack& stack, Letter* letter) noexcept {
  Letter* head = stack.load(std::memory_order_relaxed);
  do {
    if (head == closed_mark()) {
      letter->discard(letter);
      return;
    }
    letter->next = head;
    // seq_cst pairs with begin_sleep(): either the owner sees the letter before it
    // sleeps, or we see that it sleeps and ring.
  } while (!stack.compare_exchange_weak(head, letter, std::memory_order_seq_cst,
                                        std::memory_order_relaxed));
  if (sleeping_.load(std::memory_order_seq_cst)) {
    uint64_t one = 1;
    [[maybe_unused]] ssize_t n = ::write(doorbell_, &one, sizeof(one));
  }
}

size_t Mailbox::open_all() noexcept { return open(plain_) + open(any_); }

size_t Mailbox::open(Stack& stack) noexcept {
  if (is_empty(stack)) return 0;
  Letter* letter = stack.exchange(nullptr, std::memory_order_acquire);
  size_t opened = 0;
  while (letter != nullptr) {
    Letter* next = letter->next;
    letter->open(letter);
    letter = next;
    ++opened;
  }
  return opened;
}

bool Mailbox::begin_sleep() noexcept {
  sleeping_.store(true, std::memory_order_seq_cst);
  const bool none = plain_.load(std::memory_order_seq_cst) == nullptr &&
                    any_.load(std::memory_order_seq_cst) == nullptr;
  if (none) return true;
  end_sleep();
  return false;
}

void Mailbox::end_sleep() noexcept { sleeping_.store(false, std::memory_order_relaxed); }

void Mailbox::close() noexcept {
  close(plain_);
  close(any_);
}

void Mailbox::close(Stack& stack) noexcept {
  Letter* letter = stack.exchange(closed_mark(), std::memory_order_acq_rel);
  while (letter != nullptr && letter != closed_mark()) {
    Letter* next = letter->next;
    letter->discard(letter);
    letter = next;
  }
}

}  // namespace sluice
