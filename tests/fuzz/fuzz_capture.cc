// `sluice dump` over bytes that claim to be a capture: the reader of pcap and pcapng, what
// finds frames in packets, SLP's own decoder, and what is printed.
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tests/fuzz/target.h"
#include "tools/dump/capture.h"
#include "tools/dump/teller.h"

namespace {

using namespace sluice::tools::dump;

class Memory final : public ByteSource {
 public:
  explicit Memory(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  size_t read(std::span<uint8_t> into) override {
    size_t size = std::min(into.size(), bytes_.size());
    if (size > 0) std::memcpy(into.data(), bytes_.data(), size);
    bytes_ = bytes_.subspan(size);
    return size;
  }

 private:
  std::span<const uint8_t> bytes_;
};

std::string problem_of_line(const std::string& line, bool json) {
  for (char c : line) {
    if (c < ' ' || c > '~') return "a character that a terminal would obey";
  }
  if (!json) return {};
  auto read = nlohmann::json::parse(line, nullptr, false);
  if (!read.is_object() || !read.contains("carrier")) return "a line that is no object";
  return read.contains("damaged") && read["problem"].get<std::string>().empty()
             ? "damage without a reason"
             : "";
}

// What is written of a packet is read as the same.
std::string problem_of_copy(const Captured& packet) {
  std::vector<uint8_t> file = CaptureWriter::header(packet.link_type),
                       record = CaptureWriter::record(packet);
  file.insert(file.end(), record.begin(), record.end());
  Memory memory(file);
  CaptureReader reader(memory);
  auto again = reader.next();
  if (!again.ok() || !again->has_value()) return "what was written cannot be read";
  const Captured& copy = **again;
  bool same = copy.link_type == packet.link_type && std::ranges::equal(copy.bytes, packet.bytes);
  bool in_range = packet.time_ns / 1'000'000'000 <= UINT32_MAX;
  return same && (!in_range || copy.time_ns == packet.time_ns)
             ? ""
             : "what was written is read as something else";
}

std::string problem_of(std::span<const uint8_t> bytes) {
  Memory memory(bytes);
  CaptureReader reader(memory);
  Wishes wishes;
  Teller lines(wishes);
  wishes.json = wishes.payload = true;
  Teller objects(wishes);
  for (size_t packets = 0;; ++packets) {
    auto found = reader.next();
    if (!found.ok()) {
      if (found.code() != sluice::Code::kCorrupt || found.status().detail().empty())
        return "refused without a reason";
      found = reader.next();
      return found.ok() && !found->has_value() ? "" : "more after the end";
    }
    if (!found->has_value()) return {};
    if (packets > bytes.size()) return "more packets than bytes";
    const Captured& packet = **found;
    if (packet.bytes.size() > packet.original_bytes || packet.bytes.size() > bytes.size())
      return "a packet that is longer than it can be";
    for (const std::string& line : lines.take(packet)) {
      if (std::string why = problem_of_line(line, false); !why.empty()) return why;
    }
    for (const std::string& line : objects.take(packet)) {
      if (std::string why = problem_of_line(line, true); !why.empty()) return why;
    }
    if (std::string why = problem_of_copy(packet); !why.empty()) return why;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sluice::fuzz::require_no(problem_of(std::span(data, size)));
  return 0;
}
