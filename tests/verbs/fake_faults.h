// What goes wrong in the fake fabric, and when. Plain data, changed through
// FakeVerbs::with_faults() while the fabric runs. Counts start at the change: 1 is the next.
#ifndef SLUICE_TESTS_VERBS_FAKE_FAULTS_H_
#define SLUICE_TESTS_VERBS_FAKE_FAULTS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <sluice/verbs/verbs_api.h>

namespace sluice::verbs {

class FakeFaults {
 public:
  // The `nth` call of that name, and the `times - 1` after it, do nothing and give `error`
  // (poll_cq: -error). A failing destroy leaves the object.
  void fail(std::string_view call, uint64_t nth, int error, uint64_t times = 1);
  // The same for the `nth` call of any name in calls_that_may_fail().
  void fail_any(uint64_t nth, int error);
  // Names of VerbsApi, as its members are called. Destroying and acknowledging calls are
  // in call_names() alone.
  static const std::vector<std::string_view>& call_names();
  static const std::vector<std::string_view>& calls_that_may_fail();
  uint64_t calls(std::string_view name) const;
  uint64_t calls_in_all() const { return in_all_; }  // of those that may fail

  // The `nth` send-queue request to be posted is refused with `error`; those before it in its
  // list are posted, it and those after are not.
  void refuse_request(uint64_t nth, int error);

  // Completion events: the next `lose_cq_events` never arrive, those after them come
  // `late_cq_events` ticks late. Sleeping does not advance them.
  uint64_t lose_cq_events = 0;
  uint64_t late_cq_events = 0;

  // The `nth` send-queue request to be executed (of that opcode, if given) completes with
  // `status`; its QP goes to the error state. `executed`: the peer saw it all the same.
  void complete(uint64_t nth, ibv_wc_status status, std::optional<ibv_wr_opcode> opcode = {},
                bool executed = false);
  // The `nth` send-queue request to be executed (of that opcode, if given) is held back for so many
  // ticks: `kUndone` before the device begins with it, `kUnsaid` when it is done and only its
  // completion is missing. What follows it in its queue waits behind it. kForEver: until its QP is
  // in the error state.
  enum class Held { kUndone, kUnsaid };
  static constexpr uint64_t kForEver = UINT64_MAX;
  void hold(uint64_t nth, Held held, uint64_t ticks, std::optional<ibv_wr_opcode> opcode = {});
  // The `nth` receive to be consumed completes with `status`, both QPs fail.
  void complete_receive(uint64_t nth, ibv_wc_status status);
  // Requests of a QP in the error state never complete.
  bool never_flush = false;

  // The `nth` completion of a receive (or of a send-queue request) is changed before it is seen.
  using Change = std::function<void(ibv_wc&)>;
  void change_receive(uint64_t nth, Change change);
  void change_send(uint64_t nth, Change change);
  void duplicate_receive(uint64_t nth);
  // The bytes of the `nth` message to be received are changed on their way, in number too.
  using Rewrite = std::function<void(std::vector<uint8_t>&)>;
  void rewrite_message(uint64_t nth, Rewrite rewrite);
  // The `nth` connection event is changed before it is seen; its private data is writable.
  using CmChange = std::function<void(rdma_cm_event&)>;
  void change_cm_event(uint64_t nth, CmChange change);

  enum class Link {
    kUp,
    kCut,          // nothing arrives
    kStuck,        // nothing arrives, and the devices repeat for ever without a word
    kAnswersLost,  // requests arrive and are executed, answers do not
  };
  Link link = Link::kUp;
  std::set<uint32_t> cut_qps;  // numbers of QPs to and from which nothing arrives

  // What was planned above and has not happened yet does not happen.
  void forget_plans();
  size_t plans_left() const;

  // The fabric's side: each tells what the next occurrence meets, and counts it.
  int call_error(std::string_view name);
  int request_error();
  struct WorkFate {
    ibv_wc_status status = IBV_WC_SUCCESS;
    bool executed = true;
    uint64_t undone = 0, unsaid = 0;  // ticks
  };
  WorkFate work_fate(ibv_wr_opcode opcode);
  ibv_wc_status receive_fate();
  // Changes the completion; true: it comes twice.
  bool change_completion(bool receive, ibv_wc& completion);
  void change_event(rdma_cm_event& event);
  // Null: the message arrives as it was sent.
  Rewrite message_rewrite();

 private:
  struct CallFault {
    uint64_t countdown;
    uint64_t times;
    int error;
  };
  struct WorkFault {
    uint64_t countdown;
    std::optional<ibv_wr_opcode> opcode;
    WorkFate fate;
  };
  struct CompletionFault {
    uint64_t countdown;
    bool receive;
    Change change;  // empty: duplicate
  };
  struct EventFault {
    uint64_t countdown;
    CmChange change;
  };

  std::map<std::string, uint64_t, std::less<>> counts_;
  std::multimap<std::string, CallFault, std::less<>> call_faults_;
  std::vector<CallFault> any_faults_;
  uint64_t in_all_ = 0;
  std::vector<std::pair<uint64_t, int>> request_faults_;
  std::vector<WorkFault> work_faults_;
  std::vector<std::pair<uint64_t, ibv_wc_status>> receive_faults_;
  std::vector<CompletionFault> completion_faults_;
  std::vector<EventFault> event_faults_;
  std::vector<std::pair<uint64_t, Rewrite>> rewrites_;
};

}  // namespace sluice::verbs

#endif  // SLUICE_TESTS_VERBS_FAKE_FAULTS_H_
