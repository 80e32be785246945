// Where a run of bytes comes from and goes to: caches, free runs, growth, the reserve.
#include <algorithm>
#include <string>

#include <sluice/base/checked.h>
#include <sluice/base/counters.h>

#include "allocator/arena_state.h"
#include "allocator/machine_memory.h"

namespace sluice {
namespace {
constexpr const char* kOrigin = "allocator/arena";
Counter refused_limit("allocator.refused_limit");
Counter refused_quota("allocator.refused_quota");
}  // namespace

Status ArenaState::refused_by_limit(uint64_t bytes) {
  refused_limit.add();
  uint64_t used, longest;
  {
    std::lock_guard lock(mutex);
    flush_caches();
    used = taken_bytes();
    longest = std::max(free_runs[0].largest(), free_runs[1].largest());
  }
  const uint64_t memory = machine_memory_bytes();
  std::string remedy =
      "release tensors, or raise ArenaOptions::limit_bytes or set for example SLUICE_ARENA_LIMIT=" +
      std::to_string(limit_for(bytes, used) >> 20) + "M";
  if (bytes > memory)
    remedy = "this machine has " + mebibytes(memory) +
             " of memory: check the shape, or use smaller tensors";
  return Status(Code::kNoMemory, Scope::kOperation, kOrigin,
                "no room for " + std::to_string(bytes) + " bytes: the arena's limit is " +
                    mebibytes(options.limit_bytes) + ", " + mebibytes(used) + " are in use, " +
                    mebibytes(options.receive_reserve_bytes) +
                    " are kept for receives, the largest free block is " + mebibytes(longest) +
                    "; " + remedy);
}

// A limit in whole MiB that is enough for the request, with an eighth to spare.
uint64_t ArenaState::limit_for(uint64_t bytes, uint64_t used) const {
  const uint64_t needed = used + options.receive_reserve_bytes + bytes;
  return (std::max(2 * options.limit_bytes, needed + needed / 8) | ((1u << 20) - 1)) + 1;
}

Status ArenaState::refused_by_quota(uint64_t bytes, const Quota& quota) {
  refused_quota.add();
  return Status(Code::kNoMemory, Scope::kOperation, kOrigin,
                "no room for " + std::to_string(bytes) + " bytes in a peer's quota of " +
                    mebibytes(quota.limit_bytes()) + ", " + mebibytes(quota.used_bytes()) +
                    " are in use; receive or release what it holds");
}

Status ArenaState::in_forked_child_status() const {
  return Status(
      Code::kWrongState, Scope::kContext, kOrigin,
      std::string("this process was forked from the arena's owner; create an arena of its own"));
}

uint64_t ArenaState::taken_bytes() const {
  return extent_bytes - free_runs[0].total() - free_runs[1].total() - reserve_runs.total();
}

void ArenaState::recycle(ArenaBlock* block) noexcept {
  block->next = spare_blocks;
  spare_blocks = block;
}

ArenaBlock* ArenaState::make_block(uint64_t offset, uint64_t length) {
  ArenaBlock* block = spare_blocks;
  if (block != nullptr) {
    spare_blocks = block->next;
  } else {
    block = new ArenaBlock();
  }
  block->arena = this;
  block->offset = offset;
  block->length = length;
  block->size_class = static_cast<uint32_t>(class_of(length));
  block->of_reserve = false;
  block->audience = 0;
  peak = std::max(peak, taken_bytes());
  return block;
}

ArenaBlock* ArenaState::take_free(int audience, uint64_t length) {
  std::optional<uint64_t> offset = free_runs[static_cast<size_t>(audience)].take(length);
  if (!offset) return nullptr;
  ArenaBlock* block = make_block(*offset, length);
  block->audience = static_cast<uint8_t>(audience);
  return block;
}

// Null if a part of it is not free.
ArenaBlock* ArenaState::take_at(int audience, uint64_t offset, uint64_t length) {
  if (!free_runs[static_cast<size_t>(audience)].take_exactly(offset, length)) return nullptr;
  ArenaBlock* block = make_block(offset, length);
  block->audience = static_cast<uint8_t>(audience);
  return block;
}

ArenaBlock* ArenaState::take_of_reserve(uint64_t length) {
  std::optional<uint64_t> offset = reserve_runs.take(length);
  if (!offset) return nullptr;
  ArenaBlock* block = make_block(*offset, length);
  block->of_reserve = true;
  return block;
}

// What another thread freed is warm: cheaper than cutting a new run, and a program that
// allocates on one thread and frees on another does not walk through all of the arena.
ArenaBlock* ArenaState::take_from_other_shards(int audience, int size_class, uint64_t length) {
  size_t mine = shard_of_thread();
  for (size_t i = 1; i < shards.size(); ++i) {
    CacheShard& shard = shards[(mine + i) % shards.size()];
    if (!shard.lock.try_lock()) continue;
    ArenaBlock* block = shard.take(audience, size_class, length);
    shard.lock.unlock();
    if (block != nullptr) return block;
  }
  return nullptr;
}

void ArenaState::flush_caches() {
  for (CacheShard& shard : shards) {
    shard.lock.lock();
    for (size_t audience = 0; audience < shard.blocks.size(); ++audience) {
      for (ArenaBlock*& head : shard.blocks[audience]) {
        while (head != nullptr) {
          ArenaBlock* block = head;
          head = block->next;
          free_runs[audience].add(block->offset, block->length);
          recycle(block);
        }
      }
    }
    shard.cached_bytes = 0;
    shard.lock.unlock();
  }
}

ArenaBlock* ArenaState::take_present(uint64_t length, const AllocateOptions& wanted) {
  int audience = static_cast<int>(wanted.audience);
  int size_class = class_of(length);
  CacheShard& shard = shards[shard_of_thread()];
  shard.lock.lock();
  ArenaBlock* block = shard.take(audience, size_class, length);
  if (block != nullptr) [[likely]] {
    ++shard.allocations;
    ++shard.live;
    shard.lock.unlock();
    return block;
  }
  shard.lock.unlock();
  block = take_from_other_shards(audience, size_class, length);
  if (block == nullptr) {
    std::lock_guard lock(mutex);
    block = take_free(audience, length);
    if (block == nullptr) {
      // What threads keep cached may join to a run that is long enough.
      flush_caches();
      block = take_free(audience, length);
    }
  }
  if (block != nullptr) count_live();
  return block;
}

void ArenaState::count_live() {
  CacheShard& shard = shards[shard_of_thread()];
  shard.lock.lock();
  ++shard.allocations;
  ++shard.live;
  shard.lock.unlock();
}

Result<ArenaBlock*> ArenaState::take(uint64_t length, const AllocateOptions& wanted) {
  if (ArenaBlock* block = take_present(length, wanted)) [[likely]]
    return block;
  SLUICE_TRY(ArenaBlock * block, take_by_growing(length, wanted));
  count_live();
  return block;
}

bool ArenaState::charge(Quota* quota, uint64_t length) {
  if (quota == nullptr) return true;
  if (quota->used_.fetch_add(length, std::memory_order_relaxed) + length <= quota->limit_)
    return true;
  refund(quota, length);
  return false;
}

void ArenaState::refund(Quota* quota, uint64_t length) {
  if (quota != nullptr) quota->used_.fetch_sub(length, std::memory_order_relaxed);
}

Buffer ArenaState::buffer_of(ArenaBlock* block, size_t bytes, Quota* quota) {
  block->quota = quota;
  block->start(base + block->offset, &ArenaState::on_release);
  return Buffer(StorageRef::adopt(block), TensorDescriptor::bytes(bytes));
}

Result<ArenaBlock*> ArenaState::take_by_growing(uint64_t length, const AllocateOptions& wanted) {
  int audience = static_cast<int>(wanted.audience);
  std::lock_guard growing(grow_mutex);
  // Others may take what was added before we do; then once more, until the limit.
  while (true) {
    {
      std::lock_guard lock(mutex);
      flush_caches();
      if (ArenaBlock* block = take_free(audience, length)) return block;
    }
    Status refused = grow(length, wanted.audience, true);
    if (refused.ok()) continue;
    if (wanted.for_receive && wanted.audience == Audience::kSameUser &&
        options.receive_reserve_bytes > 0) {
      if (!reserve_placed) SLUICE_RETURN_IF_ERROR(grow(0, wanted.audience, false));
      std::lock_guard lock(mutex);
      if (ArenaBlock* block = take_of_reserve(length)) return block;
    }
    return refused;
  }
}

void ArenaState::on_release(Storage* storage) noexcept {
  auto* block = static_cast<ArenaBlock*>(storage);
  ArenaState* s = block->arena;
  // The memory is the parent's, and its locks may have been held when we were forked.
  if (s->owner.in_forked_child()) [[unlikely]]
    return;
  if (block->quota != nullptr)
    block->quota->used_.fetch_sub(block->length, std::memory_order_relaxed);
  CacheShard& shard = s->shards[shard_of_thread()];
  if (block->of_reserve) [[unlikely]] {
    // Still counted as live: the state cannot end before the last line.
    std::lock_guard lock(s->mutex);
    s->reserve_runs.add(block->offset, block->length);
    s->recycle(block);
    block = nullptr;
  }
  shard.lock.lock();
  if (shard.closed) [[unlikely]] {
    shard.lock.unlock();
    // Nobody allocates any more: the block is left to no list, as the end frees it.
    if (block != nullptr) delete block;
    s->drop_remaining();
    return;
  }
  if (block != nullptr) [[likely]]
    shard.put(block);
  --shard.live;
  // After this line the state may be gone: the handle's end waits for this lock only.
  shard.lock.unlock();
}

// The count moves from the shards into one number, with all shards locked, so that each
// release is counted exactly once: before, in its shard, or afterwards, in `remaining`.
void ArenaState::end() {
  int64_t live = 0;
  for (CacheShard& shard : shards) shard.lock.lock();
  for (CacheShard& shard : shards) {
    live += shard.live;
    shard.closed = true;
  }
  // One for ourselves: the last release must not free the locks that we still hold.
  remaining.store(live + 1, std::memory_order_relaxed);
  for (CacheShard& shard : shards) shard.lock.unlock();
  drop_remaining();
}

void ArenaState::drop_remaining() noexcept {
  if (remaining.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

}  // namespace sluice
