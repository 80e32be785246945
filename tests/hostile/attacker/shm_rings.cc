// Attacks by the shared ring and the socket beside it: while the other end reads, a second process
// writes.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tuple>

#include "tests/hostile/attacker/shm.h"

namespace hostile {
namespace {

using Peers = std::vector<std::unique_ptr<ShmPeer>>;

// A process that does `work` again and again until it is ended.
class Second {
 public:
  template <typename Work>
  explicit Second(Work&& work) : pid_(::fork()) {
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::alarm(60);
    while (true) work();
  }
  ~Second() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  void stop() { ::kill(pid_, SIGSTOP); }

 private:
  pid_t pid_;
};

// Conversations one after the other, each while a second process scribbles over our region.
template <typename Scribble>
void while_scribbling(Siege& siege, uint64_t rounds, Scribble&& scribble, bool send_good) {
  for (uint64_t i = 0; i < rounds * siege.dose && siege.more(); ++i) {
    ShmPeer peer(siege);
    if (!peer.greet()) continue;
    Region* region = peer.own();
    uint64_t seed = siege.random() | 1;
    Second second([&] {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      scribble(*region, seed);
    });
    auto end = Siege::Clock::now() + std::chrono::milliseconds(60);
    uint64_t k = 0;
    while (peer.alive() && Siege::Clock::now() < end) {
      if (send_good) (void)peer.send(inline_message(k, 0x7000, Bytes(k % 300, 1))), ++k;
      peer.ring_bell();
      (void)peer.listen(0);
      peer.answers.clear();
    }
  }
  siege.must(siege.seen.greeted >= 5, "5 conversations");
}

// Words of the other end's messages and stamps, all of them dice.
void ring_of_dice(Siege& siege) {
  while_scribbling(
      siege, 12,
      [](Region& region, uint64_t dice) {
        Slot& slot = region.slots[dice >> 50 & (kSlots - 1)];
        std::memcpy(slot.data + (dice >> 40 & 15) * 8 % 112, &dice, 8);
        slot.stamp.store(dice >> 20 & 2047);
      },
      false);
}

// Stamps are right, so that every slot is read; its header changes at full speed.
void headers_that_change(Siege& siege) {
  while_scribbling(
      siege, 12,
      [](Region& region, uint64_t dice) {
        for (uint64_t at = 0; at < 64; ++at) {
          Slot& slot = region.slots[at];
          uint8_t type = static_cast<uint8_t>(dice % 12);
          uint16_t header = static_cast<uint16_t>((dice >> 8 & 15) * 8 + 16);
          uint32_t payload = dice >> 16 & 1 ? static_cast<uint32_t>(dice >> 20 & 0xffff) : 0;
          std::memcpy(slot.data, &type, 1);
          std::memcpy(slot.data + 2, &header, 2);
          std::memcpy(slot.data + 4, &payload, 4);
          slot.stamp.store(at + 2);
          dice = dice * 6364136223846793005u + 1;
        }
      },
      false);
}

// Messages that are right when they are sent, and lengths that are others when they are read.
void lengths_that_change(Siege& siege) {
  while_scribbling(
      siege, 12,
      [](Region& region, uint64_t dice) {
        Slot& slot = region.slots[dice >> 54 & (kSlots - 1)];
        uint32_t payload = static_cast<uint32_t>(dice >> 20 & (dice & 1 ? 0x1ff : 0xffffffff));
        std::memcpy(slot.data + 4, &payload, 4);
        std::memcpy(slot.data + 40, &payload, 4);
      },
      true);
}

void positions_of_dice(Siege& siege) {
  while_scribbling(
      siege, 12,
      [](Region& region, uint64_t dice) {
        region.consumed.store(dice & 1 ? dice : dice >> 56);
        region.sleeping.store(dice >> 3);
      },
      true);
}

// Awake or asleep: the other end rings for each sleep it sees.
void sleeps_flood(Siege& siege) {
  while_scribbling(
      siege, 12,
      [](Region& region, uint64_t) {
        region.sleeping.store((region.sleeping.load(std::memory_order_relaxed) + 2) | 1);
      },
      true);
}

void layout_changes(Siege& siege) {
  while_scribbling(
      siege, 8,
      [](Region& region, uint64_t dice) {
        region.layout = dice;
        region.probe = dice >> 1;
      },
      true);
}

// Withdraws offers that there are not, while it makes some.
void withdrawals_of_dice(Siege& siege) {
  while_scribbling(
      siege, 8,
      [](Region& region, uint64_t dice) { region.withdrawals.store(dice & 1 ? dice : dice >> 60); },
      true);
}

// Says for ever that it copies from memory which the other end wants back: a revoke must not wait
// for that.
void copying_never_ends(Siege& siege) {
  uint64_t revoked = 0, ended = 0;
  for (uint64_t i = 0; i < 8 * siege.dose && siege.more(); ++i) {
    ShmPeer peer(siege);
    if (!peer.greet() || ask(peer, "grant").size() != 47) continue;
    for (uint64_t k = 0; k < 8; ++k) (void)peer.send(want_key(k, 0, k == 0 ? "weights" : "", 0));
    peer.own()->copying.store(1);
    revoked += ask(peer, "revoke").size() == 7 ? 1 : 0;
    ended += peer.alive() ? 0 : 1;
  }
  siege.note(std::to_string(revoked) + " revoked, " + std::to_string(ended) + " ended");
  siege.must(revoked + ended >= 4, "4 grants are revoked, or their conversations ended");
}

// Once the stamp of every lap stands in every slot, the other end never finds the ring empty.
void ring_never_empty(Siege& siege) {
  while_scribbling(
      siege, 8,
      [](Region& region, uint64_t dice) {
        Bytes message = ping(dice, true);
        uint64_t at = region.slots[0].stamp.load(std::memory_order_relaxed);
        for (uint64_t k = 0; k < kSlots; ++k) {
          std::memcpy(region.slots[k].data, message.data(), message.size());
          region.slots[k].stamp.store((at / kSlots) * kSlots + k + 2 + (dice & 1) * kSlots);
        }
      },
      false);
}

// A ring that says that it grows: at any slot, again and again, without the memory for it, and with
// messages behind that which are longer than what it has.
void growth_of_dice(Siege& siege) {
  for (uint64_t i = 0; i < 60 * siege.dose && siege.more(); ++i) {
    ShmPeer peer(siege);
    peer.stay_small();
    if (!peer.greet()) continue;
    Region& region = *peer.own();
    const uint64_t marks = siege.random() % kFirstSlots;
    for (uint64_t k = 0; k < kFirstSlots; ++k) {
      Bytes message = i % 2 == 0 ? ping(k, true) : inline_message(k, 0x7000, Bytes(64, 1));
      const uint32_t payload = siege.random() % 65536;
      if (i % 4 == 3) std::memcpy(message.data() + 4, &payload, 4);
      std::memcpy(region.first[k].data, message.data(), std::min(message.size(), kSlotData));
      if (k >= marks) std::memset(region.first[k].data, 0xFF, kSlotData);
      if (k == marks) region.grown_at.store(k + 1);
      region.first[k].stamp.store(k + 1);
    }
    peer.ring_bell();
    (void)peer.listen(1);
    for (uint64_t k = 0; k < 64 && peer.alive(); ++k) {
      // The hole is filled by whoever reads it first.
      region.slots[k].stamp.store(marks + 2 + k);
      std::memset(region.slots[k].data, 0xFF, kSlotData);
      region.grown_at.store(marks + 2 + k);
    }
    peer.ring_bell();
    (void)peer.listen(1);
  }
  siege.must(siege.seen.greeted >= 5, "5 conversations");
}

void bells_flood(Siege& siege) {
  ShmPeer peer(siege);
  if (!peer.greet()) return siege.must(false, "a conversation");
  auto end = std::min(siege.end, Siege::Clock::now() + std::chrono::milliseconds(500 * siege.dose));
  uint64_t bells = 0;
  for (; peer.alive() && Siege::Clock::now() < end; ++bells) peer.ring_bell();
  siege.note(std::to_string(bells) + " bells");
  siege.must(bells >= 1000, "1000 bells");
  siege.hold([&] {
    for (int i = 0; i < 200; ++i) peer.ring_bell();
  });
}

// Bells of the other end that we never hear: its socket fills.
void bells_unheard(Siege& siege) {
  ShmPeer peer(siege);
  if (!peer.greet()) return siege.must(false, "a conversation");
  peer.leave_unread(true);
  uint64_t sent = 0;
  siege.hold([&] {
    for (int i = 0; i < 100; ++i) {
      // It answers each, to one who sleeps anew each time.
      peer.own()->sleeping.store((peer.own()->sleeping.load() + 2) | 1);
      if (peer.position() - peer.peers()->consumed.load() < kSlots - 8)
        sent += peer.send(ping(sent, false)) ? 1 : 0;
    }
  });
  siege.must(sent >= 100 || !peer.alive(), "100 PINGs");
}

void half_open(Siege& siege) {
  Peers all;
  for (uint64_t i = 0; i < 200 * siege.dose && siege.more(); ++i) {
    auto peer = std::make_unique<ShmPeer>(siege);
    if (!peer->connect()) break;
    all.push_back(std::move(peer));
  }
  siege.must(siege.seen.connections >= 100, "100 connections");
  siege.hold();
}

// More finished handshakes than the other end has descriptors.
void finished(Siege& siege) {
  Peers all;
  for (uint64_t i = 0; i < 600 * siege.dose && siege.more(); ++i) {
    auto peer = std::make_unique<ShmPeer>(siege);
    if (peer->greet()) all.push_back(std::move(peer));
    if (siege.seen.turned_away > 100) break;
  }
  siege.note(std::to_string(all.size()) + " stayed");
  siege.must(siege.seen.connections >= 100, "100 connections");
  siege.hold([&] {
    for (auto& peer : all) (void)peer->listen(0);
  });
}

void churn(Siege& siege) {
  for (uint64_t i = 0; i < 600 * siege.dose && siege.more(); ++i) {
    ShmPeer peer(siege);
    if (i % 3 == 0) {
      (void)peer.connect();
    } else if (i % 3 == 1) {
      (void)(peer.connect() && peer.say_hello(peer.fields(), {-1}));
    } else {
      (void)peer.greet();
    }
  }
  siege.must(siege.seen.connections >= 300, "300 connections");
}

void hello_contradicts(Siege& siege) {
  uint64_t tried = 0, met = 0;
  for (uint64_t i = 0; i < 24 * siege.dose && siege.more(); ++i) {
    ShmPeer peer(siege);
    if (!peer.connect()) continue;
    HelloFields fields = peer.fields();
    if (i % 6 == 0) fields.host[3] ^= 1;
    if (i % 6 == 1) fields.magic = 7;
    if (i % 6 == 2) fields.min_version = 5;
    if (i % 6 == 3) fields.max_version = 0;
    ++tried;
    if (i % 6 < 4)
      met += peer.say_hello(fields, {-1}) && peer.hear_hello() ? 1 : 0;
    else if (i % 6 == 4)
      met += peer.packet(siege.junk(300)) && peer.hear_hello() ? 1 : 0;
    else
      met += peer.packet(bye(0)) && peer.hear_hello() ? 1 : 0;
  }
  siege.must(tried >= 6 && met == 0, "each is refused");
}

// Offers of memory that was never announced, is not so long, or wraps.
void offers_of_nothing(Siege& siege) {
  int memory = sealed_memory("extent", 2 << 20, usual_seals());
  const uint64_t m = 2 << 20;
  std::vector<Bytes> variants;
  for (auto [extent, offset, length] :
       std::vector<std::tuple<uint32_t, uint64_t, uint64_t>>{{9, 0, 128},
                                                             {1, m, 128},
                                                             {1, m - 64, 128},
                                                             {1, ~0ull - 200, 128},
                                                             {1, 0, m + 1},
                                                             {1, m - 1, 1ull << 40}}) {
    variants.push_back(offer(1, kTagged, kCommandTag, length)
                           .tlv(kSegment, segment(extent, offset, length))
                           .whole());
  }
  uint64_t tried = 0, refused = 0;
  for (uint64_t i = 0; i < variants.size() * siege.dose * 2 && siege.more(); ++i) {
    ShmPeer peer(siege);
    if (!peer.greet()) continue;
    ++tried;
    (void)peer.announce(1, 0, m, memory);
    (void)peer.send(variants[i % variants.size()]);
    auto end = Siege::Clock::now() + std::chrono::milliseconds(500);
    while (peer.alive() && Siege::Clock::now() < end) (void)peer.listen(10);
    refused += peer.alive() ? 0 : 1;
  }
  ::close(memory);
  siege.note(std::to_string(refused) + " of " + std::to_string(tried) + " ended");
  // Those longer than the receive that was posted wait for a larger one, unlooked at.
  siege.must(tried >= 6 && refused * 2 >= tried, "half of them end the conversation");
}

// What the other end reads in place changes while it does.
void memory_that_changes(Siege& siege) {
  constexpr size_t kBytes = 2 << 20;
  int memory = ::memfd_create("extent", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  bool there =
      memory >= 0 && ::ftruncate(memory, kBytes) == 0 && ::fallocate(memory, 0, 0, kBytes) == 0;
  void* at = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  if (!there || at == MAP_FAILED) return siege.must(false, "memory");
  ::fcntl(memory, F_ADD_SEALS, usual_seals());
  uint64_t seed = 1;
  Second second([&] {
    seed = seed * 6364136223846793005u + 1;
    static const char* const kCommands[] = {"publish 7 100  ", "grant          ", "send 3 9999999 ",
                                            "fetch 18446744 "};
    std::memcpy(static_cast<uint8_t*>(at) + (seed >> 40) % 32 * 128, kCommands[seed >> 60 & 3], 15);
  });
  for (uint64_t i = 0; i < 30 * siege.dose && siege.more(); ++i) {
    ShmPeer peer(siege);
    if (!peer.greet()) continue;
    (void)peer.announce(1, 0, kBytes, memory);
    for (uint64_t k = 0; k < 40; ++k) {
      (void)peer.send(
          offer(k, kTagged, kCommandTag, 128).tlv(kSegment, segment(1, k % 32 * 128, 128)).whole());
      (void)peer.listen(0);
    }
    (void)peer.listen(20);
  }
  ::munmap(at, kBytes);
  ::close(memory);
  siege.must(siege.seen.answers[kDone] + siege.seen.answers[kOffer] > 0,
             "commands are read from it");
}

// Loans that are held by a process which is stopped, then killed.
void stopped_with_loans(Siege& siege) {
  Second second([&] {
    Siege own;
    own.path = siege.path;
    own.address = siege.address;
    own.end = siege.end;
    std::vector<std::unique_ptr<ShmPeer>> all;
    for (int i = 0; i < 8; ++i) {
      auto peer = std::make_unique<ShmPeer>(own);
      if (!peer->greet()) break;
      for (uint64_t k = 0; k < 40; ++k)
        (void)peer->send(want_key(k, 0, k == 0 ? "weights" : "", 0));
      all.push_back(std::move(peer));
    }
    ::raise(SIGSTOP);
  });
  ++siege.seen.connections;
  siege.hold();
}

const Registered registered(
    "shm",
    {
        {"ring_of_dice", "a second process writes dice over the ring", ring_of_dice},
        {"headers_that_change", "headers that change between the look and the use",
         headers_that_change},
        {"lengths_that_change", "lengths that change in messages that were right",
         lengths_that_change},
        {"positions_of_dice", "positions and sleeps that cannot be", positions_of_dice},
        {"sleeps_flood", "falls asleep and wakes at full speed", sleeps_flood},
        {"layout_changes", "another layout after the handshake", layout_changes},
        {"withdrawals_of_dice", "withdraws what it did not offer", withdrawals_of_dice},
        {"copying_never_ends", "says that it still copies when a grant is revoked",
         copying_never_ends},
        {"growth_of_dice", "a ring that says that it grows, without an end or memory",
         growth_of_dice},
        {"ring_never_empty", "a ring in which there is always one more message", ring_never_empty},
        {"bells_flood", "rings without end", bells_flood},
        {"bells_unheard", "never hears what the other end rings", bells_unheard},
        {"half_open", "connects by the hundred and says nothing", half_open, true},
        {"finished", "more handshakes than the other end has descriptors", finished, true},
        {"churn", "connects, greets and leaves, again and again", churn, true},
        {"hello_contradicts", "another host, no version, no HELLO", hello_contradicts},
        {"offers_of_nothing", "offers of memory that is not there", offers_of_nothing},
        {"memory_that_changes", "commands that change while they are read", memory_that_changes},
        {"stopped_with_loans", "a process that is stopped with loans, and killed",
         stopped_with_loans},
    });

}  // namespace
}  // namespace hostile
