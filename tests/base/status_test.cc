#include <sluice/base/status.h>

#include <catch2/catch.hpp>

#include <cerrno>
#include <set>
#include <string>

namespace sluice {
namespace {

TEST_CASE("a status without a cause is ok") {
  Status status;
  CHECK(status.ok());
  CHECK(static_cast<bool>(status));
  CHECK(status.code() == Code::kOk);
  CHECK(status.os_error() == 0);
  CHECK(status.detail().empty());
  CHECK(status.to_string() == "kOk");
  CHECK(ok_status() == Code::kOk);
}

TEST_CASE("an error says code, cause, origin and errno") {
  Status status(Code::kNoMemory, Scope::kEndpoint, "a/b", std::string("limit of 64 MiB reached"),
                ENOMEM);
  CHECK_FALSE(status.ok());
  CHECK(status == Code::kNoMemory);
  CHECK(status.scope() == Scope::kEndpoint);
  CHECK(status.to_string() == "kNoMemory: limit of 64 MiB reached [a/b; ENOMEM]");
  Status copy = status;
  CHECK(copy.detail() == "limit of 64 MiB reached");
  CHECK(Status(Code::kTimedOut, Scope::kOperation, "x").to_string() == "kTimedOut [x]");
  // Not an errno of this system: the number is shown.
  CHECK(Status(Code::kInternal, Scope::kContext, "x", 99999).to_string() == "kInternal [x; 99999]");
}

TEST_CASE("every code and scope has a name of its own") {
  std::set<std::string_view> names;
  for (int c = 0; c < kCodeCount; ++c) names.insert(to_string(static_cast<Code>(c)));
  CHECK(names.size() == static_cast<size_t>(kCodeCount));
  CHECK(names.count("code out of range") == 0);
  CHECK(to_string(static_cast<Code>(kCodeCount)) == "code out of range");
  for (int s = 0; s < 3; ++s) CHECK(to_string(static_cast<Scope>(s)) != "scope out of range");
  CHECK(to_string(static_cast<Scope>(3)) == "scope out of range");
}

}  // namespace
}  // namespace sluice
