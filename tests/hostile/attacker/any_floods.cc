// Each type of message again and again, where nothing asked for it.
#include "tests/hostile/attacker/siege.h"

namespace hostile {
namespace {

constexpr uint64_t kMany = 40'000;

// A flood on one conversation, all of which the other end has to read.
void one_flood(Siege& siege, uint64_t count, const std::function<Bytes(uint64_t)>& make) {
  auto channel = open_channel(siege);
  siege.must(channel != nullptr, "a conversation");
  if (channel == nullptr) return;
  if (channel->windows) count /= 8;  // each is a frame or two
  uint64_t sent = flood(siege, *channel, count, make);
  settle(siege, *channel);
  siege.must(sent >= std::min<uint64_t>(count, 200) || !channel->alive(),
             "200 messages, or the other end had enough");
}

void done_unasked(Siege& siege) {
  one_flood(siege, kMany * siege.dose, [](uint64_t i) {
    return done(i % 3 == 0 ? i : i << 32 | i, static_cast<uint32_t>(1 + i % 12), i);
  });
}
void release_unasked(Siege& siege) {
  std::vector<uint64_t> ids(32);
  one_flood(siege, kMany / 4 * siege.dose, [&](uint64_t i) {
    for (size_t k = 0; k < ids.size(); ++k) ids[k] = i * 32 + k;
    return release(ids);
  });
}
void cancel_wants_unasked(Siege& siege) {
  one_flood(siege, kMany * siege.dose, [](uint64_t i) { return cancel(i, false); });
}
void cancel_offers_unasked(Siege& siege) {
  one_flood(siege, kMany * siege.dose, [](uint64_t i) { return cancel(i, true); });
}
void credit_flood(Siege& siege) {
  one_flood(siege, kMany * siege.dose,
            [](uint64_t i) { return i % 2 == 0 ? credit(~0ull, ~0ull) : credit(i % 3, 0); });
}
void ping_flood(Siege& siege) {
  one_flood(siege, kMany * siege.dose, [](uint64_t i) { return ping(i, false); });
  siege.must(siege.seen.answers[kPing] > 100 || siege.seen.cut_off > 0, "100 answers");
}
void ping_replies_unasked(Siege& siege) {
  one_flood(siege, kMany * siege.dose, [](uint64_t i) { return ping(i, true); });
}
void supply_unasked(Siege& siege) {
  Bytes payload(64, 3);
  one_flood(siege, kMany / 4 * siege.dose, [&](uint64_t i) {
    uint64_t of = i % 2 == 0 ? i : (i % 64) << 32 | i % 16;
    return offer(i, kSupply, of, payload.size(), kInline)
        .tlv(kLayout, layout_of(64))
        .whole(payload);
  });
}
void read_answers_unasked(Siege& siege) {
  Bytes payload(64, 3);
  one_flood(siege, kMany / 4 * siege.dose, [&](uint64_t i) {
    return offer(i, kReadAnswer, i, payload.size(), kInline).whole(payload);
  });
}
void data_unasked(Siege& siege) {
  Bytes some(4096, 5);
  one_flood(siege, kMany / 4 * siege.dose, [&](uint64_t i) {
    return i % 2 == 0 ? data(i, i * 4096, some) : data(1ull << 32, ~0ull - 8192, some);
  });
}
void data_of_nothing(Siege& siege) {
  one_flood(siege, kMany * siege.dose, [](uint64_t i) { return data(i, 0, {}); });
}
void wants_of_offers_unknown(Siege& siege) {
  one_flood(siege, kMany / 4 * siege.dose, [](uint64_t i) {
    return want(i, kOfOffer, i % 2 == 0 ? i : (i % 64) << 32 | i % 16, 0, 0, ~0ull).whole();
  });
}

// More messages than there is credit for end the conversation; before that they are kept.
void offers_beyond_credit(Siege& siege) {
  for (uint64_t round = 0; round < 8 * siege.dose && siege.more(); ++round) {
    auto channel = open_channel(siege);
    if (channel == nullptr) continue;
    Bytes payload(64, 9);
    (void)flood(siege, *channel, 4000,
                [&](uint64_t i) { return inline_message(i, 0x7000 + i, payload); });
    while (channel->alive() && siege.more() && channel->listen(20)) {}
    siege.must(!channel->alive(), "4000 messages nobody receives are too many");
  }
}

// The credit of many conversations, used up and left.
void offers_kept_full(Siege& siege) {
  std::vector<std::unique_ptr<Channel>> all;
  Bytes payload(3 << 10, 9);
  uint64_t sent = 0;
  for (uint64_t i = 0; i < 160 * siege.dose && siege.more(); ++i) {
    auto channel = open_channel(siege);
    if (channel == nullptr) break;
    sent += flood(siege, *channel, 256,
                  [&](uint64_t k) { return inline_message(k, 0x7000 + k, payload, kReport); });
    all.push_back(std::move(channel));
  }
  siege.must(sent >= 256, "256 messages");
  siege.note(std::to_string(all.size()) + " conversations");
  siege.hold([&] {
    for (auto& channel : all) (void)channel->listen(0);
  });
}

void bye_and_go_on(Siege& siege) {
  for (uint64_t i = 0; i < 100 * siege.dose && siege.more(); ++i) {
    auto channel = open_channel(siege);
    if (channel == nullptr) continue;
    (void)channel->send(bye(i % 13));
    (void)flood(siege, *channel, 100,
                [](uint64_t k) { return k % 2 == 0 ? bye(0) : ping(k, false); });
  }
  siege.must(siege.seen.messages_out >= 100, "100 messages");
}

// Says BYE and stays: the other end does not wait for ever.
void bye_and_stay(Siege& siege) {
  std::vector<std::unique_ptr<Channel>> all;
  for (uint64_t i = 0; i < 64 * siege.dose && siege.more(); ++i) {
    auto channel = open_channel(siege);
    if (channel == nullptr) break;
    (void)channel->send(bye(0));
    all.push_back(std::move(channel));
  }
  siege.must(!all.empty(), "a conversation");
  siege.hold();
}

void half_a_message(Siege& siege) {
  std::vector<std::unique_ptr<Channel>> all;
  for (uint64_t i = 0; i < 64 * siege.dose && siege.more(); ++i) {
    auto channel = open_channel(siege);
    if (channel == nullptr) break;
    Bytes promised = offer(1, kTagged, 77, 65536, kInline).promising(65536);
    promised.resize(promised.size() + (i % 2 == 0 ? 0 : 30'000), 1);
    (void)channel->send(promised);
    all.push_back(std::move(channel));
  }
  siege.must(!all.empty(), "a conversation");
  siege.hold([&] {
    for (auto& channel : all) (void)channel->listen(0);
  });
}

const Registered registered(
    "any",
    {
        {"done_unasked", "DONE of operations that there are not", done_unasked},
        {"release_unasked", "RELEASE of loans that there are not", release_unasked},
        {"cancel_wants_unasked", "CANCEL of wants that there are not", cancel_wants_unasked},
        {"cancel_offers_unasked", "CANCEL of offers that there are not", cancel_offers_unasked},
        {"credit_flood", "CREDIT, all and nothing by turns", credit_flood},
        {"ping_flood", "PING, whose answers are read", ping_flood},
        {"ping_replies_unasked", "answers to PINGs that nobody said", ping_replies_unasked},
        {"supply_unasked", "OFFERs that answer wants that there are not", supply_unasked},
        {"read_answers_unasked", "OFFERs that answer reads that there are not",
         read_answers_unasked},
        {"data_unasked", "DATA of wants that there are not", data_unasked},
        {"data_of_nothing", "DATA without a byte", data_of_nothing},
        {"wants_of_offers_unknown", "WANTs of offers that there are not", wants_of_offers_unknown},
        {"offers_beyond_credit", "more messages than credit allows", offers_beyond_credit},
        {"offers_kept_full", "as many messages as credit allows, on many conversations, for good",
         offers_kept_full},
        {"bye_and_go_on", "BYE, then everything else", bye_and_go_on},
        {"bye_and_stay", "BYE, and the connection stays", bye_and_stay},
        {"half_a_message", "a header whose payload does not come", half_a_message},
    });

}  // namespace
}  // namespace hostile
