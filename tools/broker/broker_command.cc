#include "tools/broker/broker_command.h"

#include <fmt/format.h>
#include <pwd.h>
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <sluice/l2/carrier/broker.h>

namespace sluice::tools {
namespace {

constexpr const char* kExample = "sudo sluice broker --interface eth0 --uid 1000";

struct Flags {
  l2::BrokerOptions options;
  std::vector<std::string> users;
};

uid_t user_of(const std::string& text) {
  char* end = nullptr;
  unsigned long number = std::strtoul(text.c_str(), &end, 10);
  if (!text.empty() && text[0] >= '0' && text[0] <= '9' && *end == '\0' && number < UINT32_MAX)
    return static_cast<uid_t>(number);
  const passwd* found = ::getpwnam(text.c_str());
  if (found == nullptr)
    throw CLI::ValidationError("--uid",
                               fmt::format("'{}' is no user; example: {}", text, kExample));
  return found->pw_uid;
}

// Output that nobody takes, such as a full disk's, does not end the broker.
void put(std::FILE* where, const std::string& text) {
  (void)std::fputs(text.c_str(), where);
  (void)std::fflush(where);
}

volatile sig_atomic_t stopped = 0;
void stop(int) { stopped = 1; }

int run(const l2::BrokerOptions& options) {
  auto broker = l2::Broker::open(options);
  if (!broker.ok()) {
    put(stderr, fmt::format("sluice: {}\n", broker.status().to_string()));
    return 1;
  }
  // Without SA_RESTART: a signal ends the wait, and the socket's file goes with the broker.
  struct sigaction action {};
  action.sa_handler = stop;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  put(stdout, fmt::format("lends packet sockets{} at {} by {}\n", options.xdp ? " and AF_XDP" : "",
                          options.interface, options.path));
  while (stopped == 0) {
    Status served = broker->serve_one();
    if (!served.ok()) put(stderr, fmt::format("sluice: refused: {}\n", served.to_string()));
  }
  return 0;
}

}  // namespace

void add_broker_command(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command =
      app.add_subcommand("broker",
                         "lend packet sockets for l2://, and AF_XDP for l2://xdp/, to programs "
                         "without CAP_NET_RAW");
  command->add_option("--interface", flags->options.interface, "the interface")->required();
  command->add_option(
      "--uid", flags->users,
      "a user who may borrow, by number or name; may be repeated (root always may)");
  command
      ->add_option("--sockets", flags->options.most_sockets,
                   "most that are lent at once; a port by AF_XDP counts as one (default 1024)")
      ->check(CLI::Range(1, 65536));
  command
      ->add_option("--sockets-by-user", flags->options.most_sockets_by_user,
                   "of these, most of one user (default 256)")
      ->check(CLI::Range(1, 65536));
  command->add_flag("--xdp", flags->options.xdp,
                    "lend AF_XDP as well, to one process at a time: it has a receive queue of the "
                    "interface until it ends");
  command->add_option("--path", flags->options.path,
                      "of the Unix socket (default /run/sluice-l2-INTERFACE); programs look at "
                      "SLUICE_L2_BROKER, then there");
  command->callback([flags, &exit_code] {
    for (const std::string& user : flags->users) flags->options.users.push_back(user_of(user));
    if (flags->options.path.empty())
      flags->options.path = l2::broker_path(flags->options.interface);
    exit_code = run(flags->options);
  });
}

}  // namespace sluice::tools
