// The dataflow graph of training with parameter servers: what the main job does, and the same with
// the layers of a network one by one.
#ifndef SLUICE_TOOLS_GRAPH_JOB_GRAPH_H_
#define SLUICE_TOOLS_GRAPH_JOB_GRAPH_H_

#include <cstdint>
#include <string>
#include <vector>

#include <sluice/graph/graph.h>

#include "tools/graph/models.h"

namespace sluice::tools::networks {

// A parameter of 32-bit floats, and the server that has it.
struct JobTensor {
  std::string name;
  std::vector<int64_t> shape;
  uint32_t server = 0;
};

struct JobShape {
  uint32_t workers = 1;
  uint32_t servers = 1;
  // Processes of one host share memory. False: each has a host of its own.
  bool one_host = true;
  // Readers that look at every byte once a step is over. They keep weights that could be written
  // in place.
  bool verify = false;
  double compute_us = 0;  // of a worker's step, beside memory
};

// What nodes do, by Node::op; edges are named after their tensor:
//   publish  "ps0/publish": next/T > weights/T, in place
//   make     "worker0/make": made/0/T, before the weights are there
//   step     "worker0/step": weights/T and made/0/T > gradients/0/T, in place
//   update   "ps0/update/T": weights/T and gradients/W/T > next/T of the next step, in place
//   verify   "ps0/verify", "worker0/verify": read what came, last
sluice::graph::Graph job_graph(const std::vector<JobTensor>& tensors, const JobShape& shape);

// The parameters of a network, the largest that is left on the server with the fewest bytes.
// `cut`: those above a server's share are cut into equal pieces first.
std::vector<JobTensor> tensors_of(const Network& network, uint32_t servers, bool cut = false);

// Each layer of each worker is a node forwards and one backwards, with its activations and errors
// for `batch` samples; gradients leave as soon as their layer has been gone back through.
sluice::graph::Graph layer_graph(const Network& network, const JobShape& shape, uint32_t batch);

}  // namespace sluice::tools::networks

#endif  // SLUICE_TOOLS_GRAPH_JOB_GRAPH_H_
