#include "tests/sim/network.h"

#include <algorithm>
#include <cstring>

#include <sluice/wire/messages.h>

namespace sluice::sim {
namespace {

constexpr const char* kOrigin = "sim/network";

class BytesReader final : public PayloadReader {
 public:
  BytesReader(ConstBytes bytes, Trace& trace) : left_(bytes), trace_(trace) {}
  void read(MutableBytes out) override {
    if (out.size() > left_.size()) {
      trace_.wrong("the session reads more payload than the message has");
      return;
    }
    if (!out.empty()) std::memcpy(out.data(), left_.data(), out.size());
    left_ = left_.subspan(out.size());
  }

 private:
  ConstBytes left_;
  Trace& trace_;
};

uint64_t message_id(ConstBytes header) {
  uint64_t id;
  std::memcpy(&id, header.data() + 8, 8);
  return id;
}

}  // namespace

// A run of the other side's memory, mapped here.
class Network::Import final : public PeerMapping {
 public:
  Import(Network& network, int reader, const std::byte* data, size_t length)
      : network_(network), reader_(reader), data_(data), length_(length) {
    network_.imports_.push_back(this);
  }
  void retain() noexcept override { ++references_; }
  void drop() noexcept override {
    if (--references_ > 0) return;
    std::erase(network_.imports_, this);
    delete this;
  }
  int reader() const { return reader_; }
  bool overlaps(const std::byte* data, size_t length) const {
    return data < data_ + length_ && data_ < data + length;
  }

 private:
  Network& network_;
  int reader_;
  const std::byte* data_;
  size_t length_;
  uint32_t references_ = 1;
};

const LinkTraits& SimEnd::network_traits() const { return network_.traits_; }
bool SimEnd::send_message(ConstBytes header, std::span<const ConstBytes> payload) {
  if (network_.swallow(side_)) return true;
  size_t total = header.size();
  for (ConstBytes part : payload) total += part.size();
  if (!network_.accept(side_, total)) return false;
  network_.spy_.message_sent(side_, header);
  network_.trace_.note(side_, wire::to_string(static_cast<wire::MessageType>(header[0])).data(),
                       message_id(header), total);
  Network::Waiting item;
  item.header_bytes = header.size();
  item.bytes.reserve(total);
  item.bytes.assign(header.begin(), header.end());
  for (ConstBytes part : payload) item.bytes.insert(item.bytes.end(), part.begin(), part.end());
  Network::End& end = network_.ends_[side_];
  end.queue_bytes += total;
  end.queue.push_back(std::move(item));
  if (!network_.options_.strict_flush) end.may_leave = end.queue.size();
  return true;
}

void SimViewLink::set_client(LinkClient* session, ViewClient*) {
  network_.ends_[side_].client = session;
}

void SimStreamLink::set_client(LinkClient* session, StreamClient* transfer) {
  network_.ends_[side_].client = session;
  network_.ends_[side_].data = transfer;
}

// Nobody writes to memory here after the grant that lets the peer read it was revoked.
void SimStreamLink::settle(uint64_t) {}

bool SimStreamLink::push(ConstBytes header, std::span<const ConstBytes> payload, uint64_t cookie) {
  if (network_.swallow(side_)) return true;
  wire::Data data;
  if (!wire::decode(header, data).ok()) network_.trace_.wrong("push() of what is not DATA");
  Network::Waiting item;
  item.data = true;
  item.id = data.id;
  item.offset = data.offset;
  item.cookie = cookie;
  for (ConstBytes part : payload) {
    item.pieces[item.piece_count++] = part;
    item.length += part.size();
  }
  if (item.length != data.payload_bytes)
    network_.trace_.wrong("DATA with another length than its payload");
  if (item.length > network_.options_.data_bytes)
    network_.trace_.wrong("DATA longer than the path takes");
  if (!network_.accept(side_, header.size() + item.length)) return false;
  network_.trace_.note(side_, "DATA", data.id, item.length);
  item.header_bytes = header.size();
  Network::End& end = network_.ends_[side_];
  end.queue_bytes += header.size() + item.length;
  end.queue.push_back(std::move(item));
  return true;
}

void SimEnd::flush_messages() {
  network_.ends_[side_].may_leave = network_.ends_[side_].queue.size();
}

// As if the peer fell asleep and woke up between any two questions. Not by chance: schedules keep
// their seeds.
bool SimEnd::ask_eager() const { return ++network_.ends_[side_].rides_asked % 3 != 0; }

Result<bool> SimViewLink::export_run(const std::byte* data, size_t length, wire::Segment& out) {
  std::optional<Arena::Place> place = network_.arenas_[side_]->locate(data, length);
  if (!place) return false;
  if (network_.random_.percent(network_.options_.announce_percent)) {
    network_.ends_[side_].want_room = true;
    network_.ends_[side_].wanted_bytes = 0;
    return Status(Code::kTryAgain, Scope::kOperation, kOrigin, "no room to announce an extent");
  }
  out = {.extent = place->first.id, .offset = place->extent_offset, .length = length};
  return true;
}

Result<ImportedRun> SimViewLink::import_run(const wire::Segment& segment) {
  Arena& arena = *network_.arenas_[1 - side_];
  std::optional<ExtentInfo> extent = arena.extent(segment.extent);
  if (!extent)
    return Status(Code::kCorrupt, Scope::kEndpoint, kOrigin, "memory that was never announced");
  const std::byte* data = arena.base() + extent->arena_offset + segment.offset;
  return ImportedRun{.data = data,
                     .mapping = new Network::Import(network_, side_, data, segment.length)};
}

void SimEnd::keep(StorageRef loan) { network_.ends_[side_].quarantine.push_back(std::move(loan)); }

void SimEnd::end() {
  Network::End& end = network_.ends_[side_];
  if (end.closed) return;
  network_.trace_.note(side_, "link closed");
  flush_messages();
  // What waits is tried once.
  while (!end.queue.empty() && !network_.broken_ &&
         end.way_bytes < network_.options_.window_bytes) {
    if (!network_.move_one(side_)) break;
  }
  network_.drop_queue(end);
  end.closed = true;
  end.client = nullptr;
  end.data = nullptr;
  end.pushed.clear();
}

Network::Network(const NetworkOptions& options, uint64_t seed, std::array<Arena*, 2> arenas,
                 Trace& trace, WireSpy& spy)
    : options_(options), random_(seed), trace_(trace), spy_(spy), arenas_(arenas) {
  traits_.properties.path = Path::kLoopback;
  traits_.sends_at_once = !options.strict_flush;
  traits_.inline_bytes = options.inline_bytes;
  traits_.most_inline_bytes = options.most_inline_bytes;
  traits_.data_bytes = options.data_bytes;
  traits_.inline_out = traits_.inline_in = {.user = 1, .kernel = 0};
  traits_.bulk_out = traits_.bulk_in = {.user = 0, .kernel = 1};
}

Network::~Network() = default;

bool Network::accept(int side, size_t bytes) {
  End& end = ends_[side];
  bool full = !end.queue.empty() && end.queue_bytes + bytes > options_.queue_bytes;
  if (!full && !random_.percent(options_.refuse_percent)) return true;
  end.want_room = true;
  end.wanted_bytes = bytes;
  trace_.note(side, "no room", bytes);
  return false;
}

void Network::drop_queue(End& end) {
  end.queue.clear();
  end.queue_bytes = 0;
  end.may_leave = 0;
}

void Network::depart(End& end, Packet packet) {
  packet.arrives = std::max(end.last_arrival, trace_.now + random_.duration(options_.latency_max));
  end.last_arrival = packet.arrives;
  end.way_bytes += packet.bytes.size();
  end.way.push_back(std::move(packet));
}

// The first waiting item, or a fragment of it, leaves.
bool Network::move_one(int side) {
  End& end = ends_[side];
  if (end.queue.empty() || end.may_leave == 0) return false;
  Waiting& item = end.queue.front();
  Packet packet;
  packet.data = item.data;
  bool whole = true;
  if (!item.data) {
    packet.header_bytes = item.header_bytes;
    packet.bytes = std::move(item.bytes);
    end.queue_bytes -= packet.bytes.size();
  } else {
    uint64_t take = random_.between(1, std::min(item.length - item.gone, options_.fragment_max));
    packet.id = item.id;
    packet.offset = item.offset + item.gone;
    packet.left_in_message = item.length - item.gone;
    packet.bytes.reserve(take);
    uint64_t skip = item.gone;
    for (size_t i = 0; i < item.piece_count && packet.bytes.size() < take; ++i) {
      ConstBytes piece = item.pieces[i];
      uint64_t from = std::min<uint64_t>(skip, piece.size());
      skip -= from;
      uint64_t count = std::min<uint64_t>(piece.size() - from, take - packet.bytes.size());
      packet.bytes.insert(packet.bytes.end(), piece.begin() + from, piece.begin() + from + count);
    }
    item.gone += take;
    whole = item.gone == item.length;
    end.queue_bytes -= take + (whole ? item.header_bytes : 0);
    if (!end.pushed.empty() && end.pushed.back().first == item.cookie && random_.percent(50)) {
      end.pushed.back().second += take;
    } else {
      end.pushed.emplace_back(item.cookie, take);
    }
  }
  if (whole) {
    end.queue.pop_front();
    --end.may_leave;
  }
  depart(end, std::move(packet));
  return true;
}

void Network::pump() {
  for (int side = 0; side < 2; ++side) {
    End& end = ends_[side];
    if (end.crashed || end.closed || broken_) continue;
    while (trace_.now >= end.next_move && trace_.now >= end.stalled_until &&
           end.way_bytes < options_.window_bytes) {
      if (!move_one(side)) break;
      if (options_.latency_max > Duration(0))
        end.next_move = trace_.now + random_.duration(options_.latency_max / 4);
    }
  }
}

Instant Network::next_pump() const {
  Instant next = kNever;
  for (const End& end : ends_) {
    bool moves = !end.crashed && !end.closed && !broken_ && end.may_leave > 0 &&
                 end.way_bytes < options_.window_bytes;
    if (moves) next = std::min(next, std::max(end.next_move, end.stalled_until));
  }
  return next;
}

Instant Network::next_poll(int side) const {
  const End& end = ends_[side];
  if (end.closed || end.told_down || end.crashed) return kNever;
  const End& peer = ends_[1 - side];
  Instant next = end.down_at;
  if (!end.pushed.empty() || (end.want_room && has_room(end))) return trace_.now;
  if (!peer.way.empty()) {
    next = std::min(next, std::max(peer.way.front().arrives, peer.stalled_until));
  } else if (peer.closed && !peer.crashed) {
    next = std::min(next, peer.last_arrival);
  }
  return next;
}

void Network::bring_down(int side, const Status& why) {
  End& end = ends_[side];
  if (end.told_down || end.closed) return;
  trace_.note(side, "link down", static_cast<uint64_t>(why.code()));
  end.told_down = true;
  drop_queue(end);
  end.pushed.clear();
  end.client->link_down(why, trace_.now);
}

bool Network::handle_control(int side, Packet& packet) {
  Result<wire::Header> common = wire::decode_header(packet.bytes);
  if (!common.ok() || packet.bytes.size() != size_t{common->header_bytes} + common->payload_bytes) {
    trace_.wrong("a session sent what does not decode: " + common.status().to_string());
    return false;
  }
  ConstBytes header = ConstBytes(packet.bytes).first(common->header_bytes);
  BytesReader payload(ConstBytes(packet.bytes).subspan(common->header_bytes), trace_);
  spy_.message_handled(side, header);
  Status status = ends_[side].client->handle_message(header, payload, trace_.now);
  if (!status.ok()) {
    if (status == Code::kCorrupt) trace_.wrong("honest bytes were refused: " + status.to_string());
    bring_down(side, status);
  }
  return true;
}

// Some of a fragment goes to its place. True when all of it did.
bool Network::handle_data(int side, Packet& packet) {
  StreamClient* client = ends_[side].data;
  uint64_t left = packet.bytes.size() - packet.done;
  Placement placement = client->place(packet.id, packet.offset, packet.left_in_message);
  uint64_t placed = 0;
  uint64_t most = random_.percent(30) ? random_.between(1, left) : left;
  for (size_t i = 0; i < placement.count && placed < most; ++i) {
    size_t part = std::min<uint64_t>(placement.runs[i].size(), most - placed);
    std::memcpy(placement.runs[i].data(), packet.bytes.data() + packet.done + placed, part);
    placed += part;
  }
  if (placed == 0) placed = most;  // nobody wants them
  uint64_t offset = packet.offset;
  packet.done += placed;
  packet.offset += placed;
  packet.left_in_message -= placed;
  bool all = packet.done == packet.bytes.size();
  Status status = client->placed(packet.id, offset, placed, trace_.now);
  if (!status.ok()) {
    trace_.wrong("honest DATA was refused: " + status.to_string());
    bring_down(side, status);
  }
  return all;
}

void Network::poll(int side) {
  End& end = ends_[side];
  End& peer = ends_[1 - side];
  auto usable = [&] { return !end.closed && !end.told_down; };
  // Like a backend, a bounded share per turn.
  for (uint64_t budget = random_.between(1, 32); budget > 0 && usable() && !peer.way.empty();
       --budget) {
    if (peer.way.front().arrives > trace_.now || peer.stalled_until > trace_.now) break;
    // Out of the queue before the session is called: it may close the link.
    Packet packet = std::move(peer.way.front());
    peer.way.pop_front();
    peer.way_bytes -= packet.bytes.size();
    if (!packet.data) {
      handle_control(side, packet);
    } else if (!handle_data(side, packet) && usable()) {
      peer.way_bytes += packet.bytes.size();
      peer.way.push_front(std::move(packet));
    }
  }
  while (usable() && !end.pushed.empty()) {
    auto [cookie, bytes] = end.pushed.front();
    uint64_t part = random_.percent(30) ? random_.between(1, bytes) : bytes;
    if (part == bytes) {
      end.pushed.pop_front();
    } else {
      end.pushed.front().second -= part;
    }
    end.data->pushed(cookie, part, trace_.now);
  }
  if (usable() && end.want_room && has_room(end)) {
    end.want_room = false;
    end.client->writable(trace_.now);
  }
  if (usable() && trace_.now >= end.down_at) {
    bring_down(side,
               Status(Code::kUnreachable, Scope::kEndpoint, kOrigin, "the simulated path broke"));
  }
  bool peer_ended =
      peer.closed && !peer.crashed && peer.way.empty() && trace_.now >= peer.last_arrival;
  if (usable() && peer_ended)
    bring_down(side, Status(Code::kUnreachable, Scope::kEndpoint, kOrigin,
                            "the peer dropped the connection"));
}

void Network::stall(int from, Instant until) {
  ends_[from].stalled_until = std::max(ends_[from].stalled_until, until);
}

void Network::cut(std::array<Instant, 2> told, bool lose_what_is_on_the_way) {
  if (broken_) return;
  broken_ = true;
  for (int side = 0; side < 2; ++side) {
    ends_[side].down_at = std::min(ends_[side].down_at, told[side]);
    if (!lose_what_is_on_the_way) continue;
    ends_[side].way.clear();
    ends_[side].way_bytes = 0;
  }
}

void Network::crash(int side) {
  ends_[side].crashed = true;
  drop_queue(ends_[side]);
}

void Network::heal() {
  options_.refuse_percent = options_.announce_percent = 0;
  for (End& end : ends_) end.stalled_until = kStart;
}

bool Network::read_by_peer(int owner, const std::byte* data, size_t length) const {
  if (ends_[1 - owner].crashed) return false;
  return std::any_of(imports_.begin(), imports_.end(), [&](const Import* run) {
    return run->reader() != owner && run->overlaps(data, length);
  });
}

void Network::release_quarantine() {
  for (int side = 0; side < 2; ++side) {
    const End& reader = ends_[1 - side];
    bool mapped = std::any_of(imports_.begin(), imports_.end(),
                              [&](const Import* run) { return run->reader() != side; });
    if (reader.crashed || (reader.closed && !mapped)) ends_[side].quarantine.clear();
  }
}

}  // namespace sluice::sim
