// Attacks on keys, wants and publications: the exchange of the other end.
#include <algorithm>

#include "tests/hostile/attacker/siege.h"

namespace hostile {
namespace {

// Where the honest client's keys begin (siege.py), and what they are called (victim/service.h).
constexpr uint64_t kFirstStep = 1000;
constexpr const char* kMade = "made";
constexpr const char* kWeights = "weights";

// Conversations that leave room for others. Over shm the honest client is of the attacker's user,
// whose connections are at most 384 by default, and has to get in.
constexpr uint64_t kBesideNewcomers = 300;

using Channels = std::vector<std::unique_ptr<Channel>>;

Channels open_some(Siege& siege, uint64_t count) {
  Channels all;
  while (all.size() < count && siege.more()) {
    auto channel = open_channel(siege);
    if (channel == nullptr) break;
    all.push_back(std::move(channel));
  }
  siege.must(!all.empty(), "a conversation");
  return all;
}

void listen_all(Channels& all) {
  for (auto& channel : all) {
    (void)channel->listen(0);
    channel->answers.clear();
  }
}

std::string name_of_key(Siege& siege, uint64_t number) {
  return siege.attack + "/" + std::to_string(number);
}

// New names, as many as a table may hold, and gone.
void keys_flood(Siege& siege) {
  uint64_t number = 0;
  for (int round = 0; round < 17 && siege.more(); ++round) {
    auto channel = open_channel(siege);
    if (channel == nullptr) continue;
    (void)flood(siege, *channel, 4096 * siege.dose, [&](uint64_t i) {
      return want_key(i, static_cast<uint32_t>(i % 65536), name_of_key(siege, number++), 1);
    });
    settle(siege, *channel);
  }
  siege.must(number >= 4096, "4096 names");
}

// The same, and it stays.
void keys_held(Siege& siege) {
  Channels all = open_some(siege, 17);
  uint64_t number = 0;
  for (auto& channel : all) {
    (void)flood(siege, *channel, 4096, [&](uint64_t i) {
      return want_key(i, static_cast<uint32_t>(i), name_of_key(siege, number++), 1);
    });
  }
  siege.must(number >= 4096, "4096 names");
  siege.hold([&] { listen_all(all); });
}

void keys_renamed(Siege& siege) {
  Channels all = open_some(siege, 1);
  if (all.empty()) return;
  uint64_t sent = flood(siege, *all[0], 20'000 * siege.dose, [&](uint64_t i) {
    return i % 2 == 0 ? want_key(i, 7, name_of_key(siege, i), 1) : cancel(i - 1, false);
  });
  settle(siege, *all[0]);
  siege.must(sent >= 1000 || !all[0]->alive(), "1000 messages");
}

// The largest number for a key, on many conversations: a table indexed by it must not be made for
// each.
void key_numbers_high(Siege& siege) {
  Channels all = open_some(siege, std::min(120 * siege.dose, kBesideNewcomers));
  for (auto& channel : all) (void)channel->send(want_key(1, 65535, "high", 1));
  if (!all.empty()) settle(siege, *all.back());
  siege.hold([&] { listen_all(all); });
}

void keys_unnamed(Siege& siege) {
  Channels all = open_some(siege, 1);
  if (all.empty()) return;
  (void)flood(siege, *all[0], 40'000 * siege.dose,
              [](uint64_t i) { return want_key(i, static_cast<uint32_t>(i % 65536), "", i); });
  settle(siege, *all[0]);
  siege.must(siege.seen.answers[kDone] > 100 || siege.seen.cut_off > 0, "100 refusals");
}

void wants_full(Siege& siege) {
  Channels all = open_some(siege, 8);
  for (auto& channel : all) {
    (void)flood(siege, *channel, 6000 * siege.dose,
                [](uint64_t i) { return want_key(i, 0, i == 0 ? "never" : "", i); });
    settle(siege, *channel);
  }
  siege.must(siege.seen.answers[kDone] > 0 || siege.seen.cut_off > 0, "some are refused");
  siege.hold([&] { listen_all(all); });
}

// Tables as full as they get, then what has to look through them.
void cancels_at_full_tables(Siege& siege) {
  Channels all = open_some(siege, 17);
  uint64_t number = 0;
  for (auto& channel : all) {
    (void)flood(siege, *channel, 4096, [&](uint64_t i) {
      return want_key(i, static_cast<uint32_t>(i), name_of_key(siege, number++), 1);
    });
  }
  siege.must(number >= 4096, "4096 names");
  // 20,000 CANCELs are the 480 KB that once held everybody up for 20 s.
  uint64_t cancels = 0;
  for (auto& channel : all) {
    if (channel->alive())
      cancels += flood(siege, *channel, 20'000 * siege.dose / all.size(),
                       [](uint64_t i) { return cancel((1ull << 40) + i, false); });
  }
  siege.must(cancels >= 1000 || siege.seen.cut_off >= all.size(), "1000 CANCELs");
  siege.hold([&] { listen_all(all); });
}

// The same for offers, where messages that nobody receives fill the queue.
void offer_cancels_at_full_tables(Siege& siege) {
  Channels all = open_some(siege, 8);
  uint64_t cancels = 0;
  for (auto& channel : all) {
    (void)flood(siege, *channel, 250,
                [](uint64_t i) { return inline_message(i, 0x7000 + i, {}, kReport); });
    cancels +=
        flood(siege, *channel, 10'000 * siege.dose, [](uint64_t i) { return cancel(i, true); });
  }
  siege.must(cancels >= 1000 || siege.seen.cut_off >= all.size(), "1000 CANCELs");
  siege.hold([&] { listen_all(all); });
}

void wants_cancelled(Siege& siege) {
  Channels all = open_some(siege, 1);
  if (all.empty()) return;
  (void)flood(siege, *all[0], 40'000 * siege.dose, [](uint64_t i) {
    return i % 2 == 0 ? want_key(i, 0, i == 0 ? "off and on" : "", i) : cancel(i - 1, false);
  });
  settle(siege, *all[0]);
}

// Wants what the honest client is about to fetch, before it does.
void readers_taken(Siege& siege) {
  Channels all = open_some(siege, 1);
  if (all.empty()) return;
  (void)flood(siege, *all[0], 4000,
              [](uint64_t i) { return want_key(i, 0, i == 0 ? kMade : "", kFirstStep + i); });
  settle(siege, *all[0]);
  siege.hold([&] {
    (void)all[0]->listen(0);
    for (const Answer& answer : all[0]->answers) {
      bool supply = answer.type == kOffer && answer.at<uint8_t>(16) == kSupply;
      if (supply && siege.seen.hits++ == 0) siege.note("a tensor for another came");
    }
    all[0]->answers.clear();
  });
}

// Answers whatever the other end asks for, with bytes of its own.
void supplies_forged(Siege& siege) {
  Channels all = open_some(siege, 4);
  Bytes lie(48 << 10, 0x66);
  uint64_t asked = 0;
  siege.hold([&] {
    for (auto& channel : all) {
      if (!channel->alive()) continue;
      (void)channel->listen(0);
      for (const Answer& answer : channel->answers) {
        if (answer.type != kWant || answer.at<uint8_t>(16) != kByKey) continue;
        ++asked;
        (void)channel->send(offer(asked, kSupply, answer.id, lie.size(), kInline)
                                .tlv(kLayout, layout_of(static_cast<int64_t>(lie.size())))
                                .whole(lie));
      }
      channel->answers.clear();
    }
  });
  // The server asks only those who may supply the key.
  siege.note(std::to_string(asked) + " wants answered");
  siege.seen.hits += asked;
}

// Refuses, or says nothing, where it is asked: others have it.
void wants_refused(Siege& siege) {
  Channels all = open_some(siege, 4);
  uint64_t asked = 0;
  siege.hold([&] {
    for (auto& channel : all) {
      if (!channel->alive()) continue;
      (void)channel->listen(0);
      for (const Answer& answer : channel->answers) {
        if (answer.type == kWant && ++asked % 2 == 0)
          (void)channel->send(done(answer.id, asked % 12 + 1, 0));
      }
      channel->answers.clear();
    }
  });
  siege.note(std::to_string(asked) + " wants");
}

// Gets the weights and never says that it is done with them, from many conversations.
void weights_kept(Siege& siege) {
  Channels all = open_some(siege, 32 * siege.dose);
  for (auto& channel : all) {
    for (uint64_t i = 0; i < 40 && channel->alive(); ++i)
      (void)channel->send(want_key(i, 0, i == 0 ? kWeights : "", 0));
  }
  siege.hold([&] { listen_all(all); });
  siege.must(siege.seen.answers[kOffer] > 0, "the weights are offered");
}

// The same, without reading.
void weights_unread(Siege& siege) {
  Channels all = open_some(siege, std::min(24 * siege.dose, kBesideNewcomers));
  for (auto& channel : all) {
    channel->leave_unread(true);
    for (uint64_t i = 0; i < 40 && channel->alive(); ++i)
      (void)channel->send(want_key(i, 0, i == 0 ? kWeights : "", 0));
  }
  siege.hold();
  for (auto& channel : all) {
    channel->leave_unread(false);
    (void)channel->listen(10);
  }
  siege.must(siege.seen.bytes_in + siege.seen.frames_in > 0, "bytes were under way");
}

void weights_cancelled(Siege& siege) {
  Channels all = open_some(siege, 1);
  if (all.empty()) return;
  for (uint64_t i = 0; i < 400 * siege.dose && all[0]->alive() && siege.more(); ++i) {
    (void)all[0]->send(want_key(i, 0, i == 0 ? kWeights : "", 0));
    (void)all[0]->listen(i % 2 == 0 ? 0 : 1);
    (void)all[0]->send(cancel(i, false));
    all[0]->answers.clear();
  }
  settle(siege, *all[0]);
  siege.must(siege.seen.answers[kOffer] + siege.seen.answers[kData] > 0, "some were on their way");
}

// Leaves in the middle of what it asked for.
void leaves_in_the_middle(Siege& siege) {
  for (uint64_t i = 0; i < 120 * siege.dose && siege.more(); ++i) {
    auto channel = open_channel(siege);
    if (channel == nullptr) continue;
    for (uint64_t k = 0; k < 4; ++k) (void)channel->send(want_key(k, 0, k == 0 ? kWeights : "", 0));
    (void)channel->listen(1);
  }
  siege.must(siege.seen.messages_out >= 100, "100 WANTs");
}

void wants_of_other_layouts(Siege& siege) {
  Channels all = open_some(siege, 1);
  if (all.empty()) return;
  (void)flood(siege, *all[0], 4000 * siege.dose, [](uint64_t i) {
    Message message = want(i, kByKey, 0, 0, 0, 0, 1);
    message.tlv(kLayout, layout_of(static_cast<int64_t>(i)));
    if (i == 0) message.text(kKey, kWeights);
    return message.whole();
  });
  settle(siege, *all[0]);
  // Each is offered what there is, and would refuse it. Over Ethernet 64 windows are open at most.
  siege.must(siege.seen.answers[kOffer] > 50 || siege.seen.cut_off > 0, "50 offers");
}

// What a program of the server's answers, again and again, to somebody who does not read.
void commands_unread(Siege& siege) {
  Channels all = open_some(siege, 16 * siege.dose);
  for (auto& channel : all) {
    channel->leave_unread(true);
    std::string command = "send 1 1048576";
    for (int i = 0; i < 40 && channel->alive(); ++i)
      (void)channel->send(inline_message(static_cast<uint64_t>(i), kCommandTag,
                                         Bytes(command.begin(), command.end())));
  }
  siege.must(siege.seen.messages_out >= 40, "40 commands");
  siege.hold();
}

const Registered registered(
    "any",
    {
        {"keys_flood", "wants as many new names as a table may hold, and leaves", keys_flood},
        {"keys_held", "the same, and stays", keys_held},
        {"keys_renamed", "names one number of a key anew with each want", keys_renamed},
        {"key_numbers_high", "the largest number of a key on many conversations", key_numbers_high},
        {"keys_unnamed", "wants by numbers that have no name", keys_unnamed},
        {"wants_full", "more wants that wait than there is room for", wants_full},
        {"cancels_at_full_tables", "fills keys and wants, then CANCELs what is not there",
         cancels_at_full_tables},
        {"offer_cancels_at_full_tables",
         "fills the queue of messages, then CANCELs what is not there",
         offer_cancels_at_full_tables},
        {"wants_cancelled", "wants and cancels by turns", wants_cancelled},
        {"readers_taken", "wants what is published for another reader", readers_taken},
        {"supplies_forged", "answers wants that were meant for others", supplies_forged},
        {"wants_refused", "refuses wants, or says nothing to them", wants_refused},
        {"weights_kept", "takes what is published and never releases it", weights_kept},
        {"weights_unread", "asks for what is published and reads nothing", weights_unread},
        {"weights_cancelled", "asks for what is published and cancels it", weights_cancelled},
        {"leaves_in_the_middle", "ends while what it asked for is on its way",
         leaves_in_the_middle},
        {"wants_of_other_layouts", "wants with layouts that do not fit", wants_of_other_layouts},
        {"commands_unread", "has the program answer, and reads nothing", commands_unread},
    });

}  // namespace
}  // namespace hostile
