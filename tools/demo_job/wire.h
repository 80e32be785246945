// Two machines in one: a pair of network namespaces with an Ethernet cable between, for the
// demo's path l2. Held by descriptors alone: the kernel takes both apart with the last
// process, however that ends. Knows nothing of sluice's paths.
#ifndef SLUICE_TOOLS_DEMO_JOB_WIRE_H_
#define SLUICE_TOOLS_DEMO_JOB_WIRE_H_

#include <sluice/base/result.h>

namespace sluice::tools::demo {

class Wire {
 public:
  // The ends of the cable, one in each namespace, and the server's IP address there: gRPC needs
  // one.
  static constexpr const char* kServerInterface = "demo-server";
  static constexpr const char* kWorkerInterface = "demo-workers";
  static constexpr const char* kServerHost = "192.0.2.1";  // RFC 5737: nobody's

  // Errors: kAccessDenied (not root), kUnsupported (no `ip`, or a kernel without veth).
  // Requires: one thread. Blocks: while `ip` runs, four times.
  static Result<Wire> make();
  Wire(Wire&& other) noexcept;
  Wire& operator=(Wire&&) = delete;
  ~Wire();

  int server_network() const { return networks_[0]; }
  int worker_network() const { return networks_[1]; }

 private:
  Wire() = default;
  int networks_[2] = {-1, -1};
};

// Moves this thread there.
bool enter_network(int network);

}  // namespace sluice::tools::demo

#endif  // SLUICE_TOOLS_DEMO_JOB_WIRE_H_
