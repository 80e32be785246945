#include <sluice/proto/peer_view.h>

#include <utility>

namespace sluice::proto {

void PeerView::on_last_drop(Storage* storage) noexcept {
  auto* view = static_cast<PeerView*>(storage);
  // Once the letter is in, the owner may open it and end the view, the session and the context
  // while post() still looks whether to ring: the pool, and with it the mailbox, outlives that.
  ViewPool* pool = view->pool_;
  pool->mailbox_->post_plain(view);
  pool->unref();
}

void PeerView::on_open(Letter* letter) noexcept {
  PeerView* view = of(letter);
  ViewPool* pool = view->pool_;
  uint64_t offer_id = view->offer_id_;
  --pool->mailbox_->views_held;
  --pool->outstanding_;
  if (view->mapping_ != nullptr) std::exchange(view->mapping_, nullptr)->drop_in_context();
  if (pool->owner_ == nullptr) {
    delete view;
    return pool->unref();
  }
  view->next_free_ = pool->free_;
  pool->free_ = view;
  ++pool->spare_;
  pool->owner_->view_ended(offer_id);  // the pool may be gone afterwards
}

void PeerView::on_discard(Letter* letter) noexcept {
  PeerView* view = of(letter);
  ViewPool* pool = view->pool_;
  if (view->mapping_ != nullptr) view->mapping_->drop();
  delete view;
  pool->unref();
}

ViewPool* ViewPool::create(ViewOwner* owner, std::shared_ptr<Mailbox> mailbox) {
  return new ViewPool(owner, std::move(mailbox));
}

ViewPool::~ViewPool() {
  while (free_ != nullptr) delete std::exchange(free_, free_->next_free_);
}

StorageRef ViewPool::make(const ImportedRun& run, size_t length, uint64_t offer_id) {
  PeerView* view = free_;
  if (view != nullptr) {
    free_ = view->next_free_;
  } else {
    view = new PeerView();
  }
  view->pool_ = this;
  view->mapping_ = run.mapping;
  view->offer_id_ = offer_id;
  view->Letter::open = &PeerView::on_open;
  view->Letter::discard = &PeerView::on_discard;
  // Views are handed out as Tensors only, which do not write.
  view->reset(const_cast<std::byte*>(run.data), length, StorageKind::kPeer,
              &PeerView::on_last_drop);
  if (spare_ < 2) {
    references_.fetch_add(kReferencesAtOnce, std::memory_order_relaxed);
    spare_ += kReferencesAtOnce;
  }
  spare_ -= 2;
  ++outstanding_;
  ++mailbox_->views_held;
  return StorageRef::adopt(view);
}

void ViewPool::abandon() noexcept {
  owner_ = nullptr;
  unref(1 + std::exchange(spare_, 0));
}

void ViewPool::unref(uint64_t count) noexcept {
  if (references_.fetch_sub(count, std::memory_order_acq_rel) == count) delete this;
}

}  // namespace sluice::proto
