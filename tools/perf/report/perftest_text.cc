#include "tools/perf/report/perftest_text.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "tools/perf/report/figures.h"

namespace sluice::tools {
namespace {

constexpr const char* kRule =
    "---------------------------------------------------------------------------------------\n";

std::string in_capitals(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return out;
}

void column_heads(const PerfOptions& options) {
  if (!options.test->latency) {
    const char* unit = options.gigabits ? "Gb/sec" : "MB/sec";
    std::printf(" #bytes     #iterations    BW peak[%s]    BW average[%s]   MsgRate[Mpps]\n", unit,
                unit);
  } else if (options.seconds) {
    std::printf(" #bytes        #iterations       t_avg[usec]    tps average\n");
  } else {
    std::printf(
        " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    "
        "t_stdev[usec]   99%% percentile[usec]   99.9%% percentile[usec] \n");
  }
}

// All of them, as perftest lists them (which leaves the longest out).
void list_samples(const PerfOptions& options, const Measurement& m) {
  std::printf("#, usec\n");
  for (size_t i = 0; i < m.sorted_ns.size(); ++i)
    std::printf("%zu, %g\n", i + 1, m.sorted_ns[i] / 1e3);
  std::printf("%s", kRule);
  column_heads(options);
}

}  // namespace

std::string perftest_title(const PerfOptions& options) {
  std::string name;
  switch (options.test->verb) {
    case Verb::kSend: name = "Send "; break;
    case Verb::kWrite: name = "RDMA_Write "; break;
    case Verb::kRead: name = "RDMA_Read "; break;
    case Verb::kAtomic:
      name = std::string("Atomic ") + (options.compare ? "CMP_AND_SWAP " : "FETCH_AND_ADD ");
      break;
    case Verb::kExchange:
    case Verb::kRpc:
    case Verb::kRegister:
    case Verb::kCopy: break;  // perftest has none
  }
  if (options.bidirectional) name += "Bidirectional ";
  return name + (options.test->latency ? "Latency " : "BW ") + "Test";
}

void perftest_header(const PerfOptions& options, const EndpointInfo& link) {
  const TestKind& test = *options.test;
  if (options.only != PerftestOnly::kAll) return;
  bool answered = test.verb == Verb::kRead || test.verb == Verb::kAtomic;
  uint32_t depth = make_load(test, options.sizes.front(), options.tx_depth, options.qps).depth;
  std::string path(to_string(link.path.path));
  std::printf("%s                    %s\n", kRule, perftest_title(options).c_str());
  std::printf(" Dual-port       : OFF\t\tDevice         : %s\n", path.c_str());
  std::printf(" Number of qps   : %u\t\tTransport type : %s\n", options.qps,
              link.path.path == Path::kVerbs ? "IB" : in_capitals(path).c_str());
  std::printf(
      " Connection type : RC\t\tUsing SRQ      : OFF\n PCIe relax order: OFF\n ibv_wr* API     : "
      "OFF\n");
  std::printf(" TX depth        : %u\n", depth);
  if (options.post_list > 1) std::printf(" Post List       : %u\n", options.post_list);
  if (!test.latency) std::printf(" CQ Moderation   : 1\n");
  std::printf(" Mtu             : 0[B]\n Link type       : Ethernet\n");
  if (answered) std::printf(" Outstand reads  : %u\n", depth);
  if (!answered) std::printf(" Max inline data : 0[B]\n");
  std::printf(" rdma_cm QPs\t : OFF\n Data ex. method : Ethernet\n%s", kRule);
  std::printf(
      " local address: LID 0000 QPN 000000 PSN 000000\n remote address: LID 0000 QPN 000000 PSN "
      "000000\n%s",
      kRule);
  column_heads(options);
}

void perftest_row(const PerfOptions& options, const Measurement& m) {
  auto bytes = static_cast<unsigned long>(m.load.size_bytes),
       iterations = static_cast<unsigned long>(m.iterations);
  const Distribution& d = m.latency_ns;
  if (options.only != PerftestOnly::kAll) {
    double bandwidth = bytes_per_second(m) / (options.gigabits ? 1e9 / 8 : 1 << 20);
    std::printf("%f\n", options.only == PerftestOnly::kLatency     ? d.mean / 1e3
                        : options.only == PerftestOnly::kBandwidth ? bandwidth
                                                                   : messages_per_second(m) / 1e6);
    return;
  }
  if (!m.load.test->latency) {
    double average = bytes_per_second(m) / (options.gigabits ? 1e9 / 8 : 1 << 20),
           rate = messages_per_second(m) / 1e6;
    // Small ones get more digits, as there.
    bool finer = options.gigabits && average < 0.1;
    std::printf(finer ? " %-7lu    %lu           %-7.6f            %-7.6f            %-7.6f\n"
                      : " %-7lu    %-10lu       %-7.2f            %-7.2f\t\t   %-7.6f\n",
                bytes, iterations, 0.0, average, rate);
  } else if (options.seconds) {
    std::printf(" %-7lu       %lu            %-7.2f        %-7.2f\n", bytes, iterations,
                d.mean / 1e3, per_second(m.iterations, m.seconds));
  } else {
    if (options.histogram) list_samples(options, m);
    std::printf(
        " %-7lu %lu          %-7.2f        %-7.2f      %-7.2f  \t       %-7.2f     "
        "\t%-7.2f\t\t%-7.2f \t\t%-7.2f\n",
        bytes, iterations, d.min / 1e3, d.max / 1e3, d.p50 / 1e3, d.mean / 1e3, d.stdev / 1e3,
        d.p99 / 1e3, d.p99_9 / 1e3);
  }
}

void perftest_footer(const PerfOptions& options) {
  if (options.only == PerftestOnly::kAll) std::printf("%s", kRule);
}

}  // namespace sluice::tools
