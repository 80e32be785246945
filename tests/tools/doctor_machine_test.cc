// What `sluice doctor` says of facts that a test cannot bring about on the machine it runs on.
#include <unistd.h>

#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>
#include <string>

#include "tools/doctor/container_checks.h"
#include "tools/doctor/machine_checks.h"

namespace sluice::tools {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

// A folder with the files of proc and sys that are asked for.
class Root {
 public:
  Root() {
    std::string name = (std::filesystem::temp_directory_path() / "doctor.XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~Root() { std::filesystem::remove_all(path_); }
  void write(const std::string& file, const std::string& text) {
    std::filesystem::create_directories((path_ / file).parent_path());
    std::ofstream(path_ / file) << text;
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("the smallest limit on the way up counts", "[doctor]") {
  Root root;
  root.write("proc/self/cgroup", "1:name=systemd:/other\n0::/a/b\n");
  root.write("sys/fs/cgroup/a/memory.max", "4294967296\n");
  root.write("sys/fs/cgroup/a/b/memory.max", "max\n");
  CHECK(memory_ceiling(root.path()) == 4 * kGiB);
  root.write("sys/fs/cgroup/a/b/memory.max", "1073741824\n");
  CHECK(memory_ceiling(root.path()) == kGiB);
  // A container sees its own group as the top.
  root.write("proc/self/cgroup", "0::/\n");
  CHECK(memory_ceiling(root.path()) == std::nullopt);
  root.write("sys/fs/cgroup/memory.max", "536870912\n");
  CHECK(memory_ceiling(root.path()) == kGiB / 2);
}

TEST_CASE("without control groups there is no limit", "[doctor]") {
  CHECK(memory_ceiling(Root().path()) == std::nullopt);
}

TEST_CASE("a container with less than the arena may take is a problem", "[doctor]") {
  const Finding found = check_memory(8 * kGiB, 16 * kGiB, 4 * kGiB);
  CHECK(found.severity == Severity::kProblem);
  CHECK(has(found.text, "this control group has 4.0 GiB"));
  CHECK(has(found.remedy, "SLUICE_ARENA_LIMIT=2048M"));
  CHECK(check_memory(8 * kGiB, 16 * kGiB, std::nullopt).severity == Severity::kOk);
  CHECK(check_memory(3 * kGiB, 16 * kGiB, 4 * kGiB).severity == Severity::kOk);
}

TEST_CASE("a slow clock and a busy machine are notes", "[doctor]") {
  CHECK(check_clock("tsc").severity == Severity::kOk);
  CHECK(check_clock("").severity == Severity::kOk);
  CHECK(check_clock("acpi_pm").severity == Severity::kNote);
  CHECK(check_load(1.5, 2, 0).severity == Severity::kOk);
  CHECK(check_load(2.5, 2, 0).severity == Severity::kNote);
  CHECK(check_load(0, 2, 0.2).severity == Severity::kNote);
}

TEST_CASE("a container is told, with the rights that it lacks", "[doctor]") {
  Root root;
  root.write("proc/self/status", "Name:\tsluice\nCapEff:\t00000000a80425fb\nSeccomp:\t2\n");
  CHECK(check_container(root.path()).severity == Severity::kOk);  // not a container
  root.write("run/.containerenv", "");
  const Finding usual = check_container(root.path());  // docker's and podman's usual rights
  CHECK(usual.severity == Severity::kNote);
  CHECK(has(usual.text, "podman"));
  CHECK(has(usual.text, "seccomp filters system calls"));
  CHECK(has(usual.text, "CAP_IPC_LOCK"));
  CHECK_FALSE(has(usual.text, "CAP_NET_RAW"));  // 2000 of the mask above
  root.write("proc/self/status", "CapEff:\t0000000000000000\nSeccomp:\t0\n");
  const Finding bare = check_container(root.path());
  CHECK(has(bare.text, "no CAP_NET_RAW"));
  CHECK(has(bare.remedy, "--cap-add NET_RAW"));
  CHECK_FALSE(has(bare.text, "seccomp"));
  root.write("proc/self/status", "CapEff:\t000001ffffffffff\nSeccomp:\t0\n");
  CHECK(check_container(root.path()).severity == Severity::kOk);
  Root docker, pod, systemd;
  docker.write(".dockerenv", "");
  pod.write("run/secrets/kubernetes.io/serviceaccount/namespace", "default");
  systemd.write("run/systemd/container", "systemd-nspawn\n");
  CHECK(has(check_container(docker.path()).text, "docker"));
  CHECK(has(check_container(pod.path()).text, "a pod"));
  CHECK(has(check_container(systemd.path()).text, "systemd-nspawn"));
}

TEST_CASE("Yama forbids nothing that is used, and the check says so", "[doctor]") {
  Root root;
  CHECK(check_yama(root.path()).text == "not in this kernel");
  root.write("proc/sys/kernel/yama/ptrace_scope", "3\n");
  CHECK(check_yama(root.path()).severity == Severity::kOk);
  CHECK(has(check_yama(root.path()).text, "ptrace_scope is 3"));
}

TEST_CASE("limits of files and addresses below an arena are problems", "[doctor]") {
  CHECK(check_file_size(~uint64_t{0}, kGiB).text == "unlimited");
  CHECK(check_file_size(kGiB, kGiB).severity == Severity::kOk);
  CHECK(check_file_size(kGiB - 1, kGiB).severity == Severity::kProblem);
  CHECK(check_address_space(8 * kGiB, 4 * kGiB).severity == Severity::kOk);
  const Finding small = check_address_space(4 * kGiB, 8 * kGiB);
  CHECK(small.severity == Severity::kProblem);
  CHECK(has(small.remedy, "SLUICE_ARENA_LIMIT=1024M"));
  CHECK(check_dev_shm(0, 0).severity == Severity::kOk);
  CHECK(check_dev_shm(8 * kGiB, 4 * kGiB).severity == Severity::kOk);
  CHECK(check_dev_shm(8 * kGiB, 1 << 20).severity == Severity::kNote);  // full
  CHECK(has(check_dev_shm(64 << 20, 63 << 20).remedy, "--shm-size"));   // docker's usual size
}

TEST_CASE("an address belongs to one interface", "[doctor]") {
  CHECK(check_addresses({{"eth0", "192.0.2.1"}, {"eth0", "192.0.2.1"}, {"eth1", "192.0.2.2"}})
            .severity == Severity::kOk);
  CHECK(check_addresses({{"eth0", "192.0.2.1"}, {"eth1", "192.0.2.1"}}).severity ==
        Severity::kProblem);
}

TEST_CASE("a variable that nothing reads is named with the nearest", "[doctor]") {
  CHECK(check_variables({{"HOME", "/"}, {"SLUICE_LOG", "info"}, {"SLUICE_PEERS", "/x"}}).text ==
        "2 of sluice's are set");
  const Finding found = check_variables({{"SLUICE_LOGS", "info"}});
  CHECK(found.severity == Severity::kProblem);
  CHECK(has(found.remedy, "SLUICE_LOG?"));
}

TEST_CASE("a value that means nothing is a problem", "[doctor]") {
  const Finding found = check_variables({{"SLUICE_ETHERNET", "yes"}});
  CHECK(found.severity == Severity::kProblem);
  CHECK(found.text == "SLUICE_ETHERNET=yes is as if it were not set");
  CHECK(has(found.remedy, "set it to 1"));
  CHECK(check_variables({{"SLUICE_ETHERNET", "1"}, {"SLUICE_RDMA_QUEUE_PAIRS", "8"}}).severity ==
        Severity::kOk);
  CHECK(check_variables({{"SLUICE_RDMA_QUEUE_PAIRS", "9"}}).severity == Severity::kProblem);
}

}  // namespace
}  // namespace sluice::tools
