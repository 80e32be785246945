#include <sluice/runtime/secret.h>

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include <sluice/base/settings.h>

namespace sluice {
namespace {

constexpr const char* kOrigin = "runtime/secret";

Status refused(Code code, const std::string& path, const std::string& why, int error = 0) {
  return Status(code, Scope::kOperation, kOrigin, "the secret in " + path + ": " + why, error);
}

std::string file_of(const std::string& secret_file) {
  return secret_file.empty() ? setting_text(kSecretFileVariable).value_or("") : secret_file;
}

struct Closing {
  int fd;
  ~Closing() { ::close(fd); }
};

}  // namespace

bool secret_is_set(const std::string& secret_file) { return !file_of(secret_file).empty(); }

Secret::~Secret() {
  if (!bytes_.empty()) ::explicit_bzero(bytes_.data(), bytes_.size());
}

Result<std::shared_ptr<const Secret>> Secret::chosen(const std::string& secret_file) {
  const std::string path = file_of(secret_file);
  if (path.empty()) return std::shared_ptr<const Secret>();
  return load(path);
}

Result<std::shared_ptr<const Secret>> Secret::load(const std::string& path) {
  // Not to be kept waiting by a pipe.
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (fd < 0) {
    Code code = errno == EACCES || errno == EPERM ? Code::kAccessDenied : Code::kInvalidArgument;
    return refused(code, path,
                   "it cannot be opened; make one with: head -c 32 /dev/urandom | base64 > FILE; "
                   "chmod 600 FILE",
                   errno);
  }
  Closing closing{fd};
  struct stat about {};
  if (::fstat(fd, &about) != 0) return refused(Code::kInternal, path, "fstat failed", errno);
  if (!S_ISREG(about.st_mode)) return refused(Code::kInvalidArgument, path, "it is no file");
  if (about.st_uid != 0 && about.st_uid != ::geteuid())
    return refused(Code::kAccessDenied, path,
                   "it is another user's; copy it to a file of your own");
  if ((about.st_mode & (S_IRWXG | S_IRWXO)) != 0)
    return refused(Code::kAccessDenied, path, "others may read it; chmod 600 " + path);
  std::vector<uint8_t> bytes(kMost + 1);
  size_t length = 0;
  for (ssize_t got = 1; got > 0 && length < bytes.size();
       length += static_cast<size_t>(got > 0 ? got : 0)) {
    got = ::read(fd, bytes.data() + length, bytes.size() - length);
    if (got < 0) return refused(Code::kInvalidArgument, path, "it cannot be read", errno);
  }
  // From here on whatever happens wipes it.
  auto secret = std::make_shared<Secret>(std::move(bytes));
  while (length > 0 && (secret->bytes_[length - 1] == '\n' || secret->bytes_[length - 1] == '\r'))
    --length;
  if (length < kLeast)
    return refused(Code::kInvalidArgument, path,
                   "it has fewer than 16 bytes, which can be guessed");
  if (length > kMost) return refused(Code::kInvalidArgument, path, "it has more than 4096 bytes");
  secret->bytes_.resize(length);
  return std::shared_ptr<const Secret>(std::move(secret));
}

}  // namespace sluice
