#include <sluice/verbs/verbs_api.h>

#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>

#include <atomic>
#include <memory>
#include <mutex>

namespace sluice::verbs {
namespace {

constexpr const char* kOrigin = "verbs/api";

// Exported calls, by address. Those that the headers define inline need no address: they
// go through the device's own table.
// clang-format off
#define SLUICE_IBV_CALLS(CALL) \
  CALL(ibv_get_device_list) CALL(ibv_free_device_list) CALL(ibv_open_device) CALL(ibv_close_device) \
  CALL(ibv_query_device) CALL(_ibv_query_gid_ex) CALL(ibv_get_async_event) CALL(ibv_ack_async_event) \
  CALL(ibv_alloc_pd) CALL(ibv_dealloc_pd) CALL(ibv_reg_dmabuf_mr) CALL(ibv_dereg_mr) \
  CALL(ibv_create_comp_channel) CALL(ibv_destroy_comp_channel) CALL(ibv_create_cq) CALL(ibv_destroy_cq) \
  CALL(ibv_get_cq_event) CALL(ibv_ack_cq_events) CALL(ibv_create_qp) CALL(ibv_modify_qp) CALL(ibv_query_qp) \
  CALL(ibv_destroy_qp) CALL(ibv_wc_status_str) CALL(ibv_fork_init) CALL(ibv_is_fork_initialized)
#define SLUICE_CM_CALLS(CALL) \
  CALL(rdma_create_event_channel) CALL(rdma_destroy_event_channel) CALL(rdma_create_id) CALL(rdma_destroy_id) \
  CALL(rdma_bind_addr) CALL(rdma_listen) CALL(rdma_get_src_port) CALL(rdma_resolve_addr) \
  CALL(rdma_resolve_route) CALL(rdma_init_qp_attr) CALL(rdma_connect) CALL(rdma_establish) CALL(rdma_accept) \
  CALL(rdma_reject) CALL(rdma_disconnect) CALL(rdma_get_cm_event) CALL(rdma_ack_cm_event)
// clang-format on

struct Symbols {
#define SLUICE_DECLARE(name) decltype(&::name) name = nullptr;
  SLUICE_IBV_CALLS(SLUICE_DECLARE)
  SLUICE_CM_CALLS(SLUICE_DECLARE)
#undef SLUICE_DECLARE
  // Macros of these names in the headers add checks that need more than the address.
  int (*query_port)(ibv_context*, uint8_t, _compat_ibv_port_attr*) = nullptr;
  ibv_mr* (*reg_mr)(ibv_pd*, void*, size_t, int) = nullptr;
};

// librdmacm and some verbs give -1 and set errno; the others give the errno.
int error_of(int result) {
  if (result >= 0) return result;
  return errno != 0 ? errno : EIO;
}

class SystemVerbs final : public VerbsApi {
 public:
  explicit SystemVerbs(const Symbols& symbols) : s_(symbols) {}

  ibv_device** device_list(int* count) override { return s_.ibv_get_device_list(count); }
  void free_device_list(ibv_device** list) override { s_.ibv_free_device_list(list); }
  ibv_context* open_device(ibv_device* device) override { return s_.ibv_open_device(device); }
  int close_device(ibv_context* context) override { return error_of(s_.ibv_close_device(context)); }
  int query_device(ibv_context* context, ibv_device_attr* out) override {
    return error_of(s_.ibv_query_device(context, out));
  }
  bool pages_on_demand(ibv_context* context) override {
    ibv_device_attr_ex attributes{};
    verbs_context* extended = verbs_get_ctx_op(context, query_device_ex);
    if (extended == nullptr ||
        extended->query_device_ex(context, nullptr, &attributes, sizeof(attributes)) != 0)
      return false;
    uint32_t needed =
        IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ;
    if (attributes.orig_attr.atomic_cap != IBV_ATOMIC_NONE) needed |= IBV_ODP_SUPPORT_ATOMIC;
    bool offered = (attributes.odp_caps.general_caps & IBV_ODP_SUPPORT) != 0;
    return offered && (attributes.odp_caps.per_transport_caps.rc_odp_caps & needed) == needed;
  }
  int query_port(ibv_context* context, uint8_t port, ibv_port_attr* out) override {
    *out = {};
    verbs_context* extended = verbs_get_ctx_op(context, query_port);
    if (extended != nullptr)
      return error_of(extended->query_port(context, port, out, sizeof(*out)));
    return error_of(s_.query_port(context, port, reinterpret_cast<_compat_ibv_port_attr*>(out)));
  }
  int query_gid(ibv_context* context, uint8_t port, int index, ibv_gid_entry* entry) override {
    return error_of(s_._ibv_query_gid_ex(context, port, static_cast<uint32_t>(index), entry, 0,
                                         sizeof(*entry)));
  }
  int async_event(ibv_context* context, ibv_async_event* event) override {
    return error_of(s_.ibv_get_async_event(context, event));
  }
  void ack_async_event(ibv_async_event* event) override { s_.ibv_ack_async_event(event); }

  ibv_pd* alloc_pd(ibv_context* context) override { return s_.ibv_alloc_pd(context); }
  int dealloc_pd(ibv_pd* pd) override { return error_of(s_.ibv_dealloc_pd(pd)); }
  ibv_mr* reg_mr(ibv_pd* pd, void* address, size_t length, int access) override {
    return s_.reg_mr(pd, address, length, access);
  }
  ibv_mr* reg_dmabuf_mr(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                        int access) override {
    return s_.ibv_reg_dmabuf_mr(pd, offset, length, iova, fd, access);
  }
  int dereg_mr(ibv_mr* mr) override { return error_of(s_.ibv_dereg_mr(mr)); }
  ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) override { return ::ibv_alloc_mw(pd, type); }
  int dealloc_mw(ibv_mw* mw) override { return error_of(::ibv_dealloc_mw(mw)); }

  ibv_comp_channel* create_comp_channel(ibv_context* context) override {
    return s_.ibv_create_comp_channel(context);
  }
  int destroy_comp_channel(ibv_comp_channel* channel) override {
    return error_of(s_.ibv_destroy_comp_channel(channel));
  }
  ibv_cq* create_cq(ibv_context* context, int entries, void* cq_context,
                    ibv_comp_channel* channel) override {
    return s_.ibv_create_cq(context, entries, cq_context, channel, 0);
  }
  int destroy_cq(ibv_cq* cq) override { return error_of(s_.ibv_destroy_cq(cq)); }
  int modify_cq(ibv_cq* cq, uint16_t count, uint16_t period_us) override {
    ibv_modify_cq_attr attributes{};
    attributes.attr_mask = IBV_CQ_ATTR_MODERATE;
    attributes.moderate = {.cq_count = count, .cq_period = period_us};
    return error_of(::ibv_modify_cq(cq, &attributes));
  }
  int req_notify_cq(ibv_cq* cq) override { return error_of(::ibv_req_notify_cq(cq, 0)); }
  int cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) override {
    return error_of(s_.ibv_get_cq_event(channel, cq, cq_context));
  }
  void ack_cq_events(ibv_cq* cq, unsigned count) override { s_.ibv_ack_cq_events(cq, count); }
  int poll_cq(ibv_cq* cq, int entries, ibv_wc* completions) override {
    return ::ibv_poll_cq(cq, entries, completions);
  }
  ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) override {
    return s_.ibv_create_qp(pd, attributes);
  }
  int modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) override {
    return error_of(s_.ibv_modify_qp(qp, attributes, mask));
  }
  int query_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask, ibv_qp_init_attr* initial) override {
    return error_of(s_.ibv_query_qp(qp, attributes, mask, initial));
  }
  int destroy_qp(ibv_qp* qp) override { return error_of(s_.ibv_destroy_qp(qp)); }
  int post_send(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad) override {
    return error_of(::ibv_post_send(qp, list, bad));
  }
  int post_recv(ibv_qp* qp, ibv_recv_wr* list, ibv_recv_wr** bad) override {
    return error_of(::ibv_post_recv(qp, list, bad));
  }
  const char* status_text(ibv_wc_status status) override { return s_.ibv_wc_status_str(status); }

  rdma_event_channel* create_event_channel() override { return s_.rdma_create_event_channel(); }
  void destroy_event_channel(rdma_event_channel* channel) override {
    s_.rdma_destroy_event_channel(channel);
  }
  int create_id(rdma_event_channel* channel, rdma_cm_id** id, void* context) override {
    return error_of(s_.rdma_create_id(channel, id, context, RDMA_PS_TCP));
  }
  int destroy_id(rdma_cm_id* id) override { return error_of(s_.rdma_destroy_id(id)); }
  int bind_addr(rdma_cm_id* id, sockaddr* address) override {
    return error_of(s_.rdma_bind_addr(id, address));
  }
  int listen(rdma_cm_id* id, int backlog) override { return error_of(s_.rdma_listen(id, backlog)); }
  uint16_t source_port(rdma_cm_id* id) override { return ntohs(s_.rdma_get_src_port(id)); }
  int resolve_addr(rdma_cm_id* id, sockaddr* address, int timeout_ms) override {
    return error_of(s_.rdma_resolve_addr(id, nullptr, address, timeout_ms));
  }
  int resolve_route(rdma_cm_id* id, int timeout_ms) override {
    return error_of(s_.rdma_resolve_route(id, timeout_ms));
  }
  int init_qp_attr(rdma_cm_id* id, ibv_qp_attr* attributes, int* mask) override {
    return error_of(s_.rdma_init_qp_attr(id, attributes, mask));
  }
  int connect(rdma_cm_id* id, rdma_conn_param* parameters) override {
    return error_of(s_.rdma_connect(id, parameters));
  }
  int establish(rdma_cm_id* id) override { return error_of(s_.rdma_establish(id)); }
  int accept(rdma_cm_id* id, rdma_conn_param* parameters) override {
    return error_of(s_.rdma_accept(id, parameters));
  }
  int reject(rdma_cm_id* id, const void* data, uint8_t length) override {
    return error_of(s_.rdma_reject(id, data, length));
  }
  int disconnect(rdma_cm_id* id) override { return error_of(s_.rdma_disconnect(id)); }
  int cm_event(rdma_event_channel* channel, rdma_cm_event** event) override {
    return error_of(s_.rdma_get_cm_event(channel, event));
  }
  int ack_cm_event(rdma_cm_event* event) override { return error_of(s_.rdma_ack_cm_event(event)); }

 private:
  const Symbols s_;
};

class Loader {
 public:
  // Both libraries stay loaded: their providers start threads and keep callbacks.
  Status load(Symbols& s) {
#define SLUICE_FIND(name) SLUICE_RETURN_IF_ERROR(find(#name, s.name));
    SLUICE_RETURN_IF_ERROR(open("libibverbs.so.1", "libibverbs1"));
    SLUICE_IBV_CALLS(SLUICE_FIND)
    SLUICE_RETURN_IF_ERROR(find("ibv_query_port", s.query_port));
    SLUICE_RETURN_IF_ERROR(find("ibv_reg_mr", s.reg_mr));
    SLUICE_RETURN_IF_ERROR(open("librdmacm.so.1", "librdmacm1"));
    SLUICE_CM_CALLS(SLUICE_FIND)
#undef SLUICE_FIND
    return Status();
  }

 private:
  Status open(const char* library, const char* package) {
    handle_ = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) return Status();
    const char* why = ::dlerror();
    return Status(Code::kUnsupported, Scope::kContext, kOrigin,
                  std::string(library) + " cannot be loaded (" +
                      (why != nullptr ? why : "no reason given") + "); install the package " +
                      package);
  }
  template <typename Function>
  Status find(const char* name, Function& out) {
    void* address = ::dlsym(handle_, name);
    if (address == nullptr) {
      return Status(
          Code::kUnsupported, Scope::kContext, kOrigin,
          std::string("the installed rdma-core has no ") + name + "; install version 35 or newer");
    }
    out = reinterpret_cast<Function>(address);
    return Status();
  }
  void* handle_ = nullptr;
};

// Kernels since 5.12 copy pinned pages for the child at fork; before, the library must
// mark every registered page, from the start.
void prepare_for_fork(const Symbols& s) {
  if (s.ibv_is_fork_initialized() == IBV_FORK_UNNEEDED) return;
  (void)s.ibv_fork_init();
}

Result<VerbsApi*> load_system_verbs() {
  Symbols symbols;
  Loader loader;
  SLUICE_RETURN_IF_ERROR(loader.load(symbols));
  prepare_for_fork(symbols);
  return static_cast<VerbsApi*>(new SystemVerbs(symbols));
}

std::atomic<VerbsApi*> replacement{nullptr};

}  // namespace

Result<VerbsApi*> system_verbs() {
  static const Result<VerbsApi*>& loaded = *new Result<VerbsApi*>(load_system_verbs());
  if (!loaded.ok()) return loaded.status();
  return *loaded;
}

Result<VerbsApi*> verbs_api() {
  if (VerbsApi* api = replacement.load()) return api;
  return system_verbs();
}

bool rdma_devices_present() {
  if (replacement.load() != nullptr) return true;
  DIR* directory = ::opendir("/sys/class/infiniband");
  if (directory == nullptr) return false;
  bool found = false;
  while (dirent* entry = ::readdir(directory)) found = found || entry->d_name[0] != '.';
  ::closedir(directory);
  return found;
}

void use_verbs_api(VerbsApi* api) { replacement.store(api); }

}  // namespace sluice::verbs
