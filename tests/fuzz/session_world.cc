#include "tests/fuzz/session_world.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <sluice/base/checked.h>

#include "tests/wire/oracle.h"

namespace sluice::fuzz {
namespace {

// A sanitizer objects if a byte of it is not readable.
void read_all(ConstBytes bytes) {
  unsigned sum = 0;
  for (std::byte b : bytes) sum += static_cast<unsigned>(b);
  asm volatile("" ::"r"(sum));
}

}  // namespace

const std::byte* FakeMapping::at(uint64_t offset, uint64_t length) const {
  static const std::vector<std::byte> bytes(1 << 16, std::byte{0x5a});
  return range_fits(offset, length, bytes.size()) ? bytes.data() + offset : nullptr;
}

bool take_room(LinkRecord& record) {
  if (record.closed) record.problem = "a message after close()";
  if (record.room == 0) {
    record.refused = true;
    return false;
  }
  --record.room;
  ++record.sent;
  return true;
}

void check(LinkRecord& record, ConstBytes header, std::span<const ConstBytes> payload) {
  wire::test::Verdict verdict = wire::test::judge(header);
  uint64_t total = 0;
  for (ConstBytes part : payload) {
    total += part.size();
    read_all(part);
  }
  if (!record.problem.empty()) return;
  if (!verdict.accepted || !verdict.problem.empty()) {
    record.problem = "sent what is not a message: " + verdict.text + verdict.problem;
  } else if (verdict.header_bytes != header.size() ||
             verdict.message_bytes - verdict.header_bytes != total) {
    record.problem = "payload_bytes is not the payload: " + verdict.text;
  }
}

void note_id(LinkRecord& record, ConstBytes header) {
  uint64_t id;
  std::memcpy(&id, header.data() + 8, 8);
  if (record.ids.size() < 64) record.ids.push_back(id);
}

bool FakeStreamLink::push(ConstBytes header, std::span<const ConstBytes> payload, uint64_t cookie) {
  if (!take_room(record_)) return false;
  check(record_, header, payload);
  uint64_t total = 0;
  for (ConstBytes part : payload) total += part.size();
  record_.in_flight.push_back({cookie, total});
  return true;
}

// A peer copies only while it was told as many withdrawals as are counted.
bool FakeViewLink::send(ConstBytes header, std::span<const ConstBytes> payload) {
  if (!FakeLink::send(header, payload)) return false;
  wire::Cancel cancel;
  if (static_cast<wire::MessageType>(header[0]) != wire::MessageType::kCancel ||
      !wire::decode(header, cancel).ok() || !cancel.offer)
    return true;
  if (++record_.withdrawals_told > record_.withdrawals_counted && record_.problem.empty())
    record_.problem = "told a withdrawal that was not counted yet";
  return true;
}

Result<bool> FakeViewLink::export_run(const std::byte* data, size_t length, wire::Segment& out) {
  auto place = arena_.locate(data, length);
  if (!place) return false;
  out = {place->first.id, place->extent_offset, length};
  return true;
}

Result<ImportedRun> FakeViewLink::import_run(const wire::Segment& segment) {
  const std::byte* data = mapping_.at(segment.offset, segment.length);
  if (segment.extent != 1 || data == nullptr) {
    return Status(Code::kCorrupt, Scope::kEndpoint, "fuzz/link",
                  "a segment outside of what was announced");
  }
  mapping_.retain();
  return ImportedRun{data, &mapping_};
}

void note_close(LinkRecord& record) {
  if (record.closed) record.problem = "closed twice";
  record.closed = true;
}

void CountingSink::on_completion(Completion&& completion) noexcept {
  ++count;
  if (completion.user_data >= times_ended.size()) {
    problem = "a completion of nothing";
  } else if (++times_ended[completion.user_data] > 1) {
    problem = "operation " + std::to_string(completion.user_data) + " ended twice";
  }
  if (!completion.status.ok() && completion.status.detail().empty() && problem.empty()) {
    problem = "an operation failed without a reason: " + completion.status.to_string();
  }
  for (Buffer& buffer : completion.buffers) buffers.push_back(std::move(buffer));
  if (!completion.tensor) return;
  read_all(completion.tensor.bytes());
  tensors.push_back(std::move(completion.tensor));
}

void BytesPayload::read(MutableBytes out) {
  if (out.size() > bytes_.size()) {
    problem = "more payload was read than came";
    return;
  }
  std::memcpy(out.data(), bytes_.data(), out.size());
  bytes_ = bytes_.subspan(out.size());
}

std::shared_ptr<Arena> shared_arena() {
  static std::shared_ptr<Arena> arena = [] {
    auto made = Arena::create({.limit_bytes = size_t{8} << 20,
                               .first_extent_bytes = size_t{4} << 20,
                               .largest_extent_bytes = size_t{4} << 20,
                               .receive_reserve_bytes = size_t{1} << 20});
    if (!made.ok()) {
      std::fprintf(stderr, "no arena: %s\n", made.status().to_string().c_str());
      std::exit(1);
    }
    return std::shared_ptr<Arena>(std::move(made).value());
  }();
  return arena;
}

}  // namespace sluice::fuzz
