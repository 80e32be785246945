// What clients say to a server of `sluice perf`: the first word of one version, of an older and of
// a newer one; and what no client of ours says.
#include <future>
#include <thread>

#include <catch2/catch.hpp>

#include <sluice/select/open.h>

#include "tools/perf/run/control.h"
#include "tools/perf/run/run.h"
#include "tools/version.h"

namespace sluice::tools {
namespace {

struct Talk {
  Result<Json> answer = Json::object();
  Status server;
};

Result<std::unique_ptr<Context>> small_context() {
  return open_context({.arena_options = {.limit_bytes = 64 << 20,
                                         .first_extent_bytes = 4 << 20,
                                         .receive_reserve_bytes = 1 << 20}});
}

// A client that says `hello`, has the connection for a flow if it asked for one, says `more` as far
// as it is answered, and goodbye.
Talk talk(const Json& hello, const std::vector<Json>& more = {}) {
  PerfOptions perf;
  perf.test = find_test("send_lat");
  Talk outcome;
  std::promise<std::string> listening;
  std::thread server([&] {
    auto context = small_context();
    auto listener = (*context)->listen("loopback:versions");
    listening.set_value(listener->address());
    auto endpoint = listener->accept(after(now(), std::chrono::seconds(10)));
    auto next = [&listener] { return listener->accept(after(now(), std::chrono::seconds(10))); };
    RunOptions options{.perf = &perf, .one_process = true, .next = next};
    outcome.server = run_server(**context, *endpoint, options).status();
  });
  {
    auto context = small_context();
    const std::string address = listening.get_future().get();
    auto endpoint = (*context)->connect(address);
    REQUIRE(endpoint.ok());
    Endpoint flow;
    {
      ControlChannel control(**context, *endpoint);
      outcome.answer = ask(control, hello);
      if (outcome.answer.ok() && hello.contains("flow")) {
        auto other = (*context)->connect(address);
        REQUIRE(other.ok());
        flow = *std::move(other);
        CHECK(ControlChannel(**context, flow)
                  .send({{"do", "join"}, {"token", hello["token"]}, {"flow", 1u}})
                  .ok());
      }
      for (const Json& word : more)
        if (outcome.answer.ok()) outcome.answer = ask(control, word);
      if (outcome.answer.ok()) CHECK(control.send({{"do", "bye"}}).ok());
    }
    (void)endpoint->close(after(now(), std::chrono::seconds(5)));
    if (flow) (void)flow.close(after(now(), std::chrono::seconds(5)));
  }
  server.join();
  return outcome;
}

Json hello_of(const Json& more) {
  Json hello{{"do", "hello"}, {"test", "send_lat"}, {"qps", 1u}, {"token", 7u}};
  hello.update(more);
  return hello;
}

TEST_CASE("a server says its version and protocol to a client of the same", "[perf][versions]") {
  Talk same = talk(hello_of({{"protocol", kPerfProtocol}, {"version", kVersion}}));
  INFO(same.answer.status().to_string());
  REQUIRE(same.answer.ok());
  CHECK((*same.answer)["protocol"] == kPerfProtocol);
  CHECK((*same.answer)["version"] == kVersion);
  CHECK(same.server.ok());
}

TEST_CASE("a client of before versions were said is followed", "[perf][versions]") {
  Talk older = talk(hello_of(Json::object()));
  CHECK(older.answer.ok());
  CHECK(older.server.ok());
}

TEST_CASE("a client whose protocol the server does not know is refused, with both versions",
          "[perf][versions]") {
  Talk newer = talk(hello_of({{"protocol", kPerfProtocol + 1}, {"version", "9.8.7"}}));
  REQUIRE_FALSE(newer.answer.ok());
  CHECK(newer.server.code() == Code::kUnsupported);
  for (const std::string& said : {newer.answer.status().to_string(), newer.server.to_string()}) {
    INFO(said);
    CHECK(said.find("9.8.7") != std::string::npos);
    CHECK(said.find(kVersion) != std::string::npos);
    CHECK(said.find("protocol 2") != std::string::npos);
  }
}

// What is cut from a client's text may end in the middle of a letter.
TEST_CASE("a test name that is cut inside a letter is refused with the rest of it",
          "[perf][versions]") {
  std::string name = "a";
  for (int i = 0; i < 30; ++i) name += "\u00e9";
  Talk cut = talk(hello_of({{"test", name}}));
  REQUIRE_FALSE(cut.answer.ok());
  CHECK(cut.answer.code() == Code::kUnreachable);
  const std::string said = cut.answer.status().to_string();
  CHECK(said.find("the client a\u00e9\u00e9") != std::string::npos);
  CHECK(said.find("start both with the same test") != std::string::npos);
  CHECK(cut.server.code() == Code::kInvalidArgument);
  CHECK(talk(hello_of(Json::object())).answer.ok());
}

TEST_CASE("a first word with a protocol that is no number is an error, not a crash",
          "[perf][versions]") {
  CHECK(talk(hello_of({{"protocol", "one"}, {"version", 3}})).server.code() == Code::kCorrupt);
  CHECK(talk(hello_of({{"protocol", kPerfProtocol + 1}})).server.code() == Code::kCorrupt);
}

void check_refused(const Talk& refused, const char* why) {
  INFO(refused.answer.status().to_string() << refused.server.to_string());
  REQUIRE_FALSE(refused.answer.ok());
  CHECK(refused.answer.status().to_string().find(why) != std::string::npos);
  CHECK(refused.server.to_string().find(why) != std::string::npos);
}

TEST_CASE("a client that connects and says nothing is given up", "[perf][hostile]") {
  PerfOptions perf;
  perf.test = find_test("send_lat");
  Status said;
  std::promise<std::string> listening;
  std::thread server([&] {
    auto context = small_context();
    auto listener = (*context)->listen("loopback:silent");
    listening.set_value(listener->address());
    auto endpoint = listener->accept(after(now(), std::chrono::seconds(10)));
    RunOptions options{.perf = &perf, .one_process = true, .next = {}};
    options.first_word_limit = std::chrono::milliseconds(10);
    said = run_server(**context, *endpoint, options).status();
  });
  auto context = small_context();
  auto endpoint = (*context)->connect(listening.get_future().get());
  REQUIRE(endpoint.ok());
  CHECK((*context)
            ->wait_until([&] { return endpoint->state() != EndpointState::kConnected; },
                         after(now(), std::chrono::seconds(30)))
            .ok());
  server.join();
  CHECK(said.code() == Code::kTimedOut);
  CHECK(said.to_string().find("says nothing; see that") != std::string::npos);
}

TEST_CASE("a peer's text cannot tell a terminal what to do", "[perf][hostile]") {
  Talk coloured = talk(hello_of({{"test", "send\x1b[31m_lat\n"}}));
  check_refused(coloured, "the client send?[31m_lat?;");
}

// What was posted for such a round would wait for messages that go to the next workload.
TEST_CASE("a round without steps, or past the last one, is refused", "[perf][hostile]") {
  const Json load{{"do", "prepare"}, {"stripe", 0u}, {"size", 64u}, {"depth", 1u},
                  {"tensors", 1u},   {"flags", 2u},  {"seed", 7u}};
  auto round = [](uint64_t first_step, uint64_t iterations) {
    return Json{
        {"do", "round"}, {"mode", 0u}, {"first_step", first_step}, {"iterations", iterations}};
  };
  const Json report{{"do", "report"}};
  check_refused(talk(hello_of(Json::object()), {load, round(1, 0), report}), "without steps");
  check_refused(talk(hello_of(Json::object()), {load, round(0, 1), report}), "without steps");
  check_refused(talk(hello_of(Json::object()), {load, round(~uint64_t{0}, 1), report}),
                "'first_step'");
}

TEST_CASE("several connections of a test that has one are refused", "[perf][hostile]") {
  check_refused(talk(hello_of({{"qps", 2u}})), "over several connections");
}

// What the first one has posted names slots that the second one may not have.
TEST_CASE("a flow that runs is not begun once more", "[perf][hostile]") {
  auto flow = [](uint64_t depth) {
    return Json{{"do", "flow"}, {"on", 1u}, {"size", 64u}, {"depth", depth}};
  };
  const Json over{{"do", "flow"}, {"on", 0u}};
  const Json hello = hello_of({{"flow", 1u}});
  check_refused(talk(hello, {flow(8), flow(1)}), "end it first");
  Talk twice = talk(hello, {flow(8), over, flow(1), over});
  INFO(twice.answer.status().to_string() << twice.server.to_string());
  CHECK(twice.answer.ok());
  CHECK(twice.server.ok());
}

}  // namespace
}  // namespace sluice::tools
