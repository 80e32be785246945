// What a hostile peer of a session says, drawn from a fuzz input: messages that are well-formed,
// about ids and grants that the peer was told, near misses of these, and any.
#ifndef SLUICE_TESTS_FUZZ_SESSION_MESSAGES_H_
#define SLUICE_TESTS_FUZZ_SESSION_MESSAGES_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/fuzz/input.h"
#include "tests/fuzz/session_world.h"

namespace sluice::fuzz {

class HostilePeer {
 public:
  // `record`: of the link, which has the ids; `views`: whether the link is one of views.
  HostilePeer(Input& in, const LinkRecord& record, bool views)
      : in_(in), record_(record), views_(views) {}

  // A grant was given to the peer.
  void learn(const RemoteKey& key) { keys_.push_back(key); }
  const std::vector<RemoteKey>& keys() const { return keys_; }

  // An id that the session gave away, a near miss, or any.
  uint64_t id();
  wire::Offer offer();
  // An answer to a request as it should be: the way to views and to what follows them.
  wire::Offer supply();
  // Its key and the ids that follow are valid until the next call.
  wire::Want want();
  wire::Release release();

 private:
  uint64_t grant(uint32_t& epoch);
  TensorDescriptor layout();

  Input& in_;
  const LinkRecord& record_;
  const bool views_;
  std::vector<RemoteKey> keys_;
  std::string key_;
  std::array<uint64_t, wire::kMaxStepsOfWant - 1> following_{};
};

}  // namespace sluice::fuzz

#endif  // SLUICE_TESTS_FUZZ_SESSION_MESSAGES_H_
