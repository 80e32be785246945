// The file of a recording: one for each process that records. Shared by the writer and by `sluice
// profile`, which reads files of strangers. Knows no link and no clock.
//
// A file is a FileHeader and blocks, in the byte order of the machine. Each block is appended by
// one write(), so a process that is killed leaves whole blocks, and a last one that may be cut.
#ifndef SLUICE_RECORDING_FORMAT_H_
#define SLUICE_RECORDING_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <sluice/base/result.h>

namespace sluice::recording {

inline constexpr uint64_t kMagic = 0x4345'5243'4955'4c53;  // "SLUICREC" in little-endian order
// Raised when a field changes its place or meaning.
inline constexpr uint32_t kVersion = 1;
// About 130,000 messages. What comes later is counted and not written.
inline constexpr uint64_t kMostFileBytes = 8 << 20;
inline constexpr uint32_t kMostConnections = 4096;  // of a context

struct FileHeader {
  uint64_t magic = kMagic;
  uint32_t version = kVersion;
  uint32_t processors = 0;  // of the machine, online
  uint64_t pid = 0;
  uint64_t started_ns = 0;  // of the machine's monotonic clock; all times count from its zero
  uint64_t host[2] = {};    // same value: same kernel, so times can be compared
  // The first context's.
  uint64_t shm_eager_bytes = 0, shm_eager_sleeping_bytes = 0, tcp_eager_bytes = 0, spin_ns = 0;
  uint32_t waiting = 0;  // a Waiting
  uint32_t unused = 0;
  uint64_t usable_cpus[16] = {};  // bits: where its threads could run
  char program[128] = {};         // its name, ended by zero
};
static_assert(sizeof(FileHeader) == 344);

enum class BlockKind : uint32_t { kConnections = 1, kEvents = 2, kEnd = 3 };
struct BlockHeader {
  BlockKind kind = BlockKind::kEvents;
  uint32_t context = 0;  // number of the context in its process
  uint32_t count = 0;    // of what follows
  uint32_t unused = 0;
};
static_assert(sizeof(BlockHeader) == 16);
inline constexpr uint32_t kMostInBlock = 1024;

struct Connection {
  uint32_t number = 0;  // in its context
  uint32_t path = 0;    // a Path
  char local[60] = {};  // names as the path knows them: the peer's are the other way round
  char peer[60] = {};
};
static_assert(sizeof(Connection) == 128);

enum class EventKind : uint8_t { kSent = 1, kReceived = 2 };
// A message with payload, when its offer left or came. The times are those since the event before
// it in this context. What is left was a time in which the thread had no processor.
struct Event {
  uint64_t at_ns = 0;
  uint64_t bytes = 0;
  uint64_t computed_ns = 0;  // the thread ran outside of the library
  uint64_t paused_ns = 0;    // it slept outside of the library
  uint64_t polled_ns = 0;    // it waited and polled
  uint64_t slept_ns = 0;     // it waited and slept
  uint64_t moved_ns = 0;     // the library moved bytes
  uint32_t connection = 0;
  EventKind kind = EventKind::kSent;
  uint8_t view = 0;  // 1: the receiver reads it where it lies
  uint8_t unused[2] = {};
};
static_assert(sizeof(Event) == 64);

// A context was closed, and everything before it is written.
struct End {
  uint64_t events = 0;    // in all, also those that did not fit into the file
  uint64_t cpu_ns = 0;    // of the process until then
  uint64_t ended_ns = 0;  // as Event::at_ns
};
static_assert(sizeof(End) == 24);

// One thread's part of a process.
struct ContextRecording {
  std::map<uint32_t, Connection> connections;
  std::vector<Event> events;
  bool ended = false;
  End end;  // if it ended
};

struct Recording {
  std::string file;
  FileHeader header;
  std::map<uint32_t, ContextRecording> contexts;
  // What is missing, for people; empty: nothing.
  std::vector<std::string> missing;
};

// Errors: kInvalidArgument (no such file, no recording, of another version, empty, too large);
// kCorrupt (a field that no writer wrote). A file that was cut short is no error: `missing` says
// what was kept. Blocks: reads a file of at most kMostFileBytes and a little.
Result<Recording> read_recording(const std::string& path);

}  // namespace sluice::recording

#endif  // SLUICE_RECORDING_FORMAT_H_
