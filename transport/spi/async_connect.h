// Of a Provider that connects without blocking.
#ifndef SLUICE_SPI_ASYNC_CONNECT_H_
#define SLUICE_SPI_ASYNC_CONNECT_H_

#include <memory>

#include <sluice/api/address.h>
#include <sluice/api/context.h>
#include <sluice/api/task.h>
#include <sluice/base/result.h>

namespace sluice {

class AsyncConnect {
 public:
  // As Provider::connect(), as a task of the context. It ends with kCancelled when the provider is
  // shut down. Requires: both arguments outlive the task.
  virtual Task<Result<std::shared_ptr<EndpointCore>>> start_connect(
      const Address& address, const ConnectOptions& options) = 0;

 protected:
  ~AsyncConnect() = default;
};

}  // namespace sluice

#endif  // SLUICE_SPI_ASYNC_CONNECT_H_
