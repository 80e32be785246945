// A file on the kernel's own tmpfs: what travels in file_copy and file_transfer. Must not know how.
//
// Errors: every function ends the process (kExitFailed) with the system's message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace bare {

// Read and written in pieces of so much: what `cp` of coreutils does by default is 256 KiB; larger
// pieces cost less per call and still fit a second-level cache.
inline constexpr size_t kFilePiece = 1u << 20;

// An empty one: memfd_create(2), so that /dev/shm's limit does not count and nothing is left
// behind.
int new_memory_file();
// Makes the file `bytes` long, each word another (pattern.h).
void write_pattern(int file, uint64_t bytes);
// Flips one bit in the middle.
void corrupt_file(int file, uint64_t bytes);
// SHA-256 of its first `bytes`, in hexadecimal; of a shorter file that of what there is.
std::string sha256_of(int file, uint64_t bytes);

// Whole, or the process ends.
void read_at(int file, void* data, size_t bytes, uint64_t offset);
void write_at(int file, const void* data, size_t bytes, uint64_t offset);
// A file that is written anew finds no pages.
void truncate_file(int file);

}  // namespace bare
