// The library over the module between two machines of the lab: `carrier_nodes serve` on node 2,
// `carrier_nodes` on node 1. What is large leaves from the program's own pages where the link takes
// them, and the receipt says so. Exit status 1: something was wrong, and one line says what.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <sluice/select/open.h>

#include "tests/module/wire.h"

using namespace sluice;
using namespace std::chrono_literals;

namespace {

constexpr size_t kBytes = (3 << 20) + 5;
constexpr int kTries = 600;

[[noreturn]] void die(const std::string& what) {
  std::printf("FAILED %s\n", what.c_str());
  std::exit(1);
}

template <typename T>
T must(Result<T> result, const char* what) {
  if (!result.ok()) die(std::string(what) + ": " + result.status().to_string());
  return std::move(result).value();
}

Instant soon() { return after(now(), 60s); }

void fill(Buffer& buffer) {
  auto bytes = buffer.bytes();
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>((i * 2654435761u) >> 13);
}

int serve(Context& context) {
  Listener listener = must(context.listen("kmod://lab0:7000"), "listen");
  Endpoint peer = must(listener.accept(soon()), "accept");
  for (uint64_t tag : {1, 2}) {
    auto got = must(peer.receive_and_wait(
                        {.tag = tag}, must(context.allocate({kBytes}, uint8), "allocate"), soon()),
                    "receive");
    auto wanted = must(context.allocate({kBytes}, uint8), "allocate");
    fill(wanted);
    if (std::memcmp(got.buffer.bytes().data(), wanted.bytes().data(), kBytes) != 0)
      die("what came is something else");
  }
  must(peer.send_and_wait(3, must(context.allocate({64}, uint8), "allocate").freeze(), soon()),
       "send");
  (void)peer.close(soon());
  return 0;
}

Endpoint reach(Context& context) {
  std::string why;
  for (int tries = 0; tries < kTries; ++tries) {
    auto made = context.connect("kmod://lab0/52:54:00:77:00:02:7000");
    if (made.ok()) return std::move(made).value();
    why = made.status().to_string();
  }
  die("node 2 does not answer: " + why);
}

int visit(Context& context, bool uncopied) {
  Endpoint peer = reach(context);
  for (uint64_t tag : {1, 2}) {
    auto buffer = must(context.allocate({kBytes}, uint8), "allocate");
    fill(buffer);
    Receipt receipt = must(peer.send_and_wait(tag, std::move(buffer).freeze(), soon()), "send");
    std::printf("%zu bytes, copied by the program %llu, by its kernel %llu\n", kBytes,
                static_cast<unsigned long long>(receipt.copied_bytes),
                static_cast<unsigned long long>(receipt.kernel_copied_bytes));
    if (receipt.copied_bytes != 0 || receipt.kernel_copied_bytes != (uncopied ? 0 : kBytes))
      die("the receipt says something else");
  }
  must(peer.receive_and_wait({.tag = 3}, must(context.allocate({64}, uint8), "allocate"), soon()),
       "receive");
  (void)peer.close(soon());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  module_test::Module module;
  std::string word = argc > 1 ? argv[1] : "";
  int result;
  {
    auto context = must(open_context({}), "open_context");
    result = word == "serve" ? serve(*context) : visit(*context, word == "uncopied");
  }
  std::fflush(stdout);
  return result;
}
