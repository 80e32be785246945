#include "tests/hostile/attacker/siege.h"

#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace hostile {

std::map<std::string, std::vector<Attack>>& table() {
  static std::map<std::string, std::vector<Attack>> all;
  return all;
}

void Siege::hold(const std::function<void()>& meanwhile) {
  static bool told = false, said = false;
  if (!std::exchange(said, true)) {
    printf("staying\n");
    fflush(stdout);
  }
  while (more() && !told) {
    if (meanwhile) meanwhile();
    pollfd input{.fd = 0, .events = POLLIN, .revents = 0};
    if (::poll(&input, 1, std::min(left_ms(), 20)) <= 0) continue;
    char byte;
    told = ::read(0, &byte, 1) <= 0 || byte == '\n';
  }
}

Bytes Siege::junk(size_t bytes) {
  Bytes all(bytes);
  for (size_t i = 0; i < bytes; i += 8) {
    uint64_t word = random();
    std::memcpy(all.data() + i, &word, std::min<size_t>(8, bytes - i));
  }
  return all;
}

bool Channel::await(uint8_t type, Answer& out, int milliseconds) {
  auto end = Siege::Clock::now() + std::chrono::milliseconds(milliseconds);
  while (true) {
    auto found = std::find_if(answers.begin(), answers.end(), [&](const Answer& a) { return a.type == type; });
    if (found != answers.end()) {
      out = std::move(*found);
      answers.erase(found);
      return true;
    }
    if (Siege::Clock::now() >= end || !listen(20)) {
      if (Siege::Clock::now() >= end || answers.empty()) return false;
      bool there = std::any_of(answers.begin(), answers.end(), [&](const Answer& a) { return a.type == type; });
      if (!there) return false;
    }
  }
}

}  // namespace hostile
