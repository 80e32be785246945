// The kernel module's sockets as this machine has them: where the family is found, one socket
// of it, its memory and its completion ring. What the calls mean is kernel_compat/uapi's; knows
// no session and no message.
#ifndef SLUICE_KMOD_SOCKET_H_
#define SLUICE_KMOD_SOCKET_H_

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include <sluice/base/descriptor.h>
#include <sluice/base/mac_address.h>
#include <sluice/base/result.h>
#include <sluice/spi/link.h>

struct sluice_ring;
struct sockaddr_sluice;

namespace sluice::kmod {

// The family in the module's parameter, as its file under /sys has it; none: no family's number.
std::optional<int> family_of(const std::string& parameter_text);

// What a socket() of the family said, with the remedy. `family`: the number that was tried; `told`:
// by /sys, where only a module that is there tells it.
Status no_kmod_socket(int error, int family, bool told);

// How sockets of the module are had here: by the family's number, or, where that is refused, by
// /dev/sluice.
struct KmodDoor {
  int family = 0;   // also of addresses
  int refused = 0;  // what socket() said; 0: it is the door
  std::string text() const;
};

// The door if this process can open the module's sockets, else why not and what to do. Cost: a few
// system calls.
Result<KmodDoor> kmod_usable();

// A port of a machine on the interface's network.
struct KmodPlace {
  MacAddress mac{};
  uint16_t port = 0;
  bool operator==(const KmodPlace&) const = default;
};

enum class KmodMove : uint8_t { kPull, kPush, kPushWithNotice };
struct KmodTransfer {
  uint64_t user_data = 0;  // of the completion; calls it back
  uint64_t length = 0, peer_offset = 0;
  uint32_t region = 0;  // of ours, from its beginning
  uint32_t handle = 0;  // the peer's
  uint32_t notice = 0;
  KmodMove kind = KmodMove::kPull;
};
struct KmodCompletion {
  uint64_t user_data = 0;
  uint32_t status = 0;  // a slp_status, or SLUICE_MEMORY_GONE
  uint32_t notice = 0;
  bool noticed = false;      // a push of the peer's, with its notice
  bool window_gone = false;  // the program unmapped memory that the peer was allowed to reach
  // Neither: a transfer of ours is over.
};

class KmodSocket {
 public:
  KmodSocket() = default;
  // At `port` (0: any) of the interface; does not block. Errors: those of no_kmod_socket(),
  // kInvalidArgument (no such interface, port taken), kUnsupported (no Ethernet), kAccessDenied
  // (ports under 1024).
  static Result<KmodSocket> open(const std::string& interface, uint16_t port);
  KmodSocket(KmodSocket&& other) noexcept;
  KmodSocket& operator=(KmodSocket&& other) noexcept;
  ~KmodSocket();

  int fd() const { return fd_.value(); }
  const KmodPlace& own() const { return own_; }
  const std::string& interface() const { return interface_; }
  const KmodDoor& door() const { return door_; }
  std::string text_of(const KmodPlace& place) const;  // kmod://eth0/02:...:0b:7

  // 0 or errno, as all below.
  int connect(const KmodPlace& peer);
  int disconnect();  // ends the session and all access to memory before it returns
  int send(std::span<const iovec> pieces, const KmodPlace* to = nullptr);
  // One message. Its length, or -errno; 0: the connected peer has closed.
  ssize_t receive(MutableBytes room, KmodPlace& from);
  int hang_up(const KmodPlace& peer);  // ends the session with it
  void allow_most_peers();
  int error();      // why the session ended; each once
  bool up() const;  // the connected peer has answered

  int register_memory(const void* data, uint64_t length, uint32_t& region);
  void unregister_memory(uint32_t region);
  // To the connected peer, for whom the region begins at `base` of the handle.
  int open_handle(uint32_t region, uint64_t length, Right rights, uint64_t base, uint32_t& handle);
  void close_handle(uint32_t handle);
  int transfer(const KmodTransfer& request);
  int cancel(uint64_t user_data);
  uint64_t copied_out() const;  // bytes of memory that the kernel copied to send them; UINT64_MAX:
                                // a module that does not say

  // Makes the ring. kNoMemory.
  Status open_ring(uint32_t entries);
  std::optional<KmodCompletion> take();
  bool has_completions() const;

 private:
  sockaddr_sluice address_of(const KmodPlace& place) const;
  int set(int option, int value);

  Descriptor fd_;
  std::string interface_;
  KmodDoor door_;
  uint32_t ifindex_ = 0;
  KmodPlace own_;
  sluice_ring* ring_ = nullptr;
  size_t ring_bytes_ = 0;
};

}  // namespace sluice::kmod

#endif  // SLUICE_KMOD_SOCKET_H_
