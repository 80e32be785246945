#include <sluice/proto/connection.h>

#include "transport/proto/errors.h"

namespace sluice::proto {

Status Connection::closed_status() const {
  std::string why = close_reason.ok() ? "the endpoint was closed"
                                      : "the endpoint is closed: " + close_reason.to_string();
  return Status(Code::kWrongState, Scope::kEndpoint, kOrigin, why + "; connect again");
}

}  // namespace sluice::proto
