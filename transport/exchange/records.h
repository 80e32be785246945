// The exchange's bookkeeping: keys, peers, fetches and publications. Private to it.
#ifndef SLUICE_EXCHANGE_RECORDS_H_
#define SLUICE_EXCHANGE_RECORDS_H_

#include <array>
#include <coroutine>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <sluice/base/inline_vector.h>
#include <sluice/exchange/exchange.h>

namespace sluice::internal {

struct PeerEntry {
  std::shared_ptr<EndpointCore> core;
  std::vector<KeyEntry*> peer_keys;  // by the peer's key id
  std::vector<bool> named;           // our key ids whose name the peer has
};

// A peer's request that waits for a publication.
struct WaitingWant {
  PeerEntry* peer;
  uint64_t token;
  uint64_t step;
  bool into;
  TensorDescriptor layout;
};

struct FetchRecord final : CompletionSink {
  void on_completion(Completion&& completion) noexcept override;
  void cancel_asks();

  struct Ask {
    PeerEntry* peer;   // null: gone, its completion is still to come
    OperationId id;
    uint64_t serial;  // names the ask in its completion
  };
  Exchange* exchange = nullptr;
  KeyEntry* entry = nullptr;
  uint64_t step = 0;
  Instant deadline{};
  EndpointCore* from = nullptr;
  InlineVector<Ask, 2> asks;
  uint64_t next_serial = 0;
  Buffer destination;   // while no endpoint has it
  bool into = false;
  bool done = false;
  bool handle = true;   // somebody still holds the Fetch
  Status status;
  Receipt receipt;
  Tensor tensor;
  std::coroutine_handle<> waiter;
  FetchRecord* next = nullptr;
  FetchRecord* previous = nullptr;
};

struct PublicationRecord final : CompletionSink {
  void on_completion(Completion&& completion) noexcept override;
  bool finished() const { return ended && loans == 0; }

  Exchange* exchange = nullptr;
  KeyEntry* entry = nullptr;
  uint64_t step = 0;
  Tensor tensor;
  int readers = 1;
  int readers_done = 0;
  int loans = 0;        // supplies under way
  bool ended = false;   // out of the table: nobody new gets it
  bool handle = true;
  std::coroutine_handle<> waiter;
};

struct KeyEntry {
  std::string name;
  uint32_t id = 0;  // ours, when we ask for it
  PeerEntry* home = nullptr;  // who supplied it last
  std::vector<PublicationRecord*> published;
  std::vector<WaitingWant> waiting;
  uint64_t gone_below = 0;  // steps retired for good
  // Steps that lately ended by their readers: asking again is an error, not a wait.
  std::array<uint64_t, 16> lately_ended{};
  uint32_t ended_count = 0;

  bool is_over(uint64_t step) const {
    if (step < gone_below) return true;
    uint32_t known = ended_count < lately_ended.size() ? ended_count : static_cast<uint32_t>(lately_ended.size());
    for (uint32_t i = 0; i < known; ++i) {
      if (lately_ended[i] == step) return true;
    }
    return false;
  }
};

}  // namespace sluice::internal

#endif  // SLUICE_EXCHANGE_RECORDS_H_
