// A connection over shared memory as an attacker makes it: its own control region, its own packets,
// its own ring, which it may fill with whatever it likes (transport/shm/ring.h and packet.h say
// what belongs there).
#ifndef SLUICE_TESTS_HOSTILE_ATTACKER_SHM_H_
#define SLUICE_TESTS_HOSTILE_ATTACKER_SHM_H_

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "tests/hostile/attacker/siege.h"

namespace hostile {

inline constexpr uint64_t kRegionLayout = 0x534c554943455233;
inline constexpr size_t kFirstSlots = 58, kSlots = 1024, kSlotBytes = 128, kSlotData = 120;

struct Slot {
  std::atomic<uint64_t> stamp;
  uint8_t data[kSlotData];
};
struct alignas(128) Region {
  uint64_t layout, probe;
  std::atomic<uint64_t> grown_at;
  alignas(128) std::atomic<uint64_t> consumed;
  alignas(128) std::atomic<uint64_t> sleeping;
  alignas(128) std::atomic<uint64_t> withdrawals;
  alignas(128) std::atomic<uint64_t> copying;
  alignas(128) Slot first[kFirstSlots];
  alignas(4096) Slot slots[kSlots];
};
inline constexpr size_t kFirstBytes = 8192;

int sealed_memory(const char* name, size_t bytes, int seals);  // a memfd
int usual_seals();
Bytes own_host();  // what HELLO says of the machine

class ShmPeer final : public Channel {
 public:
  explicit ShmPeer(Siege& siege) : siege_(siege) { views = true; }
  ~ShmPeer() override;
  ShmPeer(const ShmPeer&) = delete;

  bool connect();
  // HELLO with these descriptors; -1: with our region's alone.
  bool say_hello(const HelloFields& fields, const std::vector<int>& descriptors);
  bool hear_hello();
  bool greet();
  // Before that: our ring stays in its first place, the rest of our region is a hole. Else it has
  // grown before its first message. Nothing is sent by send() then.
  void stay_small() { small_ = true; }

  bool send(const Bytes& message) override;
  bool listen(int milliseconds) override;
  bool alive() const override { return fd_ >= 0 && !ended_; }
  void leave_unread(bool yes) override { unread_ = yes; }
  // One packet with descriptors. False: no room, or gone.
  bool packet(const Bytes& bytes, const std::vector<int>& descriptors = {});
  bool announce(uint32_t id, uint64_t offset, uint64_t length, int fd);
  void ring_bell();
  void close();
  HelloFields fields() const;
  Region* own() { return own_; }
  const Region* peers() const { return peer_; }
  int fd() const { return fd_; }
  uint64_t position() const { return position_; }

 private:
  const Slot& front(uint64_t further) const;
  void take_messages();
  bool read_socket();
  void note_end();
  Siege& siege_;
  int fd_ = -1, region_fd_ = -1;
  Region* own_ = nullptr;
  const Region* peer_ = nullptr;
  uint64_t position_ = 0, read_ = 0, incarnation_ = 0;
  bool ended_ = false, unread_ = false, greeted_ = false, small_ = false;
  uint64_t peer_grew_at_ = 0;  // stamp of the slot that said so
};

}  // namespace hostile

#endif  // SLUICE_TESTS_HOSTILE_ATTACKER_SHM_H_
