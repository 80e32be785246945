// The calls of docs/api.md, in the order in which one needs them. The document shows parts of this
// file.
#include <sluice/sluice.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace std::chrono_literals;

sluice::Instant soon() { return sluice::from_now(10s); }

sluice::Result<void> memory(sluice::Context& context) {
  SLUICE_TRY(sluice::Buffer buffer, context.allocate({256, 128}, sluice::float32));
  std::ranges::fill(buffer.as<float>(), 1.0f);
  sluice::Tensor tensor = std::move(buffer).freeze();
  sluice::Tensor another = tensor;  // the same memory
  another = sluice::Tensor();       // dropped
  std::optional<sluice::Buffer> mine = tensor.try_thaw();
  std::printf("memory: thawed %s\n", mine.has_value() ? "yes" : "no");
  return {};
}

sluice::Result<void> serve_messages(sluice::Context& context, sluice::Endpoint& peer) {
  SLUICE_TRY(sluice::Buffer room, context.allocate({1024}, sluice::uint8));
  SLUICE_TRY(auto request, peer.receive_and_wait({.tag = 1}, std::move(room), soon()));
  SLUICE_TRY(sluice::Receipt sent,
             peer.send_and_wait(2, std::move(request.buffer).freeze(), soon()));
  std::printf("messages: answered with %llu bytes\n", static_cast<unsigned long long>(sent.bytes));
  return {};
}

sluice::Result<void> ask(sluice::Context& context, sluice::Endpoint& server) {
  sluice::CompletionQueue done;
  SLUICE_TRY(sluice::Buffer room, context.allocate({1024}, sluice::uint8));
  SLUICE_RETURN_IF_ERROR(
      server.receive({.tag = 2}, std::move(room), {.sink = &done, .deadline = soon()}));
  SLUICE_TRY(sluice::Buffer question, context.allocate({100}, sluice::uint8));
  SLUICE_RETURN_IF_ERROR(server.send(1, std::move(question).freeze(), {.deadline = soon()}));
  SLUICE_RETURN_IF_ERROR(context.wait_until([&] { return !done.empty(); }, soon()));
  sluice::Completion answer;
  done.poll(answer);
  SLUICE_RETURN_IF_ERROR(answer.status);
  std::printf("messages: %llu bytes by %s, %llu copied here\n",
              static_cast<unsigned long long>(answer.receipt.bytes),
              std::string(sluice::to_string(answer.receipt.path)).c_str(),
              static_cast<unsigned long long>(answer.receipt.copied_bytes));
  return {};
}

sluice::Result<void> grant(sluice::Context& context, sluice::Endpoint& peer) {
  SLUICE_TRY(sluice::Buffer table, context.allocate({4096}, sluice::uint8));
  SLUICE_TRY(sluice::RemoteKey key,
             peer.grant(table, {.rights = sluice::Right::kReadWrite, .deadline = soon()}));
  SLUICE_TRY(sluice::Buffer note,
             context.allocate({sluice::RemoteKey::kEncodedBytes}, sluice::uint8));
  std::ranges::copy(key.encode(), note.data());
  SLUICE_RETURN_IF_ERROR(peer.send_and_wait(3, std::move(note).freeze(), soon()));
  SLUICE_TRY(sluice::Buffer room, context.allocate({1}, sluice::uint8));
  SLUICE_RETURN_IF_ERROR(
      peer.receive_and_wait({.tag = 4}, std::move(room), soon()));  // the peer says that it is done
  SLUICE_RETURN_IF_ERROR(peer.revoke(key));
  std::printf("one-sided: the peer wrote %d\n", static_cast<int>(table.data()[10]));
  return {};
}

sluice::Result<void> write_there(sluice::Context& context, sluice::Endpoint& server) {
  SLUICE_TRY(sluice::Buffer room,
             context.allocate({sluice::RemoteKey::kEncodedBytes}, sluice::uint8));
  SLUICE_TRY(auto note, server.receive_and_wait({.tag = 3}, std::move(room), soon()));
  SLUICE_TRY(sluice::RemoteKey key, sluice::RemoteKey::decode(note.buffer.bytes()));
  SLUICE_TRY(sluice::Buffer value, context.allocate({1}, sluice::uint8));
  value.as<uint8_t>()[0] = 42;
  sluice::Tensor frozen = std::move(value).freeze();
  SLUICE_RETURN_IF_ERROR(server.write_and_wait(key, 10, frozen, soon()));
  SLUICE_RETURN_IF_ERROR(server.send_and_wait(4, frozen, soon()));
  return {};
}

// Of an accelerator's runtime. Here the "device" is a part of the process.
class DeviceRuntime final : public sluice::DeviceCopy {
 public:
  sluice::Status to_host(std::byte* into, const std::byte* device,
                         size_t length) noexcept override {
    std::memcpy(into, device, length);  // cudaMemcpy(into, device, length, cudaMemcpyDefault)
    return {};
  }
  sluice::Status from_host(std::byte* device, const std::byte* from,
                           size_t length) noexcept override {
    std::memcpy(device, from, length);
    return {};
  }
};

sluice::Result<void> send_from_device(sluice::Endpoint& server) {
  std::vector<std::byte> memory(65536);
  const int dma_buf = -1;  // or what cuMemGetHandleForAddressRange() gave
  SLUICE_TRY(sluice::Buffer gradients,
             sluice::wrap_device_memory({.dma_buf = dma_buf,
                                         .length = memory.size(),
                                         .address = memory.data(),
                                         .copy = std::make_shared<DeviceRuntime>()}));
  SLUICE_TRY(sluice::Receipt sent, server.send_and_wait(5, std::move(gradients).freeze(), soon()));
  std::printf("device memory: %llu bytes sent, %llu copied\n",
              static_cast<unsigned long long>(sent.bytes),
              static_cast<unsigned long long>(sent.copied_bytes));
  return {};
}

sluice::Result<void> receive_from_device(sluice::Context& context, sluice::Endpoint& peer) {
  SLUICE_TRY(sluice::Buffer room, context.allocate({65536}, sluice::uint8));
  SLUICE_RETURN_IF_ERROR(peer.receive_and_wait({.tag = 5}, std::move(room), soon()));
  return {};
}

sluice::Result<void> publish(sluice::Context& context, sluice::Endpoint& reader) {
  sluice::Exchange exchange{context};
  SLUICE_RETURN_IF_ERROR(exchange.add(reader));
  SLUICE_TRY(sluice::Buffer weights, context.allocate({1024, 1024}, sluice::float32));
  std::ranges::fill(weights.as<float>(), 0.5f);
  SLUICE_TRY(auto publication, exchange.publish({"layer1/weight", 1}, std::move(weights).freeze(),
                                                {.readers = 4, .deadline = soon()}));
  SLUICE_TRY(sluice::Tensor home, context.run_until(publication, soon()));
  std::printf("exchange: %d readers released it, %d were lost\n", publication.readers_done(),
              publication.readers_lost());
  return {};
}

sluice::Result<void> fetch(sluice::Context& context, sluice::Endpoint& server) {
  sluice::Exchange exchange{context};
  SLUICE_RETURN_IF_ERROR(exchange.add(server));
  SLUICE_TRY(auto view, context.run_until(exchange.fetch({"layer1/weight", 1}, soon())));
  std::printf("exchange: %s, owned by the peer: %s\n", view.value.descriptor().to_string().c_str(),
              view.value.owned_by_peer() ? "yes" : "no");
  view.value = sluice::Tensor();  // released
  SLUICE_TRY(sluice::Buffer place, context.allocate({1024, 1024}, sluice::float32));
  sluice::Placed placed =
      context.run_until(exchange.fetch_into({"layer1/weight", 1}, std::move(place), soon()));
  SLUICE_RETURN_IF_ERROR(placed.status());
  std::printf("exchange: copied %llu bytes into place\n",
              static_cast<unsigned long long>(placed.value().receipt.copied_bytes));
  SLUICE_TRY(auto newest,
             context.run_until(exchange.fetch({"layer1/weight", sluice::kLatest}, soon())));
  std::printf("exchange: the latest step is %llu\n", static_cast<unsigned long long>(newest.step));
  newest.value = sluice::Tensor();
  sluice::Subscription steps = exchange.subscribe("layer1/weight", {.first_step = 1});
  SLUICE_TRY(auto next, context.run_until(steps, soon()));
  std::printf("exchange: the subscription begins with step %llu\n",
              static_cast<unsigned long long>(next.step));
  next.value = sluice::Tensor();
  return server.close(soon());
}

sluice::Result<void> serve(sluice::Context& context, sluice::Listener& listener) {
  SLUICE_TRY(sluice::Endpoint peer, listener.accept(soon()));
  SLUICE_RETURN_IF_ERROR(serve_messages(context, peer));
  SLUICE_RETURN_IF_ERROR(grant(context, peer));
  SLUICE_RETURN_IF_ERROR(receive_from_device(context, peer));
  SLUICE_RETURN_IF_ERROR(publish(context, peer));
  return context.wait_until([&] { return peer.state() == sluice::EndpointState::kClosed; }, soon());
}

sluice::Result<void> work(sluice::Context& context, const std::string& address) {
  SLUICE_RETURN_IF_ERROR(memory(context));
  SLUICE_TRY(sluice::Endpoint server, context.connect(address, {.timeout = 5s}));
  SLUICE_RETURN_IF_ERROR(ask(context, server));
  SLUICE_RETURN_IF_ERROR(write_there(context, server));
  SLUICE_RETURN_IF_ERROR(send_from_device(server));
  return fetch(context, server);
}

}  // namespace

int main() {
  auto server = sluice::open_context(), worker = sluice::open_context();
  if (!server.ok() || !worker.ok()) return 1;
  auto listener = (*server)->listen("sluice://127.0.0.1:0");
  if (!listener.ok()) return 1;
  sluice::Result<void> served;
  std::thread thread([&] { served = serve(**server, *listener); });
  sluice::Result<void> worked = work(**worker, listener->address());
  thread.join();
  for (const auto& result : {served.status(), worked.status()}) {
    if (!result.ok()) std::fprintf(stderr, "%s\n", result.to_string().c_str());
  }
  return served.ok() && worked.ok() ? 0 : 1;
}
