// One RDMA device as one context uses it: a handle of its own, its limits, a protection
// domain with the arena registered, completion events, and what goes wrong with it.
#ifndef SLUICE_VERBS_DEVICE_H_
#define SLUICE_VERBS_DEVICE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <sluice/allocator/storage.h>
#include <sluice/runtime/context_core.h>
#include <sluice/verbs/moderation.h>
#include <sluice/verbs/registrar.h>
#include <sluice/verbs/verbs_api.h>

namespace sluice::verbs {

// What of a device the backend goes by. From ibv_query_device(3) and ibv_query_port(3).
struct DeviceLimits {
  uint32_t queue_depth = 0;       // work requests of one queue
  uint32_t completion_depth = 0;  // entries of one completion queue
  uint32_t pieces = 1;            // scatter/gather entries of one work request
  uint32_t read_pieces = 1;       // of one READ: iWARP devices take one
  uint8_t reads_out = 1;          // READs and atomics under way as requester
  uint8_t reads_in = 1;           // and as responder
  bool windows = false;           // type 2B: bound to a queue pair
  bool atomics = false;
  bool on_demand = false;
  bool software = false;  // soft-RoCE, soft-iWARP: the kernel copies
  // iWARP (RFC 5040, 5041): a WRITE or SEND completes when TCP has it, a READ when its
  // answer has come, in whatever order that makes; a refusal is an ended connection.
  bool iwarp = false;
  // Soft-iWARP asks for no right when it answers a READ (siw_check_sgl_tx(.., 0) in
  // drivers/infiniband/sw/siw/siw_qp_tx.c): a peer that knows a key and an address may read.
  bool checks_reads() const { return !(software && iwarp); }
};
DeviceLimits limits_of(VerbsApi& api, ibv_context* context, const ibv_device_attr& attributes);

class Device;

// What happened to a device, or to one queue pair of it.
struct DeviceEvent {
  const Device& device;
  ibv_event_type type;
  uint32_t queue_pair = 0;     // its number; numbers are a device's own
  const ibv_cq* cq = nullptr;  // or the completion queue that it concerns
  bool fatal = false;          // the device is gone
};

// Told of it, from the context's progress.
class DeviceWatcher {
 public:
  virtual void on_device_event(const DeviceEvent& event) noexcept = 0;

 protected:
  ~DeviceWatcher() = default;
};

class Device final : public EventHandler {
 public:
  // Opens the device of that name. Errors: kUnreachable (no such device), kNoMemory
  // (memlock), kInternal (what the driver says).
  static Result<std::unique_ptr<Device>> open(ContextCore& context, VerbsApi& api,
                                              const std::string& name);
  // Requires: nothing made of it is left.
  ~Device();

  VerbsApi& api() { return api_; }
  const std::string& name() const { return name_; }
  const DeviceLimits& limits() const { return limits_; }
  ibv_context* handle() const { return handle_; }
  ibv_pd* pd() const { return pd_; }
  ibv_comp_channel* channel() const { return channel_; }
  Registrar& registrar() { return *registrar_; }
  ContextCore& context() { return context_; }
  // What $SLUICE_RDMA_MODERATION asks for (docs/design.md, RDMA, says why it is off without);
  // nothing from when the device refused it.
  const ModerationWish& moderation() const { return moderation_; }
  // Sets that of a queue. False: not done, and of no use to ask again; the first refusal is logged,
  // each counted.
  bool moderate(ibv_cq* cq, const Moderation& wanted);
  void set_watcher(DeviceWatcher* watcher) { watcher_ = watcher; }
  // The device was removed or has failed: it can be closed only.
  bool dead() const { return dead_; }
  // Largest message of a port, bytes.
  uint64_t message_limit(uint8_t port) const;
  bool port_active(uint8_t port) const;
  // Takes a queue pair that is in error and has given back all its requests, with its
  // completion queue: it reaches no memory, and is destroyed when that is quick. With
  // frames in a port that is down, soft-RoCE waits 50 s for them.
  void bury(ibv_qp* qp, ibv_cq* cq, uint8_t port);
  // Destroys what can be. Returns how many.
  size_t dig();
  bool has_buried() const { return !buried_.empty(); }
  // Takes a queue pair that the driver refuses to destroy: asked again when the device is closed,
  // whose end is its end.
  void keep_refused(ibv_qp* qp, ibv_cq* cq) { refused_.push_back({qp, cq, 0}); }
  // The same for a region that it did not deregister.
  void keep_refused(ibv_mr* region);
  // Memory that such a queue pair may still reach: until the device is closed nobody else has it.
  void hold(StorageRef memory);
  // Queue pairs made of it. A dead device is closed with the last: its driver waits for that.
  // Each has a number, which is given as the context of its completion queue; of those that
  // have gone numbers are used again.
  uintptr_t add_user();
  void remove_user(uintptr_t user);
  bool in_use() const { return users_ > 0; }
  // Completion events that came, those for one user, and completions that were found, so far.
  uint64_t announcements() const { return announcements_; }
  uint64_t announced_to(uintptr_t user) const { return announced_to_[user]; }
  uint64_t completions() const { return completions_; }
  void add_completions(int count) { completions_ += static_cast<uint64_t>(count); }

  // EventHandler: both descriptors.
  void on_event(uint32_t epoll_events) noexcept override;

 private:
  Device(ContextCore& context, VerbsApi& api, std::string name)
      : context_(context), api_(api), name_(std::move(name)) {}
  Status initialise();
  void read_completion_events();
  void read_device_events();

  ContextCore& context_;
  VerbsApi& api_;
  std::string name_;
  DeviceLimits limits_;
  ModerationWish moderation_;
  ibv_context* handle_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  std::shared_ptr<Registrar> registrar_;  // device memory asks whether it is still there
  struct Buried {
    ibv_qp* qp;
    ibv_cq* cq;
    uint8_t port;
  };

  DeviceWatcher* watcher_ = nullptr;
  std::vector<Buried> buried_, refused_;
  std::vector<ibv_mr*> refused_regions_;
  std::vector<StorageRef> held_;  // released after ~Device has closed the handle
  uint32_t users_ = 0;
  std::vector<uint64_t> announced_to_;   // by number
  std::vector<uintptr_t> free_numbers_;  // of users who have gone
  uint64_t announcements_ = 0, completions_ = 0;
  bool dead_ = false;
};

}  // namespace sluice::verbs

#endif  // SLUICE_VERBS_DEVICE_H_
