// The state of the fake fabric and its rules, without a lock: FakeVerbs holds one around
// every call. Members are those of VerbsApi with the same meaning; each group lives in a
// file of its own. Rules are those of the InfiniBand specification (volume 1, chapters 9 to
// 12) as rdma-core 44 and soft-RoCE show them.
#ifndef SLUICE_TESTS_VERBS_FAKE_FABRIC_H_
#define SLUICE_TESTS_VERBS_FAKE_FABRIC_H_

#include <algorithm>
#include <random>
#include <unordered_map>

#include "tests/verbs/fake_faults.h"
#include "tests/verbs/fake_objects.h"

namespace sluice::verbs::fake {

// Objects by the address that the program holds.
template <typename Base, typename Object>
class Table {
 public:
  Object* find(const Base* base) const {
    auto found = objects_.find(base);
    return found == objects_.end() ? nullptr : found->second.get();
  }
  Object* add(std::unique_ptr<Object> object) {
    Object* raw = object.get();
    objects_.emplace(&raw->base, std::move(object));
    return raw;
  }
  void remove(const Base* base) { objects_.erase(base); }
  size_t size() const { return objects_.size(); }
  template <typename Predicate>
  size_t count(Predicate predicate) const {
    size_t n = 0;
    for (const auto& [base, object] : objects_) n += predicate(*object) ? 1 : 0;
    return n;
  }
  template <typename Function>
  void each(Function function) const {
    for (const auto& [base, object] : objects_) function(*object);
  }

 private:
  std::unordered_map<const Base*, std::unique_ptr<Object>> objects_;
};

class Fabric {
 public:
  explicit Fabric(FakeOptions options);
  ~Fabric();

  // fake_device.cc
  ibv_device** device_list(int* count);
  void free_device_list(ibv_device** list);
  ibv_context* open_device(ibv_device* device);
  int close_device(ibv_context* context);
  int query_device(ibv_context* context, ibv_device_attr* out);
  bool pages_on_demand(ibv_context* context);
  int query_port(ibv_context* context, uint8_t port, ibv_port_attr* out);
  int query_gid(ibv_context* context, uint8_t port, int index, ibv_gid_entry* out);
  int async_event(ibv_context* context, ibv_async_event* event);
  void ack_async_event(ibv_async_event* event);
  void raise(Context& context, const ibv_async_event& event);
  void raise_device(size_t device, ibv_event_type type);
  bool raise_qp(uint32_t number, ibv_event_type type);
  bool raise_cq(ibv_cq* cq, ibv_event_type type);
  bool raise_cq_of(uint32_t number, ibv_event_type type);
  void remove_device(size_t device);
  void restore_device(size_t device);

  // fake_memory.cc
  ibv_pd* alloc_pd(ibv_context* context);
  int dealloc_pd(ibv_pd* pd);
  ibv_mr* reg_mr(ibv_pd* pd, void* address, size_t length, int access);
  ibv_mr* reg_dmabuf_mr(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                        int access);
  int dereg_mr(ibv_mr* mr);
  ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type);
  int dealloc_mw(ibv_mw* mw);

  // fake_completion.cc
  ibv_comp_channel* create_comp_channel(ibv_context* context);
  int destroy_comp_channel(ibv_comp_channel* channel);
  ibv_cq* create_cq(ibv_context* context, int entries, void* cq_context, ibv_comp_channel* channel);
  int destroy_cq(ibv_cq* cq);
  int modify_cq(ibv_cq* cq, uint16_t count, uint16_t period_us);
  int req_notify_cq(ibv_cq* cq);
  int cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context);
  void ack_cq_events(ibv_cq* cq, unsigned count);
  int poll_cq(ibv_cq* cq, int entries, ibv_wc* completions);

  // fake_queue_pair.cc
  ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes);
  int modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask);
  int query_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask, ibv_qp_init_attr* initial);
  int destroy_qp(ibv_qp* qp);
  void to_error(Qp& qp);

  // fake_post.cc
  int post_send(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad);
  int post_recv(ibv_qp* qp, ibv_recv_wr* list, ibv_recv_wr** bad);

  // fake_cm.cc, fake_handshake.cc
  rdma_event_channel* create_event_channel();
  void destroy_event_channel(rdma_event_channel* channel);
  int create_id(rdma_event_channel* channel, rdma_cm_id** id, void* context);
  int destroy_id(rdma_cm_id* id);
  int bind_addr(rdma_cm_id* id, sockaddr* address);
  int listen(rdma_cm_id* id, int backlog);
  uint16_t source_port(rdma_cm_id* id);
  int resolve_addr(rdma_cm_id* id, sockaddr* address, int timeout_ms);
  int resolve_route(rdma_cm_id* id, int timeout_ms);
  int init_qp_attr(rdma_cm_id* id, ibv_qp_attr* attributes, int* mask);
  int connect(rdma_cm_id* id, rdma_conn_param* parameters);
  int establish(rdma_cm_id* id);
  int accept(rdma_cm_id* id, rdma_conn_param* parameters);
  int reject(rdma_cm_id* id, const void* data, uint8_t length);
  int disconnect(rdma_cm_id* id);
  int cm_event(rdma_event_channel* channel, rdma_cm_event** event);
  int ack_cm_event(rdma_cm_event* event);
  size_t raise_cm(rdma_cm_event_type type, int status);
  void disconnect_all();

  // fake_wire.cc
  void work();  // does what is due
  void tick();  // time passes by one, and work()
  void advance(uint64_t ticks);

  // fake_control.cc
  void set_port(ibv_port_state state, size_t device);
  void set_gids(std::vector<FakeGid> gids, size_t device);
  std::vector<uint32_t> qp_numbers() const;
  ibv_qp_state qp_state(uint32_t number) const;
  FakeCensus census() const;
  void misuse(std::string what);

  FakeOptions options;
  FakeFaults faults;
  std::vector<std::string> misuses;
  uint64_t rnr_events = 0;
  uint64_t retransmissions = 0;
  uint64_t bytes_carried = 0;
  uint64_t largest_send_list = 0;
  std::vector<std::pair<uint16_t, uint16_t>> moderations;

 private:
  friend class Responder;

  // fake_device.cc
  Context* context_of(const ibv_context* context, const char* call);
  bool gone(const ibv_context* context) const;
  void add_device(const FakeDeviceOptions& like);
  Device* device_of(const ibv_gid& gid) const;
  Device* device_for(const sockaddr* address) const;
  Context* cm_context(Device& device);
  void show_events(Context& context);

  // fake_memory.cc
  ibv_mr* register_memory(ibv_pd* pd, uint64_t address, size_t length, int access,
                          bool device_memory);
  void map_dma_buf(Mr& mr, uint64_t offset, int fd);
  bool local_access(const Qp& qp, const ibv_sge& sge, bool write, const char* what);
  bool remote_access(const Qp& qp, uint32_t rkey, uint64_t address, uint64_t length,
                     unsigned right);
  bool posted_work_uses(uint32_t lkey) const;
  void make_alias(Mr& mr, uint64_t first_page, uint64_t pages);
  // Where the device finds the bytes of an address that was checked; null: device memory.
  uint8_t* local_bytes(uint32_t lkey, uint64_t address) const;
  uint8_t* remote_bytes(uint32_t rkey, uint64_t address) const;
  ibv_wc_status bind_window(Qp& qp, const ibv_send_wr& wr);
  ibv_wc_status invalidate(Qp& qp, uint32_t rkey);
  void release_window(Mw& mw);

  // fake_completion.cc
  void complete(Cq& cq, Cq::Entry entry);
  void add_entry(Cq& cq, const Cq::Entry& entry);
  void notify(Cq& cq);
  void show_events(Channel& channel);
  void overrun(Cq& cq);
  void complete_send(Qp& qp, const SendWork& work, ibv_wc_status status);
  void complete_receive(Qp& qp, const ReceiveWork& work, ibv_wc completion);

  // fake_queue_pair.cc
  int check_transition(const Qp& qp, const ibv_qp_attr& attributes, int mask, ibv_qp_state next);
  int check_values(const Device& device, const ibv_qp_attr& attributes, int mask);
  void apply(Qp& qp, const ibv_qp_attr& attributes, int mask);
  void reset(Qp& qp);
  void flush(Qp& qp);

  // fake_post.cc
  int check_send(const Qp& qp, const ibv_send_wr& wr);
  int check_receive(const Qp& qp, const ibv_recv_wr& wr);
  bool capture_inline(const Qp& qp, SendWork& work);

  // fake_wire.cc
  bool step(Qp& qp);
  bool finish_first(Qp& qp);
  bool send_next(Qp& qp);
  bool may_send(const Qp& qp, const SendWork& work) const;
  ibv_wc_status check_locally(Qp& qp, SendWork& work);
  void execute(Qp& qp, SendWork& work);
  void lost(Qp& qp, SendWork& work);
  void not_ready(Qp& qp, SendWork& work);
  void answered(Qp& qp, SendWork& work, ibv_wc_status status);
  Qp* responder_of(Qp& qp);
  bool request_arrives(const Qp& qp);
  bool answer_arrives(const Qp& qp);
  uint64_t delay();
  uint64_t next_due() const;
  void sleep_until_arrival(Cq& cq);
  void serve_sleepers();
  void late_events();

  // fake_cm.cc
  Id* id_of(const rdma_cm_id* id, const char* call);
  void post_event(Id& about, rdma_cm_event_type type, int status);
  CmEvent& new_event(Id& about, rdma_cm_event_type type, int status);
  void put_private_data(CmEvent& event, const void* data, size_t length, size_t field);
  void show_events(EventChannel& channel);
  void take_device(Id& id, Device& device, const sockaddr_in& local);
  uint16_t free_port();
  void request_at(Id& listener, Id& active, const rdma_conn_param& parameters);
  int fill_receive(const Id& id, ibv_qp_attr& attributes, int& mask);
  bool port_taken(uint16_t port) const;
  void drop_events(Id& id);
  void leave_peer(Id& id);
  void end_connection(Id& id);

  std::vector<std::unique_ptr<Device>> devices_;
  std::map<ibv_device**, std::vector<ibv_device*>> lists_;
  Table<ibv_context, Context> contexts_;
  Table<ibv_pd, Pd> pds_;
  Table<ibv_mr, Mr> mrs_;
  Table<ibv_mw, Mw> mws_;
  Table<ibv_comp_channel, Channel> channels_;
  Table<ibv_cq, Cq> cqs_;
  Table<ibv_qp, Qp> qps_;
  Table<rdma_event_channel, EventChannel> event_channels_;
  Table<rdma_cm_id, Id> ids_;
  Table<rdma_cm_event, CmEvent> taken_events_;

  std::unordered_map<uint32_t, Mr*> by_lkey_, mrs_by_rkey_;
  std::unordered_map<uint32_t, Mw*> windows_by_index_;  // upper 24 bits of the rkey
  std::map<uint32_t, Qp*> by_number_;
  std::map<uint32_t, Qp*> busy_;  // those with requests under way
  uint64_t pinned_ = 0;
  uint64_t now_ = 0;
  uint32_t next_key_ = 0x101;
  uint32_t next_qp_number_ = 0x11;
  uint32_t next_psn_ = 0xfffff0;  // so that it wraps in tests
  uint16_t next_port_ = 40000;
  bool working_ = false;
  bool late_ = false;  // some channel holds a late event
  std::mt19937_64 random_;
};

}  // namespace sluice::verbs::fake

#endif  // SLUICE_TESTS_VERBS_FAKE_FABRIC_H_
