#include <sluice/base/result.h>

#include <cstdio>
#include <cstdlib>

namespace sluice::internal {

void value_of_failed(const Status& status) {
  std::fprintf(stderr, "sluice: value() of a failed Result: %s\n", status.to_string().c_str());
  std::abort();
}

}  // namespace sluice::internal
