// Scenarios of `nodes` in which a wire or a device fails. Each returns whether all was as it should
// be, and says what it saw.
#ifndef SLUICE_TESTS_VERBS_NODES_FAULTS_H_
#define SLUICE_TESTS_VERBS_NODES_FAULTS_H_

namespace sluice::nodes {

// The wire takes nothing any more, in the direction of node 2; the ports stay up.
bool cut();
// The same while nothing is outstanding here: the end that only serves must notice, too.
bool idle();
// The kernel takes the device away when this process, told, has closed it: librdmacm does so
// at its end.
bool removed();

}  // namespace sluice::nodes

#endif  // SLUICE_TESTS_VERBS_NODES_FAULTS_H_
