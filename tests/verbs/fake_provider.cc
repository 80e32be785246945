// The lock, the counting of calls and their planned failures; the rest is the fabric's.
#include "tests/verbs/fake_provider.h"

#include <errno.h>

#include "tests/verbs/fake_fabric.h"

namespace sluice::verbs {

FakeVerbs::FakeVerbs(FakeOptions options)
    : fabric_(std::make_unique<fake::Fabric>(std::move(options))) {}
FakeVerbs::~FakeVerbs() = default;
FakeFaults& FakeVerbs::faults() const { return fabric_->faults; }

template <typename Function>
int FakeVerbs::run(std::string_view name, Function function) {
  std::lock_guard lock(mutex_);
  int error = fabric_->faults.call_error(name);
  return error != 0 ? error : function(*fabric_);
}

template <typename Function>
auto FakeVerbs::make(std::string_view name, Function function) {
  std::lock_guard lock(mutex_);
  int error = fabric_->faults.call_error(name);
  if (error == 0) return function(*fabric_);
  errno = error;
  return decltype(function(*fabric_)){};
}

ibv_device** FakeVerbs::device_list(int* count) {
  return make("device_list", [&](auto& f) { return f.device_list(count); });
}
void FakeVerbs::free_device_list(ibv_device** list) {
  run("free_device_list", [&](auto& f) { return f.free_device_list(list), 0; });
}
ibv_context* FakeVerbs::open_device(ibv_device* device) {
  return make("open_device", [&](auto& f) { return f.open_device(device); });
}
int FakeVerbs::close_device(ibv_context* c) {
  return run("close_device", [&](auto& f) { return f.close_device(c); });
}
int FakeVerbs::query_device(ibv_context* c, ibv_device_attr* a) {
  return run("query_device", [&](auto& f) { return f.query_device(c, a); });
}
bool FakeVerbs::pages_on_demand(ibv_context* c) {
  return make("pages_on_demand", [&](auto& f) { return f.pages_on_demand(c); });
}
int FakeVerbs::query_port(ibv_context* c, uint8_t port, ibv_port_attr* a) {
  return run("query_port", [&](auto& f) { return f.query_port(c, port, a); });
}
int FakeVerbs::query_gid(ibv_context* c, uint8_t port, int index, ibv_gid_entry* entry) {
  return run("query_gid", [&](auto& f) { return f.query_gid(c, port, index, entry); });
}
int FakeVerbs::async_event(ibv_context* c, ibv_async_event* e) {
  return run("async_event", [&](auto& f) { return f.async_event(c, e); });
}
void FakeVerbs::ack_async_event(ibv_async_event* e) {
  run("ack_async_event", [&](auto& f) { return f.ack_async_event(e), 0; });
}

ibv_pd* FakeVerbs::alloc_pd(ibv_context* c) {
  return make("alloc_pd", [&](auto& f) { return f.alloc_pd(c); });
}
int FakeVerbs::dealloc_pd(ibv_pd* pd) {
  return run("dealloc_pd", [&](auto& f) { return f.dealloc_pd(pd); });
}
ibv_mr* FakeVerbs::reg_mr(ibv_pd* pd, void* address, size_t length, int access) {
  return make("reg_mr", [&](auto& f) { return f.reg_mr(pd, address, length, access); });
}
ibv_mr* FakeVerbs::reg_dmabuf_mr(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                                 int access) {
  return make("reg_dmabuf_mr",
              [&](auto& f) { return f.reg_dmabuf_mr(pd, offset, length, iova, fd, access); });
}
int FakeVerbs::dereg_mr(ibv_mr* mr) {
  return run("dereg_mr", [&](auto& f) { return f.dereg_mr(mr); });
}
ibv_mw* FakeVerbs::alloc_mw(ibv_pd* pd, ibv_mw_type type) {
  return make("alloc_mw", [&](auto& f) { return f.alloc_mw(pd, type); });
}
int FakeVerbs::dealloc_mw(ibv_mw* mw) {
  return run("dealloc_mw", [&](auto& f) { return f.dealloc_mw(mw); });
}

ibv_comp_channel* FakeVerbs::create_comp_channel(ibv_context* c) {
  return make("create_comp_channel", [&](auto& f) { return f.create_comp_channel(c); });
}
int FakeVerbs::destroy_comp_channel(ibv_comp_channel* channel) {
  return run("destroy_comp_channel", [&](auto& f) { return f.destroy_comp_channel(channel); });
}
ibv_cq* FakeVerbs::create_cq(ibv_context* c, int entries, void* cq_context,
                             ibv_comp_channel* channel) {
  return make("create_cq", [&](auto& f) { return f.create_cq(c, entries, cq_context, channel); });
}
int FakeVerbs::destroy_cq(ibv_cq* cq) {
  return run("destroy_cq", [&](auto& f) { return f.destroy_cq(cq); });
}
int FakeVerbs::modify_cq(ibv_cq* cq, uint16_t count, uint16_t period) {
  return run("modify_cq", [&](auto& f) { return f.modify_cq(cq, count, period); });
}
int FakeVerbs::req_notify_cq(ibv_cq* cq) {
  return run("req_notify_cq", [&](auto& f) { return f.req_notify_cq(cq); });
}
int FakeVerbs::cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
  return run("cq_event", [&](auto& f) { return f.cq_event(channel, cq, cq_context); });
}
void FakeVerbs::ack_cq_events(ibv_cq* cq, unsigned count) {
  run("ack_cq_events", [&](auto& f) { return f.ack_cq_events(cq, count), 0; });
}
int FakeVerbs::poll_cq(ibv_cq* cq, int entries, ibv_wc* completions) {
  std::lock_guard lock(mutex_);
  int error = fabric_->faults.call_error("poll_cq");
  return error != 0 ? -error : fabric_->poll_cq(cq, entries, completions);
}

ibv_qp* FakeVerbs::create_qp(ibv_pd* pd, ibv_qp_init_attr* a) {
  return make("create_qp", [&](auto& f) { return f.create_qp(pd, a); });
}
int FakeVerbs::modify_qp(ibv_qp* qp, ibv_qp_attr* a, int mask) {
  return run("modify_qp", [&](auto& f) { return f.modify_qp(qp, a, mask); });
}
int FakeVerbs::query_qp(ibv_qp* qp, ibv_qp_attr* a, int mask, ibv_qp_init_attr* initial) {
  return run("query_qp", [&](auto& f) { return f.query_qp(qp, a, mask, initial); });
}
int FakeVerbs::destroy_qp(ibv_qp* qp) {
  return run("destroy_qp", [&](auto& f) { return f.destroy_qp(qp); });
}
int FakeVerbs::post_send(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad) {
  *bad = list;
  return run("post_send", [&](auto& f) { return f.post_send(qp, list, bad); });
}
int FakeVerbs::post_recv(ibv_qp* qp, ibv_recv_wr* list, ibv_recv_wr** bad) {
  *bad = list;
  return run("post_recv", [&](auto& f) { return f.post_recv(qp, list, bad); });
}
const char* FakeVerbs::status_text(ibv_wc_status status) {
  constexpr const char* kTexts[] = {"success",
                                    "local length error",
                                    "local QP operation error",
                                    "local EE context operation error",
                                    "local protection error",
                                    "Work Request Flushed Error",
                                    "memory management operation error",
                                    "bad response error",
                                    "local access error",
                                    "remote invalid request error",
                                    "remote access error",
                                    "remote operation error",
                                    "transport retry counter exceeded",
                                    "RNR retry counter exceeded",
                                    "local RDD violation error",
                                    "remote invalid RD request",
                                    "aborted error",
                                    "invalid EE context number",
                                    "invalid EE context state",
                                    "fatal error",
                                    "response timeout error",
                                    "general error"};
  (void)make("status_text", [](auto&) { return true; });
  auto index = static_cast<size_t>(status);
  return index < std::size(kTexts) ? kTexts[index] : "unknown";
}

rdma_event_channel* FakeVerbs::create_event_channel() {
  return make("create_event_channel", [](auto& f) { return f.create_event_channel(); });
}
void FakeVerbs::destroy_event_channel(rdma_event_channel* c) {
  run("destroy_event_channel", [&](auto& f) { return f.destroy_event_channel(c), 0; });
}
int FakeVerbs::create_id(rdma_event_channel* channel, rdma_cm_id** id, void* context) {
  return run("create_id", [&](auto& f) { return f.create_id(channel, id, context); });
}
int FakeVerbs::destroy_id(rdma_cm_id* id) {
  return run("destroy_id", [&](auto& f) { return f.destroy_id(id); });
}
int FakeVerbs::bind_addr(rdma_cm_id* id, sockaddr* a) {
  return run("bind_addr", [&](auto& f) { return f.bind_addr(id, a); });
}
int FakeVerbs::listen(rdma_cm_id* id, int backlog) {
  return run("listen", [&](auto& f) { return f.listen(id, backlog); });
}
uint16_t FakeVerbs::source_port(rdma_cm_id* id) {
  return make("source_port", [&](auto& f) { return f.source_port(id); });
}
int FakeVerbs::resolve_addr(rdma_cm_id* id, sockaddr* a, int timeout_ms) {
  return run("resolve_addr", [&](auto& f) { return f.resolve_addr(id, a, timeout_ms); });
}
int FakeVerbs::resolve_route(rdma_cm_id* id, int timeout_ms) {
  return run("resolve_route", [&](auto& f) { return f.resolve_route(id, timeout_ms); });
}
int FakeVerbs::init_qp_attr(rdma_cm_id* id, ibv_qp_attr* a, int* mask) {
  return run("init_qp_attr", [&](auto& f) { return f.init_qp_attr(id, a, mask); });
}
int FakeVerbs::connect(rdma_cm_id* id, rdma_conn_param* p) {
  return run("connect", [&](auto& f) { return f.connect(id, p); });
}
int FakeVerbs::establish(rdma_cm_id* id) {
  return run("establish", [&](auto& f) { return f.establish(id); });
}
int FakeVerbs::accept(rdma_cm_id* id, rdma_conn_param* p) {
  return run("accept", [&](auto& f) { return f.accept(id, p); });
}
int FakeVerbs::reject(rdma_cm_id* id, const void* data, uint8_t length) {
  return run("reject", [&](auto& f) { return f.reject(id, data, length); });
}
int FakeVerbs::disconnect(rdma_cm_id* id) {
  return run("disconnect", [&](auto& f) { return f.disconnect(id); });
}
int FakeVerbs::cm_event(rdma_event_channel* c, rdma_cm_event** e) {
  return run("cm_event", [&](auto& f) { return f.cm_event(c, e); });
}
int FakeVerbs::ack_cm_event(rdma_cm_event* e) {
  return run("ack_cm_event", [&](auto& f) { return f.ack_cm_event(e); });
}

}  // namespace sluice::verbs
