// Names that programs connect to, over the paths that this machine has without devices.
#include <catch2/catch.hpp>

#include <memory>
#include <string>

#include <sluice/api/connecting.h>
#include <sluice/runtime/context_core.h>
#include <sluice/select/open.h>

#include "tests/support/name_server.h"

namespace sluice {
namespace {

using test::NameServer;
using namespace std::chrono_literals;

struct Way {
  std::string scheme, listen_at;
};
const Way kWays[] = {{"tcp://", "tcp://127.0.0.1:0"},
                     {"sluice://", "sluice://127.0.0.1:0"},
                     {"l2://udp/", "l2://udp/127.0.0.1:0"}};

struct Ends {
  explicit Ends(const Way& way) {
    auto opened = open_context();
    REQUIRE(opened.ok());
    context = std::move(opened).value();
    auto listening = context->listen(way.listen_at);
    INFO(listening.status().to_string());
    REQUIRE(listening.ok());
    listener = std::move(listening).value();
    const std::string at = listener.address();
    named = way.scheme + "far.example" + at.substr(at.rfind(':'));
  }
  std::unique_ptr<Context> context;
  Listener listener;
  std::string named;
};

TEST_CASE("a name is resolved while the context goes on, over every path", "[names]") {
  for (const Way& way : kWays) {
    Ends ends(way);
    INFO(ends.named);
    NameServer names(ContextCore::of(*ends.context));
    Connecting connecting = start_connect(*ends.context, ends.named);
    // Nobody waits inside the call: the name server is on this very thread.
    CHECK_FALSE(connecting.ready());
    Status waited = ends.context->wait_until([&] { return connecting.ready(); }, after(now(), 10s));
    CHECK(waited.ok());
    REQUIRE(connecting.ready());
    auto met = connecting.take();
    INFO(met.status().to_string());
    CHECK(met.ok());
    CHECK(names.questions > 0);
  }
}

TEST_CASE("a name server that does not answer ends connecting at its deadline, over every path",
          "[names]") {
  for (const Way& way : kWays) {
    Ends ends(way);
    INFO(ends.named);
    NameServer names(ContextCore::of(*ends.context), NameServer::Answers::kNothing);
    auto met = ends.context->connect(ends.named, {.timeout = 200ms});
    REQUIRE_FALSE(met.ok());
    INFO(met.status().to_string());
    CHECK(met.code() == Code::kTimedOut);
    CHECK(met.status().detail().find("far.example") != std::string::npos);
    CHECK(names.questions > 0);
  }
}

TEST_CASE("a name that does not exist is named, with what to check, over every path", "[names]") {
  for (const Way& way : kWays) {
    Ends ends(way);
    NameServer names(ContextCore::of(*ends.context), NameServer::Answers::kUnknown);
    auto met = ends.context->connect(ends.named, {.timeout = 10s});
    REQUIRE_FALSE(met.ok());
    INFO(met.status().to_string());
    CHECK(met.code() == Code::kUnreachable);
    CHECK(met.status().detail().find("'far.example'") != std::string::npos);
    CHECK(met.status().detail().find("/etc/resolv.conf") != std::string::npos);
  }
}

}  // namespace
}  // namespace sluice
