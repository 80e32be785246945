// Names for MAC addresses: what lines say, what is wrong with them, and which of several counts.
#include <catch2/catch.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include <sluice/base/mac_names.h>

namespace sluice::test {
namespace {

PeerNames of(const std::string& text) {
  PeerNames names;
  add_peers(text, "peers", names);
  return names;
}

std::string found(const PeerNames& names, const std::string& interface, const std::string& name) {
  auto address = find_peer(names, interface, name);
  return address.ok() ? mac_text(*address) : std::string(address.status().detail());
}

// The only problem of a text.
std::string problem(const std::string& text) {
  PeerNames names = of(text);
  INFO(text);
  REQUIRE(names.problems.size() == 1);
  return names.problems[0];
}

TEST_CASE("a line gives an address one or more names, as /etc/hosts does", "[peers]") {
  PeerNames names =
      of("# who is where\n"
         "02:00:00:00:00:0b worker3 w3\n"
         "\n"
         "  2:0:0:AB:c:D\tRack-2.node_7   # zeros left out, as in ethers(5)\r\n"
         "02:00:00:00:00:0c last");
  CHECK(names.problems.empty());
  CHECK(names.peers.size() == 4);
  CHECK(found(names, "eth0", "worker3") == "02:00:00:00:00:0b");
  CHECK(found(names, "eth1", "W3") == "02:00:00:00:00:0b");
  CHECK(found(names, "eth0", "rack-2.NODE_7") == "02:00:00:ab:0c:0d");
  CHECK(found(names, "eth0", "last") == "02:00:00:00:00:0c");
  CHECK(names.peers[2].line == 4);
}

TEST_CASE("an address may be for one interface only, which then comes first", "[peers]") {
  PeerNames names =
      of("02:00:00:00:00:01 node\neth1/02:00:00:00:00:02 node\neth2/02:00:00:00:00:03 only");
  CHECK(names.problems.empty());
  CHECK(found(names, "eth0", "node") == "02:00:00:00:00:01");
  CHECK(found(names, "eth1", "node") == "02:00:00:00:00:02");
  CHECK(found(names, "eth2", "only") == "02:00:00:00:00:03");
  CHECK(found(names, "eth0", "only").find("no peer of eth0 is called 'only' in peers") !=
        std::string::npos);
}

TEST_CASE("lines with errors are passed over and named with file and line", "[peers]") {
  CHECK(problem("\n02:00:00:00:00 a") ==
        "peers:2: '02:00:00:00:00' is no MAC address, as 02:00:00:00:00:0b is");
  for (const char* address : {"02:00:00:00:00:0b:01", "02:00:00:00:00:0g", "02:00:00:00:00:",
                              ":::::", "020:0:0:0:0:1", "worker3", "02-00-00-00-00-0b", "eth0/"}) {
    CHECK(problem(std::string(address) + " a").find("is no MAC address") != std::string::npos);
  }
  CHECK(problem("ff:ff:ff:ff:ff:ff all").find("the address of a group") != std::string::npos);
  CHECK(problem("02:00:00:00:00:0b  # nothing") == "peers:1: no name after the address");
  CHECK(problem("02:00:00:00:00:0b a b/c").find("'b/c' is no name") != std::string::npos);
  CHECK(problem("02:00:00:00:00:0b " + std::string(65, 'n')).find("1 to 64 letters") !=
        std::string::npos);
  CHECK(problem("an-interface-with-a-name/02:00:00:00:00:0b a").find("is no interface's name") !=
        std::string::npos);
  CHECK(problem("02:00:00:00:00:0b a\x1b[2J").find('\x1b') == std::string::npos);
  CHECK(problem(std::string((1 << 20) + 1, 'x')).find("more than a MiB") != std::string::npos);
  PeerNames names = of("nonsense\n02:00:00:00:00:0b good\n");
  CHECK(found(names, "eth0", "good") == "02:00:00:00:00:0b");
  std::string why = found(names, "eth0", "goood");
  CHECK(why.find("peers:1: 'nonsense' is no MAC address") != std::string::npos);
  CHECK(why.find("add a line such as '02:00:00:00:00:0b goood'") != std::string::npos);
}

TEST_CASE(
    "two addresses for a name in one file are refused with both lines; another file's later ones "
    "do not count",
    "[peers]") {
  PeerNames names = of("02:00:00:00:00:01 node\n02:00:00:00:00:01 NODE\n");
  CHECK(found(names, "eth0", "node") == "02:00:00:00:00:01");
  add_peers("02:00:00:00:00:09 node other\n02:00:00:00:00:08 other", "ethers", names);
  CHECK(found(names, "eth0", "node") == "02:00:00:00:00:01");
  std::string why = found(names, "eth0", "other");
  CHECK(why.find("02:00:00:00:00:09 in ethers:1 and 02:00:00:00:00:08 in ethers:2") !=
        std::string::npos);
}

TEST_CASE("files without bound cost a bounded amount", "[peers]") {
  std::string many;
  for (int i = 0; i < 40'000; ++i) many += "2:0:0:0:0:1 a b\n";
  PeerNames names = of(many);
  CHECK(names.peers.size() == 65'536);
  CHECK(names.problems.size() == 32);
}

TEST_CASE("the file that SLUICE_PEERS names is read, and must be there", "[peers]") {
  const char* folder = std::getenv("TEST_TMPDIR");
  std::string path =
      std::string(folder != nullptr ? folder : "/tmp") + "/peers-" + std::to_string(::getpid());
  ::setenv("SLUICE_PEERS", path.c_str(), 1);
  PeerNames missing = read_peers();
  REQUIRE(!missing.problems.empty());
  CHECK(missing.problems[0] == path + ": cannot be read: No such file or directory");
  std::FILE* file = std::fopen(path.c_str(), "w");
  REQUIRE(file != nullptr);
  std::fputs("02:00:00:00:00:0b worker3\n", file);
  std::fclose(file);
  auto by_name = mac_at("eth0", "worker3"), by_mac = mac_at("eth0", "02:00:00:00:00:0b");
  CHECK(::unlink(path.c_str()) == 0);
  ::unsetenv("SLUICE_PEERS");
  REQUIRE(by_name.ok());
  REQUIRE(by_mac.ok());
  CHECK(*by_name == *by_mac);
  CHECK(mac_at("eth0", "02:00").code() == Code::kInvalidArgument);
}

}  // namespace
}  // namespace sluice::test
