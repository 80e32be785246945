#include "tests/shm/model.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <unordered_set>
#include <utility>

namespace sluice::test::model {
namespace {

constexpr size_t kMostThreads = 2;
constexpr size_t kMostLocations = 12;

// What a thread knows: of each location a message that is no older than what it may read, of each
// thread how many of its steps came before.
struct View {
  std::array<uint8_t, kMostLocations> message{};
  std::array<uint8_t, kMostThreads> steps{};

  void join(const View& other) {
    for (size_t i = 0; i < message.size(); ++i) message[i] = std::max(message[i], other.message[i]);
    for (size_t i = 0; i < steps.size(); ++i) steps[i] = std::max(steps[i], other.steps[i]);
  }
};

struct Message {
  uint64_t value = 0;
  View view;  // of its writer, if it released
};

struct Cell {
  uint8_t version = 0;
  uint8_t writer = 0, written = 0;  // the last write: who, and at which of its steps; 0: none
  std::array<uint8_t, kMostThreads> read_at{};  // the last read of each thread
};

struct Thread {
  View view;
  std::vector<uint64_t> answers;
  std::optional<Access> next;  // none: it has ended
};

struct State {
  std::array<std::vector<Message>, kMostLocations> memory;
  View sequential;  // what seq_cst accesses have read and written
  std::vector<Thread> threads;
  std::vector<Cell> cells;
  std::array<uint8_t, kMostThreads> bells{};
  std::array<View, kMostThreads> bell_view{};
};

struct Stopped {};

struct Run {
  const std::vector<uint64_t>* answers = nullptr;
  size_t used = 0;
  std::optional<Access> next;
};
Run* running = nullptr;

bool acquires(std::memory_order order) {
  return order != std::memory_order_relaxed && order != std::memory_order_release;
}
bool releases(std::memory_order order) {
  return order == std::memory_order_release || order == std::memory_order_acq_rel ||
         order == std::memory_order_seq_cst;
}

class Explorer {
 public:
  explicit Explorer(const Program& program) : program_(program) {}

  Verdict run() {
    State first;
    first.threads.resize(program_.threads.size());
    first.cells.resize(program_.cells);
    for (auto& location : first.memory) location.push_back({});
    for (size_t t = 0; t < first.threads.size(); ++t) advance(first, t);
    add(std::move(first));
    while (!waiting_.empty() && verdict_.ok) {
      State state = std::move(waiting_.back());
      waiting_.pop_back();
      expand(state);
    }
    verdict_.states = seen_.size();
    return verdict_;
  }

 private:
  void wrong(const State& state, const std::string& what) {
    if (!verdict_.ok) return;
    verdict_.ok = false;
    verdict_.wrong = what;
    for (size_t t = 0; t < state.threads.size(); ++t) {
      verdict_.wrong += "\n  thread " + std::to_string(t) +
                        (state.threads[t].next ? " (stopped)" : " (ended)") + " was told";
      for (uint64_t answer : state.threads[t].answers)
        verdict_.wrong += " " + std::to_string(answer);
    }
  }

  size_t location_of(const void* where) {
    size_t number = locations_.try_emplace(where, locations_.size()).first->second;
    if (number >= kMostLocations) std::abort();
    return number;
  }

  // To its next access. Plain memory is touched at once: it is checked by order, not by time.
  void advance(State& state, size_t t) {
    Thread& thread = state.threads[t];
    while (verdict_.ok) {
      if (program_.reset) program_.reset(t);
      Run run{.answers = &thread.answers, .used = 0, .next = {}};
      running = &run;
      try {
        program_.threads[t]();
      } catch (const Stopped&) {}
      running = nullptr;
      thread.next = std::move(run.next);
      if (!thread.next) return;
      if (program_.touched) touch(state, t);
      const Access& next = *thread.next;
      if (next.kind == Kind::kFail) return wrong(state, next.text);
      if (next.kind == Kind::kRead) {
        thread.answers.push_back(read_cell(state, t, next.value));
      } else if (next.kind == Kind::kWrite) {
        write_cell(state, t, next.value);
        thread.answers.push_back(0);
      } else {
        return;
      }
    }
  }

  void touch(State& state, size_t t) {
    Touched touched = program_.touched(t, *state.threads[t].next);
    if (!touched.wrong.empty()) wrong(state, touched.wrong);
    for (size_t cell : touched.read) read_cell(state, t, cell);
    for (size_t cell : touched.written) write_cell(state, t, cell);
  }

  uint64_t read_cell(State& state, size_t t, size_t number) {
    Cell& cell = state.cells[number];
    const View& view = state.threads[t].view;
    if (cell.written > 0 && cell.writer != t && view.steps[cell.writer] < cell.written) {
      wrong(state, "race: cell " + std::to_string(number) + " is read while it is written");
    }
    cell.read_at[t] = stamp(state, t);
    return cell.version;
  }
  void write_cell(State& state, size_t t, size_t number) {
    Cell& cell = state.cells[number];
    const View& view = state.threads[t].view;
    bool ordered = cell.written == 0 || cell.writer == t || view.steps[cell.writer] >= cell.written;
    for (size_t u = 0; u < state.threads.size(); ++u)
      ordered = ordered && (u == t || view.steps[u] >= cell.read_at[u]);
    if (!ordered)
      wrong(state,
            "race: cell " + std::to_string(number) + " is written while it is read or written");
    cell.writer = static_cast<uint8_t>(t);
    cell.written = stamp(state, t);
    ++cell.version;
  }
  // Of what a thread does before its next step: known to whoever knows of that step.
  static uint8_t stamp(const State& state, size_t t) {
    return static_cast<uint8_t>(state.threads[t].view.steps[t] + 1);
  }

  void expand(const State& state) {
    bool any = false, all_ended = true;
    for (size_t t = 0; t < state.threads.size(); ++t) {
      if (!state.threads[t].next) continue;
      all_ended = false;
      any = step(state, t) || any;
    }
    if (!any && !all_ended) wrong(state, "every thread waits: a wakeup is lost");
  }

  // Every way in which the thread can go on; false: none.
  bool step(const State& state, size_t t) {
    const Access& next = *state.threads[t].next;
    switch (next.kind) {
      case Kind::kLoad: {
        size_t at = location_of(next.where);
        size_t oldest = state.threads[t].view.message[at];
        if (next.order == std::memory_order_seq_cst)
          oldest = std::max<size_t>(oldest, state.sequential.message[at]);
        for (size_t i = oldest; i < state.memory[at].size(); ++i) load(state, t, at, i);
        return true;
      }
      case Kind::kStore: store(state, t); return true;
      case Kind::kChoose:
        for (uint64_t way : {0, 1}) go_on(begin(state, t), t, way);
        return true;
      case Kind::kRing: {
        State after = begin(state, t);
        const size_t other = 1 - t;
        after.bells[other] = 1;  // more than one are heard as one
        after.bell_view[other].join(after.threads[t].view);
        go_on(std::move(after), t, 0);
        return true;
      }
      case Kind::kAwaitBell:
        if (state.bells[t] == 0) return false;
        take(state, t);
        return true;
      case Kind::kTakeBells: take(state, t); return true;
      case Kind::kPause: return pause(state, t);
      default: return false;
    }
  }

  static State begin(const State& state, size_t t) {
    State after = state;
    ++after.threads[t].view.steps[t];
    return after;
  }
  void load(const State& state, size_t t, size_t at, size_t message) {
    State after = begin(state, t);
    View& view = after.threads[t].view;
    const Access& access = *state.threads[t].next;
    const auto number = static_cast<uint8_t>(message);
    view.message[at] = std::max(view.message[at], number);
    if (acquires(access.order)) view.join(after.memory[at][message].view);
    if (access.order == std::memory_order_seq_cst)
      after.sequential.message[at] = std::max(after.sequential.message[at], number);
    go_on(std::move(after), t, state.memory[at][message].value);
  }
  void store(const State& state, size_t t) {
    State after = begin(state, t);
    View& view = after.threads[t].view;
    const Access& access = *state.threads[t].next;
    const size_t at = location_of(access.where);
    // One writer has read its own last store.
    view.message[at] = static_cast<uint8_t>(after.memory[at].size());
    Message message{.value = access.value, .view = {}};
    if (releases(access.order)) message.view = view;
    after.memory[at].push_back(message);
    if (access.order == std::memory_order_seq_cst) after.sequential.message[at] = view.message[at];
    go_on(std::move(after), t, 0);
  }
  void take(const State& state, size_t t) {
    State after = begin(state, t);
    if (after.bells[t] != 0) after.threads[t].view.join(after.bell_view[t]);
    after.bells[t] = 0;
    after.bell_view[t] = {};
    go_on(std::move(after), t, 0);
  }
  bool pause(const State& state, size_t t) {
    State after = begin(state, t);
    bool news = false;
    for (size_t at = 0; at < kMostLocations; ++at) {
      auto last = static_cast<uint8_t>(after.memory[at].size() - 1);
      news = news || last > after.threads[t].view.message[at];
      after.threads[t].view.message[at] = last;
    }
    if (news) go_on(std::move(after), t, 0);
    return news;
  }

  void go_on(State state, size_t t, uint64_t answer) {
    state.threads[t].answers.push_back(answer);
    advance(state, t);
    add(std::move(state));
  }

  void add(State state) {
    if (!verdict_.ok || !seen_.insert(digest(state)).second) return;
    waiting_.push_back(std::move(state));
  }

  struct Digest {
    uint64_t a = 0x243f6a8885a308d3, b = 0x13198a2e03707344;
    bool operator==(const Digest&) const = default;
    void mix(uint64_t value) {
      a = (a ^ value) * 0x9e3779b97f4a7c15;
      a ^= a >> 32;
      b = (b + value) * 0xd6e8feb86659fd93;
      b ^= b >> 29;
    }
    void mix(const View& view) {
      for (uint8_t one : view.message) mix(one);
      for (uint8_t one : view.steps) mix(one);
    }
  };
  struct Hash {
    size_t operator()(const Digest& digest) const { return digest.a; }
  };
  static Digest digest(const State& state) {
    Digest digest;
    for (const auto& messages : state.memory) {
      digest.mix(messages.size());
      for (const Message& message : messages) digest.mix(message.value), digest.mix(message.view);
    }
    digest.mix(state.sequential);
    for (const Thread& thread : state.threads) {
      digest.mix(thread.view);
      digest.mix(thread.answers.size());
      for (uint64_t answer : thread.answers) digest.mix(answer);
    }
    for (const Cell& cell : state.cells) {
      digest.mix(cell.version), digest.mix(cell.writer), digest.mix(cell.written);
      for (uint8_t at : cell.read_at) digest.mix(at);
    }
    for (size_t t = 0; t < kMostThreads; ++t)
      digest.mix(state.bells[t]), digest.mix(state.bell_view[t]);
    return digest;
  }

  const Program& program_;
  std::map<const void*, size_t> locations_;
  std::vector<State> waiting_;
  std::unordered_set<Digest, Hash> seen_;
  Verdict verdict_;
};

}  // namespace

uint64_t perform(Access access) {
  if (running->used < running->answers->size()) return (*running->answers)[running->used++];
  running->next = std::move(access);
  throw Stopped();
}

Verdict explore(const Program& program) { return Explorer(program).run(); }

}  // namespace sluice::test::model
