// The calls of libibverbs and librdmacm that the backend makes, behind one interface:
// loaded when first asked for, so that a program starts on machines without them, and
// replaced by a fake provider in tests. The only files that include the verbs headers are
// this one and verbs_api.cc.
//
// Every call has the meaning, the arguments and the error convention of the library's
// call of the same name (rdma-core 44; man ibv_post_send(3) and so on): calls that return
// int give 0 or an errno value here, never -1 with errno; calls that return a pointer set
// errno when it is null.
#ifndef SLUICE_VERBS_VERBS_API_H_
#define SLUICE_VERBS_VERBS_API_H_

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <span>
#include <string>

#include <sluice/base/result.h>

namespace sluice::verbs {

class VerbsApi {
 public:
  virtual ~VerbsApi() = default;

  // Devices. device_list() is null-terminated; free_device_list() frees those that
  // were not opened.
  virtual ibv_device** device_list(int* count) = 0;
  virtual void free_device_list(ibv_device** list) = 0;
  virtual ibv_context* open_device(ibv_device* device) = 0;
  virtual int close_device(ibv_context* context) = 0;
  virtual int query_device(ibv_context* context, ibv_device_attr* attributes) = 0;
  // Whether the device can page memory in on demand for all that RC does here: messages both
  // ways, READs, WRITEs, and atomics if it has them (ibv_query_device_ex).
  virtual bool pages_on_demand(ibv_context* context) = 0;
  virtual int query_port(ibv_context* context, uint8_t port, ibv_port_attr* attributes) = 0;
  // ENODATA: no such entry.
  virtual int query_gid(ibv_context* context, uint8_t port, int index, ibv_gid_entry* entry) = 0;
  // 0, or EAGAIN when there is none (async_fd is non-blocking).
  virtual int async_event(ibv_context* context, ibv_async_event* event) = 0;
  virtual void ack_async_event(ibv_async_event* event) = 0;

  // Memory.
  virtual ibv_pd* alloc_pd(ibv_context* context) = 0;
  virtual int dealloc_pd(ibv_pd* pd) = 0;
  virtual ibv_mr* reg_mr(ibv_pd* pd, void* address, size_t length, int access) = 0;
  virtual ibv_mr* reg_dmabuf_mr(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                                int access) = 0;
  virtual int dereg_mr(ibv_mr* mr) = 0;
  virtual ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) = 0;
  virtual int dealloc_mw(ibv_mw* mw) = 0;

  // Queues. create_cq() makes `entries` or more; its events go to `channel`, with
  // `cq_context`. cq_event(): 0, or EAGAIN (the channel's fd is non-blocking).
  virtual ibv_comp_channel* create_comp_channel(ibv_context* context) = 0;
  virtual int destroy_comp_channel(ibv_comp_channel* channel) = 0;
  virtual ibv_cq* create_cq(ibv_context* context, int entries, void* cq_context,
                            ibv_comp_channel* channel) = 0;
  virtual int destroy_cq(ibv_cq* cq) = 0;
  virtual int modify_cq(ibv_cq* cq, uint16_t count, uint16_t period_us) = 0;
  virtual int req_notify_cq(ibv_cq* cq) = 0;
  virtual int cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) = 0;
  virtual void ack_cq_events(ibv_cq* cq, unsigned count) = 0;
  // How many, or less than 0.
  virtual int poll_cq(ibv_cq* cq, int entries, ibv_wc* completions) = 0;
  virtual ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) = 0;
  virtual int modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) = 0;
  virtual int query_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask,
                       ibv_qp_init_attr* initial) = 0;
  virtual int destroy_qp(ibv_qp* qp) = 0;
  virtual int post_send(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad) = 0;
  virtual int post_recv(ibv_qp* qp, ibv_recv_wr* list, ibv_recv_wr** bad) = 0;
  virtual const char* status_text(ibv_wc_status status) = 0;

  // Connections. No QP is ever given to an id: the backend makes its own on its own
  // device handle and passes its number. cm_event(): 0, or EAGAIN (the channel's fd is
  // non-blocking).
  virtual rdma_event_channel* create_event_channel() = 0;
  virtual void destroy_event_channel(rdma_event_channel* channel) = 0;
  virtual int create_id(rdma_event_channel* channel, rdma_cm_id** id, void* context) = 0;
  virtual int destroy_id(rdma_cm_id* id) = 0;
  virtual int bind_addr(rdma_cm_id* id, sockaddr* address) = 0;
  virtual int listen(rdma_cm_id* id, int backlog) = 0;
  virtual uint16_t source_port(rdma_cm_id* id) = 0;  // host byte order
  virtual int resolve_addr(rdma_cm_id* id, sockaddr* address, int timeout_ms) = 0;
  virtual int resolve_route(rdma_cm_id* id, int timeout_ms) = 0;
  virtual int init_qp_attr(rdma_cm_id* id, ibv_qp_attr* attributes, int* mask) = 0;
  virtual int connect(rdma_cm_id* id, rdma_conn_param* parameters) = 0;
  virtual int establish(rdma_cm_id* id) = 0;
  virtual int accept(rdma_cm_id* id, rdma_conn_param* parameters) = 0;
  virtual int reject(rdma_cm_id* id, const void* data, uint8_t length) = 0;
  virtual int disconnect(rdma_cm_id* id) = 0;
  virtual int cm_event(rdma_event_channel* channel, rdma_cm_event** event) = 0;
  virtual int ack_cm_event(rdma_cm_event* event) = 0;
};

// The system's libraries, loaded by the first call. Errors: kUnsupported (a library is
// missing: the detail names its package). Thread: any.
Result<VerbsApi*> system_verbs();

// What the backend uses: system_verbs(), or what a test put in its place.
Result<VerbsApi*> verbs_api();
// Whether the kernel has RDMA devices (or a test put something in their place): asked before
// the libraries are loaded for a path that nobody asked for by name.
bool rdma_devices_present();
// For tests: from now on, for contexts opened later; null: the system's again.
void use_verbs_api(VerbsApi* api);

}  // namespace sluice::verbs

#endif  // SLUICE_VERBS_VERBS_API_H_
