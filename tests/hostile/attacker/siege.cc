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
    auto found = std::find_if(answers.begin(), answers.end(),
                              [&](const Answer& a) { return a.type == type; });
    if (found != answers.end()) {
      out = std::move(*found);
      answers.erase(found);
      return true;
    }
    if (Siege::Clock::now() >= end || !listen(20)) {
      if (Siege::Clock::now() >= end || answers.empty()) return false;
      bool there = std::any_of(answers.begin(), answers.end(),
                               [&](const Answer& a) { return a.type == type; });
      if (!there) return false;
    }
  }
}

bool Channel::send_all(const std::vector<Bytes>& messages) {
  for (const Bytes& message : messages) {
    if (!send(message)) return false;
  }
  return true;
}

uint64_t flood(Siege& siege, Channel& channel, uint64_t count,
               const std::function<Bytes(uint64_t)>& make) {
  constexpr uint64_t kAtOnce = 512;
  uint64_t sent = 0;
  std::vector<Bytes> batch;
  while (sent < count && channel.alive() && siege.more()) {
    batch.clear();
    while (batch.size() < kAtOnce && sent + batch.size() < count)
      batch.push_back(make(sent + batch.size()));
    if (!channel.send_all(batch)) break;
    sent += batch.size();
    channel.answers.clear();
    (void)channel.listen(0);
  }
  return sent;
}

void settle(Siege& siege, Channel& channel) {
  constexpr uint64_t kNonce = 0x5e771ed;
  channel.answers.clear();
  bool done = !channel.send(ping(kNonce, false));
  while (!done && channel.alive() && siege.more()) {
    (void)channel.listen(100);
    for (const Answer& answer : channel.answers)
      done = done || (answer.type == kPing && answer.id == kNonce && (answer.flags & kReply) != 0);
    channel.answers.clear();
  }
  siege.must(done || !channel.alive(),
             "the other end answers a PING that follows, or ends the conversation");
}

void each_refused(Siege& siege, const std::vector<std::vector<Bytes>>& variants) {
  uint64_t tried = 0, kept = 0;
  for (const auto& variant : variants) {
    if (!siege.more()) break;
    auto channel = open_channel(siege);
    if (channel == nullptr) continue;
    ++tried;
    for (const Bytes& message : variant) (void)channel->send(message);
    auto end = Siege::Clock::now() + std::chrono::seconds(2);
    while (channel->alive() && Siege::Clock::now() < end) (void)channel->listen(20);
    if (!channel->alive()) continue;
    ++kept;
    siege.note("variant " + std::to_string(&variant - variants.data()) + " was not refused");
  }
  siege.must(tried * 2 >= variants.size(), "half of the variants found a conversation");
  siege.must(kept == 0, "every variant is refused");
}

Bytes ask(Channel& channel, const std::string& command) {
  if (!channel.send(inline_message(1, kCommandTag, Bytes(command.begin(), command.end()))))
    return {};
  Answer answer;
  while (channel.await(kOffer, answer)) {
    if (answer.at<uint64_t>(24) == kAnswerTag)
      return Bytes(answer.bytes.begin() + answer.header_bytes, answer.bytes.end());
  }
  return {};
}

}  // namespace hostile
