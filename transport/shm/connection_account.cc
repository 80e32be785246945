#include <sluice/shm/connection_account.h>

namespace sluice::shm {

Status ConnectionAccount::take_addresses(uint64_t bytes) {
  Status status = peer_->charge(PeerResource::kAddressBytes, bytes);
  if (status.ok()) addresses_ += bytes;
  return status;
}

void ConnectionAccount::give_addresses(uint64_t bytes) {
  peer_->refund(PeerResource::kAddressBytes, bytes);
  addresses_ -= bytes;
}

Status ConnectionAccount::take_extents(uint64_t count) {
  Status status = peer_->charge(PeerResource::kExtents, count);
  if (status.ok()) extents_ += count;
  return status;
}

void ConnectionAccount::give_extents(uint64_t count) {
  peer_->refund(PeerResource::kExtents, count);
  extents_ -= count;
}

void ConnectionAccount::settle() {
  if (!peer_) return;
  peer_->refund(PeerResource::kAddressBytes, addresses_);
  peer_->refund(PeerResource::kExtents, extents_);
  addresses_ = extents_ = 0;
  place_.end();
  peer_ = nullptr;
}

}  // namespace sluice::shm
