#include <sluice/recording/file.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include <sluice/base/log.h>

namespace sluice::recording {
namespace {

constexpr int kFlags = O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;

Status denied(const std::string& what, int os_error) {
  return Status(Code::kAccessDenied, Scope::kContext, "recording",
                what + "; set SLUICE_RECORD to a folder that this user may write to", os_error);
}

// Beyond its file size limit (ulimit -f) a write would end the program that is recorded (SIGXFSZ).
uint64_t most_bytes() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0) return kMostFileBytes;
  return std::min<uint64_t>(kMostFileBytes, limit.rlim_cur);
}

// The whole header, under a name of its own first: nobody sees half of it.
Status make(const std::string& path, const FileHeader& header) {
  if (most_bytes() < sizeof(header))
    return Status(Code::kAccessDenied, Scope::kContext, "recording",
                  path + " would be larger than files of this process may be; raise `ulimit -f`",
                  EFBIG);
  std::string fresh = path + ".XXXXXX";
  Descriptor file(::mkostemp(fresh.data(), O_CLOEXEC));  // 0600
  if (!file) return denied("no file can be made for " + path, errno);
  const bool whole = ::write(file.value(), &header, sizeof(header)) == sizeof(header);
  // Another context of this process may have been faster; its header is as good.
  const bool there = whole && (::link(fresh.c_str(), path.c_str()) == 0 || errno == EEXIST);
  const int os_error = errno;
  ::unlink(fresh.c_str());
  return there ? Status() : denied(path + " cannot be written", os_error);
}

}  // namespace

Result<File> File::open(const std::string& folder, const FileHeader& header, uint64_t incarnation) {
  std::string program = header.program;
  std::replace_if(
      program.begin(), program.end(), [](char c) { return c == '/' || c == ' '; }, '_');
  char number[48];
  std::snprintf(number, sizeof(number), "-%llu-%08x.sluicerec",
                static_cast<unsigned long long>(header.pid), static_cast<unsigned>(incarnation));
  const std::string path = folder + "/" + program + number;
  Descriptor file(::open(path.c_str(), kFlags));
  if (!file) {
    SLUICE_RETURN_IF_ERROR(make(path, header));
    file = Descriptor(::open(path.c_str(), kFlags));
    if (!file) return denied(path + " cannot be opened", errno);
  }
  return File(std::move(file), path);
}

bool File::append(const BlockHeader& header, std::span<const std::byte> body) {
  const bool is_end = header.kind == BlockKind::kEnd;
  if (cut_ || (full_ && !is_end) || header.count == 0) return !cut_ && !full_;
  struct stat facts {};
  // The room of an end is kept: it tells how much is missing.
  const uint64_t reserve = is_end ? 0 : sizeof(BlockHeader) + sizeof(End);
  const uint64_t length = sizeof(header) + body.size();
  if (::fstat(file_.value(), &facts) != 0 ||
      static_cast<uint64_t>(facts.st_size) + length + reserve > most_bytes()) {
    full_ = true;
    return false;
  }
  iovec parts[2] = {{const_cast<BlockHeader*>(&header), sizeof(header)},
                    {const_cast<std::byte*>(body.data()), body.size()}};
  ssize_t written;
  do {
    written = ::writev(file_.value(), parts, 2);
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(length)) return true;
  // A block after half of one could not be read.
  cut_ = true;
  log(LogLevel::kWarning, "the recording " + path_ + " ends here: " +
                              (written < 0 ? std::strerror(errno) : "the disk is full"));
  return false;
}

}  // namespace sluice::recording
