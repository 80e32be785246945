// A link whose device does nothing by itself: it notes what a session asks of it, and a test says
// when each chunk is over, and how. The memory of an operation must not be with its owner while a
// chunk of it is out.
#ifndef SLUICE_TESTS_PROTO_DIRECT_LINK_H_
#define SLUICE_TESTS_PROTO_DIRECT_LINK_H_

#include <cstdint>
#include <string>
#include <vector>

#include <sluice/spi/link.h>

namespace sluice::test {

class DirectLink final : public DeviceLink {
 public:
  struct Chunk {
    uint64_t cookie = 0, length = 0;
    bool reads = false;
  };
  DirectLink() {
    traits_.sends_at_once = true;
    traits_.inline_bytes = 64;
    traits_.chunk_bytes = 1000;
    traits_.properties.path = Path::kVerbs;
    traits_.properties.capabilities = Capabilities{Capability::kAtomics};
  }

  // What the device has not finished, oldest first.
  std::vector<Chunk> out;
  // open_window() gives no more than so many bytes to one.
  uint64_t window_bytes = UINT64_MAX;
  // Numbers of the windows that are open, those asked to close, and those revoked.
  std::vector<WindowId> open, closing, revoked;
  // The next post with number `refuse_at` (from 0) of read(), write() and atomic() is refused so.
  uint64_t posts = 0, refuse_at = UINT64_MAX;
  Status refusal;
  bool can_cancel = false;  // cancel_moves() ends what is out
  bool says_idle = false;   // nothing_under_way() is true while nothing is out
  bool at_once = false;     // it takes what leaves at once, while nothing is out
  bool lets_go = true;      // of stop()
  Status revokes;           // of revoke_window()
  uint64_t stops = 0, cancels = 0, sent = 0, quarantined = 0;
  bool closed = false;
  DeviceClient* client = nullptr;

  const LinkTraits& traits() const override { return traits_; }
  void set_client(LinkClient*, DeviceClient* transfer) override { client = transfer; }
  bool send(ConstBytes, std::span<const ConstBytes>) override { return ++sent > 0; }
  void flush() override {}
  void quarantine(StorageRef) override { ++quarantined; }
  Result<WindowId> open_window(std::byte* data, uint64_t length, Right, uint64_t, bool whole,
                               wire::Segment& segment) override {
    segment = {.extent = next_window_ + 100,
               .offset = reinterpret_cast<uint64_t>(data),
               .length = whole ? length : std::min(length, window_bytes)};
    open.push_back(next_window_);
    return next_window_++;
  }
  void close_window(WindowId window) override {
    std::erase(open, window);
    closing.push_back(window);
  }
  Status revoke_window(WindowId window) override {
    if (!revokes.ok()) return revokes;
    std::erase(open, window);
    revoked.push_back(window);
    return Status();
  }
  Result<bool> read(const wire::Segment& peer, std::span<const MutableBytes>,
                    uint64_t cookie) override {
    return post(peer, cookie, true);
  }
  Result<bool> write(std::span<const ConstBytes>, const wire::Segment& peer, uint64_t cookie,
                     const uint32_t*) override {
    return post(peer, cookie, false);
  }
  Result<bool> atomic(const wire::Segment& peer, const AtomicRequest&, std::byte*,
                      uint64_t cookie) override {
    return post(peer, cookie, true);
  }
  bool nothing_under_way() const override { return says_idle && out.empty(); }
  bool read_at_once(const wire::Segment& peer, std::byte*, uint64_t cookie) override {
    return at_once && out.empty() && post(peer, cookie, true).ok();
  }
  bool write_at_once(const std::byte*, const wire::Segment& peer, uint64_t cookie) override {
    return at_once && out.empty() && post(peer, cookie, false).ok();
  }
  bool cancel_moves(uint64_t cookie) override {
    ++cancels;
    if (!can_cancel) return false;
    std::erase_if(out, [&](const Chunk& chunk) { return chunk.cookie == cookie; });
    return true;
  }
  bool stop() override {
    ++stops;
    out.clear();
    return lets_go;
  }
  void close() override { closed = true; }
  std::string local_name() const override { return "here"; }
  std::string peer_name() const override { return "there"; }

 private:
  Result<bool> post(const wire::Segment& peer, uint64_t cookie, bool reads) {
    if (posts++ == refuse_at) return refusal;
    out.push_back({cookie, peer.length, reads});
    return true;
  }
  LinkTraits traits_;
  WindowId next_window_ = 1;
};

}  // namespace sluice::test

#endif  // SLUICE_TESTS_PROTO_DIRECT_LINK_H_
