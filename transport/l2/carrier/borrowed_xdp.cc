#include <sluice/l2/carrier/borrowed_xdp.h>

#include <errno.h>
#include <net/if.h>

#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include <sluice/base/clock.h>
#include <sluice/base/descriptor.h>
#include <sluice/l2/carrier/broker_wire.h>

namespace sluice::l2 {
namespace {

// A card may take seconds to make room for a program.
constexpr Duration kAttachLimit = std::chrono::seconds(10);
// Whoever opens or closes a port is kept so long, also in progress(): less than a session waits for
// its peer.
constexpr Duration kPortLimit = std::chrono::seconds(2);

constexpr const char* kOlderBroker =
    "; it is older than this program: restart it with this version and --xdp";

class BorrowedXdp final : public XdpSource {
 public:
  BorrowedXdp(BrokerConnection broker, const std::string& interface, Loan loan)
      : broker_(std::move(broker)) {
    place_.interface = interface;
    place_.queue = loan.number;
    base_ = std::move(loan.fds[0]);
    claim_ = std::move(loan.fds[1]);
    broker_.set_limit(kPortLimit);
  }
  Status begin() {
    SLUICE_RETURN_IF_ERROR(describe_xdp_place(claim_.value(), place_));
    return announce_xdp(claim_.value());
  }

  Result<XdpSockets> sockets(uint32_t number) override {
    BrokerRequest request{.what = Ask::kXdpSockets};
    request.number = number;
    SLUICE_TRY(Loan loan, ask(request, 2));
    // Frames would go to others than these.
    if (loan.number != number)
      return broker_failed(Code::kCorrupt, "the broker at " + broker_.path() +
                                               " lends sockets of another number than asked for" +
                                               kOlderBroker);
    return XdpSockets{std::move(loan.fds[0]), std::move(loan.fds[1])};
  }
  Result<PortClaim> open(uint32_t number, int, uint16_t port) override {
    BrokerRequest request{.what = Ask::kXdpOpen, .port = port};
    request.number = number;
    SLUICE_TRY(Loan loan, ask(request, 0));
    if (loan.fds[0].value() < 0) {
      // The broker has opened it.
      (void)ask({.what = Ask::kXdpClose, .port = loan.port}, 0);
      return no_descriptor(EMFILE);
    }
    return PortClaim{std::move(loan.fds[0]), loan.port};
  }
  void close(uint16_t port) override { (void)ask({.what = Ask::kXdpClose, .port = port}, 0); }
  Status look() const override {
    if (!broker_.gone()) return Status();
    return broker_failed(Code::kUnreachable,
                         "the broker at " + broker_.path() + " has gone, and the XDP program at " +
                             place_.interface +
                             " with it; start it again, close all ports of l2://xdp/ there, and "
                             "connect again");
  }

 private:
  Result<Loan> ask(const BrokerRequest& request, size_t descriptors) {
    SLUICE_RETURN_IF_ERROR(look());
    return broker_.ask(request, descriptors);
  }
  BrokerConnection broker_;
};

// The first setting that is named; empty: none is.
std::string setting_in(const std::string& text) {
  const size_t at = text.find("SLUICE_");
  if (at == std::string::npos) return {};
  return text.substr(at, text.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_", at) - at);
}

// What a borrower can do about it, where the broker's own words do not say.
Status as_borrower(const Status& refused) {
  std::string why(refused.detail());
  if (refused.code() == Code::kCorrupt)
    why += kOlderBroker;
  else if (const std::string setting = setting_in(why); !setting.empty())
    why += "; " + setting + " is the broker's: set it there and restart it";
  return broker_failed(refused.code(), std::move(why), refused.os_error());
}

}  // namespace

Result<std::unique_ptr<XdpSource>> borrow_xdp(const std::string& interface) {
  BrokerRequest request{.what = Ask::kXdp};
  if (interface.size() >= sizeof(request.interface))
    return broker_failed(Code::kInvalidArgument, "there is no interface '" + interface + "'");
  std::memcpy(request.interface, interface.data(), interface.size());
  SLUICE_TRY(BrokerConnection broker, BrokerConnection::to(interface, kAttachLimit));
  Result<Loan> loan = broker.ask(request, 2);
  if (!loan.ok()) return as_borrower(loan.status());
  auto made = std::make_unique<BorrowedXdp>(std::move(broker), interface, *std::move(loan));
  SLUICE_RETURN_IF_ERROR(made->begin());
  return std::unique_ptr<XdpSource>(std::move(made));
}

}  // namespace sluice::l2
