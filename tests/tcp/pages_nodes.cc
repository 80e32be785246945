// tcp:// between two machines of the lab: `pages_nodes serve` on node 2, on node 1 `pages_nodes
// lent` where the card takes frames in pieces, and else `pages_nodes copied`. Tensors arrive as
// they were sent, and the sender's receipts say whether its kernel copied them. Exit status 1:
// something was wrong, and one line says what.
#include <sluice/sluice.h>

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

namespace {

using namespace std::chrono_literals;

constexpr int64_t kBytes = (4 << 20) + 777;
constexpr uint64_t kTensors = 24;

// Of this process, the kernel's on its behalf included.
double cpu_seconds() {
  timespec spent;
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
  return static_cast<double>(spent.tv_sec) + static_cast<double>(spent.tv_nsec) * 1e-9;
}

sluice::Instant soon() { return sluice::from_now(120s); }

void fill(sluice::Buffer& buffer, uint64_t seed) {
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (std::byte& byte : buffer.bytes()) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<std::byte>(state >> 56);
  }
}

sluice::Status wrong(const char* what) {
  return sluice::Status(sluice::Code::kInternal, sluice::Scope::kOperation, "pages_nodes", what);
}

// Answers each tensor with a byte, so that it has been looked at.
sluice::Result<void> serve() {
  SLUICE_TRY(auto context, sluice::open_context({}));
  SLUICE_TRY(auto listener, context->listen("tcp://0.0.0.0:7000"));
  SLUICE_TRY(sluice::Endpoint peer, listener.accept(soon()));
  SLUICE_TRY(sluice::Buffer expected, context->allocate({kBytes}, sluice::uint8));
  for (uint64_t i = 0; i < kTensors; ++i) {
    SLUICE_TRY(sluice::Buffer room, context->allocate({kBytes}, sluice::uint8));
    SLUICE_TRY(auto got, peer.receive_and_wait({.tag = i}, std::move(room), soon()));
    fill(expected, i);
    if (!std::ranges::equal(got.buffer.bytes(), expected.bytes())) return wrong("other bytes came");
    SLUICE_TRY(sluice::Buffer answer, context->allocate({1}, sluice::uint8));
    SLUICE_RETURN_IF_ERROR(peer.send_and_wait(i, std::move(answer).freeze(), soon()));
  }
  return peer.close(soon());
}

sluice::Result<sluice::Endpoint> reach(sluice::Context& context, const std::string& address) {
  const sluice::Instant deadline = soon();
  for (;;) {
    sluice::Result<sluice::Endpoint> peer = context.connect(address);
    if (peer.ok() || sluice::now() >= deadline) return peer;
  }
}

sluice::Result<void> send(bool lent) {
  const char* node2 = std::getenv("SLUICE_LAB_PEER");
  if (node2 == nullptr) return wrong("no second node");
  SLUICE_TRY(auto context, sluice::open_context({}));
  SLUICE_TRY(sluice::Endpoint peer, reach(*context, "tcp://" + std::string(node2) + ":7000"));
  uint64_t copied = 0, total = 0;
  double cpu = 0;
  for (uint64_t i = 0; i < kTensors; ++i) {
    SLUICE_TRY(sluice::Buffer tensor, context->allocate({kBytes}, sluice::uint8));
    fill(tensor, i);
    const double before = cpu_seconds();
    SLUICE_TRY(sluice::Receipt receipt, peer.send_and_wait(i, std::move(tensor).freeze(), soon()));
    cpu += cpu_seconds() - before;
    if (receipt.copied_bytes > 0) return wrong("the program copied");
    copied += receipt.kernel_copied_bytes;
    total += receipt.bytes;
    SLUICE_TRY(sluice::Buffer room, context->allocate({1}, sluice::uint8));
    SLUICE_RETURN_IF_ERROR(peer.receive_and_wait({.tag = i}, std::move(room), soon()));
  }
  std::printf("the sender's kernel copied %llu of %llu bytes; %.2f s of CPU per GB\n",
              static_cast<unsigned long long>(copied), static_cast<unsigned long long>(total),
              cpu * 1e9 / static_cast<double>(total));
  // What is left of a call, and a frame that was sent again, are copied.
  if (lent && copied > total / 4) return wrong("lent, and most of it was copied");
  if (!lent && copied != total) return wrong("the receipts forget copies");
  return peer.close(soon());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view mode = argc > 1 ? argv[1] : "";
  const auto done = mode == "serve" ? serve() : send(mode == "lent");
  if (done.ok()) return 0;
  std::printf("FAILED %s\n", done.status().to_string().c_str());
  return 1;
}
