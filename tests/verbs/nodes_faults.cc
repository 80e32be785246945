#include "tests/verbs/nodes_faults.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/select/open.h>

#include "tests/verbs/nodes_peer.h"

namespace sluice::nodes {

using namespace std::chrono_literals;

namespace {

// What was under way when `fault` struck ends by its deadline; afterwards a new connection
// carries data as the first one did.
bool struck(const std::string& fault, const std::string& mend) {
  auto met = meet("rdma");
  EXPECT(met.ok(), met.status().to_string());
  Peer& p = **met;
  CompletionQueue done;
  constexpr Duration kDeadline = 5s;
  Instant begun = now();
  size_t posted = 0;
  for (int i = 0; i < 3; ++i) {
    PostOptions options{.sink = &done, .deadline = in(kDeadline), .level = Level::kPlaced};
    posted += p.endpoint.read(p.key, 0, filled(*p.own, kShared, 0), options).ok();
    posted += p.endpoint.write(p.key, 0, filled(*p.own, kShared, 5).freeze(), options).ok();
    posted += p.endpoint.send(1, filled(*p.own, kLargest, 1).freeze(), options).ok();
    posted += p.endpoint.receive({.tag = 2}, filled(*p.own, kLargest, 0), options).ok();
  }
  EXPECT(posted == 12);
  for (int i = 0; i < 20; ++i) p.own->progress();
  EXPECT(std::system(fault.c_str()) == 0, fault);
  size_t ended = 0, good = 0;
  Completion completion;
  Instant limit = in(kDeadline + 5s);
  std::map<std::string, int> codes;
  while (ended < posted && now() < limit) {
    while (done.poll(completion)) {
      ++ended;
      good += completion.status.ok();
      ++codes[std::string(to_string(completion.status.code()))];
    }
    if (ended < posted) (void)p.own->wait(in(50ms));
  }
  auto took = std::chrono::duration_cast<std::chrono::milliseconds>(now() - begun).count();
  std::string seen;
  for (auto& [code, count] : codes) seen += " " + std::to_string(count) + " " + code;
  EXPECT(ended == posted, std::to_string(ended) + " of 12 ended:" + seen);
  EXPECT(good < posted, "the fault struck after everything was over");
  EXPECT(p.endpoint.counters().posted == p.endpoint.counters().completed);
  std::printf("'%s': all ended after %ld ms:%s\n", fault.c_str(), static_cast<long>(took),
              seen.c_str());
  p.endpoint = Endpoint();
  met->reset();
  if (mend.empty()) return true;
  EXPECT(std::system(mend.c_str()) == 0, mend);
  auto again = meet("rdma");
  EXPECT(again.ok(), again.status().to_string());
  Peer& q = **again;
  auto read = q.endpoint.read_and_wait(q.key, 0, filled(*q.own, 1 << 20, 0), in(30s));
  EXPECT(read.ok(), read.status().to_string());
  EXPECT(holds(read->buffer.bytes(), 77));
  EXPECT(q.endpoint.close(in(20s)).ok());
  return true;
}

}  // namespace

bool cut() {
  return struck("modprobe sch_netem; tc qdisc replace dev lab0 root netem loss 100%",
                "tc qdisc del dev lab0 root");
}

bool idle() {
  auto met = meet("rdma");
  EXPECT(met.ok(), met.status().to_string());
  Endpoint& endpoint = (*met)->endpoint;
  uint64_t asked = read_counter("verbs.probes_posted");
  (void)(*met)->own->wait_until([&] { return read_counter("verbs.probes_posted") >= asked + 3; },
                                in(20s));
  EXPECT(read_counter("verbs.probes_posted") >= asked + 3);
  EXPECT(endpoint.state() == EndpointState::kConnected);
  auto read = endpoint.read_and_wait((*met)->key, 0, filled(*(*met)->own, 4096, 0), in(20s));
  EXPECT(read.ok() && holds(read->buffer.bytes(), 77), read.status().to_string());
  EXPECT(std::system("modprobe sch_netem; tc qdisc replace dev lab0 root netem loss 100%") == 0);
  Instant begun = now();
  Status noticed =
      (*met)->own->wait_until([&] { return endpoint.state() == EndpointState::kClosed; }, in(20s));
  auto took = std::chrono::duration_cast<std::chrono::milliseconds>(now() - begun).count();
  EXPECT(std::system("tc qdisc del dev lab0 root") == 0);
  EXPECT(noticed.ok(), noticed.to_string());
  std::printf("idle: noticed after %ld ms, %lu unplugged\n", static_cast<long>(took),
              static_cast<unsigned long>(read_counter("verbs.peers_unplugged")));
  return true;
}

bool removed() { return struck("rdma link delete rxe0 &", ""); }

}  // namespace sluice::nodes
