#include <sluice/recording/format.h>

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>
#include <string_view>

#include <sluice/base/descriptor.h>

namespace sluice::recording {
namespace {

static_assert(std::endian::native == std::endian::little);
// Blocks of several contexts may be on their way when the file is full.
constexpr uint64_t kMostReadBytes = kMostFileBytes + (1 << 20);

using Bytes = std::span<const std::byte>;

class Reader {
 public:
  explicit Reader(Recording& recording) : recording_(recording) {}
  Status read(Bytes bytes);

 private:
  Status header(Bytes& bytes);
  // False: the file ends within this block.
  Result<bool> block(Bytes& bytes);
  Status connections(ContextRecording& context, Bytes body);
  Status events(ContextRecording& context, Bytes body);
  Status invalid(std::string why) const {
    return Status(Code::kInvalidArgument, Scope::kOperation, "recording", name() + std::move(why));
  }
  Status corrupt(std::string why) const {
    return Status(Code::kCorrupt, Scope::kOperation, "recording",
                  name() + std::move(why) + "; record anew");
  }
  std::string name() const { return recording_.file + " "; }

  Recording& recording_;
  uint64_t bytes_ = 0, spent_ns_ = 0;  // of all events so far
};

template <typename T>
T take(Bytes& bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(value));
  bytes = bytes.subspan(sizeof(value));
  return value;
}

template <size_t kLength>
bool is_text(const char (&text)[kLength]) {
  const char* end = std::find(text, text + kLength, '\0');
  return end != text + kLength &&
         std::all_of(text, end, [](char c) { return c >= ' ' && c <= '~'; });
}

size_t size_of(BlockKind kind) {
  switch (kind) {
    case BlockKind::kConnections: return sizeof(Connection);
    case BlockKind::kEvents: return sizeof(Event);
    case BlockKind::kEnd: return sizeof(End);
  }
  return 0;
}

Status Reader::header(Bytes& bytes) {
  if (bytes.empty()) return invalid("is empty: its process had no time to write; record anew");
  uint64_t magic = 0;
  std::memcpy(&magic, bytes.data(), std::min(bytes.size(), sizeof(magic)));
  if (magic != kMagic)
    return invalid("is no recording: give a file that `sluice profile record` wrote");
  if (bytes.size() < offsetof(FileHeader, processors))
    return invalid("ends in its header; record anew");
  uint32_t version;
  std::memcpy(&version, bytes.data() + offsetof(FileHeader, version), sizeof(version));
  if (version != kVersion) {
    return invalid("is a recording of version " + std::to_string(version) +
                   ", and this program reads version " + std::to_string(kVersion) +
                   "; record anew with this version of sluice");
  }
  if (bytes.size() < sizeof(FileHeader)) return invalid("ends in its header; record anew");
  recording_.header = take<FileHeader>(bytes);
  if (!is_text(recording_.header.program)) return corrupt("names a program that is no text");
  if (recording_.header.waiting > 2 || recording_.header.processors == 0)
    return corrupt("has a header that no recorder writes");
  return Status();
}

Status Reader::connections(ContextRecording& context, Bytes body) {
  while (!body.empty()) {
    auto connection = take<Connection>(body);
    if (!is_text(connection.local) || !is_text(connection.peer))
      return corrupt("names a peer that is no text");
    if (connection.number >= kMostConnections || connection.path > UINT8_MAX)
      return corrupt("has a connection that no recorder writes");
    context.connections[connection.number] = connection;
  }
  return Status();
}

Status Reader::events(ContextRecording& context, Bytes body) {
  // A year of nanoseconds; 32 PiB. Sums of a whole file stay below 2^64.
  constexpr uint64_t kMost = uint64_t{1} << 55, kMostInAll = uint64_t{1} << 62;
  while (!body.empty()) {
    auto event = take<Event>(body);
    const uint64_t before =
        context.events.empty() ? recording_.header.started_ns : context.events.back().at_ns;
    const bool good = event.at_ns >= before && event.at_ns - recording_.header.started_ns < kMost &&
                      (event.kind == EventKind::kSent || event.kind == EventKind::kReceived) &&
                      context.connections.contains(event.connection) && event.bytes < kMost &&
                      event.computed_ns < kMost && event.paused_ns < kMost &&
                      event.polled_ns < kMost && event.slept_ns < kMost && event.moved_ns < kMost;
    if (good) {
      bytes_ += event.bytes;
      spent_ns_ +=
          event.computed_ns + event.paused_ns + event.polled_ns + event.slept_ns + event.moved_ns;
    }
    if (!good || bytes_ > kMostInAll || spent_ns_ > kMostInAll) {
      return corrupt("has a message that no recorder writes, number " +
                     std::to_string(context.events.size()));
    }
    context.events.push_back(event);
  }
  return Status();
}

Result<bool> Reader::block(Bytes& bytes) {
  if (bytes.size() < sizeof(BlockHeader)) return false;
  const auto head = take<BlockHeader>(bytes);
  const size_t each = size_of(head.kind);
  if (each == 0 || head.count == 0 || head.count > kMostInBlock)
    return corrupt("has a block that no recorder writes");
  ContextRecording& context = recording_.contexts[head.context];
  if (context.ended) return corrupt("goes on after a context has ended");
  // Of a block that is cut short the whole entries are kept.
  const size_t whole = std::min<size_t>(head.count, bytes.size() / each);
  const Bytes body = bytes.first(whole * each);
  switch (head.kind) {
    case BlockKind::kConnections: SLUICE_RETURN_IF_ERROR(connections(context, body)); break;
    case BlockKind::kEvents: SLUICE_RETURN_IF_ERROR(events(context, body)); break;
    case BlockKind::kEnd:
      if (whole == 0) break;
      context.ended = true;
      std::memcpy(&context.end, body.data(), sizeof(End));
      break;
  }
  bytes = bytes.subspan(body.size());
  return whole == head.count;
}

Status Reader::read(Bytes bytes) {
  SLUICE_RETURN_IF_ERROR(header(bytes));
  bool whole = true;
  while (!bytes.empty() && whole) {
    SLUICE_TRY(whole, block(bytes));
  }
  size_t kept = 0;
  bool ended = !recording_.contexts.empty();
  uint64_t seen = 0;
  for (const auto& [number, context] : recording_.contexts) {
    kept += context.events.size();
    seen += context.ended ? context.end.events : context.events.size();
    ended = ended && context.ended;
  }
  const std::string kept_text = std::to_string(kept) + " messages were kept";
  if (!whole) {
    recording_.missing.push_back("the file is cut short: " + kept_text);
  } else if (!ended) {
    recording_.missing.push_back("its process was killed, or ended without closing its context: " +
                                 kept_text + ", and some of the last may be missing");
  }
  if (seen > kept) {
    recording_.missing.push_back("the file was full: the first " + std::to_string(kept) + " of " +
                                 std::to_string(seen) + " messages were kept");
  }
  return Status();
}

}  // namespace

Result<Recording> read_recording(const std::string& path) {
  auto invalid = [&](std::string_view why, int os_error = 0) {
    return Status(Code::kInvalidArgument, Scope::kOperation, "recording",
                  path + " " + std::string(why), os_error);
  };
  // Not waiting for a pipe's writer.
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file)
    return invalid("cannot be opened; give a file that `sluice profile record` wrote", errno);
  struct stat facts {};
  if (::fstat(file.value(), &facts) != 0 || !S_ISREG(facts.st_mode))
    return invalid("is no file; give a file that `sluice profile record` wrote");
  if (static_cast<uint64_t>(facts.st_size) > kMostReadBytes) {
    return invalid("has " + std::to_string(facts.st_size >> 20) +
                   " MiB, and no recording has more than " + std::to_string(kMostReadBytes >> 20) +
                   "; give a file that `sluice profile record` wrote");
  }
  std::vector<std::byte> bytes(static_cast<size_t>(facts.st_size));
  size_t length = 0;
  while (length < bytes.size()) {
    const ssize_t got = ::read(file.value(), bytes.data() + length, bytes.size() - length);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return invalid("cannot be read; check the disk", errno);
    if (got == 0) break;
    length += static_cast<size_t>(got);
  }
  Recording recording;
  recording.file = path;
  SLUICE_RETURN_IF_ERROR(Reader(recording).read(Bytes(bytes).first(length)));
  return recording;
}

}  // namespace sluice::recording
