// What a link could not write yet, in order: copied control messages, and payload that
// stays in its tensors. Bounded. Knows no socket.
#ifndef SLUICE_TCP_OUTPUT_QUEUE_H_
#define SLUICE_TCP_OUTPUT_QUEUE_H_

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <sluice/spi/link.h>
#include <sluice/tcp/page_loans.h>

namespace sluice::tcp {

// Payload of one push() that has left.
struct Pushed {
  uint64_t cookie = 0;
  uint64_t length = 0;
};

// What one call may write.
struct Gathered {
  size_t count = 0;
  bool lendable = false;  // all of it is payload that the kernel may read later, too
  bool cut = false;       // what follows had better go by a call of its own
};

class OutputQueue {
 public:
  // Room for the longest control message, so that one that was written in part always
  // fits into an empty queue, and a page more.
  static constexpr size_t kCopiedBytes = wire::kMaxHeaderBytes + wire::kMaxInlineBytes + 4096;
  // Payload waiting in tensors: twice what a link writes in one turn (LinkGroup), so that the next
  // turn has something to write. revoke() copies at most this and one DATA message.
  static constexpr size_t kMaxPushes = 8;
  static constexpr size_t kMaxPushedBytes = size_t{2} << 20;

  OutputQueue();
  bool empty() const { return first_ == pieces_.size(); }
  // Copies a message, from its byte number `skip` on. False: no room.
  bool append(ConstBytes header, std::span<const ConstBytes> payload, size_t skip = 0);
  // Copies the header, borrows the payload until it is reported as pushed. False: no room.
  // `lendable`: settle() is not asked about it.
  bool push(ConstBytes header, std::span<const ConstBytes> payload, uint64_t cookie,
            bool lendable = false);

  // Copies what waits of that push(): its payload is not read any more. Such bytes count as
  // borrowed until they leave. Returns how many it copied.
  size_t settle(uint64_t cookie);

  // The next bytes to write.
  size_t gather(std::span<iovec> out) const;
  // The same, but lendable runs of `least` bytes and more are apart from everything else.
  Gathered gather_apart(std::span<iovec> out, size_t least) const;
  // The socket took so many. `loans`: by reference, it reports them.
  void consume(size_t length, PageLoans* loans = nullptr);
  size_t borrowed_bytes() const { return borrowed_bytes_; }
  // Payload that left since the last call. False: none.
  bool take_pushed(Pushed& out);
  bool has_pushed() const { return first_pushed_ != pushed_.size(); }
  // Room for at least half of what it holds: worth telling who was refused.
  bool half_empty() const {
    return pushes_ <= kMaxPushes / 2 && borrowed_bytes_ <= kMaxPushedBytes / 2 &&
           room() >= kCopiedBytes / 2;
  }
  // The next byte to write belongs to a payload of which a part is out.
  bool inside_payload() const { return !empty() && pieces_[first_].borrowed; }
  // Forgets everything: no payload is touched any more.
  void clear();

 private:
  struct Piece {
    const std::byte* data;
    size_t length;
    uint64_t cookie;
    bool borrowed;
    bool ends_push;
    bool lendable;
    std::unique_ptr<std::byte[]> settled;  // where the bytes are, once they were copied by settle()
  };
  size_t lendable_run(size_t first) const;
  size_t room() const { return kCopiedBytes - (copied_end_ - copied_begin_); }
  void copy(ConstBytes bytes);
  void note_pushed(uint64_t cookie, size_t length);

  std::unique_ptr<std::byte[]> copied_;  // a ring; positions only grow
  uint64_t copied_begin_ = 0;
  uint64_t copied_end_ = 0;
  std::vector<Piece> pieces_;
  size_t first_ = 0;
  std::vector<Pushed> pushed_;
  size_t first_pushed_ = 0;
  size_t pushes_ = 0;
  size_t borrowed_bytes_ = 0;
};

}  // namespace sluice::tcp

#endif  // SLUICE_TCP_OUTPUT_QUEUE_H_
