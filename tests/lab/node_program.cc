// A program for two guests: `node_program server` on node 2 answers one connection with its node's
// name, `node_program client` on node 1 expects that answer. It shows that guest_test runs what
// Bazel built, where it says, with arguments, and that both nodes reach each other. Knows nothing
// of sluice.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr uint16_t kPort = 7000;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

sockaddr_in address_of(const std::string& text) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(kPort);
  inet_pton(AF_INET, text.c_str(), &address.sin_addr);
  return address;
}

int serve() {
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = address_of(variable("SLUICE_LAB_ADDRESS"));
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      listen(listener, 1) != 0)
    return 3;
  int connection = accept(listener, nullptr, nullptr);
  std::string answer = "node " + variable("SLUICE_LAB_NODE");
  return write(connection, answer.data(), answer.size()) == static_cast<ssize_t>(answer.size()) ? 0
                                                                                                : 4;
}

// Blocks: until the server listens, for about a minute.
int ask() {
  sockaddr_in address = address_of(variable("SLUICE_LAB_PEER"));
  for (int attempt = 0; attempt < 600; ++attempt) {
    int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(connection, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
      char answer[64] = {};
      if (read(connection, answer, sizeof answer - 1) <= 0) return 5;
      std::printf("%s, of node %s, with %s required\n", answer, variable("SLUICE_LAB_NODE").c_str(),
                  variable("SLUICE_REQUIRE").c_str());
      return std::strcmp(answer, "node 2") == 0 && variable("SLUICE_LAB_NODE") == "1" &&
                     variable("SLUICE_REQUIRE") == "rdma"
                 ? 0
                 : 6;
    }
    close(connection);
    (void)poll(nullptr, 0, 100);  // no event tells of a listener on another machine
  }
  return 7;
}

}  // namespace

int main(int argc, char** argv) {
  return argc > 1 && std::strcmp(argv[1], "server") == 0 ? serve() : ask();
}
