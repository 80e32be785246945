#include "tools/perf/report/document_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

namespace sluice::tools {
namespace {

constexpr const char* kOrigin = "perf/report";

bool is_regular_or_absent(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode);
}

// Of a pipe or device, which is not opened: a pipe's reader would take our closing it for the end.
std::string special_obstacle(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return std::strerror(errno);
  if (S_ISDIR(info.st_mode)) return std::strerror(EISDIR);
  if (S_ISSOCK(info.st_mode)) return std::strerror(ENXIO);
  return ::access(path.c_str(), W_OK) == 0 ? "" : std::strerror(errno);
}

std::string beside(const std::string& path) { return path + ".tmp." + std::to_string(::getpid()); }

// Errno, 0 where all of it was written.
int write_all(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    done += static_cast<size_t>(n);
  }
  return 0;
}

}  // namespace

std::string json_text(const nlohmann::json& document, int indent) {
  return document.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string json_obstacle(const std::string& path) {
  if (path == "-") return "";
  if (path.empty()) return "it is empty";
  if (!is_regular_or_absent(path)) return special_obstacle(path);
  std::string probe = beside(path);
  int fd = ::open(probe.c_str(), O_WRONLY | O_CLOEXEC | O_CREAT | O_EXCL, 0644);
  if (fd < 0) return std::strerror(errno);
  ::close(fd);
  ::unlink(probe.c_str());
  return "";
}

Status write_json(const std::string& path, const nlohmann::json& document) {
  return write_text("--json", path, json_text(document, 1) + "\n");
}

Status write_text(const std::string& flag, const std::string& path, const std::string& text) {
  if (path == "-") {
    bool written =
        std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
    return written ? Status()
                   : Status(Code::kInternal, Scope::kOperation, kOrigin, "stdout cannot be written",
                            errno);
  }
  bool regular = is_regular_or_absent(path);
  std::string name = regular ? beside(path) : path;
  int fd = ::open(name.c_str(), O_WRONLY | O_CLOEXEC | (regular ? O_CREAT | O_EXCL : 0), 0644);
  int error = fd < 0 ? errno : write_all(fd, text);
  if (fd >= 0 && ::close(fd) != 0 && error == 0) error = errno;
  if (error == 0 && regular && ::rename(name.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return Status();
  if (regular && fd >= 0) ::unlink(name.c_str());
  return Status(Code::kInternal, Scope::kOperation, kOrigin,
                flag + ": '" + path + "' cannot be written: " + std::strerror(error), error);
}

}  // namespace sluice::tools
