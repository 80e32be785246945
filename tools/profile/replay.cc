#include "tools/profile/replay.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <deque>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>

#include <sluice/base/descriptor.h>
#include <sluice/base/settings.h>
#include <sluice/runtime/identity.h>
#include <sluice/select/open.h>

#include "tools/perf/run/processes.h"

namespace sluice::tools::profile {
namespace {

constexpr const char* kOrigin = "profile/replay";
// Receives that are posted ahead on a line, as programs do.
constexpr size_t kAhead = 2;
// Between two readings of the clock; more, and another thread had the processor.
constexpr uint64_t kLostProcessorNs = 20'000;

Status failed(Code code, std::string why) {
  return Status(code, Scope::kOperation, kOrigin, std::move(why));
}

// Takes so much time of a processor. Time in which another thread has it does not count.
void compute(uint64_t ns) {
  Instant last = now();
  for (uint64_t done = 0; done < ns;) {
    const Instant t = now();
    const auto step = static_cast<uint64_t>((t - last).count());
    if (step < kLostProcessorNs) done += step;
    last = t;
  }
}

void pause(uint64_t ns) {
  const timespec left{.tv_sec = static_cast<time_t>(ns / 1'000'000'000),
                      .tv_nsec = static_cast<long>(ns % 1'000'000'000)};
  (void)::ppoll(nullptr, 0, &left, nullptr);
}

// One process of the replay.
class Actor final {
 public:
  Actor(const Plan& plan, uint32_t self, const Way& way, Instant deadline)
      : plan_(plan), me_(plan.players[self]), self_(self), way_(way), deadline_(deadline) {}

  // Talks with the parent: its address, then the addresses of all; that it is ready, then that all
  // are; its times, then that all have ended.
  Status run(int in, int out, uint32_t repeats);

 private:
  // This end of a line.
  struct Place final : CompletionSink {
    void on_completion(Completion&& completion) noexcept override {
      if (!completion.status.ok() && status.ok()) status = completion.status;
      ++arrived;
      if (!completion.buffers.empty()) spare.push_back(std::move(completion.buffers[0]));
    }
    Endpoint endpoint;
    std::vector<uint64_t> sizes;  // of what this end receives in one repetition
    uint64_t posted = 0, arrived = 0, taken = 0, in_all = 0;
    std::vector<Buffer> spare;
    Status status;
  };

  Status listen(Listener& listener, std::string& address);
  Status meet(Listener& listener, const std::vector<std::string>& addresses);
  Status prepare(uint32_t repeats);
  Status post_ahead(Place& place);
  Status act(const Step& step);
  Status send(const Step& step);
  Status receive(const Step& step);
  bool listens() const;

  const Plan& plan_;
  const Player& me_;
  const uint32_t self_;
  const Way& way_;
  const Instant deadline_;
  std::unique_ptr<Context> context_;
  std::vector<Place> places_;  // by line
  Tensor source_;              // what is sent is its beginning
};

bool Actor::listens() const {
  return std::any_of(plan_.lines.begin(), plan_.lines.end(),
                     [&](const Line& line) { return line.players[0] == self_; });
}

Status Actor::listen(Listener& listener, std::string& address) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  for (unsigned cpu = 0; cpu < 64 * me_.usable_cpus.size(); ++cpu)
    if ((me_.usable_cpus[cpu / 64] >> cpu % 64 & 1) != 0) CPU_SET(cpu, &cpus);
  // Where the machine does not let it, it plays on what it has.
  (void)::sched_setaffinity(0, sizeof(cpus), &cpus);
  SLUICE_RETURN_IF_ERROR(set_setting("SLUICE_RECORD", std::nullopt));
  if (!way_.moderation.empty())
    SLUICE_RETURN_IF_ERROR(set_setting("SLUICE_RDMA_MODERATION", way_.moderation));
  SLUICE_TRY(context_, open_context({.waiting = way_.waiting, .tuning = way_.tuning}));
  address = "-";
  if (!listens()) return Status();
  std::string where = "tcp://127.0.0.1:0";
  if (plan_.path() == Path::kShm) {
    uint64_t random = 0;
    fill_random(std::as_writable_bytes(std::span(&random, 1)));
    where = "shm:sluice-profile-" + std::to_string(random);
  } else if (plan_.path() == Path::kVerbs) {
    // The device by which the program reached others reaches itself.
    const std::string& name = plan_.lines[0].name;
    where = name.substr(0, name.rfind(':')) + ":0";
  }
  SLUICE_TRY(listener, context_->listen(where));
  address = listener.address();
  return Status();
}

// A connection says first which line it is.
Status Actor::meet(Listener& listener, const std::vector<std::string>& addresses) {
  places_ = std::vector<Place>(plan_.lines.size());
  size_t expected = 0;
  for (uint32_t line = 0; line < plan_.lines.size(); ++line) {
    const auto& [first, second] = plan_.lines[line].players;
    if (first == self_) ++expected;
    if (second != self_) continue;
    SLUICE_TRY(Endpoint endpoint, context_->connect(addresses[first]));
    SLUICE_TRY(Buffer word, context_->allocate({8}, uint8));
    // Not awaited: the peer may be waiting for us in the same way.
    SLUICE_RETURN_IF_ERROR(
        internal::status_of(endpoint.send(line, std::move(word).freeze(), {.deadline = kNever})));
    places_[line].endpoint = std::move(endpoint);
  }
  for (; expected > 0; --expected) {
    SLUICE_TRY(Endpoint endpoint, listener.accept(deadline_));
    SLUICE_TRY(Buffer word, context_->allocate({8}, uint8));
    SLUICE_TRY(auto came,
               endpoint.receive_and_wait({.tag = 0, .mask = 0}, std::move(word), deadline_));
    if (came.tag >= places_.size())
      return failed(Code::kInternal, "a peer named a line that nobody has; run it again");
    places_[came.tag].endpoint = std::move(endpoint);
  }
  return Status();
}

Status Actor::prepare(uint32_t repeats) {
  uint64_t largest = 1;
  for (const Step& step : me_.steps) {
    if (step.send) {
      largest = std::max(largest, step.bytes);
    } else {
      places_[step.line].sizes.push_back(step.bytes);
    }
  }
  SLUICE_TRY(Buffer room, context_->arena().allocate(largest));
  std::fill(room.bytes().begin(), room.bytes().end(), std::byte{1});
  source_ = std::move(room).freeze();
  for (Place& place : places_) {
    place.in_all = place.sizes.size() * repeats;
    // The largest first: their memory serves the others.
    std::vector<uint64_t> sizes = place.sizes;
    std::sort(sizes.rbegin(), sizes.rend());
    for (size_t i = 0; i < std::min(kAhead, sizes.size()); ++i) {
      SLUICE_TRY(Buffer buffer, context_->arena().allocate(std::max<uint64_t>(sizes[0], 1)));
      std::fill(buffer.bytes().begin(), buffer.bytes().end(), std::byte{});
      place.spare.push_back(std::move(buffer));
    }
    SLUICE_RETURN_IF_ERROR(post_ahead(place));
  }
  return Status();
}

Status Actor::post_ahead(Place& place) {
  while (place.posted < place.in_all && place.posted < place.taken + kAhead &&
         !place.spare.empty()) {
    Buffer buffer = std::move(place.spare.back());
    place.spare.pop_back();
    const Status posted = internal::status_of(place.endpoint.receive(
        {.tag = 0}, std::move(buffer), {.sink = &place, .deadline = kNever}));
    if (!posted.ok()) return posted;
    ++place.posted;
  }
  return Status();
}

Status Actor::send(const Step& step) {
  SLUICE_TRY(Tensor part, source_.slice_bytes(0, step.bytes));
  for (;;) {
    const Status sent =
        internal::status_of(places_[step.line].endpoint.send(0, part, {.deadline = kNever}));
    if (sent.code() != Code::kTryAgain) return sent;
    if (context_->progress() == 0)
      SLUICE_RETURN_IF_ERROR(context_->wait(std::min(deadline_, after(now(), 1ms))));
    if (context_->refresh_now() >= deadline_)
      return failed(Code::kTimedOut, "no room to send; run it when less else runs");
  }
}

Status Actor::receive(const Step& step) {
  Place& place = places_[step.line];
  ++place.taken;
  SLUICE_RETURN_IF_ERROR(context_->wait_until(
      [&] { return place.arrived >= place.taken || !place.status.ok(); }, deadline_));
  SLUICE_RETURN_IF_ERROR(place.status);
  return post_ahead(place);
}

Status Actor::act(const Step& step) {
  if (step.computed_ns > 0) compute(step.computed_ns);
  if (step.paused_ns > 0) pause(step.paused_ns);
  return step.send ? send(step) : receive(step);
}

// A line of the parent, while the context goes on: others may wait for our answers.
Status await_line(Context* context, int in, std::string& line, Instant deadline) {
  line.clear();
  for (;;) {
    char c;
    const ssize_t n = ::read(in, &c, 1);
    if (n == 1 && c == '\n') return Status();
    if (n == 1) {
      line += c;
      continue;
    }
    if (n == 0) return failed(Code::kUnreachable, "the parent is gone; run it again");
    if (now() >= deadline)
      return failed(Code::kTimedOut, "the parent says nothing; run it when less else runs");
    pollfd entry{.fd = in, .events = POLLIN, .revents = 0};
    const bool busy = context != nullptr && context->progress() > 0;
    (void)::poll(&entry, 1, busy ? 0 : 1);
  }
}

Status say(int out, const std::string& line) {
  const std::string text = line + "\n";
  if (::write(out, text.data(), text.size()) == static_cast<ssize_t>(text.size())) return Status();
  return failed(Code::kUnreachable, "the parent is gone; run it again");
}

Status Actor::run(int in, int out, uint32_t repeats) {
  Listener listener;
  std::string line;
  SLUICE_RETURN_IF_ERROR(listen(listener, line));
  SLUICE_RETURN_IF_ERROR(say(out, line));
  SLUICE_RETURN_IF_ERROR(await_line(context_.get(), in, line, deadline_));
  std::istringstream words(line);
  std::vector<std::string> addresses;
  for (std::string word; words >> word;) addresses.push_back(word);
  SLUICE_RETURN_IF_ERROR(meet(listener, addresses));
  SLUICE_RETURN_IF_ERROR(prepare(repeats));
  SLUICE_RETURN_IF_ERROR(say(out, "ready"));
  SLUICE_RETURN_IF_ERROR(await_line(context_.get(), in, line, deadline_));
  const Duration cpu = process_cpu_time();
  const Instant start = now();
  for (uint32_t i = 0; i < repeats; ++i)
    for (const Step& step : me_.steps) SLUICE_RETURN_IF_ERROR(act(step));
  const Duration took = now() - start;
  const Duration used = process_cpu_time() - cpu;
  SLUICE_RETURN_IF_ERROR(
      say(out, std::to_string(took.count()) + " " + std::to_string(used.count())));
  return await_line(context_.get(), in, line, deadline_);
}

// The parent's end of one player.
struct Seat {
  Descriptor to;
  Child child;
};

Status tell_all(const std::vector<Seat>& seats, const std::string& line) {
  for (const Seat& seat : seats) SLUICE_RETURN_IF_ERROR(say(seat.to.value(), line));
  return Status();
}

// What the players say: each a line, or why it ended.
Result<std::vector<std::string>> hear_all(std::vector<Seat>& seats, Instant deadline) {
  std::vector<std::string> lines;
  for (Seat& seat : seats) {
    Result<std::string> line = seat.child.read_line(deadline - now());
    if (line.ok() && !(*line).starts_with("!")) {
      lines.push_back(*line);
      continue;
    }
    // A player that waits for another one gives up at the same time.
    if (now() >= deadline)
      return failed(Code::kTimedOut,
                    "the replay took too long; give it less at once with --seconds");
    return line.ok() ? failed(Code::kInternal, (*line).substr(1)) : line.status();
  }
  return lines;
}

Result<Seat> seat_of(const Plan& plan, uint32_t player, const Way& way, uint32_t repeats,
                     Instant deadline) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
    return Status(Code::kNoMemory, Scope::kOperation, kOrigin,
                  "no descriptors for a pipe; raise ulimit -n", errno);
  Descriptor in(ends[0]), to(ends[1]);
  SLUICE_TRY(Child child, Child::start([&](int out) {
               const Status status =
                   Actor(plan, player, way, deadline).run(in.value(), out, repeats);
               if (!status.ok())
                 (void)say(out, "!" + plan.players[player].name + ": " + status.to_string());
               return status.ok() ? 0 : 1;
             }));
  return Seat{std::move(to), std::move(child)};
}

}  // namespace

Result<Played> play(const Plan& plan, const Way& way, uint32_t repeats, Duration limit) {
  const Instant deadline = after(now(), limit);
  std::vector<Seat> seats;
  for (uint32_t player = 0; player < plan.players.size(); ++player) {
    SLUICE_TRY(Seat seat, seat_of(plan, player, way, repeats, deadline));
    seats.push_back(std::move(seat));
  }
  SLUICE_TRY(std::vector<std::string> addresses, hear_all(seats, deadline));
  std::string all;
  for (const std::string& address : addresses) all += address + " ";
  SLUICE_RETURN_IF_ERROR(tell_all(seats, all));
  SLUICE_RETURN_IF_ERROR(internal::status_of(hear_all(seats, deadline)));
  SLUICE_RETURN_IF_ERROR(tell_all(seats, "go"));
  SLUICE_TRY(std::vector<std::string> times, hear_all(seats, deadline));
  SLUICE_RETURN_IF_ERROR(tell_all(seats, "end"));
  Played played;
  for (size_t i = 0; i < times.size(); ++i) {
    double took = 0, cpu = 0;
    std::istringstream(times[i]) >> took >> cpu;
    if (!plan.players[i].recorded) continue;
    played.seconds = std::max(played.seconds, took * 1e-9);
    played.cpu_seconds += cpu * 1e-9;
  }
  for (Seat& seat : seats) (void)seat.child.reap(deadline - now());
  return played;
}

}  // namespace sluice::tools::profile
