// The things that live in the fake fabric. Each begins with the library's structure, whose
// address is what the program holds. Private to the fabric.
#ifndef SLUICE_TESTS_VERBS_FAKE_OBJECTS_H_
#define SLUICE_TESTS_VERBS_FAKE_OBJECTS_H_

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/verbs/fake_options.h"

namespace sluice::verbs::fake {

// A descriptor that is readable while something is there. Blocking until its owner says
// otherwise, as the library's are.
class Signal {
 public:
  explicit Signal(bool open = true);
  ~Signal();
  Signal(const Signal&) = delete;
  Signal& operator=(const Signal&) = delete;
  int fd() const { return fd_; }
  void show(bool readable);
  bool blocking() const;

 private:
  int fd_;
  bool readable_ = false;
};

struct Device {
  ibv_device base{};
  FakeDeviceOptions options;
  bool removed = false;
};

struct Context {
  explicit Context(bool cm = false) : signal(!cm), of_cm(cm) {}

  ibv_context base{};
  Device* device = nullptr;
  Signal signal;
  std::deque<ibv_async_event> events;
  uint64_t unacknowledged = 0;  // events about the port or the device
  bool of_cm;  // the connection manager's own handle: it is never closed, and has no descriptor
};

struct Pd {
  ibv_pd base{};
};

struct Mr {
  Mr() = default;
  ~Mr();
  Mr(const Mr&) = delete;
  Mr& operator=(const Mr&) = delete;

  ibv_mr base{};
  void* alias = nullptr;  // the region's pages again, if the fabric has them
  uint64_t alias_start = 0, alias_bytes = 0;
  int access = 0;
  uint64_t pinned = 0;
  uint64_t windows = 0;
  bool device_memory = false;  // of a dma-buf: it has bytes if that is a file
};

struct Qp;
struct Mw {
  ibv_mw base{};
  uint32_t rkey = 0;  // base.rkey is the program's to change
  Mr* mr = nullptr;   // null: free
  Qp* qp = nullptr;
  uint64_t address = 0, length = 0;
  unsigned access = 0;
};

struct Channel {
  ibv_comp_channel base{};
  Signal signal;
  struct Event {
    ibv_cq* cq;
    uint64_t due;
  };
  std::deque<Event> events;
};

struct Cq {
  ibv_cq base{};
  struct Entry {
    ibv_wc completion;
    Qp* qp;
    bool receive;
    uint64_t index;  // of its request in the queue
  };
  std::deque<Entry> entries;
  bool armed = false;
  bool asleep = false;  // armed, and its last poll found nothing
  bool overrun = false;
  uint64_t unacknowledged = 0;
  uint64_t async_unacknowledged = 0;
};

struct SendWork {
  ibv_send_wr wr{};
  std::vector<ibv_sge> sges;
  std::vector<uint8_t> inline_data;
  std::vector<uint8_t> answer;  // of a READ or an atomic, until its completion
  uint64_t index = 0;
  bool signaled = false;
  bool fated = false;         // its fault, if any, was drawn
  bool from_peer = false;     // `status` is the responder's answer
  bool execute_first = true;  // a planned failure: the responder does it all the same
  uint64_t unsaid = 0;        // its completion comes so many ticks late
  uint64_t due = 0;           // of the next attempt, or of the answer
  unsigned losses = 0;
  unsigned not_ready = 0;
  ibv_wc_status status = IBV_WC_SUCCESS;
  ibv_wc_status planned = IBV_WC_SUCCESS;
};

struct ReceiveWork {
  uint64_t wr_id = 0;
  std::vector<ibv_sge> sges;
  uint64_t index = 0;
};

struct Qp {
  ibv_qp base{};
  ibv_qp_init_attr initial{};
  ibv_qp_attr attributes{};
  std::deque<SendWork> sends;  // the first `in_flight` are sent and await their answers
  size_t in_flight = 0;
  std::deque<ReceiveWork> receives;
  uint64_t sends_posted = 0,
           sends_retired = 0;  // retired: its completion, or a later one's, was polled
  uint64_t receives_posted = 0, receives_retired = 0;
  bool reported = false;  // IBV_EVENT_COMM_EST
  bool stopped = false;   // a request failed: nothing after it is sent
  uint64_t async_unacknowledged = 0;
};

enum class CmState {
  kIdle,
  kBound,
  kAddressResolved,
  kRouteResolved,
  kListening,
  kRequestSent,
  kRequestReceived,
  kReplySent,
  kReplyReceived,
  kConnected,
  kDisconnectSent,
  kDisconnectReceived,
  kEnded,
};

struct EventChannel;
struct Id {
  rdma_cm_id base{};
  CmState state = CmState::kIdle;
  EventChannel* channel = nullptr;
  Device* device = nullptr;
  Id* peer = nullptr;      // while both live
  Id* listener = nullptr;  // of a request that nobody has fetched
  uint16_t port = 0;
  int backlog = 0;
  uint32_t qp_number = 0, remote_qp_number = 0;
  uint32_t starting_psn = 0, remote_psn = 0;
  uint8_t responder_resources = 0, initiator_depth = 0, retry_count = 0, rnr_retry_count = 0;
  uint64_t unacknowledged = 0;
};

struct CmEvent {
  rdma_cm_event base{};
  Id* counted_on = nullptr;  // whom it keeps from being destroyed
  Id* about = nullptr;
  std::array<uint8_t, 256> data{};
};

struct EventChannel {
  rdma_event_channel base{};
  Signal signal;
  std::deque<std::unique_ptr<CmEvent>> events;
};

}  // namespace sluice::verbs::fake

#endif  // SLUICE_TESTS_VERBS_FAKE_OBJECTS_H_
