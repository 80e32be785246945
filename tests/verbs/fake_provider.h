// An RDMA fabric inside one process: what the backend calls is VerbsApi, what a test sees
// besides is below. Contexts of one process talk to each other, on one thread or several
// (one lock guards everything); nothing runs by itself: work is done when the program
// polls, posts or takes an event. Memory is reached by address, so both ends live here.
//
//   FakeVerbs fake;
//   use_verbs_api(&fake);   ...   use_verbs_api(nullptr);
//   CHECK(fake.census().empty());
//   CHECK(fake.misuses().empty());
//   CHECK(fake.rnr_events() == 0);
#ifndef SLUICE_TESTS_VERBS_FAKE_PROVIDER_H_
#define SLUICE_TESTS_VERBS_FAKE_PROVIDER_H_

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/verbs/fake_faults.h"
#include "tests/verbs/fake_options.h"

namespace sluice::verbs {

namespace fake {
class Fabric;
}

class FakeVerbs : public VerbsApi {
 public:
  explicit FakeVerbs(FakeOptions options = {});
  ~FakeVerbs() override;

  // What is alive now.
  FakeCensus census() const;
  // What the program did that the manual forbids, or that would have hung it.
  std::vector<std::string> misuses() const;
  void forget_misuses();
  // Messages that met an empty receive queue. A sender with credits never makes one.
  uint64_t rnr_events() const;
  // All three in words: what is alive, what was misused, what met no receive; "" is good.
  std::string complaints() const;
  uint64_t retransmissions() const;
  uint64_t bytes_carried() const;
  uint64_t largest_send_list() const;  // requests in one post_send
  // Count and period of each modify_cq that was done; events are not held back by it.
  std::vector<std::pair<uint16_t, uint16_t>> moderations() const;
  uint64_t calls(std::string_view name) const;
  uint64_t calls_in_all() const;  // of those that may fail

  template <typename Function>
  auto with_faults(Function function) {
    std::lock_guard lock(mutex_);
    return function(faults());
  }
  void set_policy(FakePolicy policy);
  // Lets time pass.
  void advance(uint64_t ticks);

  // Asynchronous events: to every open handle of the device, to the QP's, to the CQ's.
  // False: no such QP or CQ.
  void raise_device(ibv_event_type type, size_t device = 0);
  bool raise_qp(ibv_event_type type, uint32_t qp_number);
  bool raise_cq(ibv_event_type type, ibv_cq* cq);
  bool raise_cq_of(ibv_event_type type, uint32_t qp_number);
  // PORT_ERR or PORT_ACTIVE with the port's new state; nothing passes a port that is down.
  void set_port(ibv_port_state state, size_t device = 0);
  // DEVICE_FATAL, DEVICE_REMOVAL to its identifiers, and EIO from every later call;
  // destroying calls give EIO too and let go of the object.
  void remove_device(size_t device = 0);
  // Puts another of the same name and address in its place.
  void restore_device(size_t device = 0);
  // A new GID table, with GID_CHANGE.
  void set_gids(std::vector<FakeGid> gids, size_t device = 0);
  // The event comes to every identifier. How many there are.
  size_t raise_cm(rdma_cm_event_type type, int status = 0);
  // DISCONNECTED at both ends of every connection.
  void disconnect_all();
  // Numbers of the QPs that are alive, in order of creation.
  std::vector<uint32_t> qp_numbers() const;
  ibv_qp_state qp_state(uint32_t number) const;

  ibv_device** device_list(int* count) override;
  void free_device_list(ibv_device** list) override;
  ibv_context* open_device(ibv_device* device) override;
  int close_device(ibv_context* context) override;
  int query_device(ibv_context* context, ibv_device_attr* attributes) override;
  bool pages_on_demand(ibv_context* context) override;
  int query_port(ibv_context* context, uint8_t port, ibv_port_attr* attributes) override;
  int query_gid(ibv_context* context, uint8_t port, int index, ibv_gid_entry* entry) override;
  int async_event(ibv_context* context, ibv_async_event* event) override;
  void ack_async_event(ibv_async_event* event) override;
  ibv_pd* alloc_pd(ibv_context* context) override;
  int dealloc_pd(ibv_pd* pd) override;
  ibv_mr* reg_mr(ibv_pd* pd, void* address, size_t length, int access) override;
  ibv_mr* reg_dmabuf_mr(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                        int access) override;
  int dereg_mr(ibv_mr* mr) override;
  ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) override;
  int dealloc_mw(ibv_mw* mw) override;
  ibv_comp_channel* create_comp_channel(ibv_context* context) override;
  int destroy_comp_channel(ibv_comp_channel* channel) override;
  ibv_cq* create_cq(ibv_context* context, int entries, void* cq_context,
                    ibv_comp_channel* channel) override;
  int destroy_cq(ibv_cq* cq) override;
  int modify_cq(ibv_cq* cq, uint16_t count, uint16_t period_us) override;
  int req_notify_cq(ibv_cq* cq) override;
  int cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) override;
  void ack_cq_events(ibv_cq* cq, unsigned count) override;
  int poll_cq(ibv_cq* cq, int entries, ibv_wc* completions) override;
  ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) override;
  int modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) override;
  int query_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask, ibv_qp_init_attr* initial) override;
  int destroy_qp(ibv_qp* qp) override;
  int post_send(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad) override;
  int post_recv(ibv_qp* qp, ibv_recv_wr* list, ibv_recv_wr** bad) override;
  const char* status_text(ibv_wc_status status) override;
  rdma_event_channel* create_event_channel() override;
  void destroy_event_channel(rdma_event_channel* channel) override;
  int create_id(rdma_event_channel* channel, rdma_cm_id** id, void* context) override;
  int destroy_id(rdma_cm_id* id) override;
  int bind_addr(rdma_cm_id* id, sockaddr* address) override;
  int listen(rdma_cm_id* id, int backlog) override;
  uint16_t source_port(rdma_cm_id* id) override;
  int resolve_addr(rdma_cm_id* id, sockaddr* address, int timeout_ms) override;
  int resolve_route(rdma_cm_id* id, int timeout_ms) override;
  int init_qp_attr(rdma_cm_id* id, ibv_qp_attr* attributes, int* mask) override;
  int connect(rdma_cm_id* id, rdma_conn_param* parameters) override;
  int establish(rdma_cm_id* id) override;
  int accept(rdma_cm_id* id, rdma_conn_param* parameters) override;
  int reject(rdma_cm_id* id, const void* data, uint8_t length) override;
  int disconnect(rdma_cm_id* id) override;
  int cm_event(rdma_event_channel* channel, rdma_cm_event** event) override;
  int ack_cm_event(rdma_cm_event* event) override;

 private:
  FakeFaults& faults() const;
  template <typename Function>
  int run(std::string_view name, Function function);
  template <typename Function>
  auto make(std::string_view name, Function function);

  mutable std::mutex mutex_;
  std::unique_ptr<fake::Fabric> fabric_;
};

}  // namespace sluice::verbs

#endif  // SLUICE_TESTS_VERBS_FAKE_PROVIDER_H_
