// Registrars by system calls and verbs (see registrar.h).
#include "benchmarks/bare/registrar.h"

#include <infiniband/verbs.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "benchmarks/bare/program.h"

namespace bare {
namespace {

[[noreturn]] void nothing_to_run_on(const char* why) {
  std::fprintf(stderr, "registration: %s\n", why);
  std::exit(kExitNothingToRunOn);
}

class Mlock final : public Registrar {
 public:
  explicit Mlock(size_t places) : of_(places) {}
  void take(size_t place, void* memory, size_t bytes) override {
    if (mlock(memory, bytes) != 0) nothing_to_run_on("mlock is refused: ulimit -l is too small");
    of_[place] = {memory, bytes};
  }
  void let_go(size_t place) override {
    if (munlock(of_[place].iov_base, of_[place].iov_len) != 0) die("munlock");
  }
  const char* field() const override { return "VmLck:"; }

 private:
  std::vector<iovec> of_;
};

// A ring for each place: its buffers come and go together. Nothing is ever submitted.
class FixedBuffers final : public Registrar {
 public:
  explicit FixedBuffers(size_t places) : rings_(places, -1) {
    for (int& ring : rings_) {
      io_uring_params parameters{};
      ring = static_cast<int>(syscall(SYS_io_uring_setup, 1, &parameters));
      if (ring < 0)
        nothing_to_run_on(
            "no io_uring: sysctl kernel.io_uring_disabled, or a filter of system calls");
    }
  }
  void take(size_t place, void* memory, size_t bytes) override {
    iovec segment{memory, bytes};
    if (syscall(SYS_io_uring_register, rings_[place], IORING_REGISTER_BUFFERS, &segment, 1) != 0)
      die("IORING_REGISTER_BUFFERS (ulimit -l)");
  }
  void let_go(size_t place) override {
    if (syscall(SYS_io_uring_register, rings_[place], IORING_UNREGISTER_BUFFERS, nullptr, 0) != 0)
      die("IORING_UNREGISTER_BUFFERS");
  }

 private:
  std::vector<int> rings_;
};

class Verbs final : public Registrar {
 public:
  explicit Verbs(size_t places) : of_(places, nullptr) {
    ibv_device** devices = ibv_get_device_list(nullptr);
    if (devices == nullptr || devices[0] == nullptr)
      nothing_to_run_on("no RDMA device (a guest has one: sluice lab run -- COMMAND)");
    context_ = ibv_open_device(devices[0]);
    ibv_free_device_list(devices);
    if (context_ == nullptr) die("ibv_open_device");
    domain_ = ibv_alloc_pd(context_);
    if (domain_ == nullptr) die("ibv_alloc_pd");
  }
  void take(size_t place, void* memory, size_t bytes) override {
    of_[place] =
        ibv_reg_mr(domain_, memory, bytes,
                   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
    if (of_[place] == nullptr) die("ibv_reg_mr (ulimit -l)");
  }
  void let_go(size_t place) override {
    errno = ibv_dereg_mr(of_[place]);
    if (errno != 0) die("ibv_dereg_mr");
  }

 private:
  ibv_context* context_;
  ibv_pd* domain_;
  std::vector<ibv_mr*> of_;
};

uint64_t pinned_kib(const char* field) {
  FILE* file = std::fopen("/proc/self/status", "r");
  if (file == nullptr) die("/proc/self/status");
  char line[256];
  uint64_t kib = 0;
  while (std::fgets(line, sizeof line, file) != nullptr) {
    if (std::strncmp(line, field, std::strlen(field)) == 0)
      std::sscanf(line + std::strlen(field), "%" SCNu64, &kib);
  }
  std::fclose(file);
  return kib;
}

}  // namespace

std::unique_ptr<Registrar> registrar_of(const std::string& way, size_t places) {
  if (way == "mlock") return std::make_unique<Mlock>(places);
  if (way == "io_uring") return std::make_unique<FixedBuffers>(places);
  return std::make_unique<Verbs>(places);
}

bool holds_pages(Registrar& registrar, void* memory, size_t bytes) {
  const uint64_t before = pinned_kib(registrar.field());
  registrar.take(0, memory, bytes);
  const uint64_t after = pinned_kib(registrar.field());
  registrar.let_go(0);
  return after > before;
}

}  // namespace bare
