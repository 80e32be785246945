// By which card a connection's frames leave, as the kernel's route says. Knows no link.
#ifndef SLUICE_TCP_ROUTE_H_
#define SLUICE_TCP_ROUTE_H_

namespace sluice::tcp {

// Whether the card towards the peer takes frames in several pieces (scatter-gather). For one that
// does not the kernel copies what it was lent, and seldom says so: its notifications told of 5 to
// 24 % of the calls (docs/performance.md, "MSG_ZEROCOPY"). A tunnel or bridge is asked itself, and
// not what lies below it. False also where the kernel does not answer.
bool card_takes_pieces(int fd);

}  // namespace sluice::tcp

#endif  // SLUICE_TCP_ROUTE_H_
