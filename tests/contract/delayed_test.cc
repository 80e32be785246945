// That the suite meets the faults it was asked to run under.
#include "tests/contract/pair.h"

namespace sluice::test {
namespace {

TEST_CASE("the faults asked for happen, and none that was not", "[contract][delayed]") {
  NothingLeftBehind audit;
  FaultsDone before = faults_done();
  Pair pair;
  Box& box = pair.box();
  constexpr size_t kRounds = 50, kLarge = 300'000;
  for (Tag tag = 0; tag < kRounds; ++tag) {
    Result<OperationId> received =
        pair.server.receive({.tag = tag}, room(*pair.server_context, kLarge), box.options());
    REQUIRE(received.ok());
    REQUIRE(pair.client.send(tag, tensor(*pair.client_context, kLarge, tag), {.deadline = soon()})
                .ok());
    Completion& got = pair.wait(box, *received);
    CHECK(got.status.ok());
    CHECK(holds(got.buffers[0].bytes(), tag));
  }
  FaultsDone after = faults_done();
  CHECK((after.held_back > before.held_back) == faults_under_test());
  CHECK((after.refused > before.refused) == faults_under_test());
  CHECK((after.spurious > before.spurious) == faults_under_test());
  CHECK((after.split > before.split) == (faults_under_test() && path_streams()));
  CHECK((after.sockets_narrowed > before.sockets_narrowed) ==
        (faults_under_test() && (path_under_test() == "tcp" || path_is_slp())));
}

}  // namespace
}  // namespace sluice::test
