// Addresses as users write them, right and wrong.
#include <catch2/catch.hpp>

#include <sluice/api/address.h>

#include "tests/wire/address_check.h"

namespace sluice::wire::test {
namespace {

void parses(const std::string& text, Scheme scheme, const std::string& host, int port,
            const std::string& name) {
  INFO(text.substr(0, 80));
  auto a = Address::parse(text);
  REQUIRE(a.ok());
  CHECK(a->scheme == scheme);
  CHECK(a->host == host);
  CHECK(a->port == port);
  CHECK(a->name == name);
  CHECK(address_problem(text) == "");
}

void refused(const std::string& text, const std::string& why) {
  auto a = Address::parse(text);
  INFO(text.substr(0, 80));
  REQUIRE_FALSE(a.ok());
  CHECK_THAT(std::string(a.status().detail()), Catch::Contains(why));
  CHECK(address_problem(text) == "");
}

TEST_CASE("addresses of every scheme parse", "[address]") {
  parses("sluice://host:7000", Scheme::kSluice, "host", 7000, "");
  parses("tcp://127.0.0.1:0", Scheme::kTcp, "127.0.0.1", 0, "");
  parses("tcp://[::1]:65535", Scheme::kTcp, "::1", 65535, "");
  parses("tcp://[fe80::1%eth0]:1", Scheme::kTcp, "fe80::1%eth0", 1, "");
  parses("shm:train.job-1_x", Scheme::kShm, "", 0, "train.job-1_x");
  parses("loopback:a", Scheme::kLoopback, "", 0, "a");
  parses("shm:" + std::string(64, 'n'), Scheme::kShm, "", 0, std::string(64, 'n'));
  parses("l2://eth0/02:00:00:00:00:0b:7", Scheme::kL2, "eth0", 7, "02:00:00:00:00:0b");
  parses("l2://br-1.20/02:00:00:AB:cD:0b:65535", Scheme::kL2, "br-1.20", 65535,
         "02:00:00:ab:cd:0b");
  parses("l2://eth0/worker3:7000", Scheme::kL2, "eth0", 7000, "worker3");
  parses("l2://eth0/Rack-2.node_7:0", Scheme::kL2, "eth0", 0, "Rack-2.node_7");
  parses("l2://eth0/" + std::string(64, 'n') + ":7", Scheme::kL2, "eth0", 7, std::string(64, 'n'));
  // A name's port may be found with it; an address has one.
  parses("l2://eth0/worker3", Scheme::kL2, "eth0", 0, "worker3");
  parses("l2://eth0:7", Scheme::kL2, "eth0", 7, "");
  parses("l2://eth0/:0", Scheme::kL2, "eth0", 0, "");
  parses("l2://udp/10.0.0.1:7000", Scheme::kL2, "udp", 7000, "10.0.0.1");
  parses("l2://udp/[fd00::1]:7000", Scheme::kL2, "udp", 7000, "fd00::1");
  parses("l2://udp/[fe80::1%eth0]:7000", Scheme::kL2, "udp", 7000, "fe80::1%eth0");
  parses("l2://udp/node-1.cluster:0", Scheme::kL2, "udp", 0, "node-1.cluster");
  parses("l2://udp:7000", Scheme::kL2, "udp", 7000, "");
  parses("l2://udp/:0", Scheme::kL2, "udp", 0, "");
  parses("l2://udp0/02:00:00:00:00:0b:7", Scheme::kL2, "udp0", 7, "02:00:00:00:00:0b");
  parses("l2://xdp/eth0/02:00:00:00:00:0b:7", Scheme::kL2, "eth0", 7, "02:00:00:00:00:0b");
  parses("l2://xdp/eth0/worker3:7000", Scheme::kL2, "eth0", 7000, "worker3");
  parses("l2://xdp/eth0/worker3", Scheme::kL2, "eth0", 0, "worker3");
  parses("l2://xdp/eth0:7", Scheme::kL2, "eth0", 7, "");
  parses("l2://xdp0/02:00:00:00:00:0b:7", Scheme::kL2, "xdp0", 7, "02:00:00:00:00:0b");
  CHECK(Address::parse("l2://xdp/eth0:7")->xdp);
  CHECK_FALSE(Address::parse("l2://xdp/eth0:7")->is_udp());
  CHECK_FALSE(Address::parse("l2://xdp0:7")->xdp);
  CHECK_FALSE(Address::parse("kmod://xdp/02:00:00:00:00:0b:7")->xdp);
  parses("kmod://eth0/02:00:00:00:00:0b:7", Scheme::kKmod, "eth0", 7, "02:00:00:00:00:0b");
  parses("kmod://eth0/worker3:7000", Scheme::kKmod, "eth0", 7000, "worker3");
  parses("kmod://eth0:0", Scheme::kKmod, "eth0", 0, "");
  parses("kmod://udp/02:00:00:00:00:0b:7", Scheme::kKmod, "udp", 7,
         "02:00:00:00:00:0b");  // an interface's name like others
  CHECK(Address::parse("kmod://eth0/:7")->to_string() == "kmod://eth0:7");
  CHECK(Address::parse("l2://udp/[fd00::1]:7000")->to_string() == "l2://udp/[fd00::1]:7000");
  CHECK(Address::parse("l2://udp/:7")->to_string() == "l2://udp:7");
  CHECK(Address::parse("l2://xdp/eth0/:7")->to_string() == "l2://xdp/eth0:7");
  CHECK(Address::parse("l2://xdp/eth0/worker3:7")->to_string() == "l2://xdp/eth0/worker3:7");
  CHECK(Address::parse("l2://eth0/:7")->to_string() == "l2://eth0:7");
  CHECK(Address::parse("tcp://[::1]:7000")->to_string() == "tcp://[::1]:7000");
}

TEST_CASE("addresses that do not parse say why, quote the text and show examples", "[address]") {
  refused("", "unknown scheme");
  refused("host:7000", "unknown scheme");
  refused("rdma:", "unknown scheme");
  refused("SLUICE://host:1", "unknown scheme");
  refused("tcp://", "':port' is missing");
  refused("tcp://host", "':port' is missing");
  refused("tcp://:7000", "the host is empty");
  refused("tcp://host:", "the port is not a number");
  refused("tcp://host:65536", "the port is not a number from 0 to 65535");
  refused("tcp://host:99999999999999999999", "the port is not a number");
  refused("tcp://host:-1", "the port is not a number");
  refused("tcp://host:+1", "the port is not a number");
  refused("tcp://host:7000/", "the port is not a number");
  refused("tcp://host: 7000", "the port is not a number");
  refused("l2://", "':port' is missing");
  refused("kmod://eth0", "':port' is missing");
  refused("kmod://udp/[::1]:7", "MAC address");
  refused("l2://eth0", "':port' is missing");
  refused("l2://eth0/02:00:00:00:00:0b", "MAC address");  // the last pair is taken for the port
  refused("l2://eth0/02:00:00:00:00:7", "MAC address");
  refused("l2://eth0/02-00-00-00-00-0b:7", "MAC address");
  refused("l2://eth0/" + std::string(65, 'n') + ":7", "longer than 64");
  refused("l2://eth0/" + std::string(65, 'n'), "longer than 64");
  refused("l2://eth0/", "':port' is missing");
  refused("l2://eth0/02-00-00-00-00-0b", "':port' is missing");
  refused("l2://eth0/worker 3:7", "a peer's name has");
  refused("l2://eth0/a/b:7", "a peer's name has");
  refused("l2://eth0/02:00:00:00:00:0g:7", "MAC address");
  refused("l2:///02:00:00:00:00:0b:7", "the host is empty");
  refused("l2://[::1]:7", "no interface has");
  refused("l2://eth0/02:00:00:00:00:0b:70000", "the port is not a number");
  refused("l2://xdp:7", "takes an interface");
  refused("l2://xdp/", "':port' is missing");
  refused("l2://xdp/udp/10.0.0.1:7", "none can be called udp");
  refused("l2://xdp/xdp/eth0:7", "none can be called udp or xdp");
  refused("l2://xdp/udp:7", "none can be called udp");
  refused("l2://xdp/eth0/a/b:7", "a peer's name has");
  refused("l2://xdp/[::1]:7", "no interface has");
  refused("l2://udp", "':port' is missing");
  refused("l2://udp/10.0.0.1", "':port' is missing");
  refused("l2://udp:", "the port is not a number");
  refused("l2://udp/:70000", "the port is not a number");
  refused("l2://udp/::1:7000", "an IPv6 address needs brackets");
  refused("l2://udp/[]:7000", "the host is empty");
  refused("l2://udp/02:00:00:00:00:0b:7", "an IPv6 address needs brackets");
  refused("l2://udp/a/b:7", "no host name has");
  refused("tcp://::1:7000", "an IPv6 address needs brackets");
  refused("tcp://[::1:7000", "']' is missing");
  refused("tcp://[::1]7000", "':port' is missing");
  refused("tcp://[]:7000", "the host is empty");
  refused("tcp://ho st:7000", "no host name has");
  refused("tcp://user@host:7000", "no host name has");
  refused("tcp://" + std::string(256, 'h') + ":1", "longer than 255");
  refused("shm:", "the name is empty");
  refused("shm:" + std::string(65, 'n'), "longer than 64");
  refused("shm:../etc", "letters, digits");
  refused("shm:a b", "letters, digits");
}

TEST_CASE("hostile text is not repeated as it is", "[address]") {
  refused(std::string("shm:a\0b", 7), "shm:a\\x00b");
  refused("tcp://h\n:1", "tcp://h\\x0a:1");
  refused("\x1b[31mred", "\\x1b[31mred");
  refused("caf\xc3\xa9:1", "caf\\xc3\\xa9:1");
  refused(std::string(1 << 20, '\x01'), "unknown scheme");
}

}  // namespace
}  // namespace sluice::wire::test
