// The first word between a client and a server of `sluice perf`: of one version, of an older and of
// a newer one.
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

// A client that says `hello` and, once answered, goodbye.
Talk talk(const Json& hello) {
  PerfOptions perf;
  perf.test = find_test("send_lat");
  Talk outcome;
  std::promise<std::string> listening;
  std::thread server([&] {
    auto context = small_context();
    auto listener = (*context)->listen("loopback:versions");
    listening.set_value(listener->address());
    auto endpoint = listener->accept(after(now(), std::chrono::seconds(10)));
    outcome.server =
        run_server(**context, *endpoint, {.perf = &perf, .one_process = true, .next = {}}).status();
  });
  {
    auto context = small_context();
    auto endpoint = (*context)->connect(listening.get_future().get());
    REQUIRE(endpoint.ok());
    {
      ControlChannel control(**context, *endpoint);
      outcome.answer = ask(control, hello);
      if (outcome.answer.ok()) CHECK(control.send({{"do", "bye"}}).ok());
    }
    (void)endpoint->close(after(now(), std::chrono::seconds(5)));
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

}  // namespace
}  // namespace sluice::tools
