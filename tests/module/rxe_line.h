// An end of a soft-RoCE connection: sends and receives, and reads all of the other end's memory at
// once.
#ifndef SLUICE_TESTS_MODULE_RXE_LINE_H_
#define SLUICE_TESTS_MODULE_RXE_LINE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/module/lines.h"

namespace sluice::module_test {

class Rxe : public Talker {
 public:
  // `channel` leads to the other end; taken. Messages are `room` bytes at most.
  Rxe(const char* device, int channel, bool spin, size_t room);
  ~Rxe() override;
  // Instead of messages: `room` bytes there are what the other end reads, or where it puts what it
  // has read. Before begin().
  void use(uint8_t* file) { file_ = file; }
  void begin() override;
  void say(const std::string& text) override;
  std::string hear(size_t bytes) override;
  // Waits for the other end's, too: a device that goes early leaves the other sending.
  void end() override;
  void read_all();

 private:
  struct Verbs;
  void open();
  void connect();
  void post_receive(uint64_t place);
  void reap();

  const char* device_;
  int channel_;
  bool spin_;
  size_t room_;
  uint8_t* file_ = nullptr;
  std::vector<uint8_t> own_;
  std::unique_ptr<Verbs> verbs_;
};

std::pair<std::unique_ptr<Rxe>, std::unique_ptr<Rxe>> rxe_pair(bool spin, size_t room);

}  // namespace sluice::module_test

#endif  // SLUICE_TESTS_MODULE_RXE_LINE_H_
