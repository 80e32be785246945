// Regions and windows of the fake: who may reach what, until when, and what it costs.
#include <errno.h>
#include <sys/mman.h>

#include "tests/verbs/fake_pair.h"

namespace sluice::verbs {
namespace {

// A window of `end` over its own region, for the peer of its QP.
class Window {
 public:
  Window(FakePair& pair, End& owner)
      : p(pair), end(owner), mw(p.fake.alloc_mw(owner.pd, IBV_MW_TYPE_2)) {
    REQUIRE(mw != nullptr);
  }
  ~Window() {
    if (mw != nullptr) CHECK(p.fake.dealloc_mw(mw) == 0);
  }
  ibv_wc_status bind(size_t offset, uint64_t length, unsigned access, uint8_t key,
                     ibv_mr* mr = nullptr) {
    ibv_send_wr wr{};
    wr.wr_id = 50;
    wr.opcode = IBV_WR_BIND_MW;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.bind_mw.mw = mw;
    wr.bind_mw.rkey = (mw->rkey & ~0xffu) | key;
    wr.bind_mw.bind_info = {mr != nullptr ? mr : end.mr, end.address(offset), length, access};
    REQUIRE(p.post(end, wr) == 0);
    std::vector<ibv_wc> done = p.poll(end);
    REQUIRE_FALSE(done.empty());
    if (done[0].status == IBV_WC_SUCCESS) {
      CHECK(done[0].opcode == IBV_WC_BIND_MW);
      mw->rkey = wr.bind_mw.rkey;
    }
    return done[0].status;
  }
  ibv_wc_status invalidate() {
    ibv_send_wr wr{};
    wr.opcode = IBV_WR_LOCAL_INV;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.invalidate_rkey = mw->rkey;
    REQUIRE(p.post(end, wr) == 0);
    return p.poll(end).at(0).status;
  }
  // What a peer that writes `length` bytes at `offset` is told.
  ibv_wc_status written(End& peer, size_t offset, uint32_t length,
                        ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE) {
    ibv_sge one = p.sge(peer, 0, length);
    ibv_send_wr wr{};
    wr.sg_list = &one;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = end.address(offset);
    wr.wr.rdma.rkey = mw->rkey;
    REQUIRE(p.post(peer, wr) == 0);
    return p.poll(peer).at(0).status;
  }
  FakePair& p;
  End& end;
  ibv_mw* mw;
};

TEST_CASE("a window opens a part of a region without remote rights to its QP's peer",
          "[verbs][fake][memory]") {
  FakePair p({}, {.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND});
  Window window(p, p.b);
  uint32_t first_key = window.mw->rkey;
  REQUIRE(window.bind(1000, 200, IBV_ACCESS_REMOTE_WRITE, 0x44) == IBV_WC_SUCCESS);
  CHECK(window.mw->rkey >> 8 == first_key >> 8);
  CHECK((window.mw->rkey & 0xff) == 0x44);
  p.fill(p.a, 0, 200, 9);
  CHECK(window.written(p.a, 1000, 200) == IBV_WC_SUCCESS);
  CHECK(p.same(p.a, 0, p.b, 1000, 200));
  CHECK(p.fake.census().bound_windows == 1);
  CHECK(p.fake.dereg_mr(p.b.mr) == EBUSY);
  REQUIRE(window.invalidate() == IBV_WC_SUCCESS);
  CHECK(p.fake.census().bound_windows == 0);
  SECTION("it can be bound again under another key") {
    uint32_t old = window.mw->rkey;
    REQUIRE(window.bind(0, 100, IBV_ACCESS_REMOTE_READ, 0x45) == IBV_WC_SUCCESS);
    CHECK(window.written(p.a, 0, 100, IBV_WR_RDMA_READ) == IBV_WC_SUCCESS);
    window.mw->rkey = old;
    CHECK(window.written(p.a, 0, 100, IBV_WR_RDMA_READ) == IBV_WC_REM_ACCESS_ERR);
  }
  SECTION("nobody gets in any more") {
    CHECK(window.written(p.a, 1000, 8) == IBV_WC_REM_ACCESS_ERR);
    CHECK(p.async(p.b).event_type == IBV_EVENT_QP_ACCESS_ERR);
    CHECK(p.fake.qp_state(p.a.qp->qp_num) == IBV_QPS_ERR);
    CHECK(p.fake.qp_state(p.b.qp->qp_num) == IBV_QPS_ERR);
  }
}

TEST_CASE("a window refuses what it does not grant", "[verbs][fake][memory]") {
  FakePair p({}, {.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND});
  Window window(p, p.b);
  REQUIRE(window.bind(1000, 200, IBV_ACCESS_REMOTE_READ, 1) == IBV_WC_SUCCESS);
  SECTION("a right") { CHECK(window.written(p.a, 1000, 8) == IBV_WC_REM_ACCESS_ERR); }
  SECTION("a byte behind its end") {
    CHECK(window.written(p.a, 1100, 101, IBV_WR_RDMA_READ) == IBV_WC_REM_ACCESS_ERR);
  }
  SECTION("a byte before its start") {
    CHECK(window.written(p.a, 999, 2, IBV_WR_RDMA_READ) == IBV_WC_REM_ACCESS_ERR);
  }
  SECTION("freed windows") {
    uint32_t key = window.mw->rkey;
    REQUIRE(p.fake.dealloc_mw(window.mw) == 0);
    ibv_mw copy{};
    copy.rkey = key;
    window.mw = &copy;
    CHECK(window.written(p.a, 1000, 8, IBV_WR_RDMA_READ) == IBV_WC_REM_ACCESS_ERR);
    window.mw = nullptr;
  }
}

TEST_CASE("a window is bound to one QP", "[verbs][fake][memory]") {
  FakePair p({}, {.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND});
  Window window(p, p.b);
  REQUIRE(window.bind(0, 200, IBV_ACCESS_REMOTE_READ, 1) == IBV_WC_SUCCESS);
  ibv_qp* bound = p.b.qp;
  ibv_qp* reader = p.a.qp;
  p.make_qp(p.a);
  p.make_qp(p.b);
  p.connect(p.a, p.b, 0);
  p.connect(p.b, p.a, 0);
  CHECK(window.written(p.a, 0, 8, IBV_WR_RDMA_READ) == IBV_WC_REM_ACCESS_ERR);
  CHECK(p.fake.destroy_qp(reader) == 0);
  CHECK(p.fake.destroy_qp(bound) == 0);
  CHECK(p.fake.census().bound_windows == 0);  // went with its QP
}

TEST_CASE("a bind that is not allowed completes in error", "[verbs][fake][memory]") {
  FakePair p({}, {.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND});
  Window window(p, p.b);
  ibv_mr* other = nullptr;
  SECTION("of a window that is bound") {
    REQUIRE(window.bind(0, 8, IBV_ACCESS_REMOTE_READ, 1) == IBV_WC_SUCCESS);
    CHECK(window.bind(0, 8, IBV_ACCESS_REMOTE_READ, 2) == IBV_WC_MW_BIND_ERR);
  }
  SECTION("outside the region") {
    CHECK(window.bind(16380, 8, IBV_ACCESS_REMOTE_READ, 1) == IBV_WC_MW_BIND_ERR);
  }
  SECTION("of no length") {
    CHECK(window.bind(0, 0, IBV_ACCESS_REMOTE_READ, 1) == IBV_WC_MW_BIND_ERR);
  }
  SECTION("under its old key") {
    CHECK(window.bind(0, 8, IBV_ACCESS_REMOTE_READ, static_cast<uint8_t>(window.mw->rkey)) ==
          IBV_WC_MW_BIND_ERR);
  }
  SECTION("to a region that takes no windows") {
    other = p.fake.reg_mr(p.b.pd, p.b.memory, 100, IBV_ACCESS_LOCAL_WRITE);
    CHECK(window.bind(0, 8, IBV_ACCESS_REMOTE_READ, 1, other) == IBV_WC_MW_BIND_ERR);
  }
  SECTION("to write where the region is read-only") {
    other = p.fake.reg_mr(p.b.pd, p.b.memory, 100, IBV_ACCESS_MW_BIND);
    CHECK(window.bind(0, 8, IBV_ACCESS_REMOTE_WRITE, 1, other) == IBV_WC_MW_BIND_ERR);
  }
  SECTION("with a key in mw->rkey that is not the window's") {
    window.mw->rkey += 5;
    CHECK(window.bind(0, 8, IBV_ACCESS_REMOTE_READ, 1) == IBV_WC_MW_BIND_ERR);
    CHECK(p.misused("mw->rkey"));
  }
  CHECK(p.fake.qp_state(p.b.qp->qp_num) == IBV_QPS_ERR);
  if (other != nullptr) CHECK(p.fake.dereg_mr(other) == 0);
}

TEST_CASE("invalidating what is not bound fails the QP", "[verbs][fake][memory]") {
  FakePair p;
  Window window(p, p.b);
  CHECK(window.invalidate() == IBV_WC_LOC_QP_OP_ERR);
  CHECK(p.fake.qp_state(p.b.qp->qp_num) == IBV_QPS_ERR);
}

TEST_CASE("a peer may give up its window with a SEND", "[verbs][fake][memory]") {
  FakePair p;
  Window window(p, p.b);
  REQUIRE(window.bind(0, 8, IBV_ACCESS_REMOTE_READ, 1) == IBV_WC_SUCCESS);
  REQUIRE(p.receive(p.b, 3, 100, 8) == 0);
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_SEND_WITH_INV;
  wr.invalidate_rkey = window.mw->rkey;
  REQUIRE(p.post(p.a, wr) == 0);
  ibv_wc got = p.one(p.b);
  CHECK(got.wc_flags == IBV_WC_WITH_INV);
  CHECK(got.invalidated_rkey == window.mw->rkey);
  CHECK(p.fake.census().bound_windows == 0);
}

TEST_CASE("a device without windows says so", "[verbs][fake][memory]") {
  FakeDeviceOptions device;
  device.windows = false;
  FakePair p({.devices = {device}}, {.access = kEverything});
  ibv_device_attr attributes{};
  REQUIRE(p.fake.query_device(p.a.context, &attributes) == 0);
  CHECK((attributes.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B) == 0);
  CHECK(attributes.max_mw == 0);
  errno = 0;
  CHECK(p.fake.alloc_mw(p.a.pd, IBV_MW_TYPE_2) == nullptr);
  CHECK(errno == EOPNOTSUPP);
  CHECK(p.fake.reg_mr(p.a.pd, p.a.memory, 8, IBV_ACCESS_MW_BIND) == nullptr);
}

TEST_CASE("registration checks rights, addresses and the memlock limit", "[verbs][fake][memory]") {
  FakePair p({.memlock_bytes = 100 << 10});
  auto refused = [&](void* address, size_t length, int access, int error) {
    errno = 0;
    CHECK(p.fake.reg_mr(p.a.pd, address, length, access) == nullptr);
    CHECK(errno == error);
  };
  refused(p.a.memory, 100, IBV_ACCESS_REMOTE_WRITE, EINVAL);
  refused(p.a.memory, 100, IBV_ACCESS_REMOTE_ATOMIC, EINVAL);
  refused(p.a.memory, 0, IBV_ACCESS_LOCAL_WRITE, EINVAL);
  refused(p.a.memory, 100, IBV_ACCESS_ON_DEMAND, EOPNOTSUPP);
  void* page = ::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(page != MAP_FAILED);
  ibv_mr* mr = p.fake.reg_mr(p.a.pd, page, 4096, IBV_ACCESS_REMOTE_READ);
  REQUIRE(mr != nullptr);
  CHECK(mr->lkey != mr->rkey);
  CHECK(p.fake.dereg_mr(mr) == 0);
  CHECK(p.fake.dereg_mr(mr) == EINVAL);
  CHECK(p.misused("dereg_mr"));
  ::munmap(page, 4096);
  refused(page, 4096, IBV_ACCESS_REMOTE_READ, EFAULT);

  uint64_t before = p.fake.census().pinned_bytes;
  CHECK(before >= 2 * sizeof(p.a.memory));
  std::vector<uint8_t> large(80 << 10);
  refused(large.data(), large.size(), IBV_ACCESS_LOCAL_WRITE, ENOMEM);
  CHECK(p.fake.census().pinned_bytes == before);
  mr = p.fake.reg_mr(p.a.pd, p.a.memory, 64, IBV_ACCESS_LOCAL_WRITE);
  REQUIRE(mr != nullptr);
  CHECK(mr->rkey == 0);  // nobody may come
  CHECK(p.fake.dereg_mr(mr) == 0);
}

TEST_CASE("a device reads and writes pages that the program may not touch",
          "[verbs][fake][memory]") {
  FakePair p({.ignores_protection = true});
  constexpr size_t kPage = 4096;
  void* pages =
      ::mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(pages != MAP_FAILED);
  auto* bytes = static_cast<uint8_t*>(pages);
  ::memset(bytes, 7, kPage);
  ibv_mr* mr = p.fake.reg_mr(p.a.pd, bytes, 2 * kPage, kEverything);
  REQUIRE(mr != nullptr);
  REQUIRE(::mprotect(pages, 2 * kPage, PROT_NONE) == 0);
  ibv_sge one{reinterpret_cast<uint64_t>(bytes), 100, mr->lkey};
  ibv_send_wr wr{};
  wr.sg_list = &one;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = p.b.address();
  wr.wr.rdma.rkey = p.b.mr->rkey;
  REQUIRE(p.post(p.a, wr) == 0);
  p.one(p.a);
  CHECK(p.b.memory[99] == 7);
  p.b.memory[0] = 9;
  one.addr += kPage;
  wr.opcode = IBV_WR_RDMA_READ;
  REQUIRE(p.post(p.a, wr) == 0);
  p.one(p.a);
  REQUIRE(::mprotect(pages, 2 * kPage, PROT_READ) == 0);
  CHECK(bytes[kPage] == 9);
  CHECK(p.fake.dereg_mr(mr) == 0);
  ::munmap(pages, 2 * kPage);
}

TEST_CASE("device memory without a file is counted and its bytes are left alone",
          "[verbs][fake][memory]") {
  FakePair p;
  CHECK(p.fake.reg_dmabuf_mr(p.b.pd, 0, 4096, 0x10000, -1, kEverything) == nullptr);
  CHECK(errno == EBADF);
  ibv_mr* mr = p.fake.reg_dmabuf_mr(p.b.pd, 0, 4096, 0x10000, 0, kEverything);
  REQUIRE(mr != nullptr);
  ibv_sge one = p.sge(p.a, 0, 100);
  ibv_send_wr wr{};
  wr.sg_list = &one;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = 0x10000;
  wr.wr.rdma.rkey = mr->rkey;
  REQUIRE(p.post(p.a, wr) == 0);
  p.one(p.a);
  CHECK(p.fake.dereg_mr(mr) == 0);
}

}  // namespace
}  // namespace sluice::verbs
