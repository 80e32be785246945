// One ring for one connection (see uring.h).
#include "benchmarks/bare/uring.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "benchmarks/bare/program.h"
#include "benchmarks/bare/sockets.h"

namespace bare {
namespace {

// So much is sent as a whole when it is submitted: no link is needed, which would cost some 3 us.
constexpr size_t kAtOnce = 4096;

int set_up(uint32_t entries, io_uring_params& parameters) {
  return static_cast<int>(syscall(SYS_io_uring_setup, entries, &parameters));
}

}  // namespace

Uring::Uring() {
  io_uring_params parameters{};
  // One thread submits, and what is left of a request is done in its own calls.
  parameters.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
  ring_ = set_up(kEntries, parameters);
  if (ring_ < 0 && errno == EINVAL) {  // before Linux 6.1
    parameters = {};
    ring_ = set_up(kEntries, parameters);
  }
  if (ring_ < 0 || (parameters.features & IORING_FEAT_SINGLE_MMAP) == 0) {
    std::fprintf(stderr,
                 "no io_uring: sysctl kernel.io_uring_disabled, a filter of system calls, or a "
                 "kernel before 5.4\n");
    std::exit(kExitNothingToRunOn);
  }
  const size_t requests = parameters.sq_off.array + parameters.sq_entries * sizeof(uint32_t);
  const size_t completions = parameters.cq_off.cqes + parameters.cq_entries * sizeof(io_uring_cqe);
  rings_bytes_ = requests > completions ? requests : completions;
  rings_ = mmap(nullptr, rings_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring_,
                IORING_OFF_SQ_RING);
  void* sqes = mmap(nullptr, parameters.sq_entries * sizeof(io_uring_sqe), PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_POPULATE, ring_, IORING_OFF_SQES);
  if (rings_ == MAP_FAILED || sqes == MAP_FAILED) die("mmap of an io_uring");
  auto* base = static_cast<char*>(rings_);
  auto word = [&](uint32_t offset) { return reinterpret_cast<uint32_t*>(base + offset); };
  requests_ = static_cast<io_uring_sqe*>(sqes);
  completions_ = reinterpret_cast<io_uring_cqe*>(base + parameters.cq_off.cqes);
  request_tail_ = word(parameters.sq_off.tail);
  completion_head_ = word(parameters.cq_off.head);
  completion_tail_ = word(parameters.cq_off.tail);
  request_mask_ = *word(parameters.sq_off.ring_mask);
  completion_mask_ = *word(parameters.cq_off.ring_mask);
  // Request i always lies in place i.
  for (uint32_t i = 0; i < parameters.sq_entries; ++i) word(parameters.sq_off.array)[i] = i;
}

Uring::~Uring() {
  munmap(requests_, (request_mask_ + 1) * sizeof(io_uring_sqe));
  munmap(rings_, rings_bytes_);
  close(ring_);
}

void Uring::queue(uint8_t operation, int socket, uint64_t data, size_t bytes) {
  for (size_t done = 0; done < bytes; done += kChunkBytes) {
    if (queued_ == kEntries) wait(false);
    const uint32_t tail = *request_tail_;
    const size_t piece = std::min(bytes - done, kChunkBytes);
    io_uring_sqe& request = requests_[tail & request_mask_];
    request = {};
    request.opcode = operation;
    request.flags = bytes > kAtOnce ? IOSQE_IO_LINK : 0;
    request.fd = socket;
    request.addr = data + done;
    request.len = static_cast<uint32_t>(piece);
    request.msg_flags = MSG_WAITALL | MSG_NOSIGNAL;
    request.user_data = piece;
    __atomic_store_n(request_tail_, tail + 1, __ATOMIC_RELEASE);
    ++queued_;
  }
}

void Uring::send(int socket, const void* data, size_t bytes) {
  queue(IORING_OP_SEND, socket, reinterpret_cast<uint64_t>(data), bytes);
}

void Uring::receive(int socket, void* data, size_t bytes) {
  queue(IORING_OP_RECV, socket, reinterpret_cast<uint64_t>(data), bytes);
}

void Uring::wait(bool spinning) {
  under_way_ += queued_;
  while (under_way_ > 0) {
    const long submitted = syscall(SYS_io_uring_enter, ring_, queued_, spinning ? 0 : under_way_,
                                   IORING_ENTER_GETEVENTS, nullptr, 0);
    if (submitted < 0 && errno != EINTR) die("io_uring_enter");
    if (submitted > 0) queued_ -= static_cast<uint32_t>(submitted);
    take_completions();
  }
}

void Uring::take_completions() {
  uint32_t head = *completion_head_;
  const uint32_t tail = __atomic_load_n(completion_tail_, __ATOMIC_ACQUIRE);
  for (; head != tail; ++head, --under_way_) {
    const io_uring_cqe& completion = completions_[head & completion_mask_];
    if (completion.res < 0) {
      errno = -completion.res;
      die("io_uring on a socket");
    }
    if (static_cast<uint64_t>(completion.res) != completion.user_data) {
      errno = ECONNRESET;
      die("the peer ended in the middle");
    }
  }
  __atomic_store_n(completion_head_, head, __ATOMIC_RELEASE);
}

}  // namespace bare
