// How long an allreduce of --bytes float32 takes, -n times in a row; every word is checked.
#include <algorithm>

#include "benchmarks/npb/channel.h"

namespace npb {

void check_allreduce(const Arguments& arguments, int) {
  if (arguments.bytes < 4 || arguments.bytes % 4 != 0) usage("--bytes: give a multiple of 4");
}

Outcome run_allreduce(Channel& channel, const Arguments& arguments) {
  const uint64_t iterations =
      arguments.iterations != 0
          ? arguments.iterations
          : std::clamp<uint64_t>((uint64_t{256} << 20) / arguments.bytes, 10, 20000);
  Block data = channel.allocate(arguments.bytes);
  const size_t count = arguments.bytes / 4;
  auto fill = [&](uint64_t round) {
    for (size_t i = 0; i < count; ++i)
      data.as<float>()[i] =
          static_cast<float>((i + round) % 1000 + static_cast<size_t>(channel.rank()));
  };
  Outcome outcome;
  const uint64_t warm_up = std::max<uint64_t>(2, iterations / 20);
  auto holds = [&](uint64_t round) {
    const auto ranks = static_cast<float>(channel.size());
    for (size_t i = 0; i < count; ++i) {
      const float expected =
          ranks * static_cast<float>((i + round) % 1000) + ranks * (ranks - 1) / 2;
      if (data.as<float>()[i] == expected) continue;
      outcome.wrong = "element " + std::to_string(i) + " is " +
                      std::to_string(data.as<float>()[i]) + ", not " + std::to_string(expected);
      return false;
    }
    return true;
  };
  bool good = true;
  for (uint64_t round = 0; round < warm_up; ++round) {
    fill(round);
    channel.allreduce(whole(data), Type::kFloat, Op::kSum);
    if (arguments.corrupt && channel.rank() == 0) data.as<float>()[count / 2] += 1;
    good = good && holds(round);
  }
  // Zeros stay what they are, so the timed part need not fill: only the last round is looked at.
  for (size_t i = 0; i < count; ++i) data.as<float>()[i] = 0;
  Timer timer(channel);
  timer.start();
  for (uint64_t round = 0; round < iterations; ++round)
    channel.allreduce(whole(data), Type::kFloat, Op::kSum);
  timer.finish(outcome);
  fill(7);
  channel.allreduce(whole(data), Type::kFloat, Op::kSum);
  outcome.verified = holds(7) && good;
  const double each = outcome.seconds / static_cast<double>(iterations);
  outcome.mops = static_cast<double>(count) / each * 1e-6;
  outcome.seconds = each;
  outcome.more = ",\"bytes\":" + std::to_string(arguments.bytes) +
                 ",\"microseconds\":" + std::to_string(each * 1e6) + ",\"bytes_per_second\":" +
                 std::to_string(static_cast<double>(arguments.bytes) / each);
  return outcome;
}

}  // namespace npb
