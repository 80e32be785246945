// The seam for what comes between a session and its path: a recorder (recording/), and faults in
// tests (fault/).
#ifndef SLUICE_SPI_LINK_DECORATOR_H_
#define SLUICE_SPI_LINK_DECORATOR_H_

#include <memory>

#include <sluice/spi/link.h>

namespace sluice {

// Puts a link of the same kind around every new connection of a context
// (ContextCore::decorate_links).
class LinkDecorator {
 public:
  virtual std::unique_ptr<ViewLink> decorate(std::unique_ptr<ViewLink> inner) = 0;
  virtual std::unique_ptr<StreamLink> decorate(std::unique_ptr<StreamLink> inner) = 0;
  virtual std::unique_ptr<DeviceLink> decorate(std::unique_ptr<DeviceLink> inner) = 0;

 protected:
  ~LinkDecorator() = default;
};

}  // namespace sluice

#endif  // SLUICE_SPI_LINK_DECORATOR_H_
