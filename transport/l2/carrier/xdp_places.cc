#include <sluice/l2/carrier/xdp_places.h>

#include <sluice/base/counters.h>

namespace sluice::l2 {
namespace {

Counter wrong("l2.xdp_wrong_places");

}  // namespace

void count_wrong_place() { wrong.add(); }

void XdpPlaces::offer(uint32_t count) {
  uint32_t at = *fill.producer;
  for (uint32_t i = 0; i < count && offered_ < shape_.receive; ++i)
    fill.at(at++) = uint64_t{offered_++} * shape_.place_bytes;
  fill.store(fill.producer, at);
}

void XdpPlaces::give_back(std::span<const uint64_t> addresses) {
  uint32_t at = *fill.producer;
  // The ring has room: it is as large as all of these places.
  for (uint64_t address : addresses) {
    if (is_for_receiving(address))
      fill.at(at++) = address & ~uint64_t{shape_.place_bytes - 1};
    else
      wrong.add();
  }
  fill.store(fill.producer, at);
}

void XdpPlaces::own(XdpSends& sends, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    if (i % shape_.group == 0) owners_.push_back(&sends);
    const uint64_t number =
        shape_.receive + (owners_.size() - 1) * uint64_t{shape_.group} + i % shape_.group;
    sends.free.push_back(number * shape_.place_bytes);
  }
  sends.count += count;
}

void XdpPlaces::take_back_sent() {
  const uint32_t first = *sent.consumer, count = sent.waiting(first);
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t address = sent.read(first + i);
    const uint64_t group = (address / shape_.place_bytes - shape_.receive) / shape_.group;
    XdpSends* owner =
        !is_for_receiving(address) && group < owners_.size() ? owners_[group] : nullptr;
    // Not more than there are: one that is named twice would hold two frames.
    if (owner != nullptr && owner->free.size() < owner->count)
      owner->free.push_back(address & ~uint64_t{shape_.place_bytes - 1});
    else
      wrong.add();
  }
  sent.store(sent.consumer, first + count);
}

}  // namespace sluice::l2
