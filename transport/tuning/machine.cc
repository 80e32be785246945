#include <sluice/tuning/machine.h>

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

namespace sluice::tuning {
namespace {

// Asked of the processor: /proc/cpuinfo takes milliseconds where there are hundreds of them.
std::string processor() {
#if defined(__x86_64__) || defined(__i386__)
  // Three leaves of 16 bytes make the brand string (Intel SDM volume 2, CPUID).
  uint32_t words[12] = {};
  for (uint32_t leaf = 0; leaf < 3; ++leaf) {
    uint32_t* w = words + leaf * 4;
    if (__get_cpuid(0x80000002 + leaf, &w[0], &w[1], &w[2], &w[3]) == 0) return "x86";
  }
  char text[sizeof(words) + 1] = {};
  std::memcpy(text, words, sizeof(words));
  return text;
#else
  std::ifstream file("/sys/devices/system/cpu/cpu0/regs/identification/midr_el1");
  std::string line;
  std::getline(file, line);
  return line.empty() ? "unknown" : line;
#endif
}

std::string loopback_mtu() {
  std::ifstream file("/sys/class/net/lo/mtu");
  std::string line;
  std::getline(file, line);
  return line.empty() ? "unknown" : line;
}

}  // namespace

std::string machine_key() {
  utsname kernel{};
  (void)::uname(&kernel);
  std::string key = processor() + "; " + std::to_string(::sysconf(_SC_NPROCESSORS_CONF)) +
                    " CPUs; " + kernel.sysname + " " + kernel.release + " " + kernel.machine +
                    "; lo MTU " + loopback_mtu();
  // Firmware pads the brand with blanks and may put anything there.
  std::replace_if(
      key.begin(), key.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  key.erase(0, key.find_first_not_of(' '));
  key.erase(
      std::unique(key.begin(), key.end(), [](char a, char b) { return a == ' ' && b == ' '; }),
      key.end());
  return key;
}

}  // namespace sluice::tuning
