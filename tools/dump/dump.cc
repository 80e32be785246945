#include "tools/dump/dump.h"

#include <errno.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "tools/dump/live.h"

namespace sluice::tools::dump {
namespace {

struct CloseFile {
  void operator()(std::FILE* file) const {
    if (file != stdin) std::fclose(file);
  }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

Status trouble(const std::string& path, const char* what) {
  return Status(Code::kInvalidArgument, Scope::kOperation, "dump",
                "'" + path + "' cannot be " + what + ": " + std::strerror(errno), errno);
}

int fail(const Status& status) {
  fmt::print(stderr, "sluice dump: {}\n", status.to_string());
  return 1;
}

// By whatever name: opening it for writing would empty it before it is read.
bool is_same_file(std::FILE* file, const std::string& path) {
  struct stat read, written;
  return ::fstat(::fileno(file), &read) == 0 && S_ISREG(read.st_mode) &&
         ::stat(path.c_str(), &written) == 0 && read.st_dev == written.st_dev &&
         read.st_ino == written.st_ino;
}

class FileSource final : public ByteSource {
 public:
  explicit FileSource(std::FILE* file) : file_(file) {}
  size_t read(std::span<uint8_t> into) override {
    return std::fread(into.data(), 1, into.size(), file_);
  }

 private:
  std::FILE* file_;
};

// A copy of the packets that had frames. Made with the first, whose link they all have.
class Copy {
 public:
  explicit Copy(std::string path) : path_(std::move(path)) {}

  Status open() {
    if (path_.empty()) return Status();
    file_.reset(std::fopen(path_.c_str(), "wbe"));
    return file_ ? begin(kEthernet) : trouble(path_, "written");
  }
  Status add(const Captured& packet) {
    if (!file_) return Status();
    if (count_ == 0 && packet.link_type != link_type_)
      SLUICE_RETURN_IF_ERROR(begin(packet.link_type));
    if (packet.link_type != link_type_) {
      return Status(Code::kUnsupported, Scope::kOperation, "dump",
                    "a packet of link type " + std::to_string(packet.link_type) +
                        " after those of " + std::to_string(link_type_) +
                        ": a pcap file has one; write what is of one kind");
    }
    ++count_;
    return write(CaptureWriter::record(packet));
  }

 private:
  Status begin(uint16_t link_type) {
    link_type_ = link_type;
    std::rewind(file_.get());
    return write(CaptureWriter::header(link_type));
  }
  // Whole packets at any time: a reader that follows the file finds no half of one.
  Status write(const std::vector<uint8_t>& bytes) {
    bool written = std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) == bytes.size() &&
                   std::fflush(file_.get()) == 0;
    return written ? Status() : trouble(path_, "written");
  }

  std::string path_;
  File file_;
  uint16_t link_type_ = 0;
  uint64_t count_ = 0;
};

// All packets that `next` gives. The first trouble.
template <typename Next>
Status tell_all(Next next, Teller& teller, Copy& copy) {
  while (!teller.full()) {
    SLUICE_TRY(std::optional<Captured> packet, next());
    if (!packet) break;
    std::vector<std::string> lines = teller.take(*packet);
    if (lines.empty()) continue;
    for (const std::string& line : lines) {
      if (std::fwrite(line.data(), 1, line.size(), stdout) != line.size() ||
          std::fputc('\n', stdout) == EOF)
        return trouble("stdout", "written");
    }
    if (std::fflush(stdout) != 0) return trouble("stdout", "written");
    SLUICE_RETURN_IF_ERROR(copy.add(*packet));
  }
  return Status();
}

int finish(const Status& status, const Teller& teller) {
  fmt::print(stderr, "sluice dump: {}\n", to_string(teller.sums()));
  return status.ok() ? 0 : fail(status);
}

int dump_file(const DumpOptions& options, Teller& teller, Copy& copy) {
  File file(options.file == "-" ? stdin : std::fopen(options.file.c_str(), "rbe"));
  if (!file) return fail(trouble(options.file, "read"));
  if (is_same_file(file.get(), options.write_file)) {
    return fail(
        Status(Code::kInvalidArgument, Scope::kOperation, "dump",
               "'" + options.write_file + "' is what is read; give --write a file of its own"));
  }
  if (Status opened = copy.open(); !opened.ok()) return fail(opened);
  FileSource source(file.get());
  CaptureReader reader(source);
  Status status = tell_all([&] { return reader.next(); }, teller, copy);
  if (status.ok() && std::ferror(file.get()) != 0) status = trouble(options.file, "read");
  return finish(status, teller);
}

int dump_live(const DumpOptions& options, Teller& teller, Copy& copy) {
  Result<std::unique_ptr<LiveCapture>> live =
      LiveCapture::open(options.interface, options.wishes.carriers, options.promiscuous);
  if (!live.ok()) return fail(live.status());
  if (Status opened = copy.open(); !opened.ok()) return fail(opened);
  fmt::print(stderr, "sluice dump: listening on {}\n", options.interface);
  Status status = tell_all([&] { return (*live)->next(); }, teller, copy);
  int code = finish(status, teller);
  if (uint64_t missed = (*live)->missed(); missed > 0)
    fmt::print(stderr,
               "sluice dump: {} packets were missed: they came faster than they were printed\n",
               missed);
  return code;
}

}  // namespace

int run_dump(const DumpOptions& options) {
  Copy copy(options.write_file);
  Teller teller(options.wishes);
  return options.interface.empty() ? dump_file(options, teller, copy)
                                   : dump_live(options, teller, copy);
}

}  // namespace sluice::tools::dump
