// What is checked before a path is asked to listen; start_connect() does the same for itself.
#ifndef SLUICE_RUNTIME_CONNECTING_H_
#define SLUICE_RUNTIME_CONNECTING_H_

#include <sluice/api/address.h>
#include <sluice/base/result.h>
#include <sluice/runtime/context_core.h>

namespace sluice::internal {

// The provider of the address's scheme. `options` gets what a secret implies. Errors: kUnsupported
// (no such path in this context, or it takes no secret).
Result<Provider*> provider_to_listen(const ContextCore& context, const Address& address,
                                     ListenOptions& options);

}  // namespace sluice::internal

#endif  // SLUICE_RUNTIME_CONNECTING_H_
