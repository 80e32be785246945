#include "tools/tune/echo.h"

#include <unistd.h>

#include <cstdio>
#include <sstream>
#include <utility>

#include <sluice/base/clock.h>
#include <sluice/runtime/identity.h>
#include <sluice/select/open.h>

namespace sluice::tools {
namespace {

// A peer that says nothing for so long is gone, whatever the machine is busy with.
constexpr Duration kPatience = std::chrono::seconds(5);
// A message's tag: its size, and the way by which the next one comes.
constexpr Tag kWays = 16, kStop = kWays - 1;
// Ways of one Echo.
constexpr size_t kMostWays = 8;

Tag tag_of(size_t bytes, size_t next) { return bytes * kWays + next; }

Result<std::unique_ptr<Context>> open(const Way& way, std::shared_ptr<Arena> arena) {
  return open_context({.arena = std::move(arena),
                       .arena_options = {},
                       .waiting = way.waiting,
                       .tuning = way.tuning});
}

// Room for what is sent and received, and no more: the machine is somebody's.
Result<std::shared_ptr<Arena>> small_arena(EchoPath path) {
  size_t received = kMostWays * most_bytes(path);
  SLUICE_TRY(std::unique_ptr<Arena> arena,
             Arena::create({.limit_bytes = (8u << 20) + 4 * received,
                            .first_extent_bytes = (2u << 20) + 2 * received,
                            .receive_reserve_bytes = (1u << 20) + received}));
  return std::shared_ptr<Arena>(std::move(arena));
}

std::string own_address(EchoPath path) {
  if (path == EchoPath::kTcp) return "tcp://127.0.0.1:0";
  if (path == EchoPath::kUdp) return "l2://udp/127.0.0.1:0";
  uint64_t random = 0;
  fill_random(std::as_writable_bytes(std::span(&random, 1)));
  return "shm:sluice-tune-" + std::to_string(random);
}

}  // namespace

// One end of one way's connection.
class Echo::End final : private CompletionSink {
 public:
  explicit End(std::unique_ptr<Context> context) : context_(std::move(context)) {}

  Context& context() { return *context_; }
  Status begin(Endpoint endpoint, size_t most) {
    endpoint_ = std::move(endpoint);
    SLUICE_TRY(in_, context_->arena().allocate(most, {.for_receive = true}));
    for (Payload& payload : payloads_) {
      SLUICE_TRY(Buffer out, context_->arena().allocate(most));
      payload.data = out.data();
      payload.whole = std::move(out).freeze();
    }
    return Status();
  }
  // Writes what the next send() sends, as a program does it: bytes that lie unchanged in the
  // reader's own cache would flatter the way that reads them last. Not a part of what is timed,
  // like a program's own work: the peer may still be reading what was sent before, which lies
  // elsewhere. Requires: it is done with what was sent before that.
  void prepare(size_t bytes) {
    ++turn_;
    for (size_t i = 0; i < bytes; i += 64)
      payloads_[turn_ % 2].data[i] = static_cast<std::byte>(turn_);
  }
  Status post_receive() {
    arrived_ = false;
    return internal::status_of(endpoint_.receive({.tag = 0, .mask = 0}, std::move(in_),
                                                 {.sink = this, .deadline = kNever}));
  }
  // The tag of what came.
  Result<Tag> await() {
    SLUICE_RETURN_IF_ERROR(
        context_->wait_until([&] { return arrived_; }, after(sluice::now(), kPatience)));
    SLUICE_RETURN_IF_ERROR(failure_);
    return tag_;
  }
  // `wait`: until the peer has it, so that nothing is left for this context to do.
  Status send(size_t bytes, Tag tag, bool wait) {
    SLUICE_TRY(Tensor part, payloads_[turn_ % 2].whole.slice_bytes(0, bytes));
    if (wait)
      return endpoint_.send_and_wait(tag, std::move(part), after(sluice::now(), kPatience))
          .status();
    return internal::status_of(endpoint_.send(tag, part, {.deadline = kNever}));
  }

 private:
  void on_completion(Completion&& completion) noexcept override {
    failure_ = completion.status;
    tag_ = completion.tag;
    in_ = std::move(completion.buffers[0]);
    arrived_ = true;
  }

  std::unique_ptr<Context> context_;
  Endpoint endpoint_;
  Buffer in_;
  struct Payload {
    std::byte* data = nullptr;  // of `whole`
    Tensor whole;
  };
  std::array<Payload, 2> payloads_;  // in turn
  uint8_t turn_ = 0;
  Status failure_;
  Tag tag_ = 0;
  bool arrived_ = false;
};

namespace {

// The child: answers each message by the way that it came, until it is told to stop. A secret rules
// out paths for programs, not for what is measured. `listening`: the parent has its addresses.
template <typename End>
Status answer(EchoPath path, const std::vector<Way>& ways, int pipe, bool& listening) {
  SLUICE_TRY(std::shared_ptr<Arena> arena, small_arena(path));
  std::vector<std::unique_ptr<End>> ends;
  std::vector<Listener> listeners;
  std::string addresses;
  for (const Way& way : ways) {
    SLUICE_TRY(std::unique_ptr<Context> context, open(way, arena));
    ends.push_back(std::make_unique<End>(std::move(context)));
    SLUICE_TRY(Listener listener,
               ends.back()->context().listen(own_address(path), {.allow_unsealed = true}));
    addresses += listener.address() + " ";
    listeners.push_back(std::move(listener));
  }
  addresses.back() = '\n';
  if (::write(pipe, addresses.data(), addresses.size()) != static_cast<ssize_t>(addresses.size())) {
    return Status(Code::kUnreachable, Scope::kContext, "tune", "the parent is gone");
  }
  listening = true;
  for (size_t i = 0; i < ends.size(); ++i) {
    SLUICE_TRY(Endpoint endpoint, listeners[i].accept(after(sluice::now(), kPatience)));
    SLUICE_RETURN_IF_ERROR(ends[i]->begin(std::move(endpoint), most_bytes(path)));
    SLUICE_RETURN_IF_ERROR(ends[i]->post_receive());
  }
  size_t current = 0;
  while (true) {
    SLUICE_TRY(Tag tag, ends[current]->await());
    size_t next = tag % kWays;
    SLUICE_RETURN_IF_ERROR(ends[current]->post_receive());
    SLUICE_RETURN_IF_ERROR(ends[current]->send(tag / kWays, 0, next != current));
    ends[current]->prepare(tag / kWays);  // while the parent has the answer
    if (next >= ends.size()) return Status();
    current = next;
  }
}

}  // namespace

Echo::Echo(Child child) : child_(std::move(child)) {}

Echo::~Echo() {
  if (!ends_.empty() && ends_[current_]->post_receive().ok() &&
      ends_[current_]->send(64, tag_of(64, kStop), false).ok())
    (void)ends_[current_]->await();
  ends_.clear();
}

Result<std::unique_ptr<Echo>> Echo::start(EchoPath path, const std::vector<Way>& ways) {
  SLUICE_TRY(Child child, Child::start([&](int pipe) {
               bool listening = false;
               const Status status = answer<End>(path, ways, pipe, listening);
               // Later errors the parent sees itself.
               if (!status.ok() && !listening)
                 std::fprintf(stderr, "sluice tune: %s\n", status.to_string().c_str());
               return status.ok() ? 0 : 1;
             }));
  std::unique_ptr<Echo> echo(new Echo(std::move(child)));
  SLUICE_TRY(std::string line, echo->child_.read_line(kPatience));
  SLUICE_TRY(std::shared_ptr<Arena> arena, small_arena(path));
  std::istringstream addresses(line);
  std::vector<std::unique_ptr<End>> ends;
  for (const Way& way : ways) {
    std::string address;
    addresses >> address;
    SLUICE_TRY(std::unique_ptr<Context> context, open(way, arena));
    ends.push_back(std::make_unique<End>(std::move(context)));
    SLUICE_TRY(Endpoint endpoint,
               ends.back()->context().connect(address, {.allow_unsealed = true}));
    SLUICE_RETURN_IF_ERROR(ends.back()->begin(std::move(endpoint), most_bytes(path)));
  }
  echo->ends_ = std::move(ends);
  return echo;
}

Status Echo::measure(size_t way, size_t bytes, size_t count, std::vector<double>& times_ns) {
  // The child changes over with a message of the old way, which is not timed.
  if (way != current_) {
    SLUICE_RETURN_IF_ERROR(ends_[current_]->post_receive());
    SLUICE_RETURN_IF_ERROR(ends_[current_]->send(64, tag_of(64, way), false));
    SLUICE_RETURN_IF_ERROR(ends_[current_]->await().status());
    ends_[current_]->context().progress();  // its answer's receipt leaves
    current_ = way;
  }
  for (size_t i = 0; i < count; ++i) {
    SLUICE_RETURN_IF_ERROR(ends_[way]->post_receive());
    ends_[way]->prepare(bytes);
    Instant start = sluice::now();
    SLUICE_RETURN_IF_ERROR(ends_[way]->send(bytes, tag_of(bytes, way), false));
    SLUICE_RETURN_IF_ERROR(ends_[way]->await().status());
    times_ns.push_back(static_cast<double>((sluice::now() - start).count()));
  }
  return Status();
}

}  // namespace sluice::tools
