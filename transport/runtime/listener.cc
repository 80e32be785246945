// A Listener's calls: what api/context.h declares.
#include <utility>

#include <sluice/api/context.h>
#include <sluice/runtime/context_core.h>
#include <sluice/spi/endpoint_core.h>

namespace sluice {
namespace {

constexpr const char* kOrigin = "api/context";

Status not_listening() {
  return Status(Code::kWrongState, Scope::kOperation, kOrigin,
                "this Listener is closed, or was never opened; call Context::listen() for another");
}

}  // namespace

Listener::Listener(std::shared_ptr<internal::OpenListener> open) : open_(std::move(open)) {}
Listener::~Listener() { close(); }

Listener::operator bool() const { return open_ && open_->core; }
std::string Listener::address() const { return *this ? open_->core->address() : std::string(); }

// A forked child shares the parent's epoll instance: closing there would stop the parent's
// listener.
void Listener::close() {
  if (!*this) return;
  if (owner_.in_forked_child()) {
    (void)open_->core.release();
  } else {
    open_->core.reset();
  }
  open_->context->forget(open_.get());
  open_.reset();
}

Result<Endpoint> Listener::try_accept() {
  SLUICE_RETURN_IF_ERROR(owner_.check());
  if (!*this) return not_listening();
  if (auto core = open_->core->accept()) return Endpoint(std::move(core), open_->context);
  return Status(Code::kTryAgain, Scope::kOperation, kOrigin, "nobody has connected yet");
}

Result<Endpoint> Listener::accept(Instant deadline) {
  SLUICE_RETURN_IF_ERROR(owner_.check());
  if (!*this) return not_listening();
  std::shared_ptr<EndpointCore> core;
  Status status = open_->context->wait_until(
      [&] { return !*this || (core = open_->core->accept()) != nullptr; }, deadline);
  if (!*this) return not_listening();
  if (!core) {
    if (status == Code::kTimedOut) {
      return Status(Code::kTimedOut, Scope::kOperation, kOrigin,
                    "nobody connected to " + address() +
                        " before the deadline; check that the peers run and use this address");
    }
    return status;
  }
  return Endpoint(std::move(core), open_->context);
}

}  // namespace sluice
