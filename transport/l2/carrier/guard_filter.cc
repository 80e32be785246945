#include <sluice/l2/carrier/guard_filter.h>

#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

namespace sluice::l2 {
namespace {

constexpr uint32_t kConnectionAt = 8;  // in a frame
constexpr uint32_t kPass = UINT32_MAX, kDrop = 0;
// So few are compared one by one.
constexpr size_t kLeaf = 4;

void add(std::vector<sock_filter>& code, uint16_t what, uint32_t value, uint8_t yes = 0,
         uint8_t no = 0) {
  code.push_back({what, yes, no, value});
}
void add_return(std::vector<sock_filter>& code, uint32_t value) {
  add(code, BPF_RET | BPF_K, value);
}

void add_chance(std::vector<sock_filter>& code, uint32_t one_of) {
  add(code, BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(SKF_AD_OFF + SKF_AD_RANDOM));
  add(code, BPF_ALU | BPF_AND | BPF_K, one_of - 1);
  add(code, BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1);
  add_return(code, kPass);
  add_return(code, kDrop);
}

// A tree: sorted numbers, the lower half first. Jumps by condition reach 255 instructions, so the
// upper half is reached by one without.
void add_search(std::vector<sock_filter>& code, std::span<const uint32_t> sorted, uint32_t one_of) {
  if (sorted.size() <= kLeaf) {
    for (uint32_t number : sorted) {
      add(code, BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1);
      add_return(code, kPass);
    }
    return add_chance(code, one_of);
  }
  const size_t half = sorted.size() / 2;
  add(code, BPF_JMP | BPF_JGE | BPF_K, sorted[half], 0, 1);
  const size_t jump = code.size();
  add(code, BPF_JMP | BPF_JA, 0);
  add_search(code, sorted.first(half), one_of);
  code[jump].k = static_cast<uint32_t>(code.size() - jump - 1);
  add_search(code, sorted.subspan(half), one_of);
}

}  // namespace

void must_be(std::vector<sock_filter>& code, uint16_t load, uint32_t at, uint32_t mask,
             uint32_t value) {
  add(code, static_cast<uint16_t>(BPF_LD | BPF_ABS | load), at);
  add(code, BPF_ALU | BPF_AND | BPF_K, mask);
  add(code, BPF_JMP | BPF_JEQ | BPF_K, value, 1, 0);
  add_return(code, kDrop);
}

std::vector<sock_filter> guard_filter(std::vector<sock_filter> before, uint32_t frame_at,
                                      std::span<const uint32_t> connections, uint32_t one_of) {
  // The filter loads big-endian, a frame is little-endian.
  std::vector<uint32_t> sorted(connections.size());
  std::transform(connections.begin(), connections.end(), sorted.begin(),
                 [](uint32_t number) { return __builtin_bswap32(number); });
  std::sort(sorted.begin(), sorted.end());
  std::vector<sock_filter> code = std::move(before);
  add(code, BPF_LD | BPF_W | BPF_ABS, frame_at + kConnectionAt);
  add_search(code, sorted, one_of);
  return code;
}

int attach_filter(int fd, std::span<sock_filter> code) {
  sock_fprog filter{.len = static_cast<unsigned short>(code.size()), .filter = code.data()};
  return ::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)) == 0 ? 0 : errno;
}

}  // namespace sluice::l2
