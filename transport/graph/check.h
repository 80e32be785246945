// Proves a plan, whoever made it. Shares no code with the pass.
#ifndef SLUICE_GRAPH_CHECK_H_
#define SLUICE_GRAPH_CHECK_H_

#include <string>

#include <sluice/graph/plan.h>

namespace sluice::graph {

// Empty if, in every run of any number of steps: each node runs once in a step and finds the
// tensors that its edges say, of that step; no tensor is overwritten while a reader is left; no
// memory is mapped that may not be; no process waits for ever. Else the first thing that is wrong.
//
// How: the instructions of all processes are carried out in the abstract, on slots that know which
// tensor lies in them. Processes have no choice in what they do next, and what one waits for stays
// true, so that the order among them changes nothing: one run stands for all. A run repeats itself
// after as many steps as slots take turns; it is followed for twice that many and two more.
// Cost: that many times the instructions and readers.
// Errors are texts, not codes: a plan that is wrong is a bug of whoever made it.
std::string problem_of(const Plan& plan);

}  // namespace sluice::graph

#endif  // SLUICE_GRAPH_CHECK_H_
