// Ways to make memory known to a device, for the questions of what that costs. Must not know what
// is asked.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace bare {

// One way to register, with a place for each buffer that is. Errors: as sockets.h; where a kernel
// or its limits refuse, kExitNothingToRunOn with what to do.
class Registrar {
 public:
  virtual ~Registrar() = default;
  virtual void take(size_t place, void* memory, size_t bytes) = 0;
  virtual void let_go(size_t place) = 0;
  // The field of /proc/self/status that says how much is pinned (proc(5)).
  virtual const char* field() const { return "VmPin:"; }
};

// "mlock"     mlock(2): pages stay in memory, no device knows them
// "io_uring"  a fixed buffer of an io_uring, one ring for each place: pinned for direct access, as
// for a device "verbs"     ibv_reg_mr of the first RDMA device
std::unique_ptr<Registrar> registrar_of(const std::string& way, size_t places);

// What is registered must be held by the kernel, or a figure is of nothing. Uses place 0, which has
// to be empty.
bool holds_pages(Registrar& registrar, void* memory, size_t bytes);

}  // namespace bare
