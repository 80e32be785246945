#include "tests/collective/ranks.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

#include <sluice/base/descriptor.h>
#include <sluice/select/open.h>

#include "tests/support/fresh_name.h"

namespace sluice::test {

const std::string& collective_path() {
  static const std::string path = [] {
    const char* chosen = std::getenv("SLUICE_COLLECTIVE_PATH");
    std::string text = chosen != nullptr ? chosen : "";
    if (text != "loopback" && text != "shm" && text != "tcp") {
      std::fprintf(stderr, "SLUICE_COLLECTIVE_PATH='%s': set loopback, shm or tcp\n", text.c_str());
      std::exit(2);
    }
    return text;
  }();
  return path;
}

namespace {
// Ports that nobody has. All are held until the last one is chosen: one that is free again may be
// given twice.
std::vector<int> free_ports(int count) {
  std::vector<Descriptor> held;
  std::vector<int> ports;
  for (int i = 0; i < count; ++i) {
    Descriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (!fd || ::bind(fd.value(), generic, length) != 0 ||
        ::getsockname(fd.value(), generic, &length) != 0) {
      std::perror("free_ports");
      std::exit(2);
    }
    ports.push_back(ntohs(address.sin_port));
    held.push_back(std::move(fd));
  }
  return ports;
}
}  // namespace

std::vector<std::string> fresh_addresses(int size) {
  std::vector<std::string> addresses;
  if (collective_path() == "tcp") {
    for (int port : free_ports(size))
      addresses.push_back("tcp://127.0.0.1:" + std::to_string(port));
    return addresses;
  }
  for (int rank = 0; rank < size; ++rank)
    addresses.push_back(fresh_name(collective_path() + ":collective"));
  return addresses;
}

Instant soon() { return after(now(), std::chrono::seconds(60)); }

std::vector<std::string> run_ranks(int size, const std::function<void(Rank&)>& work,
                                   const RunOptions& options) {
  const std::vector<std::string> addresses = fresh_addresses(size);
  std::vector<std::vector<std::string>> failures(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<std::string>& mine = failures[static_cast<size_t>(rank)];
      auto context = open_context();
      if (!context.ok()) return mine.push_back(context.status().to_string());
      GroupOptions group_options{.rank = rank, .size = size};
      if (options.bootstrap) {
        group_options.bootstrap = addresses[0];
        group_options.listen = addresses[static_cast<size_t>(rank)];
      } else {
        group_options.addresses = addresses;
      }
      auto group = Group::open(**context, group_options, soon());
      if (!group.ok()) return mine.push_back(group.status().to_string());
      Rank self(**context, **group, mine);
      work(self);
      if (options.closes) self.ok((*group)->close(soon()), "close");
    });
  }
  std::vector<std::string> all;
  for (int rank = 0; rank < size; ++rank) {
    threads[static_cast<size_t>(rank)].join();
    for (std::string& failure : failures[static_cast<size_t>(rank)])
      all.push_back(std::move(failure));
  }
  return all;
}

std::string joined(const std::vector<std::string>& failures) {
  std::string text;
  for (const std::string& failure : failures) text += failure + "\n";
  return text;
}

}  // namespace sluice::test
