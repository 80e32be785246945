// A group whose ranks are threads of this process, each with a context of its own.
#ifndef SLUICE_TESTS_COLLECTIVE_RANKS_H_
#define SLUICE_TESTS_COLLECTIVE_RANKS_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sluice/collective/group.h>

namespace sluice::test {

// loopback, shm or tcp: from SLUICE_COLLECTIVE_PATH.
const std::string& collective_path();
// One per rank; nobody listens there yet.
std::vector<std::string> fresh_addresses(int size);
Instant soon();  // long after what a test does

// One rank's side of a test. What fails is kept: Catch2's checks are for the main thread.
class Rank {
 public:
  Rank(Context& context, Group& group, std::vector<std::string>& failures)
      : context(context), group(group), failures_(failures) {}
  Context& context;
  Group& group;
  int rank() const { return group.rank(); }
  int size() const { return group.size(); }
  void check(bool holds, const std::string& what) {
    if (!holds) failures_.push_back("rank " + std::to_string(rank()) + ": " + what);
  }
  void ok(const Status& status, const std::string& what) {
    check(status.ok(), what + ": " + status.to_string());
  }
  template <typename T>
  void ok(const Result<T>& result, const std::string& what) {
    ok(result.status(), what);
  }
  // Fails with `code`, and says `text`.
  void fails(const Status& status, Code code, const std::string& text) {
    check(status == code && status.detail().find(text) != std::string_view::npos,
          "expected " + std::string(to_string(code)) + " with '" + text + "', got " +
              status.to_string());
  }
  // Until `holds`, which other threads may change: that is no event of the context.
  template <typename Holds>
  void await(Holds holds) {
    const Instant end = soon();
    while (!holds() && now() < end)
      (void)context.wait_until(holds, after(now(), std::chrono::milliseconds(10)));
  }
  Buffer allocate(size_t bytes) {
    return context.arena().allocate(std::max<size_t>(bytes, 1)).value();
  }

 private:
  std::vector<std::string>& failures_;
};

struct RunOptions {
  bool bootstrap = false;
  bool closes = true;  // in order, with the others, after `work`
};
// Runs `work` on each of `size` ranks and returns what failed.
std::vector<std::string> run_ranks(int size, const std::function<void(Rank&)>& work,
                                   const RunOptions& options = {});
std::string joined(const std::vector<std::string>& failures);

}  // namespace sluice::test

#endif  // SLUICE_TESTS_COLLECTIVE_RANKS_H_
