// What a process holds outside its heap: descriptors, mapped sluice memory, files in
// /dev/shm. A fixture compares before and after. Knows /proc, not sluice.
#ifndef SLUICE_TESTS_SUPPORT_AUDIT_H_
#define SLUICE_TESTS_SUPPORT_AUDIT_H_

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::test {

struct Holdings {
  std::vector<std::string> descriptors;  // "7 socket", sorted; without the one used to look
  std::vector<std::string> mappings;     // lines of /proc/self/maps that name a sluice memfd
  std::vector<std::string> shm_files;    // names in /dev/shm that belong to sluice
};
Holdings holdings();

// Empty if `after` holds nothing that `before` did not, else what was left.
std::string left_behind(const Holdings& before, const Holdings& after);

// Private and anonymous memory of this process, in KiB (RssAnon of /proc/self/status).
uint64_t rss_anon_kib();
// Pss of /proc/self/smaps_rollup, in KiB.
uint64_t pss_kib();

// Fails the test that it lives in (with CHECK) if anything is left at its end. Declare it
// first, so that it ends last.
class NothingLeftBehind {
 public:
  NothingLeftBehind() : before_(holdings()) {}
  ~NothingLeftBehind();
  NothingLeftBehind(const NothingLeftBehind&) = delete;
  NothingLeftBehind& operator=(const NothingLeftBehind&) = delete;

 private:
  Holdings before_;
};

}  // namespace sluice::test

#endif  // SLUICE_TESTS_SUPPORT_AUDIT_H_
