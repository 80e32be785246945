// Names for addresses that no other process uses. Process ids will not do: they repeat
// where pid namespaces share a network, as test sandboxes do.
#ifndef SLUICE_TESTS_SUPPORT_FRESH_NAME_H_
#define SLUICE_TESTS_SUPPORT_FRESH_NAME_H_

#include <random>
#include <string>
#include <string_view>

namespace sluice::test {

// `what`, a dash and a random number; another one with each call, also in a forked child.
inline std::string fresh_name(std::string_view what) {
  std::random_device device;
  return std::string(what) + "-" + std::to_string(device()) + std::to_string(device());
}

}  // namespace sluice::test

#endif  // SLUICE_TESTS_SUPPORT_FRESH_NAME_H_
