#include <sluice/api/path_names.h>

#include <array>

namespace sluice {
namespace {

struct SchemeName {
  std::string_view name;
  AddressForm form = AddressForm::kName;
};

// In the order of the enumerators; what is added comes behind them. Static initialisers add to
// them, so they are there before those run.
constinit std::array<std::string_view, 9 + kMostAddedPaths> paths = {
    "none", "loopback", "shm", "verbs", "module", "packet", "udp", "tcp", "xdp"};
constinit size_t paths_known = 9;
constinit std::array<SchemeName, 7 + kMostAddedPaths> schemes = {{
    {"sluice", AddressForm::kHostPort},
    {"shm", AddressForm::kName},
    {"tcp", AddressForm::kHostPort},
    {"loopback", AddressForm::kName},
    {"rdma", AddressForm::kHostPort},
    {"l2", AddressForm::kInterface},
    {"kmod", AddressForm::kInterface},
}};
constinit size_t schemes_known = 7;

}  // namespace

std::string_view to_string(Path path) {
  const auto index = static_cast<size_t>(path);
  return index < paths_known ? paths[index] : "path out of range";
}

std::string_view to_string(Scheme scheme) {
  const auto index = static_cast<size_t>(scheme);
  return index < schemes_known ? schemes[index].name : "scheme out of range";
}

AddressForm form_of(Scheme scheme) { return schemes[static_cast<size_t>(scheme)].form; }
size_t scheme_count() { return schemes_known; }

Path add_path(std::string_view name) {
  paths.at(paths_known) = name;
  return static_cast<Path>(paths_known++);
}

Scheme add_scheme(std::string_view name, AddressForm form) {
  schemes.at(schemes_known) = {name, form};
  return static_cast<Scheme>(schemes_known++);
}

}  // namespace sluice
