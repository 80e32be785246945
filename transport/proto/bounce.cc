#include <sluice/proto/bounce.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

namespace sluice::proto {

Result<Tensor> Bounce::to_host(const Tensor& tensor, uint64_t& copied) {
  if (!needed(tensor)) return tensor;
  copied += tensor.size_bytes();
  return copy_to_host(*connection_.arena, tensor);
}

// A small message is over before this: then nobody is told, and the connection's counter has it.
Result<OperationId> Bounce::counted(Result<OperationId> posted, uint64_t copied) {
  if (!posted.ok()) return posted;
  connection_.counters.copied_bytes += copied;
  if (Operation* op = operations_.find(*posted)) op->completion.receipt.copied_bytes += copied;
  return posted;
}

Result<OperationId> Bounce::post_send(Tag tag, std::span<const Tensor> segments,
                                      const PostOptions& options) {
  // More are refused there.
  if (!any_needed(segments) || segments.size() > wire::kMaxSegments)
    return sends_.post_send(tag, segments, options);
  SLUICE_RETURN_IF_ERROR(connection_.check_connected());
  std::array<Tensor, wire::kMaxSegments> host;
  uint64_t copied = 0;
  for (size_t i = 0; i < segments.size(); ++i) {
    SLUICE_TRY(host[i], to_host(segments[i], copied));
  }
  return counted(sends_.post_send(tag, std::span(host).first(segments.size()), options), copied);
}

Result<OperationId> Bounce::post_write(const RemoteKey& key, uint64_t offset, Tensor& from,
                                       const PostOptions& options) {
  if (!needed(from)) return requests_.post_write(key, offset, from, options);
  SLUICE_RETURN_IF_ERROR(connection_.check_connected());
  uint64_t copied = 0;
  SLUICE_TRY(Tensor host, to_host(from, copied));
  Result<OperationId> posted = requests_.post_write(key, offset, host, options);
  if (posted.ok()) from = Tensor();
  return counted(std::move(posted), copied);
}

Result<OperationId> Bounce::post_supply(uint64_t token, const Tensor& tensor,
                                        const PostOptions& options) {
  if (!needed(tensor)) return wants_.post_supply(token, tensor, options);
  SLUICE_RETURN_IF_ERROR(connection_.check_connected());
  uint64_t copied = 0;
  SLUICE_TRY(Tensor host, to_host(tensor, copied));
  return counted(wants_.post_supply(token, host, options), copied);
}

// Gives `post` host memory in the places of `buffers`, and takes that back if it fails. Whether the
// connection is open `post` asks: what came before its end can still be received.
template <typename Post>
Result<OperationId> Bounce::with_host_memory(std::span<Buffer> buffers, const PostOptions& options,
                                             Post&& post) {
  if (!any_needed(std::span<const Buffer>(buffers))) return post(options);
  Return& record = returns_.emplace_back();
  record.bounce = this;
  record.sink = options.sink;
  record.user_data = options.user_data;
  record.place = std::prev(returns_.end());
  Status ready;
  for (Buffer& buffer : buffers) {
    Buffer& device = record.device.emplace_back();
    if (!ready.ok() || !needed(buffer)) continue;
    Result<Buffer> host = connection_.arena->allocate(std::max<size_t>(buffer.size_bytes(), 1),
                                                      {.for_receive = true});
    ready = host.status();
    if (ready.ok()) ready = host.value().reshape(buffer.descriptor().at_start());
    if (ready.ok()) device = std::exchange(buffer, std::move(host).value());
  }
  PostOptions ours = options;
  ours.sink = &record;
  Result<OperationId> posted = ready.ok() ? post(ours) : Result<OperationId>(ready);
  if (posted.ok()) return posted;
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (record.device[i]) buffers[i] = std::move(record.device[i]);
  }
  returns_.erase(record.place);
  return posted;
}

Result<OperationId> Bounce::post_receive(TagMatch match, std::span<Buffer> segments,
                                         const PostOptions& options) {
  return with_host_memory(segments, options, [&](const PostOptions& ours) {
    return matching_.post_receive(match, segments, ours);
  });
}

Result<OperationId> Bounce::post_read(const RemoteKey& key, uint64_t offset, Buffer& into,
                                      const PostOptions& options) {
  return with_host_memory(std::span(&into, 1), options, [&](const PostOptions& ours) {
    return requests_.post_read(key, offset, into, ours);
  });
}

Result<OperationId> Bounce::post_atomic(const RemoteKey& key, uint64_t offset,
                                        const Atomic& request, Buffer& result,
                                        const PostOptions& options) {
  return with_host_memory(std::span(&result, 1), options, [&](const PostOptions& ours) {
    return requests_.post_atomic(key, offset, request, result, ours);
  });
}

Result<OperationId> Bounce::post_want(WantOptions& want, const PostOptions& options) {
  return with_host_memory(std::span(&want.destination, 1), options,
                          [&](const PostOptions& ours) { return requests_.post_want(want, ours); });
}

void Bounce::Return::on_completion(Completion&& completion) noexcept {
  uint64_t left = completion.status.ok() ? completion.receipt.bytes : 0, copied = 0;
  for (size_t i = 0; i < device.size(); ++i) {
    if (i == completion.buffers.size()) completion.buffers.emplace_back();
    Buffer& buffer = completion.buffers[i];
    const uint64_t here = std::min<uint64_t>(left, buffer.size_bytes());
    left -= here;
    if (!device[i]) continue;
    if (here > 0 && completion.status.ok()) {
      completion.status = copy_from_host(device[i], buffer.bytes().first(here));
      copied += here;
    }
    buffer = std::move(device[i]);
  }
  bounce->connection_.counters.copied_bytes += copied;
  completion.receipt.copied_bytes += copied;
  completion.user_data = user_data;
  CompletionSink* const program = sink;
  bounce->returns_.erase(place);  // it is not used any more
  if (program != nullptr) program->on_completion(std::move(completion));
}

}  // namespace sluice::proto
