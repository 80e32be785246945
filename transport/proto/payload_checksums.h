// Whether the sessions over Ethernet, ours and the kernel module's, check payload by sums of their
// own.
#ifndef SLUICE_PROTO_PAYLOAD_CHECKSUMS_H_
#define SLUICE_PROTO_PAYLOAD_CHECKSUMS_H_

namespace sluice::proto {

// SLUICE_L2_CHECKSUMS=1 asks for payload checksums, which both ends then send. Ethernet has its
// own; these also find what a switch or a bridge damages between two cables.
bool payload_checksums_wanted();

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_PAYLOAD_CHECKSUMS_H_
