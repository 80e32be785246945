// Huge pages and memory that a cgroup limits, on a real kernel: the slower way, or a status that
// names the limit. Needs root and a machine of its own: runs in the lab's guest.
#include <sluice/allocator/arena.h>

#include <catch2/catch.hpp>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include <sluice/allocator/pending_allocation.h>

namespace sluice {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.flush();
  INFO(path << " takes no " << text);
  REQUIRE(file.good());
}

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// This process in a cgroup of its own, until the end of the test.
struct Limited {
  Limited(const std::string& control, size_t bytes) {
    const std::string own = read_file("/proc/self/cgroup");
    before = "/sys/fs/cgroup" + own.substr(own.find("0::") + 3);
    before.erase(before.find('\n'));
    write_file("/sys/fs/cgroup/cgroup.subtree_control", "+memory +hugetlb");
    std::filesystem::create_directory(kFolder);
    write_file(std::string(kFolder) + "/" + control, std::to_string(bytes));
    write_file(std::string(kFolder) + "/cgroup.procs", std::to_string(::getpid()));
  }
  ~Limited() {
    std::ofstream(before + "/cgroup.procs") << ::getpid();
    std::filesystem::remove(kFolder);
  }
  static constexpr const char* kFolder = "/sys/fs/cgroup/memory_limits_test";
  std::string before;
};

// Hugetlb pages of 2 MiB, until the end of the test.
struct HugePages {
  explicit HugePages(int count) {
    write_file("/proc/sys/vm/nr_hugepages", std::to_string(count));
    REQUIRE(std::stoi(read_file("/proc/sys/vm/nr_hugepages")) == count);
  }
  ~HugePages() { std::ofstream("/proc/sys/vm/nr_hugepages") << 0; }
};

Result<Buffer> allocate(Arena& arena, size_t bytes, bool in_steps, bool* filled) {
  if (!in_steps) return arena.allocate(bytes);
  auto pending = arena.begin_allocate(bytes);
  while (!pending->ready()) {
    pending->step();
    // What is there is kept: each page of 1 MiB begins with its number.
    const std::span<std::byte> there = pending->present();
    for (size_t at = 0; at < there.size(); at += kMiB)
      there[at] = static_cast<std::byte>(at / kMiB + 1);
    *filled = *filled || !there.empty();
  }
  return pending->take();
}

TEST_CASE("hugetlb pages are taken where there are enough") {
  HugePages pages(64);
  auto arena = std::move(Arena::create({.limit_bytes = 256 * kMiB})).value();
  Result<Buffer> buffer = arena->allocate(48 * kMiB);
  REQUIRE(buffer.ok());
  CHECK(arena->locate(buffer->data(), kMiB)->first.pages == PageKind::kHugetlb);
}

TEST_CASE("hugetlb pages that a cgroup refuses in the middle are followed by small ones") {
  for (bool in_steps : {false, true}) {
    INFO(in_steps);
    HugePages pages(64);
    Limited limited("hugetlb.2MB.max", 20 * kMiB);
    auto arena = std::move(Arena::create({.limit_bytes = 256 * kMiB})).value();
    bool filled = false;
    Result<Buffer> buffer = allocate(*arena, 48 * kMiB, in_steps, &filled);
    REQUIRE(buffer.ok());
    CHECK(filled == in_steps);
    REQUIRE(arena->locate(buffer->data(), 48 * kMiB).has_value());
    size_t wrong = 0;
    for (size_t at = 0; at < 48 * kMiB; at += kMiB) {
      const std::byte expected = in_steps ? static_cast<std::byte>(at / kMiB + 1) : std::byte{0};
      wrong += buffer->data()[at] == expected ? 0 : 1;
    }
    // The last page may have come with the last step.
    CHECK(wrong <= 2);
    const PageKind first = arena->locate(buffer->data(), kMiB)->first.pages;
    const PageKind last = arena->locate(buffer->data() + 47 * kMiB, kMiB)->first.pages;
    CHECK(first == (in_steps ? PageKind::kHugetlb : last));
    CHECK(last != PageKind::kHugetlb);
    *buffer = Buffer();
    CHECK(arena->trim() >= 48 * kMiB);
  }
}

TEST_CASE("memory beyond a cgroup's limit is a status that names it, and what fits is had") {
  Limited limited("memory.max", 200 * kMiB);
  auto arena = std::move(Arena::create({.limit_bytes = 1024 * kMiB})).value();
  for (bool in_steps : {false, true}) {
    INFO(in_steps);
    bool filled = false;
    Result<Buffer> refused = allocate(*arena, 400 * kMiB, in_steps, &filled);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.code() == Code::kNoMemory);
    CHECK(refused.status().to_string().find("memory.max") != std::string::npos);
    Result<Buffer> fits = allocate(*arena, 60 * kMiB, in_steps, &filled);
    CHECK(fits.ok());
    *fits = Buffer();
    CHECK(arena->trim() > 0);
  }
}

// Each of them would have found room enough for itself alone.
TEST_CASE("allocations in steps that are too large together are refused, not killed") {
  Limited limited("memory.max", 400 * kMiB);
  auto arena = std::move(Arena::create({.limit_bytes = 1024 * kMiB})).value();
  auto one = arena->begin_allocate(240 * kMiB), other = arena->begin_allocate(240 * kMiB);
  REQUIRE(one->step());
  REQUIRE(other->step());
  REQUIRE(one->system_bytes() + other->system_bytes() >= 480 * kMiB);
  while (!one->ready()) one->step();
  CHECK(one->take().ok());
  while (!other->ready()) other->step();
  Result<Buffer> refused = other->take();
  CHECK(refused.code() == Code::kNoMemory);
  CHECK(refused.status().to_string().find("memory.max") != std::string::npos);
}

}  // namespace
}  // namespace sluice
