#include <sluice/tcp/page_loans.h>

#include <time.h>  // before errqueue.h, which needs it and does not say so

#include <errno.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>

#include <sluice/base/counters.h>
#include <sluice/base/settings.h>
#include <sluice/tcp/socket.h>

namespace sluice::tcp {
namespace {

Counter sends("tcp.zerocopy_sends");
Counter copied_anyway("tcp.zerocopy_copied");

}  // namespace

LendingRules lending_rules() {
  LendingRules rules;
  rules.wanted = !setting_is("SLUICE_TCP_ZEROCOPY", "0");
  if (setting_is("SLUICE_TCP_ZEROCOPY", "always"))
    rules = {.wanted = true, .least_bytes = 1, .anywhere = true, .stops_if_copied = false};
  return rules;
}

ssize_t PageLoans::send(int fd, std::span<iovec> pieces) {
  const ssize_t sent = write_some(fd, pieces, MSG_ZEROCOPY);
  if (sent > 0) {
    last_call_ = next_call_++;
    ++calls_out_;
    sends.add();
  } else if (sent < 0 && errno == ENOBUFS) {
    full_ = true;
  }
  return sent;
}

size_t PageLoans::collect(int fd) {
  size_t heard = 0;
  while (calls_out_ > 0) {
    alignas(cmsghdr) std::array<char, 256> control;
    msghdr message{};
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    if (::recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) break;
    for (cmsghdr* each = CMSG_FIRSTHDR(&message); each != nullptr;
         each = CMSG_NXTHDR(&message, each)) {
      const bool about_error = (each->cmsg_level == SOL_IP && each->cmsg_type == IP_RECVERR) ||
                               (each->cmsg_level == SOL_IPV6 && each->cmsg_type == IPV6_RECVERR);
      if (!about_error) continue;
      sock_extended_err said;
      std::memcpy(&said, CMSG_DATA(each), sizeof(said));
      if (said.ee_origin != SO_EE_ORIGIN_ZEROCOPY || said.ee_errno != 0) continue;
      ++heard;
      take_back(said.ee_info, said.ee_data, (said.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0);
    }
  }
  return heard;
}

// Mostly in the order of the calls, but a frame that was sent again may be late.
void PageLoans::take_back(uint32_t first, uint32_t last, bool copied) {
  const uint32_t calls = last - first + 1;
  if (copied) copied_anyway.add(calls);
  copied_in_a_row_ = copied ? std::min(copied_in_a_row_ + 1, kCopiedInARow) : 0;
  calls_out_ -= std::min(calls, calls_out_);
  full_ = false;
  std::erase_if(out_, [&](const Loan& loan) {
    if (loan.call - first > last - first) return false;
    returned_.push_back({loan.cookie, loan.length, copied});
    return true;
  });
}

bool PageLoans::take_returned(Returned& out) {
  if (first_returned_ == returned_.size()) return false;
  out = returned_[first_returned_++];
  if (first_returned_ == returned_.size()) {
    returned_.clear();
    first_returned_ = 0;
  }
  return true;
}

}  // namespace sluice::tcp
