#include <sluice/runtime/connecting.h>

#include <memory>
#include <string>
#include <utility>

#include <sluice/api/connecting.h>
#include <sluice/runtime/awaits.h>
#include <sluice/runtime/secret.h>
#include <sluice/spi/endpoint_core.h>

namespace sluice {
namespace {

constexpr const char* kOrigin = "runtime/connecting";

Status no_provider(const Address& address) {
  return Status(Code::kUnsupported, Scope::kOperation, kOrigin,
                "this context has no backend for " + address.to_string() +
                    "; open it with sluice::open_context()");
}
Status no_secrets(const Address& address) {
  return Status(Code::kUnsupported, Scope::kOperation, kOrigin,
                address.to_string() +
                    " goes unencrypted, and a secret_file was given; l2:// and sluice:// take one");
}
Status nobody_to_find(const Address& address) {
  return Status(Code::kUnsupported, Scope::kOperation, kOrigin,
                address.to_string() +
                    " is not found by a name, and discoverable_as was given; l2:// over an "
                    "interface takes it");
}
bool takes_secret(const Address& address) {
  return address.scheme == Scheme::kL2 || address.scheme == Scheme::kSluice;
}
// A secret is not given up in silence: it means sealed paths, for every scheme that takes one. Its
// file is read also where the path does not need it: a wrong one is told before a peer is met.
template <typename Options>
Status seal(Options& options) {
  SLUICE_TRY(std::shared_ptr<const Secret> secret, Secret::chosen(options.secret_file));
  if (!options.allow_unsealed && secret != nullptr) options.require.sealed = true;
  return Status();
}

template <typename Options>
Result<Provider*> provider_of(const ContextCore& context, const Address& address,
                              const Options& options) {
  Provider* chosen = context.provider(address.scheme);
  if (chosen == nullptr) return no_provider(address);
  if (!options.secret_file.empty() && !takes_secret(address)) return no_secrets(address);
  return chosen;
}

Task<Result<Endpoint>> connect_soon(Context& context, std::string text, ConnectOptions options) {
  ContextCore& core = ContextCore::of(context);
  SLUICE_CO_RETURN_IF_ERROR(core.check_usable());
  SLUICE_CO_TRY(Address address, Address::parse(text));
  SLUICE_CO_TRY(Provider * provider, provider_of(core, address, options));
  SLUICE_CO_RETURN_IF_ERROR(seal(options));
  core.refresh_now();
  Result<std::shared_ptr<EndpointCore>> met = co_await provider->start_connect(address, options);
  if (!met.ok()) co_return met.status();
  co_return Endpoint(std::move(met).value(), &context);
}

}  // namespace

namespace internal {

Result<Provider*> provider_to_listen(const ContextCore& context, const Address& address,
                                     ListenOptions& options) {
  SLUICE_TRY(Provider * chosen, provider_of(context, address, options));
  if (!options.discoverable_as.empty() && (address.scheme != Scheme::kL2 || address.is_udp()))
    return nobody_to_find(address);
  SLUICE_RETURN_IF_ERROR(seal(options));
  return chosen;
}

}  // namespace internal

Connecting start_connect(Context& context, const std::string& address) {
  return Connecting(connect_soon(context, address, ConnectOptions()));
}
Connecting start_connect(Context& context, const std::string& address,
                         const ConnectOptions& options) {
  return Connecting(connect_soon(context, address, options));
}

}  // namespace sluice
