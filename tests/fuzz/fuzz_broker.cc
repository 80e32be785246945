// What a client sends a broker, and what is sent to a borrower in a broker's place. An even first
// byte: packets of a client that has AF_XDP, each behind its length. An odd one: how many
// descriptors come and are expected, and an answer.
#include <vector>

#include "tests/fuzz/broker_judge.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/target.h"

namespace {

using sluice::fuzz::Bytes;

constexpr size_t kMostPackets = 64, kLongest = 512;
// A request has 24 bytes.
constexpr uint64_t kLengths[] = {24, 0, 23, 25};

Bytes bytes_of(sluice::fuzz::Input& input, size_t most) {
  std::span<const uint8_t> bytes = input.rest(most);
  return {bytes.begin(), bytes.end()};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sluice::fuzz::Input input(data, size, kLengths);
  if (input.chance()) {
    const uint8_t counts = input.byte();
    const Bytes packet = bytes_of(input, kLongest);
    sluice::fuzz::require_no(sluice::fuzz::judge_answer(packet, counts & 7, (counts >> 3) % 3));
    return 0;
  }
  std::vector<Bytes> packets;
  while (!input.empty() && packets.size() < kMostPackets)
    packets.push_back(bytes_of(input, input.amount()));
  sluice::fuzz::require_no(sluice::fuzz::judge_requests(packets));
  return 0;
}
