// What a context says of itself in the HELLO of one connection. Knows no path: that adds what
// is its own.
#ifndef SLUICE_PROTO_HELLO_H_
#define SLUICE_PROTO_HELLO_H_

#include <sluice/proto/session.h>
#include <sluice/runtime/context_core.h>
#include <sluice/wire/messages.h>

namespace sluice::proto {

// This process's identity, the context's arena, and the credits that the session gives.
wire::Hello hello_for(ContextCore& context, const SessionOptions& options);

// The same for a path whose peers are on other machines, or anywhere: without the identity.
wire::Hello hello_for_strangers(ContextCore& context, const SessionOptions& options);

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_HELLO_H_
