#include <sluice/proto/hello.h>

#include <sluice/runtime/identity.h>

namespace sluice::proto {

wire::Hello hello_for(ContextCore& context, const SessionOptions& options) {
  const auto& arena = context.shared_arena();
  wire::Hello hello = local_hello(arena ? arena->reserved_address_bytes() : 0);
  hello.credit_messages = options.credit_messages;
  hello.credit_bytes = options.credit_bytes;
  return hello;
}

wire::Hello hello_for_strangers(ContextCore& context, const SessionOptions& options) {
  wire::Hello hello = hello_for(context, options);
  hide_identity(hello);
  return hello;
}

}  // namespace sluice::proto
