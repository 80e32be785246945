// The file of a broker's socket: who may open it, and what becomes of one that is there already.
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include <string>
#include <utility>

#include <sluice/base/descriptor.h>
#include <sluice/l2/carrier/broker.h>
#include <sluice/l2/carrier/broker_wire.h>

#include "tests/l2/wire.h"
#include "tests/support/audit.h"
#include "tests/support/skip.h"

namespace sluice::test {
namespace {

struct Cable {
  Cable() { REQUIRE(add_cable("left", 10, "right", 11)); }
  ~Cable() { remove_cable("left"); }
};

// A path for a broker, in a folder that goes with it.
struct Place {
  Place() { REQUIRE(::mkdtemp(folder) != nullptr); }
  ~Place() {
    ::unlink(path().c_str());
    ::rmdir(folder);
  }
  std::string path() const { return std::string(folder) + "/socket"; }
  l2::BrokerOptions options() const {
    l2::BrokerOptions options;
    options.interface = "left", options.path = path();
    return options;
  }
  struct stat file() const {
    struct stat about {};
    CHECK(::lstat(path().c_str(), &about) == 0);
    return about;
  }
  char folder[26] = "/tmp/sluice-broker-XXXXXX";
};

TEST_CASE("a broker's socket is open to every user, whatever the mask of its process",
          "[l2][broker]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  NothingLeftBehind audit;
  Cable cable;
  Place place;
  const mode_t before = ::umask(0077);
  {
    auto broker = l2::Broker::open(place.options());
    REQUIRE(broker.ok());
    CHECK((place.file().st_mode & 07777) == 0666);
    const mode_t mask = ::umask(0077);
    CHECK(mask == 0077);
  }
  ::umask(before);
  CHECK(::access(place.path().c_str(), F_OK) != 0);
}

TEST_CASE("a second broker takes the place of one that has died, and not of one that listens",
          "[l2][broker]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  NothingLeftBehind audit;
  Cable cable;
  Place place;
  const sockaddr_un address = *l2::broker_address(place.path());
  {
    Descriptor died = l2::broker_socket();
    REQUIRE(::bind(died.value(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) ==
            0);
  }
  auto first = l2::Broker::open(place.options());
  REQUIRE(first.ok());
  const ino_t inode = place.file().st_ino;
  auto second = l2::Broker::open(place.options());
  REQUIRE_FALSE(second.ok());
  CHECK(second.code() == Code::kWrongState);
  CHECK(second.status().detail().find("another broker listens there; end it") != std::string::npos);
  CHECK(place.file().st_ino == inode);
}

TEST_CASE("a file that is no socket is not replaced by a broker's", "[l2][broker]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  NothingLeftBehind audit;
  Cable cable;
  Place place;
  Descriptor file(::open(place.path().c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  REQUIRE(file);
  CHECK_FALSE(l2::Broker::open(place.options()).ok());
  CHECK(S_ISREG(place.file().st_mode));
}

TEST_CASE("the end of a broker leaves the socket that another has put at its path",
          "[l2][broker]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  NothingLeftBehind audit;
  Cable cable;
  Place place;
  {
    auto first = l2::Broker::open(place.options());
    REQUIRE(first.ok());
    REQUIRE(::unlink(place.path().c_str()) == 0);
    auto second = l2::Broker::open(place.options());
    REQUIRE(second.ok());
    const ino_t inode = place.file().st_ino;
    { l2::Broker ends = std::move(*first); }
    CHECK(place.file().st_ino == inode);
  }
  CHECK(::access(place.path().c_str(), F_OK) != 0);
}

}  // namespace
}  // namespace sluice::test
