#include <sluice/runtime/identity.h>

#include <errno.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <optional>
#include <string_view>

#include <sluice/base/process_mark.h>

namespace sluice {
namespace {

uint64_t namespace_inode(const char* path) {
  struct stat info {};
  return ::stat(path, &info) == 0 ? info.st_ino : 0;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// "6c2a...-...": 32 hex digits with dashes between.
bool parse_uuid(std::string_view text, wire::Uuid& out) {
  size_t digits = 0;
  for (char c : text) {
    int value = hex_digit(c);
    if (value < 0) continue;
    if (digits == 32) return false;
    auto& byte = out.bytes[digits / 2];
    byte =
        digits % 2 == 0 ? static_cast<std::byte>(value << 4) : byte | static_cast<std::byte>(value);
    ++digits;
  }
  return digits == 32;
}

wire::Uuid boot_id() {
  wire::Uuid id;
  char text[64];
  int fd = ::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  ssize_t length = fd >= 0 ? ::read(fd, text, sizeof(text)) : -1;
  if (fd >= 0) ::close(fd);
  if (length <= 0 || !parse_uuid(std::string_view(text, static_cast<size_t>(length)), id)) {
    // Without /proc nobody can be known to be on our host: an id that equals no other.
    fill_random(id.bytes);
  }
  return id;
}

struct Identity {
  ProcessMark owner = ProcessMark::current();
  wire::Hello hello;
};

}  // namespace

void fill_random(std::span<std::byte> out) {
  size_t done = 0;
  while (done < out.size()) {
    ssize_t got = ::getrandom(out.data() + done, out.size() - done, 0);
    if (got < 0 && errno == EINTR) continue;
    // getrandom(2) without flags fails for no valid call; a guessable token would be worse than an
    // end.
    if (got < 0) std::abort();
    done += static_cast<size_t>(got);
  }
}

wire::Hello local_hello(uint64_t arena_bytes) {
  static std::mutex mutex;
  static std::optional<Identity> identity;
  std::lock_guard lock(mutex);
  // A forked child is another life of its own.
  if (!identity || identity->owner.in_forked_child()) {
    identity.emplace();
    wire::Hello& hello = identity->hello;
    fill_random(std::as_writable_bytes(std::span(&hello.incarnation, 1)));
    hello.host = boot_id();
    hello.network_namespace = namespace_inode("/proc/self/ns/net");
    hello.user_namespace = namespace_inode("/proc/self/ns/user");
    hello.pid = static_cast<uint32_t>(::getpid());
    hello.features = wire::kFeatureLatest | wire::kFeatureLayoutNumbers | wire::kFeatureSteps;
  }
  wire::Hello hello = identity->hello;
  hello.uid = ::geteuid();
  hello.arena_bytes = arena_bytes;
  return hello;
}

void hide_identity(wire::Hello& hello) {
  // Equals no other: who hides from each other never seems to be on one host.
  fill_random(hello.host.bytes);
  hello.network_namespace = hello.user_namespace = 0;
  hello.uid = hello.pid = 0;
}

bool same_host(const wire::Hello& a, const wire::Hello& b) { return a.host == b.host; }

}  // namespace sluice
