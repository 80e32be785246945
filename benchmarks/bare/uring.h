// Sends and receives of whole blocks by io_uring, as its experts use it for one connection: several
// requests in one system call, completions taken from memory. Must not know what the bytes mean.
//
// Errors: every function ends the process: kExitNothingToRunOn where io_uring is switched off or
// filtered, else kExitFailed with the system's message.
#pragma once

#include <linux/io_uring.h>

#include <cstddef>
#include <cstdint>

namespace bare {

class Uring {
 public:
  Uring();
  ~Uring();
  Uring(const Uring&) = delete;
  Uring& operator=(const Uring&) = delete;

  // Queued, in pieces of kChunkBytes (sockets.h). Each begins when the one before has ended; what
  // has 4 KiB at most has been sent by then. More than eight pieces wait for those before, asleep.
  void send(int socket, const void* data, size_t bytes);
  void receive(int socket, void* data, size_t bytes);
  // Submits what is queued and returns when all of it is whole: asleep, or asking again and again.
  void wait(bool spinning);

 private:
  static constexpr uint32_t kEntries = 8;
  void queue(uint8_t operation, int socket, uint64_t data, size_t bytes);
  void take_completions();

  int ring_ = -1;
  void* rings_ = nullptr;
  size_t rings_bytes_ = 0;
  io_uring_sqe* requests_ = nullptr;
  io_uring_cqe* completions_ = nullptr;
  uint32_t *request_tail_ = nullptr, *completion_head_ = nullptr, *completion_tail_ = nullptr;
  uint32_t request_mask_ = 0, completion_mask_ = 0;
  uint32_t queued_ = 0, under_way_ = 0;
};

}  // namespace bare
