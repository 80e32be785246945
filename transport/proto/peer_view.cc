#include <sluice/proto/peer_view.h>

#include <utility>

namespace sluice::proto {

void PeerView::on_last_drop(Storage* storage) noexcept {
  auto* view = static_cast<PeerView*>(storage);
  // Once the letter is in, the owner may open it and end the view, the session and the context
  // while post() still looks whether to ring: the pool, and with it the mailbox, outlives that.
  ViewPool* pool = view->pool_;
  pool->mailbox_->post(view);
  pool->unref();
}

void PeerView::on_open(Letter* letter) noexcept {
  PeerView* view = of(letter);
  ViewPool* pool = view->pool_;
  uint64_t offer_id = view->offer_id_;
  --pool->mailbox_->views_held;
  if (view->mapping_ != nullptr) std::exchange(view->mapping_, nullptr)->drop();
  if (pool->owner_ != nullptr) {
    view->next_free_ = pool->free_;
    pool->free_ = view;
    pool->owner_->view_ended(offer_id);
  } else {
    delete view;
  }
  pool->unref();
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
  references_.fetch_add(2, std::memory_order_relaxed);
  ++mailbox_->views_held;
  return StorageRef::adopt(view);
}

void ViewPool::abandon() noexcept {
  owner_ = nullptr;
  unref();
}

void ViewPool::unref() noexcept {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

}  // namespace sluice::proto
