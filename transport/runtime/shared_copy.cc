#include <sluice/runtime/shared_copy.h>

#include <sluice/base/copy.h>

namespace sluice {
namespace {

// Halves meet between two pages, so that no cache line belongs to both.
constexpr size_t kMeetingPlace = 4096;

struct Half final : HelperThread::Job {
  void run(const std::atomic<bool>&) noexcept override {
    copy_bytes(to, from, length, past_caches);
  }
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  size_t length = 0;
  bool past_caches = false;
};

}  // namespace

void copy_shared(HelperThread* helper, std::byte* to, const std::byte* from, size_t length,
                 bool past_caches) {
  if (helper == nullptr || length < kSharedCopyBytes || helper->busy())
    return copy_bytes(to, from, length, past_caches);
  const size_t mine = length / 2 / kMeetingPlace * kMeetingPlace;
  Half half;
  half.to = to + mine;
  half.from = from + mine;
  half.length = length - mine;
  half.past_caches = past_caches;
  helper->begin(half, HelperThread::Ends::kByJoin);
  copy_bytes(to, from, mine, past_caches);
  helper->join();
}

}  // namespace sluice
