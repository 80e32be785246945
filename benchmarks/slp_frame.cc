// Question: what does a frame cost that SLP carries, without a network? The core that ships
// (kernel_compat/slp), both ends in one thread, frames handed over in memory.
//
// --mode header    base and extension of a full DATA frame written with their checksum, and read
//                  with all checks: what every frame pays at both ends
//        protocol  pushes of --size bytes from one session to another: frames, acknowledgements,
//                  timers and windows of both ends; no payload is touched
//        placed    the same, and each payload is copied to its place
// Figures are seconds for each DATA frame: of batches of 128 (header), or of a whole push.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "benchmarks/bare/pattern.h"
#include "benchmarks/bare/program.h"
#include "kernel_compat/slp/slp.h"

namespace bare {
namespace {

constexpr uint16_t kMtu =
    1452;  // SLP's share of an Ethernet frame of 1500 bytes, UDP over IPv6 beneath
constexpr size_t kFramesHandedOver = 64;  // as many as a carrier takes in one call
constexpr uint64_t kTurnNs =
    50'000;  // virtual: the time of a round trip, during which nothing is lost
constexpr uint32_t kSeed = 5;

int report(const Options& options, Samples& seconds, double cpu, double frames) {
  seconds.sort();
  return JsonLine(options)
      .raw("seconds", seconds.json())
      .number("cpu_seconds", cpu)
      .number("frames", frames)
      .print_verified();
}

// ---- header

int header(const Options& options) {
  slp_base base{};
  base.type = SLP_DATA;
  base.flags = SLP_FLAG_ACK;
  base.payload_bytes = SLP_UNIT_BYTES;
  base.connection = 0x10005;
  std::vector<uint8_t> frame(SLP_BASE_BYTES + SLP_DATA_BYTES + SLP_UNIT_BYTES);
  Samples seconds;
  uint64_t right = 0;
  const double cpu_before = process_cpu_seconds();
  for (uint64_t i = 0; i < options.iterations; i += kBatchOfFastRounds) {
    const uint64_t start = now_ns();
    for (uint64_t number = i; number < i + kBatchOfFastRounds; ++number) {
      base.number = base.ack = static_cast<uint32_t>(number);
      slp_store64(&frame[SLP_BASE_BYTES], number * SLP_UNIT_BYTES);
      slp_encode_base(frame.data(), &base);
      if (options.corrupt && number == options.iterations / 2) [[unlikely]]
        frame[SLP_BASE_BYTES] ^= 0x10;
      slp_base read;
      if (slp_decode_base(frame.data(), frame.size(), frame.size(), &read) == SLP_TAKEN &&
          read.number == base.number)
        ++right;
      burn_ns(options.slow_ns);
    }
    seconds.add(static_cast<double>(now_ns() - start) * 1e-9 / kBatchOfFastRounds);
  }
  const double cpu = process_cpu_seconds() - cpu_before;
  if (right != options.iterations)
    return refuse(options, std::to_string(options.iterations - right) + " headers");
  return report(options, seconds, cpu, static_cast<double>(options.iterations));
}

// ---- a push between two sessions

struct End {
  slp_node node{};
  std::vector<uint64_t> room = std::vector<uint64_t>((slp_session_bytes() + 7) / 8);
  slp_session* session = nullptr;
  unsigned char* memory = nullptr;
  bool copies = false;
  uint64_t placed_bytes = 0, wrong_places = 0;
  uint32_t ended = 0, failed = 0;
};

// The receiver's view of a frame has no payload; where it came from is the frame's context.
struct Sent {
  slp_tx tx;
  const unsigned char* payload;
};

void place(void* user, uint64_t, uint64_t offset, const slp_frame* frame, uint32_t,
           uint32_t bytes) {
  auto* end = static_cast<End*>(user);
  const auto* sent = static_cast<const Sent*>(frame->context);
  end->placed_bytes += bytes;
  end->wrong_places += offset != sent->tx.offset || bytes != sent->tx.bytes ? 1 : 0;
  if (end->copies) std::memcpy(end->memory + offset, sent->payload, bytes);
}

void ended(void* user, uint64_t, slp_status status) {
  auto* end = static_cast<End*>(user);
  ++end->ended;
  end->failed += status != SLP_OK ? 1 : 0;
}

constexpr slp_ops kOps = {.place = place,
                          .message = nullptr,
                          .ended = ended,
                          .written = nullptr,
                          .state = nullptr,
                          .wake = nullptr,
                          .source_crc = nullptr,
                          .frame_crc = nullptr};

slp_config config_of(End& end, uint64_t nonce, uint32_t connection, uint16_t port,
                     uint16_t other_port) {
  slp_config config;
  slp_config_init(&config);
  slp_node_init(&end.node, 1 << 20);
  config.ops = &kOps;
  config.user = &end;
  config.node = &end.node;
  config.mtu = kMtu;
  config.nonce = nonce, config.connection = connection;
  config.source_port = port, config.destination_port = other_port;
  return config;
}

class Wire {
 public:
  explicit Wire(uint64_t slow_ns) : sent_(kFramesHandedOver), slow_ns_(slow_ns) {}

  // HELLO, RETRY, HELLO, HELLO_ACK.
  void connect(End& client, End& server) {
    const slp_config ours = config_of(client, 0x1111, 0x10005, 7, 9);
    client.session = slp_connect(client.room.data(), &ours, now);
    const slp_listener listener{
        .secret = {1, 2, 3}, .port = 9, .mtu = kMtu, .cipher = nullptr, .cipher_user = nullptr};
    slp_meeting met{};
    for (slp_answer answer = SLP_LISTEN_REPLY; answer != SLP_LISTEN_ACCEPT;) {
      slp_tx hello;
      if (!slp_poll_tx(client.session, now, &hello)) die("SLP says no HELLO");
      const slp_frame in{.data = hello.header,
                         .present = hello.header_bytes,
                         .bytes = hello.header_bytes,
                         .ce = false,
                         .context = nullptr};
      answer = slp_listen(&listener, now, reinterpret_cast<const uint8_t*>("client"), 6, &in, &met);
      const slp_frame reply{.data = met.reply,
                            .present = met.reply_bytes,
                            .bytes = met.reply_bytes,
                            .ce = false,
                            .context = nullptr};
      if (answer == SLP_LISTEN_REPLY && slp_on_frame(client.session, now, &reply) != SLP_TAKEN)
        die("SLP's RETRY");
    }
    const slp_config theirs = config_of(server, 0x2222, 0x20006, 9, 7);
    if (slp_accept(server.room.data(), &theirs, &met.hello, now, &server.session) != SLP_OK)
      die("slp_accept");
    while (slp_state_of(client.session) != SLP_UP || slp_state_of(server.session) != SLP_UP)
      turn(client, server);
  }

  // Frames of each end to the other, as many as one call of a carrier takes.
  void turn(End& client, End& server) {
    const bool any = hand_over(client, server) | hand_over(server, client);
    if (any) return;
    // Nobody has anything: time goes by to the next timer.
    now = std::max(now + kTurnNs,
                   std::min(slp_next_timeout(client.session), slp_next_timeout(server.session)));
    slp_on_timer(client.session, now);
    slp_on_timer(server.session, now);
  }

  uint64_t data_frames = 0, dropped = 0;
  bool corrupt_next = false;  // the next DATA frame, on its way
  uint64_t now = 1;

 private:
  bool hand_over(End& from, End& to) {
    size_t count = 0;
    while (count < sent_.size() && slp_poll_tx(from.session, now, &sent_[count].tx)) ++count;
    for (size_t i = 0; i < count; ++i) deliver(sent_[i], from, to);
    return count != 0;
  }

  void deliver(Sent& sent, const End& from, End& to) {
    now += 1000;
    slp_tx& tx = sent.tx;
    uint8_t joined[kMtu];  // a stream's pieces, which the receiver must have whole
    slp_frame frame{.data = tx.header,
                    .present = tx.header_bytes,
                    .bytes = tx.header_bytes,
                    .ce = false,
                    .context = &sent};
    if (tx.from_memory) {
      sent.payload = from.memory + tx.offset;
      frame.bytes += tx.bytes;
      ++data_frames;
      if (corrupt_next) tx.header[SLP_BASE_BYTES] ^= 0x10, corrupt_next = false;
      burn_ns(slow_ns_);
    } else if (tx.piece_bytes[0] != 0) {
      std::memcpy(joined, tx.header, tx.header_bytes);
      std::memcpy(joined + tx.header_bytes, tx.piece[0], tx.piece_bytes[0]);
      if (tx.piece_bytes[1] != 0)
        std::memcpy(joined + tx.header_bytes + tx.piece_bytes[0], tx.piece[1], tx.piece_bytes[1]);
      frame.data = joined;
      frame.present = frame.bytes = tx.header_bytes + tx.piece_bytes[0] + tx.piece_bytes[1];
    }
    const slp_drop drop = slp_on_frame(to.session, now, &frame);
    if (drop != SLP_TAKEN) ++dropped;
  }

  std::vector<Sent> sent_;
  uint64_t slow_ns_;
};

int push(const Options& options, bool copies) {
  End client, server;
  client.memory = static_cast<unsigned char*>(map_private(options.size));
  server.memory = static_cast<unsigned char*>(map_private(options.size));
  server.copies = copies;
  fill_pattern(client.memory, options.size, kSeed);
  Wire wire(options.slow_ns);
  wire.connect(client, server);
  uint32_t handle = 0;
  if (!slp_open_handle(server.session, 1, options.size, SLP_WRITE, &handle)) die("slp_open_handle");
  Samples seconds;
  const double cpu_before = process_cpu_seconds();
  for (uint64_t i = 0; i < options.iterations; ++i) {
    wire.corrupt_next = options.corrupt && i == options.iterations / 2;
    const uint64_t frames_before = wire.data_frames, start = now_ns();
    if (slp_push(client.session, handle, 0, options.size, 1, nullptr) != SLP_OK) die("slp_push");
    while (client.ended == i) wire.turn(client, server);
    const double frames = static_cast<double>(wire.data_frames - frames_before);
    seconds.add(static_cast<double>(now_ns() - start) * 1e-9 / frames);
  }
  const double cpu = process_cpu_seconds() - cpu_before;
  // A frame that was damaged is sent again, so only its being dropped shows it.
  const uint64_t wrong = client.failed + server.wrong_places + wire.dropped +
                         (server.placed_bytes != options.iterations * options.size ? 1 : 0) +
                         (copies ? count_mismatches(server.memory, options.size, kSeed) : 0);
  if (wrong != 0) return refuse(options, std::to_string(wrong) + " faults in pushes");
  return report(options, seconds, cpu, static_cast<double>(wire.data_frames));
}

int run(Options options) {
  if (!pin_to_cpu(0)) die("sched_setaffinity");
  alarm(static_cast<unsigned>(options.limit_seconds));
  if (options.mode != "header") return push(options, options.mode == "placed");
  options.iterations =
      (options.iterations + kBatchOfFastRounds - 1) / kBatchOfFastRounds * kBatchOfFastRounds;
  return header(options);
}

}  // namespace
}  // namespace bare

int main(int argc, char** argv) {
  bare::Options options;
  options.name = "slp_frame";
  options.modes = {"header", "protocol", "placed"};
  options.mode = "header";
  options.size = 1u << 20;
  options.iterations = 200;
  bare::parse_or_exit(options, argc, argv);
  return bare::run(options);
}
