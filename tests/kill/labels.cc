#include "tests/kill/labels.h"

namespace sluice::test {
namespace {

constexpr Reached kNo = Reached::kNowhere, kS = Reached::kServer, kC = Reached::kClient, kBoth = Reached::kEither;

constexpr Label kLabels[] = {
    // name, shm, tcp, sluice, busy
    {"session.want", kBoth, kBoth, kNo, false},
    {"session.supply", kBoth, kBoth, kNo, false},
    {"session.offered", kBoth, kBoth, kNo, true},
    {"session.done", kBoth, kBoth, kNo, true},
    {"session.placed", kBoth, kBoth, kNo, false},
    {"session.close", kBoth, kBoth, kNo, false},
    {"session.bye", kBoth, kBoth, kNo, false},
    // Only shm gives views, which go home again; only tcp asks for bytes and pushes them.
    {"session.view", kBoth, kNo, kNo, false},
    {"session.release", kBoth, kNo, kNo, false},
    {"session.pull", kNo, kBoth, kNo, false},
    {"session.pushed", kNo, kBoth, kNo, true},

    {"shm.connected", kC, kNo, kC, false},
    {"shm.hello_sent", kC, kNo, kC, false},
    {"shm.hello_received", kC, kNo, kC, false},
    {"shm.accepted", kS, kNo, kS, false},
    {"shm.sent", kBoth, kNo, kNo, true},
    {"shm.announce", kBoth, kNo, kNo, false},
    {"shm.map_extent", kBoth, kNo, kNo, false},
    {"shm.close", kBoth, kNo, kNo, false},

    {"tcp.connected", kNo, kC, kC, false},
    {"tcp.hello_sent", kNo, kC, kC, false},
    {"tcp.hello_received", kNo, kBoth, kBoth, false},
    {"tcp.hello_answered", kNo, kS, kS, false},
    {"tcp.chosen", kNo, kC, kC, false},
    {"tcp.choice_received", kNo, kS, kS, false},
    {"tcp.data_partly_sent", kNo, kBoth, kNo, false},
    {"tcp.data_partly_placed", kNo, kBoth, kNo, false},
    {"tcp.bye_sent", kNo, kBoth, kNo, false},
    {"tcp.header_partly_sent", kNo, kNo, kNo, false,
     "the kernel takes part of a header only when the socket's buffer ends just there, which no process can arrange "
     "for another; //transport/tcp:link_send_test writes messages of every size in parts"},

    {"select.greeted", kNo, kNo, kC, false},
    {"select.met", kNo, kNo, kC, false},
};

}  // namespace

std::span<const Label> labels() { return kLabels; }

}  // namespace sluice::test
