// Cables for tests: a network of this process's own, pairs of Ethernet interfaces in it, and
// a socket that sends and takes whole frames as they are. Knows frames, not sluice.
#ifndef SLUICE_TESTS_L2_WIRE_H_
#define SLUICE_TESTS_L2_WIRE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace sluice::test {

// Runs a command of iproute2 or the like. True: it worked.
bool run(const std::string& command);

// Moves the process into a network namespace of its own, once; false where that or packet
// sockets are refused. Called before there are threads.
bool own_network();
// For skip().
inline constexpr const char* kNoNetwork =
    "no network namespace with packet sockets: unshare or ip is refused";

// Two interfaces and the cable between them, up, with that MTU. The addresses end in the
// numbers: 02:00:00:00:00:0a for 10.
bool add_cable(const std::string& left, int left_number, const std::string& right, int right_number,
               int mtu = 1500);
void remove_cable(const std::string& either_end);
bool set_mtu(const std::string& interface, int mtu);
bool set_up(const std::string& interface, bool up);
std::string mac_of_number(int number);

// A second network namespace: another machine, as far as interfaces, ports and addresses go.
class OtherNode {
 public:
  OtherNode();
  ~OtherNode();
  OtherNode(const OtherNode&) = delete;
  OtherNode& operator=(const OtherNode&) = delete;
  // Whether there is one; `interface` of here is moved there, and up.
  bool take(const std::string& interface) const;
  // Calls it with this thread over there: sockets that it opens stay there.
  void inside(const std::function<void()>& what) const;
  // run(), over there.
  bool run_inside(const std::string& command) const;

 private:
  int here_ = -1, there_ = -1;
};

// The machine at the other end of a cable: interface `left` is here, `right` there, without IPv4
// addresses. Made once for a process; null: no namespaces here.
const OtherNode* far_node();

using Mac = std::array<uint8_t, 6>;
Mac mac_number(int number);

// A socket on one interface that gets every frame of SLP's EtherType that comes in there,
// whoever it is for, and sends any frame, from its destination address on.
class RawWire {
 public:
  explicit RawWire(const std::string& interface);
  ~RawWire();
  RawWire(const RawWire&) = delete;
  RawWire& operator=(const RawWire&) = delete;

  bool open() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  // False: the interface does not take it.
  bool send(std::span<const uint8_t> frame);
  // The next frame, with its Ethernet header; none: empty. Valid until the next call.
  std::span<const uint8_t> receive();
  // Frames that came and found no room here.
  uint64_t missed();

 private:
  int fd_ = -1;
  std::vector<uint8_t> room_;
  uint64_t missed_ = 0;
};

}  // namespace sluice::test

#endif  // SLUICE_TESTS_L2_WIRE_H_
