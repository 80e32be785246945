// Payload that a socket sends out of the tensors' own pages (MSG_ZEROCOPY,
// Documentation/networking/msg_zerocopy.rst), until the kernel says that it has let go of them.
// Knows no link.
#ifndef SLUICE_TCP_PAGE_LOANS_H_
#define SLUICE_TCP_PAGE_LOANS_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sluice::tcp {

// When pages are lent.
struct LendingRules {
  bool wanted = true;
  // What one call must have. To lend costs a call for the frame's header, the pinning of pages and
  // a notification: on loopback, where nothing is gained, 3.5 us for 64 KiB, as long as half of
  // them take to copy (docs/performance.md, "MSG_ZEROCOPY").
  size_t least_bytes = size_t{64} << 10;
  bool anywhere = false;        // also where the kernel is known to copy: to this machine, ...
  bool stops_if_copied = true;  // no more once it says so
};
// As $SLUICE_TCP_ZEROCOPY says.
LendingRules lending_rules();

class PageLoans {
 public:
  // Payload whose pages have come back.
  struct Returned {
    uint64_t cookie = 0, length = 0;
    bool copied = false;  // by the kernel, all the same
  };

  // As sendmsg(2), out of the pages. ENOBUFS: no more of them now, or none at all.
  ssize_t send(int fd, std::span<iovec> pieces);
  // So many of the bytes that the last send() took are of this payload.
  void note(uint64_t cookie, uint64_t length) { out_.push_back({last_call_, cookie, length}); }

  // Worth another send().
  bool room() const { return calls_out_ < kMostCalls && !full_; }
  bool any_out() const { return calls_out_ > 0; }
  // Hears what the kernel has to say. Returns how many times it said something.
  size_t collect(int fd);
  bool take_returned(Returned& out);
  // It copies here, whatever it is asked for.
  bool always_copied() const { return copied_in_a_row_ >= kCopiedInARow; }

 private:
  // Calls whose pages are out. Their bytes are bounded by the socket's send buffer. The kernel
  // keeps some 800 bytes for each, of net.core.optmem_max, and then says ENOBUFS: 26 with 20 KiB.
  static constexpr uint32_t kMostCalls = 64;
  // A card that sends from the pages was seen to have one in a thousand copied.
  static constexpr uint32_t kCopiedInARow = 8;

  struct Loan {
    uint32_t call;
    uint64_t cookie, length;
  };
  void take_back(uint32_t first, uint32_t last, bool copied);

  std::vector<Loan> out_;
  std::vector<Returned> returned_;
  size_t first_returned_ = 0;
  uint32_t next_call_ = 0;  // as the kernel counts them: those that took something, modulo 2^32
  uint32_t last_call_ = 0;
  uint32_t calls_out_ = 0;
  uint32_t copied_in_a_row_ = 0;
  bool full_ = false;
};

}  // namespace sluice::tcp

#endif  // SLUICE_TCP_PAGE_LOANS_H_
