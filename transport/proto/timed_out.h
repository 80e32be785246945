// The texts of operations whose deadline passed: what was waited for, what came instead, and what
// to do. Pure.
#ifndef SLUICE_PROTO_TIMED_OUT_H_
#define SLUICE_PROTO_TIMED_OUT_H_

#include <sluice/base/status.h>
#include <sluice/proto/operation_table.h>
#include <sluice/proto/unexpected.h>

namespace sluice::proto {

// `unexpected`: messages that came and that no receive has taken. `silent`: the peer's kernel
// answers, and its program does not call progress().
Status timed_out(const Operation& op, UnexpectedQueue& unexpected, bool silent);

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_TIMED_OUT_H_
