// attacker PATH ATTACK ADDRESS [--dose N] [--seconds N] [--source ADDRESS] | attacker --list
// (and attacker control unrelated, attacker cost tcp: for compare.py)
// Attacks one listener in one way, and says in a line of JSON what it did and what it saw. It ends
// by itself within --seconds (20), or when a line or the end comes on standard input of an attack
// that stays. Nothing of the library is linked.
// --list: path, name, path or "any" for those of every path (and ",crowd": from many addresses),
// what it does. Exit code: 0, 2 for bad usage, 3 if the attack did not take place as it should, 4
// if it got what it must not get.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <string>

#include "tests/hostile/attacker/siege.h"

namespace hostile {
namespace {

// "any" attacks run over each of these.
const char* const kChannelPaths[] = {"tcp", "shm", "udp", "l2", "kmod"};

void list() {
  for (const char* path : kChannelPaths) {
    for (const std::string& group : {std::string(path), std::string("any")}) {
      for (const Attack& attack : table()[group]) {
        printf("%s %s %s%s %s\n", path, attack.name, group.c_str(), attack.crowd ? ",crowd" : "",
               attack.what);
      }
    }
  }
}

const Attack* find(const std::string& path, const std::string& name) {
  for (const std::string& group : {path, std::string("any")}) {
    for (const Attack& attack : table()[group]) {
      if (attack.name == name) return &attack;
    }
  }
  return nullptr;
}

std::string quoted(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) {
    text += text.empty() ? "\"" : ", \"";
    for (char c : line)
      text += c == '"' || c == '\\' || static_cast<unsigned char>(c) < ' ' ? '\'' : c;
    text += '"';
  }
  return "[" + text + "]";
}

void print(const Siege& siege) {
  const Seen& s = siege.seen;
  printf(
      "{\"connections\": %llu, \"greeted\": %llu, \"turned_away\": %llu, \"cut_off\": %llu, "
      "\"messages_out\": %llu, \"bytes_out\": %llu, "
      "\"bytes_in\": %llu, \"frames_out\": %llu, \"frames_in\": %llu, \"descriptors_out\": %llu, "
      "\"hits\": %llu, \"answers\": {",
      static_cast<unsigned long long>(s.connections), static_cast<unsigned long long>(s.greeted),
      static_cast<unsigned long long>(s.turned_away), static_cast<unsigned long long>(s.cut_off),
      static_cast<unsigned long long>(s.messages_out), static_cast<unsigned long long>(s.bytes_out),
      static_cast<unsigned long long>(s.bytes_in), static_cast<unsigned long long>(s.frames_out),
      static_cast<unsigned long long>(s.frames_in),
      static_cast<unsigned long long>(s.descriptors_out), static_cast<unsigned long long>(s.hits));
  bool first = true;
  for (int type = 0; type < kTypes; ++type) {
    if (s.answers[static_cast<size_t>(type)] == 0) continue;
    printf("%s\"%s\": %llu", first ? "" : ", ", name_of(type),
           static_cast<unsigned long long>(s.answers[static_cast<size_t>(type)]));
    first = false;
  }
  printf("}, \"codes\": {");
  first = true;
  for (const auto& [code, count] : s.codes) {
    printf("%s\"%u\": %llu", first ? "" : ", ", code, static_cast<unsigned long long>(count));
    first = false;
  }
  printf("}, \"missing\": %s, \"notes\": %s}\n", quoted(siege.missing).c_str(),
         quoted(siege.notes).c_str());
  fflush(stdout);
}

int usage(const std::string& why) {
  fprintf(stderr,
          "attacker: %s; use attacker PATH ATTACK ADDRESS [--dose N] [--seconds N] [--source "
          "ADDRESS], or attacker --list\n",
          why.c_str());
  return 2;
}

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--list") {
    list();
    return 0;
  }
  if (argc < 4) return usage("three words are needed");
  Siege siege;
  siege.path = argv[1];
  siege.attack = argv[2];
  siege.address = argv[3];
  double seconds = 20;
  for (int i = 4; i + 1 < argc; i += 2) {
    std::string option = argv[i];
    if (option == "--dose")
      siege.dose = strtoull(argv[i + 1], nullptr, 10);
    else if (option == "--seconds")
      seconds = strtod(argv[i + 1], nullptr);
    else if (option == "--source")
      siege.source = argv[i + 1];
    else
      return usage("unknown option '" + option + "'");
  }
  const Attack* attack = find(siege.path, siege.attack);
  if (attack == nullptr) return usage("there is no attack '" + siege.attack + "' on " + siege.path);
  // Whatever happens: not without the process that started it, and not for ever.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::alarm(static_cast<unsigned>(seconds) + 60);
  ::signal(SIGPIPE, SIG_IGN);
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  siege.end = Siege::Clock::now() + std::chrono::milliseconds(static_cast<long>(seconds * 1000));
  attack->run(siege);
  print(siege);
  if (siege.seen.hits > 0) return 4;
  return siege.missing.empty() ? 0 : 3;
}

}  // namespace
}  // namespace hostile

int main(int argc, char** argv) { return hostile::main(argc, argv); }
