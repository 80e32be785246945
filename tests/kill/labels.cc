#include "tests/kill/labels.h"

namespace sluice::test {
namespace {

constexpr Reached kNo = Reached::kNowhere, kS = Reached::kServer, kC = Reached::kClient,
                  kBoth = Reached::kEither;

constexpr Label kLabels[] = {
    // name, shm, tcp, sluice, rdma, l2, kmod, busy
    {"session.want", kBoth, kBoth, kNo, kBoth, kBoth, kBoth, false},
    {"session.supply", kBoth, kBoth, kNo, kBoth, kBoth, kBoth, false},
    {"session.offered", kBoth, kBoth, kNo, kBoth, kBoth, kBoth, true},
    {"session.done", kBoth, kBoth, kNo, kBoth, kBoth, kBoth, true},
    {"session.placed", kBoth, kBoth, kNo, kBoth, kBoth, kBoth, false},
    {"session.close", kBoth, kBoth, kNo, kBoth, kBoth, kBoth, false},
    {"session.bye", kBoth, kBoth, kNo, kBoth, kBoth, kBoth, false},
    // Only shm gives views, which go home again; only tcp pushes bytes.
    {"session.view", kBoth, kNo, kNo, kNo, kNo, kNo, false},
    {"session.release", kBoth, kNo, kNo, kNo, kNo, kNo, false},
    {"session.pull", kNo, kBoth, kNo, kBoth, kBoth, kBoth, false},
    {"session.pushed", kNo, kBoth, kNo, kNo, kNo, kNo, true},

    {"session.posted", kNo, kNo, kNo, kBoth, kBoth, kBoth, true},

    {"verbs.request", kNo, kNo, kNo, kC, kNo, kNo, false},
    {"verbs.respond", kNo, kNo, kNo, kS, kNo, kNo, false},
    {"verbs.establish", kNo, kNo, kNo, kC, kNo, kNo, false},

    {"shm.connected", kC, kNo, kC, kNo, kNo, kNo, false},
    {"shm.hello_sent", kC, kNo, kC, kNo, kNo, kNo, false},
    {"shm.hello_received", kC, kNo, kC, kNo, kNo, kNo, false},
    {"shm.accepted", kS, kNo, kS, kNo, kNo, kNo, false},
    {"shm.sent", kBoth, kNo, kNo, kNo, kNo, kNo, true},
    {"shm.announce", kBoth, kNo, kNo, kNo, kNo, kNo, false},
    {"shm.map_extent", kBoth, kNo, kNo, kNo, kNo, kNo, false},
    {"shm.close", kBoth, kNo, kNo, kNo, kNo, kNo, false},

    {"tcp.connected", kNo, kC, kC, kNo, kNo, kNo, false},
    {"tcp.hello_sent", kNo, kC, kC, kNo, kNo, kNo, false},
    {"tcp.hello_received", kNo, kBoth, kBoth, kNo, kNo, kNo, false},
    {"tcp.hello_answered", kNo, kS, kS, kNo, kNo, kNo, false},
    {"tcp.chosen", kNo, kC, kC, kNo, kNo, kNo, false},
    {"tcp.choice_received", kNo, kS, kS, kNo, kNo, kNo, false},
    {"tcp.data_partly_sent", kNo, kBoth, kNo, kNo, kNo, kNo, false},
    {"tcp.data_partly_placed", kNo, kBoth, kNo, kNo, kNo, kNo, false},
    {"tcp.bye_sent", kNo, kBoth, kNo, kNo, kNo, kNo, false},
    {"tcp.header_partly_sent", kNo, kNo, kNo, kNo, kNo, kNo, false,
     "the kernel takes part of a header only when the socket's buffer ends just there, which no "
     "process can arrange "
     "for another; //tests/tcp:link_send_test writes messages of every size in parts"},

    {"l2.hello", kNo, kNo, kNo, kNo, kC, kNo, false},
    {"l2.accepted", kNo, kNo, kNo, kNo, kS, kNo, false},
    {"l2.answered", kNo, kNo, kNo, kNo, kBoth, kNo, false},
    {"l2.greeted", kNo, kNo, kNo, kNo, kBoth, kNo, false},
    {"l2.window_open", kNo, kNo, kNo, kNo, kBoth, kNo, false},
    {"l2.window_close", kNo, kNo, kNo, kNo, kBoth, kNo, false},
    {"l2.pull", kNo, kNo, kNo, kNo, kBoth, kNo, false},
    {"l2.push", kNo, kNo, kNo, kNo, kBoth, kNo, false},
    {"l2.sent", kNo, kNo, kNo, kNo, kBoth, kNo, true},
    {"l2.partly_placed", kNo, kNo, kNo, kNo, kBoth, kNo, true},
    {"l2.moved", kNo, kNo, kNo, kNo, kBoth, kNo, false},
    {"l2.bye", kNo, kNo, kNo, kNo, kBoth, kNo, false},

    {"kmod.hello", kNo, kNo, kNo, kNo, kNo, kC, false},
    {"kmod.answered", kNo, kNo, kNo, kNo, kNo, kS, false},
    {"kmod.window_open", kNo, kNo, kNo, kNo, kNo, kBoth, false},
    {"kmod.window_close", kNo, kNo, kNo, kNo, kNo, kBoth, false},
    {"kmod.pull", kNo, kNo, kNo, kNo, kNo, kBoth, false},
    {"kmod.push", kNo, kNo, kNo, kNo, kNo, kBoth, false},
    // An end that has been told of the other's BYE lets go at once. Whether it comes here, by the
    // kernel's word that nobody is there
    // any more, is chance, so the survivor cuts the connection (KillCase::cut).
    {"kmod.stopped", kNo, kNo, kNo, kNo, kNo, kBoth, false},

    {"select.greeted", kNo, kNo, kC, kNo, kNo, kNo, false},
    {"select.met", kNo, kNo, kC, kNo, kNo, kNo, false},
};

}  // namespace

std::span<const Label> labels() { return kLabels; }

}  // namespace sluice::test
