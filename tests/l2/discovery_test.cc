// Listeners that are found by a name over a cable: only where both ends wish it, one of a name,
// and whatever a third party on the cable says.
#include <catch2/catch.hpp>

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sluice/select/open.h>

#include "kernel_compat/slp/slp_wire.h"
#include "tests/l2/raw_peer.h"
#include "tests/l2/two.h"
#include "tests/l2/wire.h"
#include "tests/support/audit.h"
#include "tests/support/skip.h"

namespace sluice::test {
namespace {

#define NEEDS_WIRE() \
  if (far_node() == nullptr) return skip("netns", kNoNetwork)

const Mac kLeft = mac_number(10), kThird = mac_number(12),
          kEverybody = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff};

std::unique_ptr<Context> open_one() {
  return std::move(open_context({.arena = {}, .arena_options = {}, .waiting = Waiting::kSleep}))
      .value();
}

bool says(const Status& status, const std::string& text) {
  return status.detail().find(text) != std::string_view::npos;
}

std::string port_of(const Listener& listener) {
  return listener.address().substr(listener.address().rfind(':') + 1);
}

std::vector<uint8_t> frame_of(const slp_find& find) {
  std::vector<uint8_t> frame(SLP_FIND_FRAME);
  REQUIRE(slp_encode_find(frame.data(), &find));
  return frame;
}

// Two machines; on the cable at the far one also somebody who sees the questions and says what
// a test has him say.
class Nodes final : public ProgressHook {
 public:
  Nodes() {
    far_node()->inside([&] { third_.emplace("right"); });
    near->add_hook(this);
  }
  ~Nodes() { near->remove_hook(this); }

  Listener listen(const std::string& name) {
    Result<Listener> made = Status(Code::kInternal, Scope::kOperation, "test");
    far_node()->inside(
        [&] { made = far->listen("l2://right:0", {.require = {}, .discoverable_as = name}); });
    INFO(made.status().to_string());
    REQUIRE(made.ok());
    return std::move(made).value();
  }
  Result<Endpoint> connect(const std::string& address, bool discover = true) {
    return near->connect(address, {.require = {}, .discover = discover});
  }
  // What anybody over there may send.
  void say(const std::vector<uint8_t>& frame, const Mac& to = kLeft, const Mac& from = kThird) {
    REQUIRE(third_->send(ethernet(to, from, frame)));
  }

  size_t progress(Instant) override {
    size_t work = 0;
    far_node()->inside([&] { work = far->progress(); });
    for (auto seen = third_->receive(); !seen.empty(); seen = third_->receive(), ++work) {
      slp_find find;
      auto frame = seen.subspan(kEthernetBytes);
      if (slp_decode_find(frame.data(), frame.size(), frame.size(), &find) != SLP_TAKEN) continue;
      questions.push_back(find);
      if (on_question) on_question(find);
    }
    return work;
  }
  // The far machine is looked at as long as somebody waits.
  Instant next_timeout() override { return in(std::chrono::milliseconds(1)); }

  NothingLeftBehind audit;
  std::unique_ptr<Context> near = open_one(), far = open_one();
  std::vector<slp_find> questions;
  std::function<void(const slp_find&)> on_question;

 private:
  std::optional<RawWire> third_;
};

slp_find answer_to(const slp_find& question, uint16_t port) {
  slp_find found = question;
  found.type = SLP_FOUND;
  found.source_port = port;
  found.destination_port = question.source_port;
  return found;
}

TEST_CASE("a listener that wishes it is found by its name, and by its name and port",
          "[l2][discovery]") {
  NEEDS_WIRE();
  for (bool with_port : {false, true}) {
    NothingLeftBehind audit;
    Setting name("SLUICE_L2_NAME", "Worker-3"), discover("SLUICE_L2_DISCOVER", "1");
    Grown grown;
    Two two({.node = far_node(),
             .far_runs_there = true,
             .way = [&](Context&, const std::string& listening) {
               return "l2://left/worker-3" +
                      (with_port ? listening.substr(listening.rfind(':')) : "");
             }});
    CHECK(grown("l2.finds_asked") >= 1);
    CHECK(grown("l2.finds_answered") >= 1);
    two.exchange_messages(300'000);
    two.say_goodbye();
  }
}

TEST_CASE("nobody answers who does not wish to be found", "[l2][discovery]") {
  NEEDS_WIRE();
  Nodes nodes;
  Listener listener = nodes.listen("");
  Grown grown;
  auto connected = nodes.connect("l2://left/worker3");
  CHECK(connected.code() == Code::kUnreachable);
  CHECK(says(connected.status(), "nobody on the network of left answers to the name 'worker3'"));
  CHECK(says(connected.status(), "SLUICE_L2_NAME=worker3"));
  // It asked again and again, and gave up.
  CHECK(nodes.questions.size() >= 3);
  CHECK(nodes.questions.size() <= 8);
  CHECK(grown("l2.finds_answered") == 0);
}

TEST_CASE("nobody asks who was not told to", "[l2][discovery]") {
  NEEDS_WIRE();
  Nodes nodes;
  Listener listener = nodes.listen("worker3");
  auto named = nodes.connect("l2://left/worker3:7", false),
       portless = nodes.connect("l2://left/worker3", false);
  CHECK(named.code() == Code::kInvalidArgument);
  CHECK(says(named.status(), "no peer of left is called 'worker3'"));
  CHECK(portless.code() == Code::kInvalidArgument);
  CHECK(says(portless.status(), "SLUICE_L2_DISCOVER=1"));
  CHECK(nodes.questions.empty());
  REQUIRE(nodes.connect("l2://left/worker3").ok());
  CHECK_FALSE(nodes.questions.empty());
}

TEST_CASE("what a file says comes before what the network would say", "[l2][discovery]") {
  NEEDS_WIRE();
  char path[] = "/tmp/sluice-peers-XXXXXX";
  int fd = ::mkstemp(path);
  REQUIRE(fd >= 0);
  ::close(fd);
  std::ofstream(path) << "02:00:00:00:00:0b worker3\n";
  Setting peers("SLUICE_PEERS", path);
  {
    Nodes nodes;
    Listener listener = nodes.listen("worker3");
    CHECK(nodes.connect("l2://left/worker3:" + port_of(listener)).ok());
    CHECK(nodes.connect("l2://left/worker3").code() ==
          Code::kInvalidArgument);  // a file has no ports
    CHECK(nodes.questions.empty());
  }
  ::unlink(path);
}

TEST_CASE("two listeners of one name are an error that names both, and the port tells them apart",
          "[l2][discovery]") {
  NEEDS_WIRE();
  Nodes nodes;
  Listener one = nodes.listen("worker3"), other = nodes.listen("worker3"),
           third = nodes.listen("worker4");
  auto connected = nodes.connect("l2://left/worker3");
  CHECK(connected.code() == Code::kInvalidArgument);
  for (const Listener* listener : {&one, &other}) {
    CHECK(says(connected.status(), "02:00:00:00:00:0b at port " + port_of(*listener)));
    CHECK(nodes.connect("l2://left/worker3:" + port_of(*listener)).ok());
  }
  CHECK(nodes.connect("l2://left/worker4").ok());
  other = Listener();
  CHECK(nodes.connect("l2://left/worker3").ok());
}

TEST_CASE("somebody else who claims a name is an error that names him as well", "[l2][discovery]") {
  NEEDS_WIRE();
  Nodes nodes;
  Listener listener = nodes.listen("worker3");
  nodes.on_question = [&](const slp_find& question) {
    for (int i = 0; i < 100; ++i)
      nodes.say(frame_of(answer_to(question, static_cast<uint16_t>(7 + i / 50))));
  };
  auto connected = nodes.connect("l2://left/worker3");
  INFO(connected.status().to_string());
  CHECK(connected.code() == Code::kInvalidArgument);
  CHECK(says(connected.status(), "02:00:00:00:00:0c at port 7"));
}

TEST_CASE("what does not answer the question is ignored and counted", "[l2][discovery]") {
  NEEDS_WIRE();
  Nodes nodes;
  struct Lie {
    const char* what;
    std::function<void(slp_find&)> change;
  };
  const Lie lies[] = {
      {"another nonce", [](slp_find& f) { f.nonce ^= 1; }},
      {"another name", [](slp_find& f) { f.name[6] = '4'; }},
      {"a question", [](slp_find& f) { f.type = SLP_FIND; }},
      {"another port than was asked for", [](slp_find& f) { f.source_port = 8; }},
  };
  for (const Lie& lie : lies) {
    INFO(lie.what);
    Grown grown;
    nodes.on_question = [&](const slp_find& question) {
      slp_find found = answer_to(question, 7);
      lie.change(found);
      nodes.say(frame_of(found));
    };
    CHECK(nodes.connect("l2://left/worker3:7").code() == Code::kUnreachable);
    CHECK(grown("l2.founds_ignored") >= 1);
  }
  Grown grown;
  nodes.on_question = [&](const slp_find& question) {
    std::vector<uint8_t> frame = frame_of(answer_to(question, 7)), damaged = frame;
    damaged[50] ^= 1;
    nodes.say(damaged);
    nodes.say(frame, kLeft, {0x03, 0, 0, 0, 0, 12});  // from a group
    nodes.say(std::vector<uint8_t>(frame.begin(), frame.begin() + 60));
  };
  auto connected = nodes.connect("l2://left/worker3:7");
  INFO(connected.status().to_string());
  CHECK(connected.code() == Code::kUnreachable);
  CHECK(says(connected.status(), "answers to the name 'worker3' at port 7"));
  CHECK(grown("l2.founds_ignored") >= 2);
}

TEST_CASE("of a flood of questions a few are answered, and the one of an honest peer still is",
          "[l2][discovery]") {
  NEEDS_WIRE();
  Nodes nodes;
  Listener listener = nodes.listen("worker3");
  RawWire flood("left");
  slp_find question{.type = SLP_FIND,
                    .source_port = 40'000,
                    .destination_port = 0,
                    .nonce = 1,
                    .name = "worker3"};
  slp_find other = question;
  other.name[0] = 'x';
  std::vector<uint8_t> zeros = frame_of(question), bad = zeros;
  bad[8] = 1;
  slp_stamp_base(bad.data());
  Grown grown;
  for (const auto& frame : {bad, frame_of(other)})
    REQUIRE(flood.send(ethernet(kEverybody, kLeft, frame)));
  for (int i = 0; i < 200; ++i) {
    ++question.nonce;
    (void)flood.send(ethernet(kEverybody, kLeft, frame_of(question)));
  }
  REQUIRE(nodes.near
              ->wait_until(
                  [&] { return grown("l2.finds_answered") + grown("l2.finds_held_back") >= 100; },
                  soon())
              .ok());
  CHECK(grown("l2.finds_malformed") == 1);
  // Ten of the thirty-two of a turn at most.
  CHECK(grown("l2.finds_held_back") >= 2 * grown("l2.finds_answered"));
  CHECK(nodes.connect("l2://left/worker3").ok());
}

TEST_CASE("a listener's name is one, and for raw frames", "[l2][discovery]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  auto context = open_one();
  for (const std::string& name :
       {std::string("two words"), std::string("a/b"), std::string(65, 'a')}) {
    CHECK(context->listen("l2://left:0", {.require = {}, .discoverable_as = name}).code() ==
          Code::kInvalidArgument);
    // What failed has not kept the port.
    CHECK(context->listen("l2://left:7", {.require = {}, .discoverable_as = name}).code() ==
          Code::kInvalidArgument);
  }
  CHECK(context->listen("l2://left:7", {.require = {}, .discoverable_as = std::string(64, 'a')})
            .ok());
  for (const char* address : {"tcp://127.0.0.1:0", "l2://udp/127.0.0.1:0", "shm:name"}) {
    CHECK(context->listen(address, {.require = {}, .discoverable_as = "worker3"}).code() ==
          Code::kUnsupported);
  }
  // A name for a whole process concerns its raw frames only.
  Setting name("SLUICE_L2_NAME", "worker3");
  CHECK(context->listen("l2://udp/127.0.0.1:0").ok());
  CHECK(context->listen("tcp://127.0.0.1:0").ok());
  Grown grown;
  auto connected =
      context->connect("l2://left/02:00:00:00:00:0b:7",
                       {.require = {}, .timeout = std::chrono::milliseconds(1), .discover = true});
  CHECK_FALSE(connected.ok());
  CHECK(grown("l2.finds_asked") == 0);  // an address is no name
}

}  // namespace
}  // namespace sluice::test
