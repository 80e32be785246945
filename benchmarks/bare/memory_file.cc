// Files on tmpfs and their hash (see memory_file.h).
#include "benchmarks/bare/memory_file.h"

#include <openssl/evp.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <vector>

#include "benchmarks/bare/pattern.h"
#include "benchmarks/bare/program.h"

namespace bare {

int new_memory_file() {
  const int file = memfd_create("a file that travels", MFD_CLOEXEC);
  if (file < 0) die("memfd_create");
  return file;
}

void read_at(int file, void* data, size_t bytes, uint64_t offset) {
  for (size_t got = 0; got < bytes;) {
    const ssize_t more =
        pread(file, static_cast<char*>(data) + got, bytes - got, static_cast<off_t>(offset + got));
    if (more <= 0) die("pread");
    got += static_cast<size_t>(more);
  }
}

void write_at(int file, const void* data, size_t bytes, uint64_t offset) {
  for (size_t put = 0; put < bytes;) {
    const ssize_t more = pwrite(file, static_cast<const char*>(data) + put, bytes - put,
                                static_cast<off_t>(offset + put));
    if (more <= 0) die("pwrite");
    put += static_cast<size_t>(more);
  }
}

void truncate_file(int file) {
  if (ftruncate(file, 0) != 0) die("ftruncate");
}

void write_pattern(int file, uint64_t bytes) {
  std::vector<unsigned char> piece(kFilePiece);
  for (uint64_t at = 0; at < bytes; at += kFilePiece) {
    fill_pattern(piece.data(), piece.size(), static_cast<uint32_t>(at / kFilePiece));
    write_at(file, piece.data(), std::min<uint64_t>(kFilePiece, bytes - at), at);
  }
}

void corrupt_file(int file, uint64_t bytes) {
  unsigned char byte = 0;
  read_at(file, &byte, 1, bytes / 2);
  flip_one_bit(&byte, 1);
  write_at(file, &byte, 1, bytes / 2);
}

std::string sha256_of(int file, uint64_t bytes) {
  struct stat facts {};
  if (fstat(file, &facts) != 0) die("fstat");
  const uint64_t there = std::min<uint64_t>(bytes, static_cast<uint64_t>(facts.st_size));
  std::vector<unsigned char> piece(kFilePiece);
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> digest(EVP_MD_CTX_new(),
                                                                  EVP_MD_CTX_free);
  unsigned char sum[EVP_MAX_MD_SIZE];
  unsigned length = 0;
  bool good = digest != nullptr && EVP_DigestInit_ex(digest.get(), EVP_sha256(), nullptr) == 1;
  for (uint64_t at = 0; good && at < there; at += kFilePiece) {
    const size_t part = std::min<uint64_t>(kFilePiece, there - at);
    read_at(file, piece.data(), part, at);
    good = EVP_DigestUpdate(digest.get(), piece.data(), part) == 1;
  }
  if (!good || EVP_DigestFinal_ex(digest.get(), sum, &length) != 1) die("SHA-256");
  std::string text;
  for (unsigned i = 0; i < length; ++i) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += kDigits[sum[i] >> 4];
    text += kDigits[sum[i] & 15];
  }
  return text;
}

}  // namespace bare
