#include <sluice/recording/file.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
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

// The whole header, under a name of its own first: nobody sees half of it.
Status make(const std::string& path, const FileHeader& header) {
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
  if (full_ || header.count == 0) return !full_;
  struct stat facts {};
  // The room of an end is kept: it tells how much is missing.
  const uint64_t reserve = header.kind == BlockKind::kEnd ? 0 : sizeof(BlockHeader) + sizeof(End);
  const uint64_t length = sizeof(header) + body.size();
  if (::fstat(file_.value(), &facts) != 0 ||
      static_cast<uint64_t>(facts.st_size) + length + reserve > kMostFileBytes) {
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
  full_ = true;
  log(LogLevel::kWarning, "the recording " + path_ + " ends here: " +
                              (written < 0 ? std::strerror(errno) : "the disk is full"));
  return false;
}

}  // namespace sluice::recording
