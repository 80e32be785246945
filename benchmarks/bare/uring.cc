// One ring for one connection (see uring.h).
#include "benchmarks/bare/uring.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "benchmarks/bare/program.h"
#include "benchmarks/bare/sockets.h"

namespace bare {
namespace {

constexpr unsigned kEntries = 8;
// So much is sent whole when it is submitted. A link to the next request would cost some 3 us.
constexpr size_t kAtOnce = 4096;
constexpr int kFlags = MSG_WAITALL | MSG_NOSIGNAL;

}  // namespace

Uring::Uring() {
  // One thread submits, and completes its requests in its own calls.
  int error = io_uring_queue_init(kEntries, &ring_,
                                  IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
  if (error == -EINVAL) error = io_uring_queue_init(kEntries, &ring_, 0);  // before Linux 6.1
  if (error != 0) {
    std::fprintf(stderr,
                 "no io_uring: sysctl kernel.io_uring_disabled, or a filter of system calls\n");
    std::exit(kExitNothingToRunOn);
  }
}

Uring::~Uring() { io_uring_queue_exit(&ring_); }

template <typename Prepare>
void Uring::queue(size_t bytes, Prepare prepare) {
  for (size_t done = 0; done < bytes; done += kChunkBytes) {
    if (under_way_ == kEntries) wait(false);
    const size_t piece = std::min(bytes - done, kChunkBytes);
    io_uring_sqe* request = io_uring_get_sqe(&ring_);
    prepare(request, done, piece);
    request->user_data = piece;
    request->flags = bytes > kAtOnce ? IOSQE_IO_LINK : 0;
    ++under_way_;
  }
}

void Uring::send(int socket, const void* data, size_t bytes) {
  queue(bytes, [&](io_uring_sqe* request, size_t at, size_t piece) {
    io_uring_prep_send(request, socket, static_cast<const char*>(data) + at, piece, kFlags);
  });
}

void Uring::receive(int socket, void* data, size_t bytes) {
  queue(bytes, [&](io_uring_sqe* request, size_t at, size_t piece) {
    io_uring_prep_recv(request, socket, static_cast<char*>(data) + at, piece, kFlags);
  });
}

void Uring::wait(bool spinning) {
  while (under_way_ > 0) {
    const int error = spinning ? io_uring_submit_and_get_events(&ring_)
                               : io_uring_submit_and_wait(&ring_, under_way_);
    if (error < 0 && error != -EINTR) {
      errno = -error;
      die("io_uring_enter");
    }
    take_completions();
  }
}

void Uring::take_completions() {
  unsigned head, taken = 0;
  io_uring_cqe* completion;
  io_uring_for_each_cqe(&ring_, head, completion) {
    if (completion->res < 0) {
      errno = -completion->res;
      die("io_uring on a socket");
    }
    if (static_cast<uint64_t>(completion->res) != completion->user_data) {
      errno = ECONNRESET;
      die("the peer ended in the middle");
    }
    ++taken;
  }
  io_uring_cq_advance(&ring_, taken);
  under_way_ -= taken;
}

}  // namespace bare
