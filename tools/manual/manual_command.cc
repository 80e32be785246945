#include "tools/manual/manual_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string_view>
#include <vector>

#include "tools/version.h"

namespace sluice::tools {
namespace {

// Commands whose flags a Python program reads: their help is their footer here.
bool has_help_elsewhere(const CLI::App& command) {
  return command.get_name() == "lab" || command.get_name() == "bench" ||
         command.get_name() == "system";
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// "--kernel" and so on, and "run|shell" of a first line "usage: sluice lab run|shell ...".
std::vector<std::string> words_of_help(const std::string& help) {
  std::vector<std::string> words = {"--help"};
  const auto add = [&](const std::string& word) {
    if (std::find(words.begin(), words.end(), word) == words.end()) words.push_back(word);
  };
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789-";
  for (size_t at = help.find("--"); at != std::string::npos; at = help.find("--", at + 2)) {
    const size_t end = help.find_first_not_of(kLetters, at);
    if (end - at > 2) add(help.substr(at, end - at));
  }
  std::istringstream usage(lines_of(help).front());
  for (std::string word; usage >> word;) {
    if (word.find('|') == std::string::npos) continue;
    std::istringstream verbs(word);
    for (std::string verb; std::getline(verbs, verb, '|');) add(verb);
  }
  return words;
}

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

// `system` of tune.
std::vector<const CLI::App*> parts_with_help_elsewhere(const CLI::App& command) {
  if (command.get_parent() == nullptr) return {};  // of sluice itself
  return command.get_subcommands([](const CLI::App* part) { return has_help_elsewhere(*part); });
}

std::vector<const CLI::Option*> options_of(const CLI::App& app) {
  // An option without a group is not for everybody.
  return app.get_options([](const CLI::Option* option) { return !option->get_group().empty(); });
}

std::string joined(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, " "));
}

// "--size" and "-s", with their dashes.
std::vector<std::string> flags_of(const CLI::Option& option) {
  std::vector<std::string> flags;
  for (const std::string& name : option.get_snames()) flags.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) flags.push_back("--" + name);
  return flags;
}

// What an option's check allows, as CLI11 writes it: "TEXT:{a,b}".
std::string choices_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t open = type.find('{'), close = type.rfind('}');
  if (open == std::string::npos || close == std::string::npos) return "";
  std::string words = type.substr(open + 1, close - open - 1);
  for (char& each : words) each = each == ',' ? ' ' : each;
  return words;
}

// The names of perf's tests begin their option's description.
std::string tests_of(const CLI::Option& option) {
  return option.get_name() == "TEST"
             ? option.get_description().substr(0, option.get_description().find(" ("))
             : "";
}

std::string case_of(const CLI::App& command) {
  if (has_help_elsewhere(command)) {
    return fmt::format("    {})\n      words='{}'\n      ;;\n", command.get_name(),
                       joined(words_of_help(command.get_footer())));
  }
  std::vector<std::string> flags, positional;
  std::string values;
  for (const CLI::Option* option : options_of(command)) {
    const std::vector<std::string> own = flags_of(*option);
    flags.insert(flags.end(), own.begin(), own.end());
    const std::string choices = choices_of(*option);
    if (!own.empty() && !choices.empty())
      values += fmt::format("        {}) words='{}' ;;\n", fmt::join(own, "|"), choices);
    if (own.empty() && !tests_of(*option).empty()) positional.push_back(tests_of(*option));
  }
  const std::vector<const CLI::App*> parts = parts_with_help_elsewhere(command);
  for (const CLI::App* part : parts) flags.push_back(part->get_name());
  std::string text = fmt::format("    {})\n      words='{}'\n", command.get_name(), joined(flags));
  for (const CLI::App* part : parts) {
    text += fmt::format(
        "      if (( COMP_CWORD > 2 )) && [[ ${{COMP_WORDS[2]}} == {} ]]; then words='{}'; fi\n",
        part->get_name(), joined(words_of_help(part->get_footer())));
  }
  if (!positional.empty())
    text += fmt::format("      [[ $word == -* ]] || words='{}'\n", joined(positional));
  if (!values.empty()) text += "      case $before in\n" + values + "      esac\n";
  return text + "      ;;\n";
}

// A leading dot or quote would be a request, a backslash an escape, a dash a hyphen.
std::string roff(const std::string& text) {
  std::string out;
  for (char each : text) {
    if (each == '\\')
      out += "\\e";
    else if (each == '-')
      out += "\\-";
    else if (each == '\n')
      out += ' ';
    else
      out += each;
  }
  return out.starts_with('.') || out.starts_with('\'') ? "\\&" + out : out;
}

std::string as_it_stands(const std::string& help) {
  std::string text = ".nf\n";
  for (const std::string& line : lines_of(help)) text += roff(line) + "\n";
  return text + ".fi\n";
}

std::string option_text(const CLI::Option& option) {
  std::vector<std::string> flags = flags_of(option);
  const std::string name =
      flags.empty() ? option.get_name() : fmt::format("{}", fmt::join(flags, ", "));
  const bool takes_value = !flags.empty() && option.get_items_expected_max() > 0;
  std::string value = takes_value ? option.get_type_name() : "";
  return fmt::format(".TP\n.B {}{}\n{}\n", roff(name), value.empty() ? "" : " " + roff(value),
                     roff(option.get_description()));
}

int write_pages(const CLI::App& app, const std::string& folder) {
  std::map<std::string, std::string> pages = {{"sluice.1", manual_page(app, nullptr)}};
  for (const CLI::App* command : commands_of(app))
    pages["sluice-" + command->get_name() + ".1"] = manual_page(app, command);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  for (const auto& [name, text] : pages) {
    std::ofstream file(std::filesystem::path(folder) / name);
    file << text;
    file.close();
    if (file) continue;
    fmt::print(stderr, "sluice: manual: cannot write {}/{}: {}; give another folder with --all\n",
               folder, name, std::strerror(errno));
    return 1;
  }
  return 0;
}

}  // namespace

std::string completion_script(const CLI::App& app) {
  std::vector<std::string> names;
  std::string cases;
  for (const CLI::App* command : commands_of(app)) {
    names.push_back(command->get_name());
    cases += case_of(*command);
  }
  return fmt::format(
      "# Of sluice {}. bash: source <(sluice completion bash); zsh: autoload -U +X bashcompinit && "
      "bashcompinit first.\n"
      "_sluice() {{\n"
      "  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words=\n"
      "  COMPREPLY=()\n"
      "  if (( COMP_CWORD == 1 )); then\n"
      "    words='{}'\n"
      "  else\n"
      "    case ${{COMP_WORDS[1]}} in\n"
      "{}"
      "    esac\n"
      "  fi\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
      "}}\n"
      "complete -o default -F _sluice sluice\n",
      kVersion, joined(names), cases);
}

std::string manual_page(const CLI::App& app, const CLI::App* command) {
  const CLI::App& told = command == nullptr ? app : *command;
  const std::string name = command == nullptr ? "sluice" : "sluice-" + command->get_name();
  std::string text =
      fmt::format(".TH {} 1 \"\" \"sluice {}\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n.B sluice {}\n",
                  name, kVersion, roff(name), roff(told.get_description()),
                  command == nullptr ? "COMMAND" : roff(command->get_name()));
  std::string positional, flags;
  for (const CLI::Option* option : options_of(told))
    (flags_of(*option).empty() ? positional : flags) += option_text(*option);
  text += "[options]\n";
  for (const CLI::Option* option : options_of(told)) {
    if (flags_of(*option).empty()) text += "[" + option->get_name() + "]\n";
  }
  if (command == nullptr) {
    text += ".SH COMMANDS\n";
    for (const CLI::App* each : commands_of(app))
      text +=
          fmt::format(".TP\n.B {}\n{}\n", roff(each->get_name()), roff(each->get_description()));
  }
  if (!positional.empty()) text += ".SH ARGUMENTS\n" + positional;
  text += ".SH OPTIONS\n" + flags;
  for (const CLI::App* part : parts_with_help_elsewhere(told))
    text +=
        fmt::format(".SH COMMAND {}\n{}", roff(part->get_name()), as_it_stands(part->get_footer()));
  if (has_help_elsewhere(told)) {
    text += ".PP\n" + as_it_stands(told.get_footer());
  } else if (!told.get_footer().empty()) {
    text += ".SH NOTES\n" + roff(told.get_footer()) + "\n";
  }
  return text;
}

void add_manual_commands(CLI::App& app, int& exit_code) {
  CLI::App* completion = app.add_subcommand(
      "completion",
      "print what bash or zsh needs to complete this command: source <(sluice completion bash)");
  auto shell = std::make_shared<std::string>();
  completion->add_option("SHELL", *shell, "bash or zsh")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh"}));
  completion->callback([&app, shell] {
    if (*shell == "zsh") fmt::print("autoload -U +X bashcompinit && bashcompinit\n");
    fmt::print("{}", completion_script(app));
  });

  CLI::App* manual =
      app.add_subcommand("manual", "print a man page: sluice manual perf | man -l -");
  struct Wanted {
    std::string command, folder;
  };
  auto wanted = std::make_shared<Wanted>();
  manual->add_option("COMMAND", wanted->command, "a command of sluice; without: of sluice itself");
  manual
      ->add_option("--all", wanted->folder,
                   "write every page into a folder instead: sluice.1, sluice-perf.1, ...")
      ->type_name("DIR");
  manual->callback([&app, wanted, &exit_code] {
    if (!wanted->folder.empty()) {
      exit_code = write_pages(app, wanted->folder);
      return;
    }
    const CLI::App* command = nullptr;
    for (const CLI::App* each : commands_of(app))
      command = each->get_name() == wanted->command ? each : command;
    if (command == nullptr && !wanted->command.empty())
      throw CLI::ValidationError(
          "COMMAND",
          "'" + wanted->command + "' is no command of sluice; example: sluice manual perf");
    fmt::print("{}", manual_page(app, command));
  });
}

}  // namespace sluice::tools
