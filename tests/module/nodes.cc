// The module between two machines of the lab, over a link that is no veth: `nodes serve` on node 2,
// `nodes` on node 1. Messages of every size come back, memory is pulled and pushed, and node 1 says
// how many bytes each end copied. Exit status 1: something was wrong, and one line says what.
#include <net/if.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "tests/module/memory.h"
#include "tests/module/wire.h"

using namespace sluice::module_test;

namespace {

constexpr uint16_t kPort = 7000;
constexpr size_t kBytes = (4 << 20) + 777;
constexpr unsigned kMessages = 300;
constexpr int kTries = 600;
constexpr uint64_t kFew = 100'000;  // what acknowledgements and requests come to

[[noreturn]] void die(const char* what, int error = 0) {
  std::printf("FAILED %s: %s\n", what, std::strerror(error));
  std::exit(1);
}

uint8_t byte_at(size_t i, unsigned seed) {
  return static_cast<uint8_t>((i * 2654435761u + seed) >> 13);
}
void fill(uint8_t* data, unsigned seed) {
  for (size_t i = 0; i < kBytes; ++i) data[i] = byte_at(i, seed);
}
bool holds(const uint8_t* data, unsigned seed) {
  for (size_t i = 0; i < kBytes; ++i)
    if (data[i] != byte_at(i, seed)) return false;
  return true;
}
std::string pattern(unsigned i) {
  std::string text(i * 37 % SLUICE_MAX_MESSAGE + 1, '\0');
  for (size_t at = 0; at < text.size(); ++at) text[at] = static_cast<char>(byte_at(at, i));
  return text;
}

sockaddr_sluice node(unsigned number) {
  sockaddr_sluice out{};
  out.family = SLUICE_FAMILY;
  out.port = kPort;
  out.ifindex = if_nametoindex("lab0");
  // As `sluice lab` names the cards of its guests.
  const uint8_t mac[6] = {0x52, 0x54, 0, 0x77, 0, static_cast<uint8_t>(number)};
  std::memcpy(out.mac, mac, sizeof(mac));
  return out;
}

uint64_t counted(const std::string& name) {
  std::ifstream text("/proc/net/sluice");
  std::string word;
  uint64_t value = 0;
  while (text >> word)
    if (word == name && text >> value) return value;
  die("no such counter");
}

// What a side of the transfers needs.
struct Memory {
  explicit Memory(int fd) : ring(fd, 64), pages(kBytes) {
    if (int error = register_memory(fd, pages.data(), kBytes, region)) die("register", error);
  }
  Ring ring;
  Pages pages;
  uint32_t region = 0;
};

Fd open_here() {
  Fd made(::socket(SLUICE_FAMILY, SOCK_RDM | SOCK_CLOEXEC, 0));
  if (made.value() < 0) die("socket", errno);
  set_timeout(made.value(), 60000);
  return made;
}

int serve() {
  Fd fd = open_here();
  sockaddr_sluice at = node(0);
  std::memset(at.mac, 0, sizeof(at.mac));
  if (int error = bind_to(fd.value(), at)) die("bind", error);
  Memory memory(fd.value());
  fill(memory.pages.data(), 1);
  for (;;) {
    Received got = receive(fd.value());
    if (got.result < 0) die("receive", -got.result);
    if (got.text == "bye") break;
    if (got.text == "memory") {
      uint32_t handle = 0;
      if (int error = open_handle(fd.value(), got.from, memory.region, 0, kBytes,
                                  SLUICE_MAY_READ | SLUICE_MAY_WRITE, handle))
        die("open", error);
      got.text.assign(reinterpret_cast<char*>(&handle), sizeof(handle));
    } else if (got.text == "look") {
      auto told = memory.ring.wait();
      got.text = told && told->notice == 4711 && holds(memory.pages.data(), 2) ? "good" : "bad";
    } else if (got.text == "copied") {
      got.text = "in " + std::to_string(counted("bytes_copied_in")) + " out " +
                 std::to_string(counted("bytes_copied_out")) + " lent " +
                 std::to_string(counted("bytes_lent"));
    }
    int sent = send_to(fd.value(), got.text, got.from);
    if (sent < 0) die("send", -sent);
  }
  return 0;
}

std::string ask(int fd, const std::string& text) {
  int sent = send_on(fd, text);
  if (sent < 0) die("send", -sent);
  Received got = receive(fd);
  if (got.result < 0) die("receive", -got.result);
  return got.text;
}

void move(int fd, Memory& memory, uint32_t kind, uint32_t handle) {
  sluice_transfer request{};
  request.kind = kind;
  request.region = memory.region;
  request.length = kBytes;
  request.handle = handle;
  request.notice = 4711;
  if (int error = transfer(fd, request)) die("transfer", error);
  auto end = memory.ring.wait();
  if (!end || end->status != 0 || end->length != kBytes) die("a transfer did not end well");
}

// Node 2 may not be there yet.
Fd reach() {
  for (int tries = 0; tries < kTries; ++tries) {
    Fd fd = open_here();
    if (connect_to(fd.value(), node(2)) == 0) return fd;
  }
  die("node 2 does not answer", errno);
}

uint64_t copied_there(int fd) {
  std::string counts = ask(fd, "copied");
  return std::stoull(counts.substr(counts.find("out ") + 4));
}

// uncopied: the link takes the process's pages as they are, so that a sender copies messages and
// acknowledgements alone.
int visit(bool uncopied) {
  Fd fd = reach();
  Memory memory(fd.value());
  for (unsigned i = 0; i < kMessages; ++i)
    if (ask(fd.value(), pattern(i)) != pattern(i)) die("a message came back changed");
  uint32_t handle = 0;
  std::string answer = ask(fd.value(), "memory");
  if (answer.size() != sizeof(handle)) die("no handle");
  std::memcpy(&handle, answer.data(), sizeof(handle));
  const uint64_t there = copied_there(fd.value()), in = counted("bytes_copied_in");
  move(fd.value(), memory, SLUICE_PULL, handle);
  if (!holds(memory.pages.data(), 1)) die("what was pulled is something else");
  const uint64_t pulled = counted("bytes_copied_in") - in;
  // Once, from frames to pages: what came twice was not written twice.
  if (pulled < kBytes || pulled > kBytes + kFew) die("bytes were copied more or less than once");
  const uint64_t served = copied_there(fd.value()) - there;
  if (uncopied ? served > kFew : served < kBytes)
    die("who was pulled from copied more or less than it should");
  fill(memory.pages.data(), 2);
  const uint64_t out = counted("bytes_copied_out");
  move(fd.value(), memory, SLUICE_PUSH_NOTICE, handle);
  const uint64_t pushed = counted("bytes_copied_out") - out;
  if (uncopied ? pushed > kFew : pushed < kBytes)
    die("who pushed copied more or less than it should");
  if (ask(fd.value(), "look") != "good") die("what was pushed is something else");
  std::printf(
      "%u messages and %zu bytes in each direction; copied here in %llu out %llu lent %llu, at "
      "node 2 %s\n",
      kMessages, kBytes, static_cast<unsigned long long>(counted("bytes_copied_in")),
      static_cast<unsigned long long>(counted("bytes_copied_out")),
      static_cast<unsigned long long>(counted("bytes_lent")), ask(fd.value(), "copied").c_str());
  if (send_on(fd.value(), "bye") != 3) die("send", errno);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Module module;
  int result = argc > 1 && std::strcmp(argv[1], "serve") == 0
                   ? serve()
                   : visit(argc > 1 && std::strcmp(argv[1], "uncopied") == 0);
  std::fflush(stdout);
  return result;
}
