// Attacks on one-sided access, where sessions check grants: tcp and shm.
#include <unistd.h>

#include "tests/hostile/attacker/siege.h"

namespace hostile {
namespace {

struct OwnKey {
  uint64_t grant = 0, length = 0;
  uint32_t epoch = 0;
};

bool be_granted(Siege& siege, Channel& channel, OwnKey& key) {
  Bytes answer = ask(channel, "grant");
  bool granted = answer.size() == 47 && std::memcmp(answer.data(), "granted", 7) == 0;
  siege.must(granted, "a grant of its own");
  if (granted)
    key = {take<uint64_t>(answer.data() + 7), take<uint64_t>(answer.data() + 15),
           take<uint32_t>(answer.data() + 31)};
  return granted;
}

// Reads that were answered with bytes. Of DONEs there are as many as were refused.
uint64_t bytes_given(const Channel& channel) {
  uint64_t given = 0;
  for (const Answer& answer : channel.answers)
    given += answer.type == kOffer && answer.at<uint8_t>(16) == kReadAnswer ? 1 : 0;
  return given;
}

// Keys of others, from all that a stranger is told: what HELLO says, and how its own grants look.
std::vector<uint64_t> seeds_of(const Channel& channel, const std::vector<OwnKey>& own) {
  const HelloFields& h = channel.peer;
  std::vector<uint64_t> seeds = {0,
                                 h.incarnation,
                                 h.pid,
                                 h.uid,
                                 h.network_namespace,
                                 h.user_namespace,
                                 h.arena_bytes,
                                 take<uint64_t>(h.host.data()),
                                 take<uint64_t>(h.host.data() + 8)};
  for (const OwnKey& key : own)
    seeds.insert(seeds.end(), {key.grant, key.epoch, key.grant ^ key.epoch});
  return seeds;
}

// The n-th guess of a number and epoch: as a program would make them that counts, or that mixes
// a number with something it also tells.
OwnKey guess(const std::vector<uint64_t>& seeds, const std::vector<OwnKey>& own, uint64_t n) {
  uint64_t number = n / (2 * seeds.size()) % 4096 + 1, seed = seeds[n / 2 % seeds.size()];
  uint64_t mixed = (number + seed) * 0x9E3779B97F4A7C15u;
  if (n % 2 == 0) return {number, 1, static_cast<uint32_t>(mixed >> 32)};
  const OwnKey& near = own[n % own.size()];
  int64_t step = static_cast<int64_t>(n / 7 % 257) - 128;
  return {near.grant + static_cast<uint64_t>(step), 1,
          near.epoch + static_cast<uint32_t>(n / 3 % 3 == 0 ? 0 : step)};
}

// The server grants each client some memory whose key it tells nobody (victim/service.h).
void guess_keys(Siege& siege, bool write) {
  auto channel = open_channel(siege);
  if (channel == nullptr) return siege.must(false, "a conversation");
  std::vector<OwnKey> own(1);
  if (!be_granted(siege, *channel, own[0])) return;
  std::vector<uint64_t> seeds = seeds_of(*channel, own);
  // Ours is given back: what is hit from here on is nobody's or another's, and must not be.
  Bytes revoked = ask(*channel, "revoke");
  siege.must(revoked.size() == 7, "its own grant is revoked");
  Bytes payload(8, 0x66);
  channel->answers.clear();
  uint64_t guesses = 0, hits = 0;
  uint64_t most = siege.dose == 1 ? 1 << 17 : 1 << 20;
  while (guesses < most && channel->alive() && siege.more()) {
    std::vector<Bytes> batch;
    for (int i = 0; i < 256; ++i, ++guesses) {
      OwnKey key = guess(seeds, own, guesses);
      batch.push_back(
          write ? offer(guesses, kWrite, key.grant, payload.size(), kInline | kReport, 0, key.epoch)
                      .whole(payload)
                : want(guesses, kRead, key.grant, key.epoch, 0, 8).whole());
    }
    if (!channel->send_all(batch)) break;
    (void)channel->listen(0);
    hits += bytes_given(*channel);
    for (const Answer& answer : channel->answers)
      hits += write && answer.type == kDone && answer.at<uint32_t>(16) == kOk ? 1 : 0;
    channel->answers.clear();
  }
  Answer last;
  if (channel->send(ping(1, false))) (void)channel->await(kPing, last);
  siege.seen.hits += hits + bytes_given(*channel);
  siege.must(siege.seen.codes[kAccessDenied] > 100 || siege.seen.cut_off > 0,
             "guesses are refused");
  siege.note(std::to_string(guesses) + " guesses");
}

void reads_guessed(Siege& siege) { guess_keys(siege, false); }
void writes_guessed(Siege& siege) { guess_keys(siege, true); }

// Its own key from another conversation, where it is not valid.
void key_of_another(Siege& siege) {
  auto first = open_channel(siege), second = open_channel(siege);
  OwnKey key;
  if (first == nullptr || second == nullptr || !be_granted(siege, *first, key))
    return siege.must(false, "two conversations and a grant");
  for (uint64_t i = 0; i < 1000 && second->alive(); ++i)
    (void)second->send(want(i, kRead, key.grant, key.epoch, i * 8, 8).whole());
  Answer last;
  if (second->send(ping(1, false))) (void)second->await(kPing, last);
  siege.seen.hits += bytes_given(*second);
  siege.must(siege.seen.codes[kAccessDenied] > 0 || siege.seen.cut_off > 0, "it is refused");
}

void outside_own_grant(Siege& siege) {
  auto channel = open_channel(siege);
  OwnKey key;
  if (channel == nullptr || !be_granted(siege, *channel, key))
    return siege.must(false, "a conversation and a grant");
  const uint64_t wrong[][2] = {{key.length, 1}, {key.length - 7, 8}, {0, key.length + 1},
                               {~0ull, 1},      {~0ull - 7, 16},     {1ull << 63, 1ull << 63},
                               {8, ~0ull - 7},  {8, ~0ull}};
  for (uint64_t i = 0; i < 2000 * siege.dose && channel->alive() && siege.more(); ++i) {
    (void)channel->send(
        want(i, kRead, key.grant, key.epoch, wrong[i % 8][0], wrong[i % 8][1]).whole());
    (void)channel->listen(0);
    siege.seen.hits += bytes_given(*channel);
    channel->answers.clear();
  }
  settle(siege, *channel);
  siege.must(siege.seen.codes[kAccessDenied] > 0 || siege.seen.cut_off > 0, "they are refused");
}

// Reads of its own grant, by the thousand, whose answers it leaves.
void reads_unread(Siege& siege) {
  std::vector<std::unique_ptr<Channel>> all;
  for (int i = 0; i < 8 && siege.more(); ++i) {
    auto channel = open_channel(siege);
    OwnKey key;
    if (channel == nullptr || !be_granted(siege, *channel, key)) break;
    channel->leave_unread(true);
    for (uint64_t k = 0;
         k < 2000 * siege.dose && channel->alive() && siege.seen.messages_out < 40'000; ++k) {
      if (!channel->send(want(k, kRead, key.grant, key.epoch, 0, key.length).whole())) break;
    }
    all.push_back(std::move(channel));
  }
  siege.must(siege.seen.messages_out >= 200, "200 reads");
  siege.hold();
}

// A write whose bytes do not come.
void writes_half(Siege& siege) {
  std::vector<std::unique_ptr<Channel>> all;
  for (int i = 0; i < 8 && siege.more(); ++i) {
    auto channel = open_channel(siege);
    OwnKey key;
    if (channel == nullptr || !be_granted(siege, *channel, key)) break;
    if (channel->views) {
      (void)channel->send(offer(1, kWrite, key.grant, 8, kInline, 8, key.epoch).promising(8));
    } else {
      for (uint64_t k = 0; k < 500; ++k)
        (void)channel->send(offer(k, kWrite, key.grant, 1 << 20, 0, 0, key.epoch).whole());
    }
    all.push_back(std::move(channel));
  }
  siege.must(siege.seen.messages_out >= 8, "8 writes");
  siege.hold([&] {
    for (auto& channel : all) {
      (void)channel->listen(0);
      channel->answers.clear();
    }
  });
}

const Registered tcp(
    "tcp",
    {
        {"reads_guessed", "reads with keys made of what HELLO and its own grant tell",
         reads_guessed},
        {"writes_guessed", "writes with such keys", writes_guessed},
        {"key_of_another", "a key on another conversation than its own", key_of_another},
        {"outside_own_grant", "reads around its own grant", outside_own_grant},
        {"reads_unread", "reads its own grant again and again, and takes no answer", reads_unread},
        {"writes_half", "writes whose bytes do not come", writes_half},
    });
const Registered shm(
    "shm", {
               {"reads_guessed", "reads with keys made of what HELLO and its own grant tell",
                reads_guessed},
               {"writes_guessed", "writes with such keys", writes_guessed},
               {"key_of_another", "a key on another conversation than its own", key_of_another},
               {"outside_own_grant", "reads around its own grant", outside_own_grant},
               {"writes_half", "writes whose bytes do not come", writes_half},
           });

}  // namespace
}  // namespace hostile
