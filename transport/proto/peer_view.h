// Views: tensors that lie in a peer's memory. Dropping the last one, on any thread,
// tells the session, which sends the RELEASE.
#ifndef SLUICE_PROTO_PEER_VIEW_H_
#define SLUICE_PROTO_PEER_VIEW_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include <sluice/allocator/storage.h>
#include <sluice/runtime/mailbox.h>
#include <sluice/spi/link.h>

namespace sluice::proto {

class ViewPool;

class PeerView final : public Storage, private Letter {
 public:
  uint64_t offer_id() const { return offer_id_; }

 private:
  friend class ViewPool;
  static void on_last_drop(Storage* storage) noexcept;
  static void on_open(Letter* letter) noexcept;
  static void on_discard(Letter* letter) noexcept;
  static PeerView* of(Letter* letter) { return static_cast<PeerView*>(letter); }

  ViewPool* pool_ = nullptr;
  PeerMapping* mapping_ = nullptr;
  uint64_t offer_id_ = 0;
  PeerView* next_free_ = nullptr;
};

// Told on the context's thread that the peer may have its memory back.
class ViewOwner {
 public:
  virtual void view_ended(uint64_t offer_id) noexcept = 0;

 protected:
  ~ViewOwner() = default;
};

// Views of one session, recycled. Counted by the session and twice by each live view, since
// views may outlive the session and its context: once until its letter is opened, and once
// until whoever dropped it is done with the mailbox. References are taken many at once and given
// out on the context's thread, which also takes them back there: a view costs one atomic
// operation, by whoever drops it.
class ViewPool {
 public:
  static ViewPool* create(ViewOwner* owner, std::shared_ptr<Mailbox> mailbox);

  // Takes over the reference to run.mapping. Thread: the context's.
  StorageRef make(const ImportedRun& run, size_t length, uint64_t offer_id);
  // The session is gone: views that end later tell nobody. Gives up its reference.
  void abandon() noexcept;
  // Ends what was dropped since, of all sessions of the context. Thread: the context's.
  void end_dropped() noexcept {
    if (mailbox_ != nullptr) (void)mailbox_->open_plain();
  }
  // Thread: the context's.
  uint64_t outstanding() const { return outstanding_; }

 private:
  friend class PeerView;
  ViewPool(ViewOwner* owner, std::shared_ptr<Mailbox> mailbox)
      : owner_(owner), mailbox_(std::move(mailbox)) {}
  ~ViewPool();
  void unref(uint64_t count = 1) noexcept;

  static constexpr uint64_t kReferencesAtOnce = 256;

  ViewOwner* owner_;  // context's thread only
  std::shared_ptr<Mailbox> mailbox_;
  PeerView* free_ = nullptr;  // context's thread only
  uint64_t spare_ = 0;        // of references_, given to nobody; context's thread only
  uint64_t outstanding_ = 0;  // views whose letter is not opened; context's thread only
  std::atomic<uint64_t> references_{1};
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_PEER_VIEW_H_
