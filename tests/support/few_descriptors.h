// A process that has no descriptor left, or a few.
#ifndef SLUICE_TESTS_SUPPORT_FEW_DESCRIPTORS_H_
#define SLUICE_TESTS_SUPPORT_FEW_DESCRIPTORS_H_

#include <sys/resource.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include <utility>
#include <vector>

#include <sluice/base/descriptor.h>

namespace sluice::test {

// Takes every descriptor that the process may have, but for `left`. While there are none nothing is
// checked: UBSan's look at an object that it has not seen before takes a pipe.
class FewDescriptors {
 public:
  explicit FewDescriptors(size_t left) {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &old_) == 0);
    rlimit few{.rlim_cur = 200, .rlim_max = old_.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
    while (true) {
      Descriptor fd(::dup(0));
      if (!fd) break;
      taken_.push_back(std::move(fd));
    }
    enough_ = taken_.size() > left;
    if (enough_) taken_.resize(taken_.size() - left);
  }
  ~FewDescriptors() {
    ::setrlimit(RLIMIT_NOFILE, &old_);
    CHECK(enough_);
  }

 private:
  bool enough_ = false;
  rlimit old_{};
  std::vector<Descriptor> taken_;
};

}  // namespace sluice::test

#endif  // SLUICE_TESTS_SUPPORT_FEW_DESCRIPTORS_H_
