// Fetches with Boost.Asio completion tokens, on an AsioDriver. Knows no path and nothing
// of Boost but what <sluice/api/asio.h> lets through.
#ifndef SLUICE_EXCHANGE_ASIO_H_
#define SLUICE_EXCHANGE_ASIO_H_

#include <string>
#include <utility>

#include <sluice/api/asio.h>
#include <sluice/exchange/exchange.h>

namespace sluice {

// Handler: void(Result<Delivery<Tensor>>): the tensor and its receipt, or the errors of
// Fetch::take(); kCancelled by the handler's cancellation slot. Thread: any. Requires: the
// exchange is of the driver's context, and outlives the start of the operation.
template <typename Token>
auto async_fetch(const AsioDriver& driver, Exchange& exchange, const Key& key, Instant deadline,
                 Token&& token) {
  auto start = [&exchange, name = std::string(key.name), step = key.step, deadline] {
    return exchange.fetch({name, step}, deadline);
  };
  return driver.async_await(std::move(start), std::forward<Token>(token));
}

// Handler: void(Placed): the destination comes back also on failure. Errors and the rest
// as above and as FetchInto::take().
template <typename Token>
auto async_fetch_into(const AsioDriver& driver, Exchange& exchange, const Key& key,
                      Buffer destination, Instant deadline, Token&& token) {
  auto start = [&exchange, name = std::string(key.name), step = key.step,
                into = std::move(destination), deadline]() mutable {
    return exchange.fetch_into({name, step}, std::move(into), deadline);
  };
  return driver.async_await(std::move(start), std::forward<Token>(token));
}

}  // namespace sluice

#endif  // SLUICE_EXCHANGE_ASIO_H_
