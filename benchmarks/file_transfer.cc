// Question: how long does a file take from one tmpfs to another over each path of the library?
// Beside bare/file_copy, which goes the kernel's own ways.
//
// --mode packet, udp, tcp, kmod, shm, lo, rdma, each alone or with _sleep or _adaptive
// (library_ends.h).
//
// The sender reads a piece into memory of the arena and sends it; the receiver writes it from where
// it was placed into a new file. Several pieces are under way. Timed is from the receiver's start
// to the last byte in its file. What came is hashed (SHA-256) after that, against the hash of the
// source, taken before.
#include <algorithm>
#include <array>
#include <string>

#include "benchmarks/bare/memory_file.h"
#include "benchmarks/bare/program.h"
#include "benchmarks/library_ends.h"

namespace {

using namespace sluice;
using bench::Box;
using bench::Side;

// Pieces under way: so many that reading, sending and writing overlap, so few that they fit a
// second-level cache of 4 MiB.
constexpr uint64_t kUnderWay = 4;
constexpr Tag kGo = 2;

struct Pieces {
  explicit Pieces(const bare::Options& options)
      : file_bytes(options.size), count((options.size + bare::kFilePiece - 1) / bare::kFilePiece) {}
  uint64_t offset(uint64_t piece) const { return piece * bare::kFilePiece; }
  uint64_t bytes(uint64_t piece) const {
    return std::min<uint64_t>(bare::kFilePiece, file_bytes - offset(piece));
  }
  uint64_t file_bytes, count;
};

// A place for a piece on its way; of one piece after the other.
struct Slot {
  Box box;
  Buffer buffer;
  Tensor tensor;
  uint64_t used = 0;
};
using Slots = std::array<Slot, kUnderWay>;

Buffer allocate(Side& side, uint64_t bytes) {
  return bench::must(side.context->allocate({static_cast<int64_t>(bytes)}, uint8), "allocate");
}

void take_go(Side& side, Box& box) {
  bench::must(side.endpoint.receive({.tag = kGo}, allocate(side, 1),
                                    {.sink = &box, .deadline = bench::later()}),
              "receive");
}

void send_piece(Side& side, const Pieces& pieces, int source, Slot& slot, uint64_t piece) {
  side.until(slot.box, slot.used);
  slot.box.last = {};
  // What has arrived is nobody's but ours: the same memory again, but for a piece of another
  // length.
  const bool again = slot.used != 0 && slot.tensor.bytes().size() == pieces.bytes(piece);
  Buffer room =
      again ? std::move(slot.tensor.try_thaw().value()) : allocate(side, pieces.bytes(piece));
  bare::read_at(source, room.bytes().data(), pieces.bytes(piece), pieces.offset(piece));
  slot.tensor = std::move(room).freeze();
  side.send(slot.tensor, slot.box);
  ++slot.used;
}

int send_files(const bare::Options& options, Side& side, int source, bare::PeerReport& report) {
  const Pieces pieces(options);
  Slots slots;
  Box go;
  for (uint64_t file = 0; file < options.iterations; ++file) take_go(side, go);
  for (uint64_t file = 0; file < options.iterations; ++file) {
    side.until(go, file + 1);
    const double cpu_before = bare::process_cpu_seconds();
    bare::burn_ns(options.slow_ns);
    for (uint64_t piece = 0; piece < pieces.count; ++piece)
      send_piece(side, pieces, source, slots[piece % kUnderWay], piece);
    for (Slot& slot : slots) side.until(slot.box, slot.used);
    report.cpu_seconds += bare::process_cpu_seconds() - cpu_before;
  }
  return 0;
}

void ask_for_piece(Side& side, const Pieces& pieces, Slot& slot, uint64_t piece) {
  const bool again = slot.used != 0 && slot.buffer.bytes().size() == pieces.bytes(piece);
  Buffer room = again ? std::move(slot.buffer) : allocate(side, pieces.bytes(piece));
  side.receive(std::move(room), slot.box);
  ++slot.used;
}

void receive_file(Side& side, const Pieces& pieces, int destination, Slots& slots,
                  const Tensor& word, Box& said) {
  for (uint64_t piece = 0; piece < std::min(kUnderWay, pieces.count); ++piece)
    ask_for_piece(side, pieces, slots[piece], piece);
  bench::must(side.endpoint.send(kGo, word, {.sink = &said, .deadline = bench::later()}), "send");
  for (uint64_t piece = 0; piece < pieces.count; ++piece) {
    Slot& slot = slots[piece % kUnderWay];
    side.until(slot.box, slot.used);
    slot.buffer = std::move(slot.box.last.buffers[0]);
    bare::write_at(destination, slot.buffer.bytes().data(), pieces.bytes(piece),
                   pieces.offset(piece));
    if (piece + kUnderWay < pieces.count) ask_for_piece(side, pieces, slot, piece + kUnderWay);
  }
}

int receive_files(const bare::Options& options, Side& side, const std::string& hash,
                  const bare::PeerReport& report) {
  const Pieces pieces(options);
  const int destination = bare::new_memory_file();
  const Tensor word = allocate(side, 1).freeze();
  Slots slots;
  Box said;
  bare::Samples seconds;
  double total = 0, cpu = 0;
  for (uint64_t file = 0; file < options.iterations; ++file) {
    bare::truncate_file(destination);
    const double cpu_before = bare::process_cpu_seconds();
    const uint64_t start = bare::now_ns();
    receive_file(side, pieces, destination, slots, word, said);
    const double took = static_cast<double>(bare::now_ns() - start) * 1e-9;
    cpu += bare::process_cpu_seconds() - cpu_before;
    seconds.add(took);
    total += took;
    if (const std::string came = bare::sha256_of(destination, options.size); came != hash)
      return bare::refuse(options, "SHA-256 " + came + " came, of " + hash);
  }
  return bare::JsonLine(options)
      .moved(seconds, total, cpu + report.cpu_seconds)
      .text("sha256", hash)
      .print_verified();
}

}  // namespace

int main(int argc, char** argv) {
  bare::Options options;
  options.name = "file_transfer";
  options.size = 64u << 20;
  options.iterations = 3;
  for (const std::string& carrier : bench::carrier_names()) {
    for (const char* wait : {"", "_sleep", "_adaptive"}) options.modes.push_back(carrier + wait);
  }
  options.mode = "tcp";
  bare::parse_or_exit(options, argc, argv);
  const int source = bare::new_memory_file();
  bare::write_pattern(source, options.size);
  const std::string hash = bare::sha256_of(source, options.size);
  if (options.corrupt) bare::corrupt_file(source, options.size);
  return bench::run_ends(
      options, bench::way_of(options.mode),
      [&](Side& side, bare::PeerReport& report) {
        return send_files(options, side, source, report);
      },
      [&](Side& side, const bare::PeerReport& report) {
        return receive_files(options, side, hash, report);
      });
}
