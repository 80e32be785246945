// Messages in order, and what holds them back.
#include <catch2/catch.hpp>

#include <string>
#include <utility>
#include <vector>

#include "tests/slp/table.h"

namespace sluice::slp::table {

TEST_CASE("a user without room holds the sender back, and nothing is lost", "[slp]") {
  Pair pair;
  pair.server.full = true;
  int sent = 0;
  while (sent < 100 && pair.client.send(std::string(1000, static_cast<char>('a' + sent % 26)))) {
    ++sent;
    pair.run(pair.now + kMillisecond);
  }
  // What the sender keeps and what the receiver keeps, and no more.
  CHECK(sent >= 18);
  CHECK(sent <= 21);
  pair.run(pair.now + 2 * kSecond);
  CHECK(pair.server.messages.empty());
  CHECK(slp_state_of(pair.client.session) == SLP_UP);
  pair.server.full = false;
  slp_resume(pair.server.session);
  pair.run(pair.now + kSecond);
  REQUIRE(pair.server.messages.size() == static_cast<size_t>(sent));
  for (int i = 0; i < sent; ++i)
    CHECK(pair.server.messages[static_cast<size_t>(i)] ==
          std::string(1000, static_cast<char>('a' + i % 26)));
  CHECK(slp_drained(pair.client.session));
}

TEST_CASE("room again is told at once", "[slp]") {
  Pair pair;
  pair.server.full = true;
  while (pair.client.send(std::string(1000, 'a'))) pair.run(pair.now + kMillisecond);
  pair.run(pair.now + 300 * kMillisecond);
  REQUIRE(pair.server.messages.empty());
  pair.server.full = false;
  slp_resume(pair.server.session);
  size_t kept = pair.server.messages.size();
  CHECK(kept > 5);
  pair.run();  // no time goes by
  CHECK(pair.server.messages.size() > kept);
}

TEST_CASE("what arrives behind a hole, piece by piece in any order, is one piece again", "[slp]") {
  for (bool backwards : {false, true}) {
    INFO("backwards " << backwards);
    Pair pair;
    std::vector<Frame> frames;
    for (uint32_t i = 0; i < SLP_GAPS + 9; ++i) {
      REQUIRE(pair.client.send(std::string(20, static_cast<char>('a' + i))));
      for (Frame& frame : pair.client.say(pair.now)) frames.push_back(std::move(frame));
    }
    REQUIRE(frames.size() == SLP_GAPS + 9);
    // All but the first; each touches the one before, and is taken: there is one hole.
    for (size_t i = 1; i < frames.size(); ++i)
      CHECK(pair.server.hear(frames[backwards ? frames.size() - i : i], pair.now) == SLP_TAKEN);
    CHECK(pair.server.messages.empty());
    CHECK(pair.server.hear(frames[0], pair.now) == SLP_TAKEN);
    CHECK(pair.server.messages.size() == frames.size());
  }
}

TEST_CASE("an acknowledgement that waits for company leaves when there will be none", "[slp]") {
  Pair pair;
  CHECK_FALSE(slp_owes_answer(pair.server.session));
  REQUIRE(pair.server.hear(next_frame(pair, "m"), pair.now) == SLP_TAKEN);
  CHECK(pair.server.say(pair.now).empty());
  CHECK(slp_owes_answer(pair.server.session));
  slp_answer_now(pair.server.session);
  std::vector<Frame> frames = pair.server.say(pair.now);
  REQUIRE(frames.size() == 1);
  CHECK(type_of(frames[0]) == SLP_ACK);
  CHECK_FALSE(slp_owes_answer(pair.server.session));
  // Nobody is told what it knows.
  slp_answer_now(pair.server.session);
  CHECK(pair.server.say(pair.now).empty());
}

TEST_CASE("a sender that waits for credit asks for it, in case the word was lost", "[slp]") {
  Pair pair;
  pair.server.full = true;
  while (pair.client.send(std::string(1000, 'a'))) pair.run(pair.now + kMillisecond);
  pair.run(pair.now + 300 * kMillisecond);
  pair.server.full = false;
  slp_resume(pair.server.session);
  (void)pair.server.say(pair.now);  // is lost
  size_t kept = pair.server.messages.size();
  pair.run(pair.now + 250 * kMillisecond);
  CHECK(pair.server.messages.size() > kept);
}

TEST_CASE("a sender whose credit is used up before it writes on asks as well", "[slp]") {
  Pair pair;
  pair.server.full = true;
  const std::string kib(1024 - SLP_RECORD_BYTES, 'a');
  for (uint32_t sent = 0; sent < SLP_STREAM_BYTES; sent += 1024) {
    REQUIRE(pair.client.send(kib));
    pair.run(pair.now + kMillisecond);
  }
  // Everything is acknowledged, and no timer runs.
  REQUIRE(pair.client.send(kib));
  pair.run(pair.now + kMillisecond);
  pair.server.full = false;
  slp_resume(pair.server.session);
  (void)pair.server.say(pair.now);  // is lost
  const size_t kept = pair.server.messages.size();
  pair.run(pair.now + 250 * kMillisecond);
  CHECK(pair.server.messages.size() == kept + 1);
}

TEST_CASE("pieces of a stream that overlap give each byte once", "[slp]") {
  Pair pair;
  const std::string text = "what is cut in one way may come in another";
  Frame whole = next_frame(pair, text);
  slp_base base = base_of(whole);
  const size_t head = SLP_BASE_BYTES + SLP_EAGER_BYTES;
  // [6, 30), [0, 20), then all.
  for (auto [from, to] : {std::pair<size_t, size_t>{6, 30}, {0, 20}, {0, whole.size() - head}}) {
    Frame part(whole.begin(), whole.begin() + static_cast<long>(head));
    part.insert(part.end(), whole.begin() + static_cast<long>(head + from),
                whole.begin() + static_cast<long>(head + to));
    slp_store32(part.data() + SLP_BASE_BYTES,
                slp_load32(whole.data() + SLP_BASE_BYTES) + static_cast<uint32_t>(from));
    base.payload_bytes = static_cast<uint16_t>(to - from);
    ++base.number;
    seal(part, base);
    CHECK(pair.server.hear(part, pair.now) == SLP_TAKEN);
  }
  CHECK(pair.server.messages == std::vector<std::string>{text});
}

TEST_CASE("EAGER beyond the credit is not taken and not acknowledged", "[slp]") {
  Pair pair;
  Frame lie = next_frame(pair, "m");
  slp_base base = base_of(lie);
  slp_store32(lie.data() + SLP_BASE_BYTES, SLP_STREAM_BYTES - 4);
  seal(lie, base);
  CHECK(pair.server.hear(lie, pair.now) == SLP_DROP_ROOM);
}

}  // namespace sluice::slp::table
