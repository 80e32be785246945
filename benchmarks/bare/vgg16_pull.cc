// The pull of VGG16's parameters (see vgg16_pull.h).
#include "benchmarks/bare/vgg16_pull.h"

#include <cstdio>

#include "benchmarks/bare/pattern.h"

namespace bare {
namespace {

constexpr size_t kTensors = kVgg16Elements.size();
constexpr size_t kPage = 4096;
// Steps before the timed ones: page faults, TCP's slow start and buffer growth.
constexpr uint64_t kWarmUpSteps = 1;

// The tensors lie apart, as a framework's do: each starts on a page of its own.
class ParameterSet {
 public:
  ParameterSet() {
    size_t total = 0;
    for (size_t i = 0; i < kTensors; ++i) {
      segments_[i].iov_len = kVgg16Elements[i] * sizeof(float);
      total += (segments_[i].iov_len + kPage - 1) / kPage * kPage;
    }
    auto* at = static_cast<unsigned char*>(map_private(total));
    for (iovec& segment : segments_) {
      segment.iov_base = at;
      at += (segment.iov_len + kPage - 1) / kPage * kPage;
    }
  }

  std::array<iovec, kTensors> segments() const { return segments_; }

  void fill(uint32_t step) {
    for (size_t i = 0; i < kTensors; ++i)
      fill_pattern(segments_[i].iov_base, segments_[i].iov_len, seed_of(step, i));
  }

  void corrupt() {
    flip_one_bit(segments_[kTensors - 2].iov_base, segments_[kTensors - 2].iov_len);
  }

  uint64_t mismatches(uint32_t step) const {
    uint64_t wrong = 0;
    for (size_t i = 0; i < kTensors; ++i)
      wrong += count_mismatches(segments_[i].iov_base, segments_[i].iov_len, seed_of(step, i));
    return wrong;
  }

  // What a user who looks at the tensors pays at least.
  uint32_t read_one_word_per_page() const {
    uint32_t sum = 0;
    for (const iovec& segment : segments_) {
      const auto* base = static_cast<const unsigned char*>(segment.iov_base);
      for (size_t at = 0; at < segment.iov_len; at += kPage)
        sum += *reinterpret_cast<const volatile uint32_t*>(base + at);
    }
    return sum;
  }

  uint32_t expected_word_sum(uint32_t step) const {
    uint32_t sum = 0;
    for (size_t i = 0; i < kTensors; ++i)
      for (size_t at = 0; at < segments_[i].iov_len; at += kPage)
        sum += pattern_word(at / sizeof(uint32_t), seed_of(step, i));
    return sum;
  }

 private:
  static uint32_t seed_of(uint32_t step, size_t tensor) {
    return step * 131 + static_cast<uint32_t>(tensor) + 1;
  }

  std::array<iovec, kTensors> segments_{};
};

int serve(const Options& options, int socket, PeerReport& report) {
  ParameterSet parameters;
  const size_t per_call = options.mode == "chunked" ? kChunkBytes : kWhole;
  for (uint64_t step = 0; step < kWarmUpSteps + options.iterations; ++step) {
    parameters.fill(static_cast<uint32_t>(step));
    if (options.corrupt) parameters.corrupt();
    write_all(socket, "", 1);  // ready: the worker starts its clock after this
    unsigned char request;
    read_all(socket, &request, 1);
    const double cpu_before = process_cpu_seconds();
    burn_ns(options.slow_ns);
    auto segments = parameters.segments();
    writev_all(socket, segments.data(), kTensors, per_call);
    if (step >= kWarmUpSteps) report.cpu_seconds += process_cpu_seconds() - cpu_before;
  }
  write_all(socket, "", 1);  // the report is complete
  return 0;
}

int pull(const Options& options, int socket, const PeerReport& report) {
  ParameterSet parameters;
  const size_t per_call = options.mode == "chunked" ? kChunkBytes : kWhole;
  Samples seconds;
  uint64_t wrong = 0;
  double total = 0, cpu = 0;
  for (uint64_t step = 0; step < kWarmUpSteps + options.iterations; ++step) {
    unsigned char ready;
    read_all(socket, &ready, 1);
    const double cpu_before = process_cpu_seconds();
    const uint64_t start = now_ns();
    write_all(socket, "", 1);
    auto segments = parameters.segments();
    readv_all(socket, segments.data(), kTensors, per_call);
    const uint32_t sum = parameters.read_one_word_per_page();
    const double took = static_cast<double>(now_ns() - start) * 1e-9;
    const double cpu_used = process_cpu_seconds() - cpu_before;
    wrong += parameters.mismatches(static_cast<uint32_t>(step));
    wrong += sum != parameters.expected_word_sum(static_cast<uint32_t>(step)) ? 1 : 0;
    if (step < kWarmUpSteps) continue;
    seconds.add(took);
    total += took;
    cpu += cpu_used;
  }
  unsigned char reported;
  read_all(socket, &reported, 1);
  if (wrong != 0) return refuse(options, std::to_string(wrong) + " wrong words");
  seconds.sort();
  const double bytes = static_cast<double>(options.iterations * vgg16_bytes());
  const double both = cpu + report.cpu_seconds;
  return JsonLine(options)
      .raw("seconds", seconds.json())
      .number("bytes_per_second", bytes / total)
      .number("cpu_seconds", both)
      .number("sender_cpu_seconds", report.cpu_seconds)
      .number("receiver_cpu_seconds", cpu)
      .number("cpu_seconds_per_gb", both / (bytes * 1e-9))
      .print_verified();
}

}  // namespace

int vgg16_pull(const Options& options, Family family) {
  if (options.size != vgg16_bytes()) {
    fprintf(stderr, "%s: --size is fixed at %llu\n", options.name.c_str(),
            static_cast<unsigned long long>(vgg16_bytes()));
    return kExitUsage;
  }
  const SocketPair pair = connected_pair(family, options.send_buffer);
  return run_pair(
      options, [&](PeerReport& report) { return serve(options, keep(pair, true), report); },
      [&](PeerReport& report) { return pull(options, keep(pair, false), report); });
}

}  // namespace bare
