// Question: what does a frame cost, of both ends together, and what of that is saved by batches, by
// a ring instead of calls, by fetching ahead of use, and by where the two ends run? 64 frames at a
// time over the wire of benchmarks/wire.py; figures are seconds per frame. With --size 46 a frame
// is Ethernet's smallest, 84 bytes on a wire.
//
// --mode single            a call for each frame that is sent, and for each that is received
//        batched           64 frames in a call on either side
//        ring              the receiver looks at a ring that the kernel fills
//        ring_prefetch     the same, and fetches two frames ahead
//        two_cpus          as ring, the receiver on the other CPU
//        two_cpus_prefetch the same, and fetches two frames ahead
// The veth pair hands a frame over within the sender's call, so one thread can have both ends. Each
// receiver adds up all words of a frame.
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/bare/packet_socket.h"
#include "benchmarks/bare/program.h"

namespace bare {
namespace {

constexpr size_t kFrames = 64;
constexpr uint64_t kWarmUp = 50;
// What is not there by then was lost.
constexpr uint64_t kLimitNs = 1'000'000'000;
constexpr size_t kAhead = 2;

uint64_t sum_of(const unsigned char* data, size_t bytes) {
  uint64_t sum = 0;
  for (; bytes >= sizeof sum; data += sizeof sum, bytes -= sizeof sum) {
    uint64_t word;
    std::memcpy(&word, data, sizeof word);
    sum += word;
  }
  for (; bytes != 0; --bytes) sum += *data++;
  return sum;
}

class Sender {
 public:
  Sender(const Options& options, PacketEnd end)
      : end_(end), bytes_(options.size), memory_(kFrames * options.size) {
    for (size_t i = 0; i < memory_.size(); ++i) memory_[i] = static_cast<unsigned char>(i * 31 + 7);
    for (size_t i = 0; i < kFrames; ++i) {
      places_[i] = {frame(i), bytes_};
      messages_[i].msg_hdr.msg_name = &end_.to;
      messages_[i].msg_hdr.msg_namelen = sizeof end_.to;
      messages_[i].msg_hdr.msg_iov = &places_[i];
      messages_[i].msg_hdr.msg_iovlen = 1;
    }
  }
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;

  // Sets a number that makes frames of this batch different; returns the sum of all.
  uint64_t number(uint64_t batch) {
    uint64_t sum = 0;
    for (size_t i = 0; i < kFrames; ++i) {
      std::memcpy(frame(i), &batch, std::min(sizeof batch, bytes_));
      sum += sum_of(frame(i), bytes_);
    }
    return sum;
  }
  void flip_one_bit() { memory_[bytes_ - 1] ^= 1; }
  void send(bool one_by_one) {
    for (size_t done = 0; done < kFrames;) {
      const int sent =
          one_by_one
              ? sendto(end_.socket, frame(done), bytes_, 0, reinterpret_cast<sockaddr*>(&end_.to),
                       sizeof end_.to) < 0
                    ? -1
                    : 1
              : sendmmsg(end_.socket, &messages_[done], static_cast<unsigned>(kFrames - done), 0);
      if (sent < 0 && errno != EAGAIN && errno != ENOBUFS) die("send");
      if (sent > 0) done += static_cast<size_t>(sent);
    }
  }

 private:
  unsigned char* frame(size_t i) { return memory_.data() + i * bytes_; }
  PacketEnd end_;
  size_t bytes_;
  std::vector<unsigned char> memory_;
  std::array<iovec, kFrames> places_{};
  std::array<mmsghdr, kFrames> messages_{};
};

class Receiver {
 public:
  Receiver(const Options& options, PacketEnd end)
      : end_(end),
        bytes_(options.size),
        one_by_one_(options.mode == "single"),
        prefetch_(options.mode.ends_with("prefetch")) {
    if (options.mode != "single" && options.mode != "batched")
      ring_ = std::make_unique<ReceiveRing>(end_.socket, 2048, 1024);
    else
      memory_.resize(kFrames * bytes_);
    for (size_t i = 0; i < memory_.size() / bytes_; ++i) {
      places_[i] = {memory_.data() + i * bytes_, bytes_};
      messages_[i].msg_hdr.msg_iov = &places_[i];
      messages_[i].msg_hdr.msg_iovlen = 1;
    }
  }
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;

  // The sum of the next 64 frames. Exits if they do not come.
  uint64_t receive() {
    const uint64_t limit = now_ns() + kLimitNs;
    uint64_t sum = 0;
    for (size_t came = 0; came < kFrames;) {
      const size_t more = ring_ ? from_ring(sum, kFrames - came) : by_calls(sum, kFrames - came);
      came += more;
      if (more == 0 && now_ns() > limit) {
        std::fprintf(stderr, "frame_cost: %zu of %zu frames came\n", came, kFrames);
        std::exit(kExitFailed);
      }
    }
    return sum;
  }

 private:
  size_t from_ring(uint64_t& sum, size_t wanted) {
    size_t came = 0, bytes = 0;
    for (; came < wanted; ++came) {
      if (prefetch_) ring_->prefetch(kAhead);
      const unsigned char* data = ring_->next(bytes);
      if (data == nullptr) break;
      sum += sum_of(data, bytes);
      ring_->release();
    }
    return came;
  }
  size_t by_calls(uint64_t& sum, size_t wanted) {
    int came;
    if (one_by_one_) {
      came = recv(end_.socket, memory_.data(), bytes_, MSG_DONTWAIT) < 0 ? -1 : 1;
    } else {
      came = recvmmsg(end_.socket, messages_.data(), static_cast<unsigned>(wanted), MSG_DONTWAIT,
                      nullptr);
    }
    if (came < 0 && errno != EAGAIN) die("receive");
    for (int i = 0; i < came; ++i)
      sum += sum_of(memory_.data() + static_cast<size_t>(i) * bytes_, bytes_);
    return came < 0 ? 0 : static_cast<size_t>(came);
  }

  PacketEnd end_;
  size_t bytes_;
  bool one_by_one_, prefetch_;
  std::unique_ptr<ReceiveRing> ring_;
  std::vector<unsigned char> memory_;
  std::array<iovec, kFrames> places_{};
  std::array<mmsghdr, kFrames> messages_{};
};

// Receives on the other CPU. The sums come back through shared lines.
class OtherCpu {
 public:
  OtherCpu(Receiver& receiver, uint64_t batches)
      : thread_([this, &receiver, batches] {
          if (!pin_to_cpu(1)) die("pin_to_cpu");
          for (uint64_t i = 1; i <= batches; ++i) {
            sum_.store(receiver.receive(), std::memory_order_relaxed);
            done_.store(i, std::memory_order_release);
          }
        }) {}
  ~OtherCpu() { thread_.join(); }
  OtherCpu(const OtherCpu&) = delete;
  OtherCpu& operator=(const OtherCpu&) = delete;

  uint64_t sum_of_batch(uint64_t number) {
    while (done_.load(std::memory_order_acquire) < number) {}
    return sum_.load(std::memory_order_relaxed);
  }

 private:
  alignas(64) std::atomic<uint64_t> done_{0};
  std::atomic<uint64_t> sum_{0};
  std::thread thread_;
};

int run(const Options& options) {
  alarm(static_cast<unsigned>(options.limit_seconds));
  const PacketEnd near = packet_end(End::kNear), far = packet_end(End::kFar);
  if (options.size > mtu_of(End::kNear)) die("--size: larger than the interface's MTU");
  Sender sender(options, near);
  Receiver receiver(options, far);
  const uint64_t batches = kWarmUp + options.iterations;
  std::unique_ptr<OtherCpu> other;
  if (options.mode.starts_with("two_cpus")) other = std::make_unique<OtherCpu>(receiver, batches);
  if (!pin_to_cpu(0)) die("pin_to_cpu");
  Samples seconds;
  double cpu_before = 0;
  bool wrong = false;
  for (uint64_t i = 0; i < batches; ++i) {
    const uint64_t expected = sender.number(i);
    if (options.corrupt && i == kWarmUp) sender.flip_one_bit();
    if (i == kWarmUp) cpu_before = process_cpu_seconds();
    const uint64_t start = now_ns();
    burn_ns(options.slow_ns);
    sender.send(options.mode == "single");
    const uint64_t sum = other ? other->sum_of_batch(i + 1) : receiver.receive();
    const auto took = static_cast<double>(now_ns() - start) * 1e-9;
    wrong = wrong || sum != expected;
    if (i >= kWarmUp) seconds.add(took / static_cast<double>(kFrames));
  }
  const double cpu = process_cpu_seconds() - cpu_before;
  other.reset();
  if (wrong) return refuse(options, "the words of the frames came to another sum");
  seconds.sort();
  return JsonLine(options)
      .raw("seconds", seconds.json())
      .number("cpu_seconds", cpu)
      .number("frames_per_call", static_cast<double>(options.mode == "single" ? 1 : kFrames))
      .print_verified();
}

}  // namespace
}  // namespace bare

int main(int argc, char** argv) {
  bare::Options options;
  options.name = "frame_cost";
  options.modes = {"single", "batched", "ring", "ring_prefetch", "two_cpus", "two_cpus_prefetch"};
  options.mode = "batched";
  options.size = 46;
  options.iterations = 3000;
  bare::parse_or_exit(options, argc, argv);
  return bare::run(options);
}
