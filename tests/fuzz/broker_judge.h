// What must hold whatever a broker's client sends it, and whatever a borrower is sent in a broker's
// place. Knows no kernel's AF_XDP: the sockets that are lent are pretended.
#ifndef SLUICE_TESTS_FUZZ_BROKER_JUDGE_H_
#define SLUICE_TESTS_FUZZ_BROKER_JUDGE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace sluice::fuzz {

using Bytes = std::vector<uint8_t>;

// A client has AF_XDP at eth0 and sends these packets. Empty, or the rule that the broker broke:
// a port is one pair's, is counted, and never another user's; each packet has one answer, of the
// number that it asks for; no more sockets than twice those of an interface are lent; nothing
// is left. `served`: how many were not refused.
std::string judge_requests(std::span<const Bytes> packets, size_t* served = nullptr);

// A borrower that expects so many descriptors gets this packet with those. Empty, or the rule that
// it broke: what is accepted is well-formed, what is not ends the connection, no descriptor leaks.
std::string judge_answer(const Bytes& packet, size_t descriptors, size_t expected);

}  // namespace sluice::fuzz

#endif  // SLUICE_TESTS_FUZZ_BROKER_JUDGE_H_
