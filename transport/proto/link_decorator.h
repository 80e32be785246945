// The seam for what comes between a session and its path, in tests: fault/ is one.
#ifndef SLUICE_PROTO_LINK_DECORATOR_H_
#define SLUICE_PROTO_LINK_DECORATOR_H_

#include <memory>

#include <sluice/proto/link.h>

namespace sluice::proto {

// A link around another: the session's link, and the inner link's client.
class DecoratedLink : public Link, public LinkClient {
 public:
  // Called once, before anything else.
  virtual void set_client(LinkClient* session) = 0;
};

// Decorates every new connection of a context (Context::decorate_links).
class LinkDecorator {
 public:
  virtual std::unique_ptr<DecoratedLink> decorate(std::unique_ptr<Link> inner) = 0;

 protected:
  ~LinkDecorator() = default;
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_LINK_DECORATOR_H_
