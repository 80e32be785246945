// What the machine says it has.
#include <sluice/allocator/machine_memory.h>

#include <catch2/catch.hpp>

namespace sluice {
namespace {

TEST_CASE("bytes are shown in MiB") {
  CHECK(mebibytes(0) == "0 MiB");
  CHECK(mebibytes(size_t{64} << 20) == "64 MiB");
  CHECK(mebibytes((size_t{1} << 20) + (size_t{1} << 19)) == "1.5 MiB");
}

TEST_CASE("a line of meminfo is found by its whole name") {
  constexpr const char* kText =
      "Memx9: 1 kB\nMemTotal:       24684084 kB\nMemFree:        24003380 kB\nMemAvailable:   7 "
      "kB\nHugePages_Total:   0\nBad: x kB\n";
  CHECK(meminfo_value(kText, "MemTotal") == size_t{24684084} * 1024);
  CHECK(meminfo_value(kText, "MemAvailable") == 7 * 1024);
  CHECK_FALSE(meminfo_value(kText, "Mem"));
  CHECK_FALSE(meminfo_value(kText, "Bad"));
  CHECK_FALSE(meminfo_value(kText, "Absent"));
  CHECK_FALSE(meminfo_value("", "MemTotal"));
  CHECK_FALSE(meminfo_value("MemTotal:", "MemTotal"));
  CHECK(meminfo_value("MemTotal:1 kB", "MemTotal") == 1024);
  CHECK_FALSE(meminfo_value("MemTotal: 18446744073709551615 kB", "MemTotal"));
}

TEST_CASE("the cgroups that may limit a process are its own of version 2 and those above it") {
  using Folders = std::vector<std::string>;
  CHECK(cgroup_folders("0::/\n") == Folders{"/sys/fs/cgroup/"});
  CHECK(cgroup_folders("0::/a/b.scope\n") ==
        Folders{"/sys/fs/cgroup/a/b.scope", "/sys/fs/cgroup/a", "/sys/fs/cgroup"});
  CHECK(cgroup_folders("0::/a") == Folders{"/sys/fs/cgroup/a", "/sys/fs/cgroup"});
  // Beside those of version 1, one of which looks like it.
  CHECK(cgroup_folders("12:memory:/x\n1:name=systemd:/10::/y\n0::/a\n") ==
        Folders{"/sys/fs/cgroup/a", "/sys/fs/cgroup"});
  CHECK(cgroup_folders("12:memory:/x\n10::/y\n").empty());
  CHECK(cgroup_folders("").empty());
}

TEST_CASE(
    "what a cgroup has read of files can be taken, what is in use or not written yet cannot") {
  constexpr size_t kMiB = size_t{1} << 20;
  auto statistics = [](size_t inactive, size_t active, size_t dirty, size_t writeback) {
    return "anon 1000\nfile 999999999999\nfile_dirty " + std::to_string(dirty * kMiB) +
           "\nfile_writeback " + std::to_string(writeback * kMiB) +
           "\ninactive_anon 5000\nactive_anon 5000\ninactive_file " +
           std::to_string(inactive * kMiB) + "\nactive_file " + std::to_string(active * kMiB) +
           "\nunevictable 0\n";
  };
  CHECK(cgroup_room(1000 * kMiB, 990 * kMiB, statistics(0, 0, 0, 0)) == 10 * kMiB);
  CHECK(cgroup_room(1000 * kMiB, 990 * kMiB, statistics(800, 0, 0, 0)) == 810 * kMiB);
  CHECK(cgroup_room(1000 * kMiB, 990 * kMiB, statistics(800, 100, 0, 0)) == 860 * kMiB);
  CHECK(cgroup_room(1000 * kMiB, 990 * kMiB, statistics(800, 0, 300, 200)) == 310 * kMiB);
  CHECK(cgroup_room(1000 * kMiB, 990 * kMiB, statistics(100, 0, 300, 0)) == 10 * kMiB);
  // Figures that were read one after the other need not fit each other.
  CHECK(cgroup_room(1000 * kMiB, 500 * kMiB, statistics(800, 0, 0, 0)) == 1000 * kMiB);
  CHECK(cgroup_room(1000 * kMiB, 1100 * kMiB, statistics(0, 0, 0, 0)) == 0);
  // No such file, or nothing of it.
  CHECK(cgroup_room(1000 * kMiB, 990 * kMiB, "") == 10 * kMiB);
  CHECK(cgroup_room(1000 * kMiB, 990 * kMiB, "inactive_file x\n") == 10 * kMiB);
  CHECK(cgroup_room(1000 * kMiB, 990 * kMiB, "inactive_file 1048576") == 11 * kMiB);
}

TEST_CASE("the default limit is half of the machine, or what the variable says") {
  CHECK(*default_arena_limit(nullptr, 1000) == 500);
  CHECK(*default_arena_limit("3G", 1000) == size_t{3} << 30);
  // As much as an arena can have: a machine with more is none on which nothing can be opened.
  CHECK(*default_arena_limit(nullptr, size_t{2} << 40) == size_t{1} << 40);
  CHECK(*default_arena_limit(nullptr, size_t{6} << 40) == size_t{1} << 40);
  for (const char* bad : {"", "0", "much"}) {
    Status status = default_arena_limit(bad, 1000).status();
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK(status.to_string().find("SLUICE_ARENA_LIMIT=" + std::string(bad) + " is") !=
          std::string::npos);
    CHECK(status.to_string().find("example SLUICE_ARENA_LIMIT=8G") != std::string::npos);
  }
}

TEST_CASE("the machine has memory, and no more of it is free than there is") {
  CHECK(machine_memory_bytes() > size_t{64} << 20);
  CHECK(available_memory_bytes() > 0);
  CHECK(available_memory_bytes() <= machine_memory_bytes());
}

}  // namespace
}  // namespace sluice
