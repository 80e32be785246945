#include <sluice/base/settings.h>
#include <sluice/tuning/cache_file.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <utility>

namespace sluice::tuning {
namespace {

constexpr const char* kOrigin = "tuning";
// Raised when a line changes its meaning or a knob is added or goes: old files are then measured
// anew.
constexpr std::string_view kSchema = "sluice.tuning/3";
constexpr std::string_view kLast = "end";  // a file that was cut short has none
constexpr size_t kMostBytes = 16 << 10;

Status corrupt(const std::string& why) {
  return Status(Code::kCorrupt, Scope::kContext, kOrigin, why);
}
Status denied(const std::string& why, int os_error = 0) {
  return Status(Code::kAccessDenied, Scope::kContext, kOrigin, why, os_error);
}

// "name the rest" -> {name, rest}.
std::pair<std::string_view, std::string_view> split(std::string_view line) {
  size_t blank = line.find(' ');
  if (blank == std::string_view::npos) return {line, {}};
  return {line.substr(0, blank), line.substr(blank + 1)};
}

class Lines {
 public:
  explicit Lines(std::string_view text) : text_(text) {}
  std::string_view next() {
    size_t end = text_.find('\n');
    std::string_view line = text_.substr(0, end);
    text_ = end == std::string_view::npos ? std::string_view() : text_.substr(end + 1);
    return line;
  }
  bool empty() const { return text_.empty(); }

 private:
  std::string_view text_;
};

// Closes on every way out.
struct File {
  int fd = -1;
  ~File() {
    if (fd >= 0) ::close(fd);
  }
};

bool absolute(const char* path) { return path != nullptr && path[0] == '/'; }

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace

std::string cache_folder() {
  if (auto own = setting_text("SLUICE_CACHE_DIR"); own && absolute(own->c_str())) return *own;
  // A set-user-id program takes nothing from its caller: secure_getenv() is null there.
  if (const char* caches = ::secure_getenv("XDG_CACHE_HOME"); absolute(caches))
    return std::string(caches) + "/sluice";
  if (const char* home = ::secure_getenv("HOME"); absolute(home))
    return std::string(home) + "/.cache/sluice";
  return "";
}

std::string cache_path(std::string_view folder, std::string_view machine) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (char c : machine) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  char name[40];
  std::snprintf(name, sizeof(name), "/tuning-%016llx", static_cast<unsigned long long>(hash));
  return std::string(folder) + name;
}

std::string encode(const Record& record) {
  std::string text =
      std::string(kSchema) + "\nmachine " + record.machine + "\nprobed " + record.probed_at + "\n";
  for (size_t i = 0; i < kKnobCount; ++i) {
    text += std::string(knobs()[i].name) + " " + std::to_string(record.knobs[i].value) + " " +
            record.knobs[i].measured + "\n";
  }
  return text + std::string(kLast) + "\n";
}

Result<Record> decode(std::string_view text, std::string_view machine) {
  if (text.size() > kMostBytes) return corrupt("it has more than 16 KiB");
  // What is in it is printed.
  if (std::any_of(text.begin(), text.end(),
                  [](char c) { return c != '\n' && (c < ' ' || c > '~'); }))
    return corrupt("it is no text");
  Lines lines(text);
  if (std::string_view schema = lines.next(); schema != kSchema) {
    return corrupt("it begins with '" + std::string(schema.substr(0, 40)) + "', not with " +
                   std::string(kSchema));
  }
  Record record;
  auto [machine_word, machine_text] = split(lines.next());
  if (machine_word != "machine") return corrupt("it names no machine");
  if (machine_text != machine) {
    return corrupt("it is of another machine: '" + std::string(machine_text.substr(0, 120)) +
                   "', this is '" + std::string(machine) + "'");
  }
  record.machine = machine_text;
  auto [probed_word, probed_text] = split(lines.next());
  if (probed_word != "probed") return corrupt("it has no date");
  record.probed_at = probed_text.substr(0, 40);
  for (size_t i = 0; i < kKnobCount; ++i) {
    auto [name, rest] = split(lines.next());
    if (name != knobs()[i].name)
      return corrupt("where " + std::string(knobs()[i].name) + " should be it has '" +
                     std::string(name.substr(0, 40)) + "'");
    auto [number, measured] = split(rest);
    uint64_t value = 0;
    auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (error != std::errc() || end != number.data() + number.size())
      return corrupt(std::string(name) + " has no number");
    record.knobs[i] = {.value = clamped(knobs()[i], value), .measured = std::string(measured)};
  }
  if (lines.next() != kLast || !lines.empty()) return corrupt("it does not end where it should");
  return record;
}

Result<std::optional<Record>> read_record(const std::string& path, std::string_view machine) {
  // Not through a link, and not waiting for a pipe's writer.
  File file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)};
  if (file.fd < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return std::optional<Record>();
    return denied("it cannot be opened", errno);
  }
  struct stat facts {};
  if (::fstat(file.fd, &facts) != 0) return denied("it cannot be looked at", errno);
  if (!S_ISREG(facts.st_mode)) return denied("it is no file");
  if (facts.st_uid != ::geteuid())
    return denied("it belongs to user " + std::to_string(facts.st_uid));
  if ((facts.st_mode & 077) != 0)
    return denied("others may read or write it; chmod 600 it if it is yours");
  std::string text(kMostBytes + 1, '\0');
  size_t length = 0;
  while (length < text.size()) {
    ssize_t got = ::read(file.fd, text.data() + length, text.size() - length);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return denied("it cannot be read", errno);
    if (got == 0) break;
    length += static_cast<size_t>(got);
  }
  SLUICE_TRY(Record record, decode(std::string_view(text).substr(0, length), machine));
  return std::optional<Record>(std::move(record));
}

Status write_record(const std::string& path, const Record& record) {
  std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code made;
  std::filesystem::create_directories(folder.parent_path(), made);
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    return denied("the folder " + folder.string() + " cannot be made", errno);
  std::string fresh = path + ".XXXXXX";
  File file{::mkostemp(fresh.data(), O_CLOEXEC)};  // 0600
  if (file.fd < 0) return denied("no file can be made in " + folder.string(), errno);
  bool whole = write_all(file.fd, encode(record)) && ::fsync(file.fd) == 0;
  if (whole && ::rename(fresh.c_str(), path.c_str()) == 0) return Status();
  int os_error = errno;
  ::unlink(fresh.c_str());
  return denied(path + " cannot be written", os_error);
}

}  // namespace sluice::tuning
