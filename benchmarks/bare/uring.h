// Sends and receives of whole blocks by io_uring, as its experts use it for one connection: several
// requests in one system call, completions taken from memory. Must not know what the bytes mean.
//
// Errors: every function ends the process: kExitNothingToRunOn where io_uring is switched off or
// filtered, else kExitFailed with the system's message.
#pragma once

#include <liburing.h>

#include <cstddef>
#include <cstdint>

namespace bare {

class Uring {
 public:
  Uring();
  ~Uring();
  Uring(const Uring&) = delete;
  Uring& operator=(const Uring&) = delete;

  // Queues pieces of kChunkBytes (sockets.h), each of which begins when the one before has ended. A
  // block of 4 KiB or less is sent whole at once, so what follows it need not wait. The ninth piece
  // blocks until the eight before it are done.
  void send(int socket, const void* data, size_t bytes);
  void receive(int socket, void* data, size_t bytes);
  // Submits what is queued and returns when all of it is done. `spinning`: without sleeping.
  void wait(bool spinning);

 private:
  // prepare(request, offset, bytes) for each piece.
  template <typename Prepare>
  void queue(size_t bytes, Prepare prepare);
  void take_completions();

  io_uring ring_;
  uint32_t under_way_ = 0;  // queued or submitted, and not completed
};

}  // namespace bare
