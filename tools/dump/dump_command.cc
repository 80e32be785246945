#include "tools/dump/dump_command.h"

#include <sys/stat.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "tools/dump/dump.h"

namespace sluice::tools {
namespace {

struct Flags {
  dump::DumpOptions options;
  std::string from;
};

[[noreturn]] void refuse(const std::string& flag, const std::string& value, const std::string& why,
                         const std::string& example) {
  throw CLI::ValidationError(flag, "'" + value + "' " + why + "; example: " + example);
}

// Decimal, or hexadecimal after 0x.
uint16_t number16(const std::string& flag, const std::string& text, unsigned long least,
                  const std::string& example) {
  char* end = nullptr;
  unsigned long value =
      text.empty() || text[0] < '0' || text[0] > '9' ? 65536 : std::strtoul(text.c_str(), &end, 0);
  if (value < least || value > 65535 || (end != nullptr && *end != '\0'))
    refuse(flag, text, "is no number from " + std::to_string(least) + " to 65535", example);
  return static_cast<uint16_t>(value);
}

// A file is what is one, or looks like a path.
void sort_out(Flags& flags) {
  dump::DumpOptions& o = flags.options;
  if (!flags.from.empty() && o.file.empty() && o.interface.empty()) {
    struct stat found;
    bool path = flags.from == "-" || flags.from.find('/') != std::string::npos ||
                flags.from.find(".pcap") != std::string::npos;
    bool file = path || (::stat(flags.from.c_str(), &found) == 0 && !S_ISDIR(found.st_mode));
    (file ? o.file : o.interface) = flags.from;
  } else if (!flags.from.empty()) {
    refuse("FROM", flags.from, "is one too many beside -i or -r", "sluice dump eth0");
  }
  if (o.file.empty() && o.interface.empty())
    throw CLI::ValidationError("FROM", "nothing to read from; example: sluice dump eth0");
  if (!o.interface.empty() && o.promiscuous) return;
  if (o.promiscuous)
    refuse("--promiscuous", o.file, "is a file, and that is for interfaces",
           "sluice dump eth0 --promiscuous");
  if (!o.write_file.empty() && o.write_file == o.file)
    refuse("--write", o.write_file, "is what is read", "sluice dump a.pcap --write b.pcap");
}

}  // namespace

void add_dump_command(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<Flags>();
  dump::DumpOptions& o = flags->options;
  CLI::App* command = app.add_subcommand(
      "dump",
      "print the frames of SLP, sluice's Ethernet protocol, from an interface or a capture file");
  command->add_option("FROM", flags->from, "an interface, or a file: pcap or pcapng, - for stdin");
  auto* read = command->add_option("-r,--read", o.file, "a file, whatever it is called");
  command->add_option("-i,--interface", o.interface, "an interface")->excludes(read);
  command->add_flag("--json", o.wishes.json, "one JSON object a line");
  command->add_flag("--payload", o.wishes.payload, "print payloads, too, in hexadecimal");
  command->add_option_function<std::string>(
      "-c,--count",
      [&o](const std::string& text) {
        char* end = nullptr;
        o.wishes.count = std::strtoull(text.c_str(), &end, 10);
        if (text.empty() || text[0] < '0' || text[0] > '9' || *end != '\0' || o.wishes.count == 0)
          refuse("--count", text, "is no number above 0", "--count 100");
      },
      "stop after so many frames");
  command->add_option_function<std::string>(
      "--port",
      [&o](const std::string& text) { o.wishes.port = number16("--port", text, 0, "--port 7000"); },
      "only frames from or to this port of SLP");
  command->add_option_function<std::string>(
      "--udp-port",
      [&o](const std::string& text) {
        o.wishes.carriers.udp_port = number16("--udp-port", text, 0, "--udp-port 4799");
        o.wishes.carriers.udp = o.wishes.carriers.udp_port != 0;
      },
      "all UDP datagrams from or to this port, damaged ones, too (default: those of any port whose "
      "checksum shows that they are frames; 0: none)");
  command->add_option_function<std::string>(
      "--ethertype",
      [&o](const std::string& text) {
        o.wishes.carriers.ethertype = number16("--ethertype", text, 0x600, "--ethertype 0x88b5");
      },
      "of Ethernet frames (default 0x88b5)");
  command->add_option("-w,--write", o.write_file,
                      "write the packets that have them to this pcap file");
  command->add_flag("--promiscuous", o.promiscuous, "an interface: also frames for others");
  command->callback([flags, &exit_code] {
    sort_out(*flags);
    exit_code = dump::run_dump(flags->options);
  });
}

}  // namespace sluice::tools
