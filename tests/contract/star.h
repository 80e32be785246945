// One exchange in the middle and others around it, each with a context and an endpoint of its own.
// All of them run on one thread.
#ifndef SLUICE_TESTS_CONTRACT_STAR_H_
#define SLUICE_TESTS_CONTRACT_STAR_H_

#include <deque>
#include <functional>
#include <memory>

#include <sluice/exchange/exchange.h>

#include "tests/contract/pair.h"

namespace sluice::test {

struct Star {
  struct Reader {
    std::unique_ptr<Context> context;
    std::unique_ptr<Exchange> exchange;
    Endpoint near, far;
  };
  Star() : context(open()), exchange(std::make_unique<Exchange>(*context)) {
    auto listening = context->listen(fresh_address());
    REQUIRE(listening.ok());
    listener = std::move(*listening);
  }
  ~Star() {
    for (Reader& reader : readers) leave(reader);
    exchange.reset();
    until([&] { return context->arena().statistics().outstanding == 0; });
    CHECK(context->arena().statistics().outstanding == 0);
  }
  Reader& join() {
    Reader reader;
    reader.context = open(Waiting::kSpin, {.limit_bytes = 64u << 20,
                                           .first_extent_bytes = 2u << 20,
                                           .receive_reserve_bytes = 1u << 20});
    reader.exchange = std::make_unique<Exchange>(*reader.context);
    auto near = connect_to(*reader.context, *context, listener.address());
    REQUIRE(near.ok());
    auto far = listener.accept(soon());
    REQUIRE(far.ok());
    reader.near = std::move(*near);
    reader.far = std::move(*far);
    REQUIRE(reader.exchange->add(reader.near).ok());
    REQUIRE(exchange->add(reader.far).ok());
    readers.push_back(std::move(reader));
    return readers.back();
  }
  // As if its process ended: the connection breaks.
  void leave(Reader& reader) {
    if (!reader.context) return;
    reader.near = Endpoint();
    for (int i = 0; i < 3; ++i) reader.context->progress();
    reader.exchange.reset();
    until([&] { return reader.far.state() == EndpointState::kClosed; });
    CHECK(reader.far.state() == EndpointState::kClosed);
    reader.far = Endpoint();
    settle();  // what it lent comes home
    reader.context.reset();
  }
  bool until(const std::function<bool()>& done) {
    Instant limit = soon();
    while (!done() && now() < limit) {
      context->progress();
      for (Reader& reader : readers) {
        if (reader.context) reader.context->progress();
      }
    }
    return done();
  }
  void settle() {
    for (int i = 0; i < 400; ++i) until([n = 0]() mutable { return ++n > 1; });
  }
  Result<Delivery<Tensor>> take(Fetch& fetch) {
    REQUIRE(until([&] { return fetch.ready(); }));
    return fetch.take();
  }

  std::unique_ptr<Context> context;
  Listener listener;
  std::unique_ptr<Exchange> exchange;
  std::deque<Reader> readers;
};

}  // namespace sluice::test

#endif  // SLUICE_TESTS_CONTRACT_STAR_H_
