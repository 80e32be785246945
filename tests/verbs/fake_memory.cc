// Protection domains, memory regions and windows, and who may reach what through them.
#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <fstream>

#include "tests/verbs/fake_fabric.h"

namespace sluice::verbs::fake {
namespace {

constexpr int kRemote = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
constexpr int kNeedsLocalWrite = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

uint64_t page_bytes() {
  static const auto size = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

bool inside(uint64_t start, uint64_t size, uint64_t address, uint64_t length) {
  return address >= start && length <= size && address - start <= size - length;
}

uint8_t* bytes_of(const Mr& mr, uint64_t address) {
  if (mr.alias != nullptr) return static_cast<uint8_t*>(mr.alias) + (address - mr.alias_start);
  if (mr.device_memory) return nullptr;
  return reinterpret_cast<uint8_t*>(address);
}

// Whether one shared mapping holds it all.
bool in_one_shared_mapping(uint64_t start, uint64_t end) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uint64_t first = 0, last = 0;
    char rights[5] = {};
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %4s", &first, &last, rights) != 3)
      continue;
    if (first <= start && end <= last) return rights[3] == 's';
  }
  return false;
}

bool mapped(uint64_t first_page, uint64_t pages) {
  std::vector<unsigned char> resident(pages);
  return ::mincore(reinterpret_cast<void*>(first_page), pages * page_bytes(), resident.data()) == 0;
}

}  // namespace

ibv_pd* Fabric::alloc_pd(ibv_context* context) {
  Context* found = context_of(context, "alloc_pd");
  auto of_device = [&](const Pd& pd) { return pd.base.context->device == context->device; };
  errno = found == nullptr ? EINVAL : found->device->removed ? EIO : 0;
  if (errno == 0 && pds_.count(of_device) >= static_cast<size_t>(found->device->options.max_pd))
    errno = ENOMEM;
  if (errno != 0) return nullptr;
  auto pd = std::make_unique<Pd>();
  pd->base.context = context;
  return &pds_.add(std::move(pd))->base;
}

int Fabric::dealloc_pd(ibv_pd* pd) {
  if (pds_.find(pd) == nullptr) return misuse("dealloc_pd: no such PD, or freed before"), EINVAL;
  bool removed = gone(pd->context);
  auto ours = [&](const auto& object) { return object.base.pd == pd; };
  if (!removed && mrs_.count(ours) + mws_.count(ours) + qps_.count(ours) > 0) {
    return misuse("dealloc_pd: it has regions, windows or QPs"), EBUSY;
  }
  pds_.remove(pd);
  return removed ? EIO : 0;
}

ibv_mr* Fabric::reg_mr(ibv_pd* pd, void* address, size_t length, int access) {
  return register_memory(pd, reinterpret_cast<uint64_t>(address), length, access, false);
}

ibv_mr* Fabric::reg_dmabuf_mr(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                              int access) {
  Context* found = contexts_.find(pd->context);
  if (found != nullptr && !found->device->options.dma_bufs) return errno = EOPNOTSUPP, nullptr;
  // Any file does as a dma-buf; a regular one has a length.
  struct stat file {};
  if (::fstat(fd, &file) != 0) return errno = EBADF, nullptr;
  // UVERBS_METHOD_REG_DMABUF_MR in drivers/infiniband/core/uverbs_std_types_mr.c.
  if (offset % page_bytes() != iova % page_bytes()) return errno = EINVAL, nullptr;
  if (offset + length < offset ||
      (S_ISREG(file.st_mode) && offset + length > static_cast<uint64_t>(file.st_size))) {
    return errno = EINVAL, nullptr;
  }
  ibv_mr* registered = register_memory(pd, iova, length, access, true);
  if (registered != nullptr && S_ISREG(file.st_mode))
    map_dma_buf(*mrs_.find(registered), offset, fd);
  return registered;
}

// The device's own way to the bytes. What is no file has none.
void Fabric::map_dma_buf(Mr& mr, uint64_t offset, int fd) {
  const uint64_t before = offset % page_bytes();
  mr.alias_bytes = before + mr.base.length;
  void* alias = ::mmap(nullptr, mr.alias_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                       static_cast<off_t>(offset - before));
  if (alias == MAP_FAILED) return misuse("the fabric could not map a dma-buf");
  mr.alias = alias;
  mr.alias_start = reinterpret_cast<uint64_t>(mr.base.addr) - before;
}

ibv_mr* Fabric::register_memory(ibv_pd* pd, uint64_t address, size_t length, int access,
                                bool device_memory) {
  if (pds_.find(pd) == nullptr) return misuse("reg_mr: no such PD"), errno = EINVAL, nullptr;
  if (gone(pd->context)) return errno = EIO, nullptr;
  const FakeDeviceOptions& limits = contexts_.find(pd->context)->device->options;
  bool writable = (access & IBV_ACCESS_LOCAL_WRITE) != 0;
  bool on_demand = (access & IBV_ACCESS_ON_DEMAND) != 0;
  if (length == 0 || address + length < address ||
      ((access & kNeedsLocalWrite) != 0 && !writable) || length > limits.max_mr_size) {
    return errno = EINVAL, nullptr;
  }
  if (on_demand && !limits.on_demand_paging) return errno = EOPNOTSUPP, nullptr;
  if ((access & IBV_ACCESS_MW_BIND) != 0 && !limits.windows) return errno = EOPNOTSUPP, nullptr;
  uint64_t first = address & ~(page_bytes() - 1);
  uint64_t pages = (address + length - first + page_bytes() - 1) / page_bytes();
  uint64_t pinned = device_memory || on_demand ? 0 : pages * page_bytes();
  auto of_device = [&](const Mr& mr) { return mr.base.context->device == pd->context->device; };
  if (mrs_.count(of_device) >= static_cast<size_t>(limits.max_mr)) return errno = ENOMEM, nullptr;
  if (pinned > 0 && options.memlock_bytes == 0)
    return errno = EPERM, nullptr;  // can_do_mlock() in mm/mlock.c
  if (pinned > options.memlock_bytes || pinned_ > options.memlock_bytes - pinned)
    return errno = ENOMEM, nullptr;
  if (!device_memory && !mapped(first, pages)) return errno = EFAULT, nullptr;

  auto mr = std::make_unique<Mr>();
  mr->base.context = pd->context;
  mr->base.pd = pd;
  mr->base.addr = reinterpret_cast<void*>(address);
  mr->base.length = length;
  mr->access = access;
  mr->pinned = pinned;
  mr->device_memory = device_memory;
  // Different on purpose, and no remote key without remote rights (as soft-RoCE).
  mr->base.lkey = next_key_++ << 8 | 0x11;
  mr->base.rkey = (access & kRemote) != 0 ? next_key_++ << 8 | 0x22 : 0;
  if (options.ignores_protection && !device_memory) make_alias(*mr, first, pages);
  pinned_ += pinned;
  Mr* added = mrs_.add(std::move(mr));
  by_lkey_[added->base.lkey] = added;
  if (added->base.rkey != 0) mrs_by_rkey_[added->base.rkey] = added;
  return &added->base;
}

int Fabric::dereg_mr(ibv_mr* mr) {
  Mr* found = mrs_.find(mr);
  if (found == nullptr) return misuse("dereg_mr: no such region, or deregistered before"), EINVAL;
  bool removed = gone(mr->context);
  if (found->windows > 0 && !removed) return EBUSY;
  if (!removed && posted_work_uses(mr->lkey))
    misuse("dereg_mr: a request that is posted names the region");
  mws_.each([&](Mw& mw) {
    if (mw.mr == found) release_window(mw);
  });
  pinned_ -= found->pinned;
  by_lkey_.erase(mr->lkey);
  mrs_by_rkey_.erase(mr->rkey);
  mrs_.remove(mr);
  return removed ? EIO : 0;
}

bool Fabric::posted_work_uses(uint32_t lkey) const {
  auto names = [&](const SendWork& work) {
    if ((work.wr.send_flags & IBV_SEND_INLINE) != 0) return false;
    return std::any_of(work.sges.begin(), work.sges.end(),
                       [&](const ibv_sge& sge) { return sge.length > 0 && sge.lkey == lkey; });
  };
  return qps_.count([&](const Qp& qp) {
    return std::any_of(qp.sends.begin(), qp.sends.end(), names);
  }) > 0;
}

ibv_mw* Fabric::alloc_mw(ibv_pd* pd, ibv_mw_type type) {
  if (pds_.find(pd) == nullptr) return misuse("alloc_mw: no such PD"), errno = EINVAL, nullptr;
  if (gone(pd->context)) return errno = EIO, nullptr;
  const FakeDeviceOptions& limits = contexts_.find(pd->context)->device->options;
  if (!limits.windows) return errno = EOPNOTSUPP, nullptr;
  if (type != IBV_MW_TYPE_2) return errno = EINVAL, nullptr;
  auto of_device = [&](const Mw& mw) { return mw.base.context->device == pd->context->device; };
  if (mws_.count(of_device) >= static_cast<size_t>(limits.max_mw)) return errno = ENOMEM, nullptr;
  auto mw = std::make_unique<Mw>();
  mw->base.context = pd->context;
  mw->base.pd = pd;
  mw->base.type = type;
  mw->rkey = mw->base.rkey = next_key_++ << 8 | 0x33;
  Mw* added = mws_.add(std::move(mw));
  windows_by_index_[added->rkey >> 8] = added;
  return &added->base;
}

int Fabric::dealloc_mw(ibv_mw* mw) {
  Mw* found = mws_.find(mw);
  if (found == nullptr) return misuse("dealloc_mw: no such window, or freed before"), EINVAL;
  release_window(*found);
  windows_by_index_.erase(found->rkey >> 8);
  bool removed = gone(mw->context);
  mws_.remove(mw);
  return removed ? EIO : 0;
}

void Fabric::release_window(Mw& mw) {
  if (mw.mr != nullptr) --mw.mr->windows;
  mw.mr = nullptr;
  mw.qp = nullptr;
}

bool Fabric::local_access(const Qp& qp, const ibv_sge& sge, bool write, const char* what) {
  if (sge.length == 0) return true;
  auto found = by_lkey_.find(sge.lkey);
  const char* wrong = nullptr;
  if (found == by_lkey_.end()) {
    wrong = "no region has this lkey";
  } else if (found->second->base.pd != qp.base.pd) {
    wrong = "the region is of another PD";
  } else if (!inside(reinterpret_cast<uint64_t>(found->second->base.addr),
                     found->second->base.length, sge.addr, sge.length)) {
    wrong = "outside the region";
  } else if (write && (found->second->access & IBV_ACCESS_LOCAL_WRITE) == 0) {
    wrong = "the region is not writable";
  }
  if (wrong != nullptr) misuse(std::string(what) + ": " + wrong);
  return wrong == nullptr;
}

// An old size of 0 maps shared pages once more (mremap(2)).
void Fabric::make_alias(Mr& mr, uint64_t first_page, uint64_t pages) {
  uint64_t bytes = pages * page_bytes();
  if (!in_one_shared_mapping(first_page, first_page + bytes)) return;
  void* alias = ::mremap(reinterpret_cast<void*>(first_page), 0, bytes, MREMAP_MAYMOVE);
  if (alias == MAP_FAILED) return misuse("the fabric could not map a region again");
  mr.alias = alias;
  mr.alias_start = first_page;
  mr.alias_bytes = bytes;
}

Mr::~Mr() {
  if (alias != nullptr) ::munmap(alias, alias_bytes);
}

uint8_t* Fabric::local_bytes(uint32_t lkey, uint64_t address) const {
  auto found = by_lkey_.find(lkey);
  return found == by_lkey_.end() ? nullptr : bytes_of(*found->second, address);
}

uint8_t* Fabric::remote_bytes(uint32_t rkey, uint64_t address) const {
  auto window = windows_by_index_.find(rkey >> 8);
  return bytes_of(window != windows_by_index_.end() ? *window->second->mr : *mrs_by_rkey_.at(rkey),
                  address);
}

// What the responder checks (specification 10.6.3.4, 10.6.7). A window has rights of its own: its
// region needs no remote ones.
bool Fabric::remote_access(const Qp& qp, uint32_t rkey, uint64_t address, uint64_t length,
                           unsigned right) {
  auto window = windows_by_index_.find(rkey >> 8);
  if (window != windows_by_index_.end()) {
    const Mw& mw = *window->second;
    return mw.rkey == rkey && mw.mr != nullptr && mw.qp == &qp && (mw.access & right) != 0 &&
           inside(mw.address, mw.length, address, length);
  }
  auto found = mrs_by_rkey_.find(rkey);
  if (found == mrs_by_rkey_.end()) return false;
  const Mr& mr = *found->second;
  return mr.base.pd == qp.base.pd && (static_cast<unsigned>(mr.access) & right) != 0 &&
         inside(reinterpret_cast<uint64_t>(mr.base.addr), mr.base.length, address, length);
}

ibv_wc_status Fabric::bind_window(Qp& qp, const ibv_send_wr& wr) {
  const auto& bind = wr.bind_mw;
  Mw* mw = mws_.find(bind.mw);
  Mr* mr = mrs_.find(bind.bind_info.mr);
  unsigned rights = bind.bind_info.mw_access_flags;
  if (mw == nullptr || mr == nullptr || bind.bind_info.length == 0) return IBV_WC_MW_BIND_ERR;
  bool free = mw->mr == nullptr;
  bool same_pd = mw->base.pd == qp.base.pd && mr->base.pd == qp.base.pd;
  // The program must have noted the key of its last bind in mw->rkey (post_send keeps what
  // it found there in `invalidate_rkey`): soft-RoCE looks the window up by it.
  bool key_kept = wr.invalidate_rkey == mw->rkey;
  if (!key_kept) misuse("BIND_MW: mw->rkey is not the window's key");
  bool new_key = key_kept && (bind.rkey & 0xff) != (mw->rkey & 0xff);
  bool bindable = (mr->access & IBV_ACCESS_MW_BIND) != 0;
  bool writable = (rights & kNeedsLocalWrite) == 0 || (mr->access & IBV_ACCESS_LOCAL_WRITE) != 0;
  bool within = inside(reinterpret_cast<uint64_t>(mr->base.addr), mr->base.length,
                       bind.bind_info.addr, bind.bind_info.length);
  if (!free || !same_pd || !new_key || !bindable || !writable || !within) return IBV_WC_MW_BIND_ERR;
  mw->rkey = (mw->rkey & ~0xffu) | (bind.rkey & 0xff);
  mw->mr = mr;
  mw->qp = &qp;
  mw->address = bind.bind_info.addr;
  mw->length = bind.bind_info.length;
  mw->access = rights;
  ++mr->windows;
  return IBV_WC_SUCCESS;
}

ibv_wc_status Fabric::invalidate(Qp& qp, uint32_t rkey) {
  auto found = windows_by_index_.find(rkey >> 8);
  if (found == windows_by_index_.end()) return IBV_WC_LOC_QP_OP_ERR;
  Mw& mw = *found->second;
  if (mw.rkey != rkey || mw.mr == nullptr || mw.qp != &qp) return IBV_WC_LOC_QP_OP_ERR;
  release_window(mw);
  return IBV_WC_SUCCESS;
}

}  // namespace sluice::verbs::fake
