#include <sluice/base/process_mark.h>

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <new>

namespace sluice {
namespace {

std::atomic<uint32_t> fallback_cell{0};

// A word that reads as zero in a child, however that was made (madvise(2), MADV_WIPEONFORK).
std::atomic<uint32_t>* make_cell() {
  size_t length = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  void* page = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page != MAP_FAILED && ::madvise(page, length, MADV_WIPEONFORK) == 0)
    return new (page) std::atomic<uint32_t>(0);
  if (page != MAP_FAILED) ::munmap(page, length);
  // Before Linux 4.14: children made by fork() alone are told apart.
  ::pthread_atfork(nullptr, nullptr, [] { fallback_cell.store(0, std::memory_order_relaxed); });
  return &fallback_cell;
}

}  // namespace

Status ProcessMark::refusal() {
  return Status(Code::kWrongState, Scope::kContext, "base/process_mark",
                "this process was forked from the one that opened the context; open a context of "
                "its own here");
}

ProcessMark ProcessMark::current() {
  static std::atomic<uint32_t>* const cell = make_cell();
  // Inherited by children and then raised: no two processes of a line share a value.
  static std::atomic<uint32_t> last_value{0};
  uint32_t value = cell->load(std::memory_order_relaxed);
  if (value == 0) {
    uint32_t mine = last_value.fetch_add(1, std::memory_order_relaxed) + 1;
    if (cell->compare_exchange_strong(value, mine, std::memory_order_relaxed)) value = mine;
  }
  return ProcessMark(cell, value);
}

}  // namespace sluice
