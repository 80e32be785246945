// What the fake fabric looks like and how it behaves: devices and their limits, the order
// and speed of deliveries, and the count of what is alive. Knows no backend.
#ifndef SLUICE_TESTS_VERBS_FAKE_OPTIONS_H_
#define SLUICE_TESTS_VERBS_FAKE_OPTIONS_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <sluice/verbs/verbs_api.h>

namespace sluice::verbs {

struct FakeGid {
  std::array<uint8_t, 16> value{};
  uint32_t type = IBV_GID_TYPE_ROCE_V2;
};
// ::ffff:a.b.c.d
FakeGid fake_ipv4_gid(const std::string& address, uint32_t type);
// fe80::<last>
FakeGid fake_link_local_gid(uint8_t last, uint32_t type);

// One device with one port. The limits are those of soft-RoCE, but for the window bits.
struct FakeDeviceOptions {
  std::string name = "fake0";
  // The device that this address leads to; 127.0.0.0/8 otherwise leads to the first one.
  std::string ipv4 = "127.0.0.1";
  // Empty: RoCE v1 and v2 entries of a link-local address, then of `ipv4`. Entries of all
  // zeros are holes (ENODATA).
  std::vector<FakeGid> gids;
  uint32_t vendor_id = 0x5111ce;
  uint32_t vendor_part_id = 1;
  bool windows = true;  // IBV_DEVICE_MEM_WINDOW_TYPE_2B and max_mw
  bool on_demand_paging = false;
  bool dma_bufs = true;
  bool moderation = true;  // modify_cq
  ibv_atomic_cap atomic_cap = IBV_ATOMIC_HCA;
  int max_mw = 4096;
  int max_qp = 4096;
  int max_qp_wr = 16384;
  int max_cq = 4096;
  int max_cqe = 32767;
  int max_mr = 4096;
  int max_pd = 4096;
  int max_sge = 32;
  uint32_t max_inline_data = 512;
  uint64_t max_mr_size = UINT64_MAX;
  int max_qp_rd_atom = 128;
  int max_qp_init_rd_atom = 128;
  uint32_t max_msg_sz = 8 << 20;
  uint8_t link_layer = IBV_LINK_LAYER_ETHERNET;
  ibv_mtu active_mtu = IBV_MTU_1024;
  ibv_mtu max_mtu = IBV_MTU_4096;
  ibv_port_state port_state = IBV_PORT_ACTIVE;
};

// When deliveries happen. Time is counted in ticks: one for each poll_cq, cq_event,
// async_event and cm_event.
struct FakePolicy {
  enum class Order {
    kHonest,      // at once
    kSlow,        // a request takes `ticks`, its answer again
    kReordering,  // each takes 0 to `ticks` by chance: QPs overtake each other, one QP's own work
                  // does not
    kLossy,       // a share of packets is lost and sent again after `retry_ticks`
  };
  Order order = Order::kHonest;
  uint64_t ticks = 4;
  uint32_t loss_per_mille = 100;
  uint64_t seed = 1;
};

struct FakeOptions {
  std::vector<FakeDeviceOptions> devices = {FakeDeviceOptions{}};
  uint64_t memlock_bytes = UINT64_MAX;
  FakePolicy policy;
  // Ticks without an answer until a packet is sent again. IBV_WC_RETRY_EXC_ERR comes after
  // retry_cnt + 1 of them.
  uint64_t retry_ticks = 16;
  uint64_t rnr_ticks = 8;
  // Nobody polls while the program sleeps on a completion channel. A poll of an armed
  // queue that finds nothing therefore lets time pass until something arrives in it or no
  // delivery is left, and so does a post of somebody else while it sleeps (unless the order
  // is honest). False: only ticks and advance() do.
  bool sleeping_advances = true;
  // At most this many completions a poll, whatever is asked for; 0: no limit.
  int poll_limit = 0;
  // A device does not care for the protection of a process's pages once they are
  // registered. True: shared mappings are reached through a mapping of the fabric's own, so
  // that a test may take all rights from the program's (a proof that no CPU touches it).
  bool ignores_protection = false;
  // InfiniBand and RoCE deliver private data padded with zeros to the field's full length.
  bool pads_private_data = true;
};

// What is alive, by kind. The connection manager's own device handle is no part of it.
struct FakeCensus {
  uint64_t device_lists = 0, contexts = 0, pds = 0, mrs = 0, mws = 0, cqs = 0, channels = 0,
           qps = 0;
  uint64_t event_channels = 0, ids = 0, cm_events = 0;  // events taken and not acknowledged
  uint64_t cq_events = 0, async_events = 0;             // the same
  uint64_t bound_windows = 0, pinned_bytes = 0;
  // What peers' devices may reach: regions with rights for them, and the bytes of those and of
  // bound windows.
  uint64_t open_regions = 0, open_bytes = 0;

  bool operator==(const FakeCensus&) const = default;
  bool empty() const { return *this == FakeCensus{}; }
  std::string text() const;  // "2 qps, 1 pds"; "nothing"
};

}  // namespace sluice::verbs

#endif  // SLUICE_TESTS_VERBS_FAKE_OPTIONS_H_
