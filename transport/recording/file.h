// Appends blocks to the file of this process. Knows no link.
#ifndef SLUICE_RECORDING_FILE_H_
#define SLUICE_RECORDING_FILE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <sluice/base/descriptor.h>
#include <sluice/base/result.h>
#include <sluice/recording/format.h>

namespace sluice::recording {

// One context's way into the file. Contexts of one process share the file and nothing else: each
// write() appends, and the system orders them. So there is no lock that a fork could find held.
class File {
 public:
  // Makes `folder`/PROGRAM-PID-NUMBER.sluicerec with that header, or opens it if another context of
  // this process has made it. It belongs to this user, and nobody else may read it. Errors:
  // kAccessDenied, with the path and the system's reason.
  static Result<File> open(const std::string& folder, const FileHeader& header,
                           uint64_t incarnation);

  const std::string& path() const { return path_; }
  // False: the file is full, or the disk is. Nothing more is written of this context then but its
  // end: messages behind a gap would have the wrong times, or a connection that nothing tells of.
  template <typename Entry>
  bool append(BlockKind kind, uint32_t context, std::span<const Entry> entries) {
    return append(
        {.kind = kind, .context = context, .count = static_cast<uint32_t>(entries.size())},
        std::as_bytes(entries));
  }

 private:
  File(Descriptor file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}
  bool append(const BlockHeader& header, std::span<const std::byte> body);

  Descriptor file_;
  std::string path_;
  bool full_ = false;
  bool cut_ = false;  // not even an end
};

}  // namespace sluice::recording

#endif  // SLUICE_RECORDING_FILE_H_
