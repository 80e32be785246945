#include <catch2/catch.hpp>

#include <deque>
#include <vector>

#include "tools/perf/load/window.h"

namespace sluice::tools {
namespace {

// Posts nothing: remembers what would be under way, oldest first.
class Posts {
 public:
  // How many each call of fill() posted.
  size_t fill(Window& window) {
    size_t before = count_;
    Status status = window.fill([&](uint32_t, uint64_t, const PostOptions& options) {
      if (count_ >= room_) return Status(Code::kTryAgain, Scope::kOperation, "test");
      under_way_.push_back(options);
      ++count_;
      return Status();
    });
    REQUIRE(status.ok());
    return count_ - before;
  }
  void end(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      PostOptions options = under_way_.front();
      under_way_.pop_front();
      Completion completion;
      completion.user_data = options.user_data;
      options.sink->on_completion(std::move(completion));
    }
  }
  void take_at_most(size_t room) { room_ = room; }

 private:
  std::deque<PostOptions> under_way_;
  size_t count_ = 0, room_ = SIZE_MAX;
};

TEST_CASE("a window is filled one by one", "[perf]") {
  Window window(4);
  Posts posts;
  window.begin(6, nullptr);
  CHECK(posts.fill(window) == 4);
  posts.end(1);
  CHECK(posts.fill(window) == 1);
}

TEST_CASE("a post list waits until there is room for all of it", "[perf]") {
  Window window(5, nullptr, 3);
  Posts posts;
  window.begin(20, nullptr);
  CHECK(posts.fill(window) == 3);  // two slots are left, not three
  CHECK(posts.fill(window) == 0);
  posts.end(1);
  CHECK(posts.fill(window) == 3);
  posts.end(2);
  CHECK(posts.fill(window) == 0);
}

TEST_CASE("the last list is as long as what is left", "[perf]") {
  Window window(4, nullptr, 4);
  Posts posts;
  window.begin(6, nullptr);
  CHECK(posts.fill(window) == 4);
  posts.end(2);
  CHECK(posts.fill(window) == 2);
  posts.end(4);
  CHECK(window.over());
  // The next round begins with a whole list.
  window.begin(4, nullptr);
  CHECK(posts.fill(window) == 4);
}

TEST_CASE("a list that found no room in the middle goes on where it was", "[perf]") {
  Window window(4, nullptr, 4);
  Posts posts;
  window.begin(8, nullptr);
  posts.take_at_most(3);
  CHECK(posts.fill(window) == 3);
  posts.take_at_most(SIZE_MAX);
  CHECK(posts.fill(window) == 1);
  CHECK(posts.fill(window) == 0);
}

}  // namespace
}  // namespace sluice::tools
