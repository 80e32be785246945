#include <sluice/api/allocating.h>

#include <memory>

#include <sluice/allocator/pending_allocation.h>
#include <sluice/runtime/awaits.h>
#include <sluice/runtime/context_core.h>
#include <sluice/runtime/population.h>

namespace sluice {
namespace {

Task<Result<Buffer>> allocate_soon(Context& context, size_t bytes, AllocateOptions options) {
  ContextCore& core = ContextCore::of(context);
  SLUICE_CO_RETURN_IF_ERROR(core.check_usable());
  std::unique_ptr<PendingAllocation> pending = context.arena().begin_allocate(bytes, options);
  if (!pending->ready()) {
    InTurns turns(core.population(), *pending);
    Status waited = co_await core.awaits().until([&] { return pending->ready(); }, kNever);
    SLUICE_CO_RETURN_IF_ERROR(waited);
  }
  co_return pending->take();
}

Task<Result<Buffer>> allocate_soon(Context& context, Result<TensorDescriptor> descriptor,
                                   AllocateOptions options) {
  if (!descriptor.ok()) co_return descriptor.status();
  Result<Buffer> buffer = co_await allocate_soon(context, descriptor->span_bytes(), options);
  if (buffer.ok()) SLUICE_CO_RETURN_IF_ERROR(buffer->reshape(*descriptor));
  co_return buffer;
}

}  // namespace

Allocating start_allocate(Context& context, size_t bytes, const AllocateOptions& options) {
  return Allocating(allocate_soon(context, bytes, options));
}

Allocating start_allocate(Context& context, std::span<const int64_t> shape, DataType dtype,
                          const AllocateOptions& options) {
  return Allocating(allocate_soon(context, TensorDescriptor::compact(shape, dtype), options));
}

size_t start_trim(Context& context) {
  ContextCore& core = ContextCore::of(context);
  if (!core.check_usable().ok()) return 0;
  core.population().wake();
  return context.arena().start_trim();
}

}  // namespace sluice
