// A tensor of 64 MiB is published in one process and read in another, without a copy
// when both are on one machine: the reader gets a view of the publisher's memory.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <numeric>
#include <string>

#include <sluice/sluice.h>

namespace {

using namespace std::chrono_literals;

sluice::Result<void> publisher(int address_pipe) {
  SLUICE_TRY(auto context, sluice::open_context());
  SLUICE_TRY(sluice::Listener listener, context->listen("sluice://127.0.0.1:0"));
  std::string address = listener.address();
  if (write(address_pipe, address.data(), address.size()) < 0) std::perror("write");
  close(address_pipe);

  SLUICE_TRY(sluice::Buffer weights, context->allocate({4096, 4096}, sluice::float32));
  std::span<float> values = weights.as<float>();
  std::iota(values.begin(), values.end(), 0.0f);

  SLUICE_TRY(sluice::Endpoint peer, listener.accept(sluice::from_now(10s)));
  sluice::Exchange exchange{*context};
  SLUICE_RETURN_IF_ERROR(exchange.add(peer));
  SLUICE_TRY(auto publication,
             exchange.publish({"fc6/weight", 1}, std::move(weights).freeze(), {.readers = 1}));
  // Ready when the reader has released it; the memory is ours alone again.
  SLUICE_TRY(sluice::Tensor tensor, context->run_until(publication, sluice::from_now(10s)));
  std::printf("publisher: %s is home again, thawed without a copy: %s\n",
              tensor.descriptor().to_string().c_str(),
              tensor.try_thaw().has_value() ? "yes" : "no");
  return {};
}

sluice::Result<void> reader(const std::string& address) {
  SLUICE_TRY(auto context, sluice::open_context());
  SLUICE_TRY(sluice::Endpoint server, context->connect(address));
  sluice::Exchange exchange{*context};
  SLUICE_RETURN_IF_ERROR(exchange.add(server));
  SLUICE_TRY(auto delivery,
             context->run_until(exchange.fetch({"fc6/weight", 1}, sluice::from_now(10s))));
  std::span<const float> values = delivery.value.as<float>();
  bool right = values.size() == size_t{4096} * 4096 && values[0] == 0.0f && values[4097] == 4097.0f;
  std::printf(
      "reader: %s by %s, %llu bytes, copied by this process %llu, by its kernel %llu, values %s\n",
      delivery.value.descriptor().to_string().c_str(),
      std::string(sluice::to_string(delivery.receipt.path)).c_str(),
      static_cast<unsigned long long>(delivery.receipt.bytes),
      static_cast<unsigned long long>(delivery.receipt.copied_bytes),
      static_cast<unsigned long long>(delivery.receipt.kernel_copied_bytes),
      right ? "right" : "WRONG");
  delivery.value = sluice::Tensor();  // gives the memory back
  SLUICE_RETURN_IF_ERROR(server.close(sluice::from_now(2s)));
  if (!right)
    return sluice::Status(sluice::Code::kCorrupt, sluice::Scope::kOperation,
                          "examples/send_tensor");
  return {};
}

int report(const char* who, const sluice::Result<void>& result) {
  if (result.ok()) return 0;
  std::fprintf(stderr, "%s: %s\n", who, result.status().to_string().c_str());
  return 1;
}

}  // namespace

int main() {
  int ends[2];
  if (pipe(ends) != 0) return 1;
  pid_t pid = fork();  // before any context exists
  if (pid == 0) {
    close(ends[1]);
    char address[256] = {};
    ssize_t length = read(ends[0], address, sizeof(address) - 1);
    return length > 0 ? report("reader", reader(std::string(address, static_cast<size_t>(length))))
                      : 1;
  }
  close(ends[0]);
  int failed = report("publisher", publisher(ends[1]));
  int status = 0;
  waitpid(pid, &status, 0);
  return failed != 0 || status != 0;
}
