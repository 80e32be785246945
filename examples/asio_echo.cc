// A server and a client as coroutines of one Boost.Asio io_context, without a thread of
// their own: sluice's operations are awaited like any of Asio's.
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <sluice/api/asio.h>
#include <sluice/sluice.h>

namespace {

namespace asio = boost::asio;
using namespace std::chrono_literals;

constexpr sluice::Tag kQuestion = 1, kAnswer = 2;

sluice::PostOptions within_10s() {
  return {.deadline = sluice::from_now(10s), .level = sluice::Level::kPlaced};
}

sluice::Result<sluice::Tensor> text_tensor(sluice::Context& context, const std::string& text) {
  SLUICE_TRY(sluice::Buffer buffer,
             context.allocate({static_cast<int64_t>(text.size())}, sluice::uint8));
  std::memcpy(buffer.data(), text.data(), text.size());
  return std::move(buffer).freeze();
}

// Accepts one client and sends every message back, until the client is gone.
asio::awaitable<sluice::Status> serve(sluice::AsioDriver& driver, sluice::Listener& listener) {
  auto peer = co_await driver.async_accept(listener, sluice::from_now(10s), asio::use_awaitable);
  if (!peer.ok()) co_return peer.status();
  while (true) {
    auto room = driver.context().allocate({1024}, sluice::uint8);
    if (!room.ok()) co_return room.status();
    sluice::Completion got = co_await driver.async_receive(*peer, {kQuestion}, std::move(*room),
                                                           within_10s(), asio::use_awaitable);
    if (!got.status.ok()) break;  // the client closed
    sluice::Tensor back =
        std::move(std::move(got.buffers[0]).freeze().slice_bytes(0, got.receipt.bytes)).value();
    sluice::Completion sent =
        co_await driver.async_send(*peer, kAnswer, back, within_10s(), asio::use_awaitable);
    if (!sent.status.ok()) co_return sent.status;
  }
  co_return co_await driver.async_close(std::move(*peer), sluice::from_now(5s),
                                        asio::use_awaitable);
}

asio::awaitable<sluice::Status> ask(sluice::AsioDriver& driver, sluice::Endpoint server) {
  for (std::string word : {"one", "two", "three"}) {
    auto question = text_tensor(driver.context(), word);
    auto room = driver.context().allocate({1024}, sluice::uint8);
    if (!question.ok() || !room.ok()) co_return question.ok() ? room.status() : question.status();
    sluice::Completion sent =
        co_await driver.async_send(server, kQuestion, *question, within_10s(), asio::use_awaitable);
    if (!sent.status.ok()) co_return sent.status;
    sluice::Completion got = co_await driver.async_receive(server, {kAnswer}, std::move(*room),
                                                           within_10s(), asio::use_awaitable);
    if (!got.status.ok()) co_return got.status;
    std::string answer(reinterpret_cast<const char*>(got.buffers[0].data()), got.receipt.bytes);
    std::printf("asked %s, got %s by %s\n", word.c_str(), answer.c_str(),
                std::string(sluice::to_string(got.receipt.path)).c_str());
  }
  co_return co_await driver.async_close(std::move(server), sluice::from_now(5s),
                                        asio::use_awaitable);
}

sluice::Result<void> run() {
  SLUICE_TRY(auto server_context, sluice::open_context());
  SLUICE_TRY(auto client_context, sluice::open_context());
  SLUICE_TRY(sluice::Listener listener, server_context->listen("sluice://127.0.0.1:0"));
  asio::io_context loop;
  SLUICE_TRY(auto server, sluice::AsioDriver::open(loop, *server_context));
  SLUICE_TRY(auto client, sluice::AsioDriver::open(loop, *client_context));
  sluice::Status served, asked;
  auto into = [](sluice::Status& result) {
    return [&result](std::exception_ptr failed, sluice::Status status) {
      if (failed) std::rethrow_exception(failed);
      result = status;
    };
  };
  asio::co_spawn(server.get_executor(), serve(server, listener), into(served));
  // connect() blocks while the server answers, so the loop runs on a thread of its own
  // from here on; run() returns when both coroutines have ended.
  std::thread thread([&] { loop.run(); });
  auto connected = client_context->connect(listener.address());
  if (connected.ok())
    asio::co_spawn(client.get_executor(), ask(client, std::move(*connected)), into(asked));
  thread.join();
  SLUICE_RETURN_IF_ERROR(connected);
  SLUICE_RETURN_IF_ERROR(asked);
  return served;
}

}  // namespace

int main() {
  sluice::Result<void> result = run();
  if (!result.ok()) std::fprintf(stderr, "%s\n", result.status().to_string().c_str());
  return result.ok() ? 0 : 1;
}
