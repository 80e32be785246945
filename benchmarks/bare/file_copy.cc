// Question: how long does a file take from one tmpfs to another over the kernel's own ways, with
// nothing around them? Over the wire of benchmarks/wire.py, TCP and UDP else over the loopback
// device.
//
// --mode tcp           read, sent, received and written in pieces of 1 MiB
//        tcp_sendfile  sent by sendfile(2) without a buffer of ours
//        udp           a datagram to a call
//        udp_joined    the kernel cuts and joins datagrams
//        frames        raw Ethernet frames, 64 to a call
// Of the last three nothing is sent again: the sender sees in shared memory how far the receiver
// is.
//
// Timed is from the receiver's start to the last byte in its file, a new one each time. What came
// is hashed (SHA-256) after that, against the hash of the source, taken before.
#include <sys/sendfile.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <functional>
#include <new>
#include <string>

#include "benchmarks/bare/frame_ends.h"
#include "benchmarks/bare/memory_file.h"
#include "benchmarks/bare/program.h"
#include "benchmarks/bare/sockets.h"
#include "benchmarks/bare/udp_ends.h"

namespace bare {
namespace {

// As datagram_bulk.cc: well inside the socket's buffer, and in the cache.
constexpr uint64_t kAhead = 2u << 20;

struct Shared {
  std::atomic<uint64_t> started{0};   // files that the receiver waits for
  std::atomic<uint64_t> received{0};  // bytes of all files
};

// Moves a piece: from the file at that offset, or from the wire into memory.
using SendPiece = std::function<void(int file, unsigned char* room, size_t bytes, uint64_t offset)>;
using ReceivePiece = std::function<void(unsigned char* room, size_t bytes)>;

struct Way {
  SendPiece send;
  ReceivePiece receive;
};

template <typename Visit>
void each_piece(uint64_t size, Visit visit) {
  for (uint64_t at = 0; at < size; at += kFilePiece)
    visit(at, std::min<uint64_t>(kFilePiece, size - at));
}

int send_files(const Options& options, const SendPiece& send, int source, Shared& shared,
               PeerReport& report) {
  auto* room = static_cast<unsigned char*>(map_private(kFilePiece));
  for (uint64_t file = 0; file < options.iterations; ++file) {
    while (shared.started.load() <= file) {}
    const double cpu_before = process_cpu_seconds();
    burn_ns(options.slow_ns);
    each_piece(options.size, [&](uint64_t at, size_t bytes) { send(source, room, bytes, at); });
    // Complete before the receiver has the last bytes, or nearly so.
    report.cpu_seconds += process_cpu_seconds() - cpu_before;
  }
  return 0;
}

int receive_files(const Options& options, const ReceivePiece& receive, const std::string& hash,
                  Shared& shared, const PeerReport& report) {
  auto* room = static_cast<unsigned char*>(map_private(kFilePiece));
  const int destination = new_memory_file();
  Samples seconds;
  double total = 0, cpu = 0;
  for (uint64_t file = 0; file < options.iterations; ++file) {
    truncate_file(destination);
    const double cpu_before = process_cpu_seconds();
    const uint64_t start = now_ns();
    shared.started.store(file + 1);
    each_piece(options.size, [&](uint64_t at, size_t bytes) {
      receive(room, bytes);
      write_at(destination, room, bytes, at);
    });
    const double took = static_cast<double>(now_ns() - start) * 1e-9;
    cpu += process_cpu_seconds() - cpu_before;
    seconds.add(took);
    total += took;
    if (const std::string came = sha256_of(destination, options.size); came != hash)
      return refuse(options, "SHA-256 " + came + " came, of " + hash);
  }
  return JsonLine(options)
      .moved(seconds, total, cpu + report.cpu_seconds)
      .text("sha256", hash)
      .print_verified();
}

void send_by_kernel(int socket, int file, size_t bytes, uint64_t offset) {
  auto at = static_cast<off_t>(offset);
  for (const auto end = static_cast<off_t>(offset + bytes); at < end;) {
    if (sendfile(socket, file, &at, static_cast<size_t>(end - at)) <= 0) die("sendfile");
  }
}

Way by_tcp(const SocketPair& pair, bool by_kernel) {
  SendPiece copied = [=](int file, unsigned char* room, size_t bytes, uint64_t offset) {
    read_at(file, room, bytes, offset);
    write_all(pair.peer_side, room, bytes);
  };
  SendPiece handed = [=](int file, unsigned char*, size_t bytes, uint64_t offset) {
    send_by_kernel(pair.peer_side, file, bytes, offset);
  };
  return {by_kernel ? handed : copied,
          [=](unsigned char* room, size_t bytes) { read_all(pair.measuring_side, room, bytes); }};
}

Way by_datagrams(const DatagramEnds& ends, Shared& shared) {
  auto send = [ends, &shared, sent = uint64_t{0}](int file, unsigned char* room, size_t bytes,
                                                  uint64_t offset) mutable {
    read_at(file, room, bytes, offset);
    for (size_t done = 0; done < bytes;) {
      if (sent > shared.received.load(std::memory_order_relaxed) + kAhead) continue;
      const size_t more = ends.send(room + done, bytes - done);
      done += more;
      sent += more;
    }
  };
  auto receive = [ends, &shared, got = uint64_t{0}](unsigned char* room, size_t bytes) mutable {
    for (size_t done = 0; done < bytes;) {
      const size_t more = ends.receive(room + done, bytes - done);
      if (more == 0) continue;
      done += more;
      shared.received.store(got += more, std::memory_order_relaxed);
    }
  };
  return {send, receive};
}

int run(const Options& options) {
  const int source = new_memory_file();
  write_pattern(source, options.size);
  const std::string hash = sha256_of(source, options.size);
  if (options.corrupt) corrupt_file(source, options.size);
  auto* shared = new (map_shared(sizeof(Shared))) Shared;
  const bool tcp = options.mode.starts_with("tcp");
  const SocketPair pair = tcp ? connected_pair(Family::kTcp) : SocketPair{};
  const Way way =
      tcp ? by_tcp(pair, options.mode == "tcp_sendfile")
          : by_datagrams(options.mode == "frames" ? frame_ends(false)
                                                  : udp_ends(options.mode == "udp_joined"),
                         *shared);
  return run_pair(
      options,
      [&](PeerReport& report) {
        if (tcp) keep(pair, true);
        return send_files(options, way.send, source, *shared, report);
      },
      [&](PeerReport& report) {
        if (tcp) keep(pair, false);
        return receive_files(options, way.receive, hash, *shared, report);
      });
}

}  // namespace
}  // namespace bare

int main(int argc, char** argv) {
  bare::Options options;
  options.name = "file_copy";
  options.size = 64u << 20;
  options.iterations = 3;
  options.modes = {"tcp", "tcp_sendfile", "udp", "udp_joined", "frames"};
  options.mode = "tcp";
  bare::parse_or_exit(options, argc, argv);
  return bare::run(options);
}
