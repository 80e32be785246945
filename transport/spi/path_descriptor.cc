#include <sluice/spi/path_descriptor.h>

#include <array>

namespace sluice {
namespace {

constinit std::array<const PathDescriptor*, kMostAddedPaths> added{};
constinit size_t count = 0;

}  // namespace

AddedPath::AddedPath(const PathDescriptor& descriptor) { added.at(count++) = &descriptor; }

std::span<const PathDescriptor* const> added_paths() { return std::span(added).first(count); }

}  // namespace sluice
