#include <sluice/base/result.h>

#include <catch2/catch.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <string>

namespace sluice {
namespace {

Status failure() { return Status(Code::kTryAgain, Scope::kOperation, "test", std::string("full")); }

// Counts lives, so that a leak or a double end shows.
struct Counted {
  explicit Counted(int& count) : alive(&count) { ++*alive; }
  Counted(Counted&& other) noexcept : alive(other.alive) { ++*alive; }
  Counted& operator=(Counted&&) noexcept = default;
  ~Counted() { --*alive; }
  int* alive;
};

TEST_CASE("a result holds a value or a status, and ends what it holds once") {
  int alive = 0;
  {
    Result<Counted> value = Counted(alive);
    CHECK(value.ok());
    CHECK(value.status().ok());
    CHECK(value.code() == Code::kOk);
    CHECK(alive == 1);
    Result<Counted> moved = std::move(value);
    moved = Result<Counted>(failure());
    CHECK(moved.code() == Code::kTryAgain);
    CHECK(moved.status().detail() == "full");
    moved = Result<Counted>(Counted(alive));
    CHECK(moved.ok());
    Counted out = std::move(moved).value();
    CHECK(alive >= 2);
  }
  CHECK(alive == 0);
}

TEST_CASE("move-only values pass through") {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(7);
  CHECK(**result == 7);
  std::unique_ptr<int> out = std::move(result).value();
  CHECK(*out == 7);
}

Result<int> half(int n) {
  if (n % 2 != 0) return failure();
  return n / 2;
}

Result<int> quarter(int n) {
  SLUICE_TRY(int once, half(n));
  SLUICE_TRY(int twice, half(once));
  return twice;
}

Result<void> nothing(int n) {
  SLUICE_RETURN_IF_ERROR(half(n));
  SLUICE_RETURN_IF_ERROR(ok_status());
  return {};
}

TEST_CASE("the first error ends the calling function") {
  CHECK(*quarter(8) == 2);
  CHECK(quarter(7).code() == Code::kTryAgain);
  CHECK(quarter(6).status().detail() == "full");
  CHECK(nothing(2).ok());
  CHECK(nothing(3).code() == Code::kTryAgain);
}

TEST_CASE("reading the value of a failed result ends the process") {
  pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::close(STDERR_FILENO);
    ::signal(SIGABRT, SIG_DFL);
    Result<int> result = failure();
    ::_exit(result.value() == 0 ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGABRT);
}

}  // namespace
}  // namespace sluice
