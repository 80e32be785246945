#include <sluice/l2/carrier/xdp_program.h>

#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_link.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "kernel_compat/slp/slp_wire.h"

namespace sluice::l2 {
namespace {

constexpr const char* kOrigin = "l2/xdp_program";
constexpr const char* kName = "sluice_slp";  // as `bpftool prog` shows it; 15 characters at most
// One place for each port. The kernel keeps eight bytes for each.
constexpr uint32_t kPorts = 65536;

Status failed(Code code, std::string why, int error) {
  return Status(code, Scope::kOperation, kOrigin, std::move(why), error);
}

long bpf(int command, bpf_attr& attributes) {
  return ::syscall(SYS_bpf, command, &attributes, sizeof(attributes));
}

Status denied_or(int error, Code code, const char* what) {
  if (error == EPERM || error == EACCES)
    return failed(Code::kAccessDenied, std::string(what) + ": " + xdp_capabilities_remedy(), error);
  if (error == ENOSYS)
    return failed(Code::kUnsupported, "this kernel has no bpf(2); use l2://INTERFACE", error);
  return failed(code, std::string(what) + "; use l2://INTERFACE", error);
}

Result<Descriptor> make_map(uint32_t entries) {
  bpf_attr attributes{};
  attributes.map_type = BPF_MAP_TYPE_XSKMAP;
  attributes.key_size = attributes.value_size = sizeof(uint32_t);
  attributes.max_entries = entries;
  std::memcpy(attributes.map_name, kName, std::strlen(kName));
  Descriptor map(static_cast<int>(bpf(BPF_MAP_CREATE, attributes)));
  if (map.value() >= 0) return map;
  if (errno == EINVAL)
    return failed(Code::kUnsupported,
                  "this kernel has no map of AF_XDP sockets (CONFIG_XDP_SOCKETS); use "
                  "l2://INTERFACE",
                  errno);
  return denied_or(errno, Code::kNoMemory, "the kernel makes no map of AF_XDP sockets");
}

// ---- the program

using Code64 = std::vector<bpf_insn>;
constexpr uint8_t kContext = BPF_REG_6, kData = BPF_REG_2, kEnd = BPF_REG_3, kValue = BPF_REG_4;
constexpr uint8_t kWord = BPF_W, kHalf = BPF_H, kByte = BPF_B;

bpf_insn line(int code, uint8_t to, uint8_t from, int16_t offset, int32_t value) {
  bpf_insn made{};
  made.code = static_cast<uint8_t>(code);
  made.dst_reg = to & 0xf;
  made.src_reg = from & 0xf;
  made.off = offset;
  made.imm = value;
  return made;
}
bpf_insn load(uint8_t size, uint8_t to, uint8_t from, size_t offset) {
  return line(BPF_LDX | BPF_MEM | size, to, from, static_cast<int16_t>(offset), 0);
}
bpf_insn copy(uint8_t to, uint8_t from) {
  return line(BPF_ALU64 | BPF_MOV | BPF_X, to, from, 0, 0);
}
bpf_insn set(uint8_t to, int32_t value) {
  return line(BPF_ALU64 | BPF_MOV | BPF_K, to, 0, 0, value);
}

// Bytes of the frame as the program loads them: in this machine's order.
template <typename Number>
Number number_at(const uint8_t* bytes) {
  Number number;
  std::memcpy(&number, bytes, sizeof(number));
  return number;
}

// Jumps to the end, which passes the frame, are filled in last.
constexpr int16_t kToPass = -1;
bpf_insn pass_unless(int32_t value) {
  return line(BPF_JMP32 | BPF_JNE | BPF_K, kValue, 0, kToPass, value);
}

// Ours are: from our queue, to our MAC address (nobody else's, nor a group's), of SLP's EtherType,
// of our version and a type of sessions (below 16: questions by name are packet sockets'), to a
// port that has a socket. Nothing is written to the frame.
Code64 program_of(const XdpPlace& place, int map) {
  constexpr size_t kEthernet = 14, kPort = kEthernet + 4;
  const std::array<uint8_t, 2> ether_type = {SLP_ETHERTYPE >> 8, SLP_ETHERTYPE & 0xff};
  Code64 code = {
      copy(kContext, BPF_REG_1),
      load(kWord, kValue, kContext, offsetof(xdp_md, rx_queue_index)),
      pass_unless(static_cast<int32_t>(place.queue)),
      load(kWord, kData, kContext, offsetof(xdp_md, data)),
      load(kWord, kEnd, kContext, offsetof(xdp_md, data_end)),
      copy(kValue, kData),
      line(BPF_ALU64 | BPF_ADD | BPF_K, kValue, 0, 0, kPort + 2),
      line(BPF_JMP | BPF_JGT | BPF_X, kValue, kEnd, kToPass, 0),
      load(kHalf, kValue, kData, 12),
      pass_unless(number_at<uint16_t>(ether_type.data())),
      load(kWord, kValue, kData, 0),
      pass_unless(number_at<int32_t>(place.mac.data())),
      load(kHalf, kValue, kData, 4),
      pass_unless(number_at<uint16_t>(place.mac.data() + 4)),
      load(kByte, kValue, kData, kEthernet),
      line(BPF_ALU64 | BPF_AND | BPF_K, kValue, 0, 0, 0xf0),
      pass_unless(SLP_VERSION << 5),
      load(kHalf, BPF_REG_2, kData, kPort),
      line(BPF_ALU | BPF_END | BPF_TO_LE, BPF_REG_2, 0, 0, 16),
      line(BPF_LD | BPF_IMM | BPF_DW, BPF_REG_1, BPF_PSEUDO_MAP_FD, 0, map),
      line(0, 0, 0, 0, 0),       // the upper half of the one before
      set(BPF_REG_3, XDP_PASS),  // where the map has no socket
      line(BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_redirect_map),
      line(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
      set(BPF_REG_0, XDP_PASS),
      line(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
  };
  const size_t pass = code.size() - 2;
  for (size_t i = 0; i < pass; ++i) {
    if (code[i].off == kToPass) code[i].off = static_cast<int16_t>(pass - i - 1);
  }
  return code;
}

Result<Descriptor> load_program(const XdpPlace& place, int map) {
  static constexpr char kLicense[] = "Apache-2.0";
  const Code64 code = program_of(place, map);
  bpf_attr attributes{};
  attributes.prog_type = BPF_PROG_TYPE_XDP;
  attributes.expected_attach_type = BPF_XDP;
  attributes.insns = reinterpret_cast<uintptr_t>(code.data());
  attributes.insn_cnt = static_cast<uint32_t>(code.size());
  attributes.license = reinterpret_cast<uintptr_t>(kLicense);
  std::memcpy(attributes.prog_name, kName, std::strlen(kName));
  Descriptor program(static_cast<int>(bpf(BPF_PROG_LOAD, attributes)));
  if (program.value() >= 0) return program;
  return denied_or(errno, Code::kUnsupported, "the kernel takes no XDP program");
}

// ---- what is attached

std::string name_of_program(uint32_t id) {
  bpf_attr attributes{};
  attributes.prog_id = id;
  Descriptor program(static_cast<int>(bpf(BPF_PROG_GET_FD_BY_ID, attributes)));
  std::string number = "id " + std::to_string(id);
  if (program.value() < 0) return number;
  bpf_prog_info info{};
  attributes = {};
  attributes.info.bpf_fd = static_cast<uint32_t>(program.value());
  attributes.info.info_len = sizeof(info);
  attributes.info.info = reinterpret_cast<uintptr_t>(&info);
  if (bpf(BPF_OBJ_GET_INFO_BY_FD, attributes) != 0 || info.name[0] == '\0') return number;
  return "'" + std::string(info.name, ::strnlen(info.name, sizeof(info.name))) + "' (" + number +
         ")";
}

// The id within IFLA_XDP; 0: none.
uint32_t program_in(const rtattr* nest) {
  int left = static_cast<int>(RTA_PAYLOAD(nest));
  for (auto* inner = static_cast<const rtattr*>(RTA_DATA(nest)); RTA_OK(inner, left);
       inner = RTA_NEXT(inner, left)) {
    if (inner->rta_type == IFLA_XDP_PROG_ID) return *static_cast<const uint32_t*>(RTA_DATA(inner));
  }
  return 0;
}

std::string refused_by_driver(const XdpPlace& place, int error) {
  const std::string& name = place.interface;
  const std::string otherwise = ", or use l2://" + name;
  switch (error) {
    case EOPNOTSUPP:
      return "the driver of " + name +
             " has no XDP; set SLUICE_L2_XDP_GENERIC=1 to have the kernel's slower one" + otherwise;
    case ERANGE:
      return "the MTU of " + name + " (" + std::to_string(place.mtu) +
             ") or of its other end is above what its driver takes with XDP; sudo ip link set " +
             name + " mtu 3000 at both ends" + otherwise;
    case ENOSPC:
      return "the other end of " + name +
             " has more transmit queues than it has receive queues; ethtool -L " + name +
             " to as many" + otherwise;
    default: break;
  }
  const std::string large =
      place.mtu > 1500 ? ", perhaps for its MTU of " + std::to_string(place.mtu) : "";
  return "the driver of " + name + " takes no XDP program" + large + "; ip link set " + name +
         " mtu 1500" + otherwise;
}

}  // namespace

std::string xdp_capabilities_remedy() {
  char path[512];
  ssize_t length = ::readlink("/proc/self/exe", path, sizeof(path));
  std::string program =
      length > 0 ? std::string(path, static_cast<size_t>(length)) : std::string("PROGRAM");
  return "AF_XDP needs CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF of the machine, not of a user "
         "namespace; sudo setcap cap_net_raw,cap_net_admin,cap_bpf,cap_ipc_lock+ep " +
         program +
         ", or run it as root, or lend it AF_XDP by sudo sluice broker --interface INTERFACE --uid "
         "USER --xdp, or use l2://INTERFACE, which needs CAP_NET_RAW only";
}

std::string attached_xdp_program(int interface_index) {
  Descriptor fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  struct {
    nlmsghdr header;
    ifinfomsg about;
  } ask{};
  ask.header = {.nlmsg_len = sizeof(ask),
                .nlmsg_type = RTM_GETLINK,
                .nlmsg_flags = NLM_F_REQUEST,
                .nlmsg_seq = 1,
                .nlmsg_pid = 0};
  ask.about.ifi_index = interface_index;
  alignas(nlmsghdr) std::array<char, 32768> room;
  if (fd.value() < 0 || ::send(fd.value(), &ask, sizeof(ask), 0) != ssize_t{sizeof(ask)}) return {};
  ssize_t came = ::recv(fd.value(), room.data(), room.size(), 0);
  const auto* message = reinterpret_cast<const nlmsghdr*>(room.data());
  if (came <= 0 || !NLMSG_OK(message, static_cast<unsigned>(came)) ||
      message->nlmsg_type != RTM_NEWLINK)
    return {};
  const auto* about = static_cast<const ifinfomsg*>(NLMSG_DATA(message));
  int left = static_cast<int>(message->nlmsg_len - NLMSG_LENGTH(sizeof(*about)));
  for (const rtattr* attribute = IFLA_RTA(about); RTA_OK(attribute, left);
       attribute = RTA_NEXT(attribute, left)) {
    if ((attribute->rta_type & NLA_TYPE_MASK) != IFLA_XDP) continue;
    uint32_t id = program_in(attribute);
    return id == 0 ? std::string() : name_of_program(id);
  }
  return {};
}

Result<XdpProgram> XdpProgram::attach(const XdpPlace& place) {
  SLUICE_TRY(Descriptor map, make_map(kPorts));
  SLUICE_TRY(Descriptor program, load_program(place, map.value()));
  bpf_attr attributes{};
  attributes.link_create.prog_fd = static_cast<uint32_t>(program.value());
  attributes.link_create.target_ifindex = static_cast<uint32_t>(place.index);
  attributes.link_create.attach_type = BPF_XDP;
  attributes.link_create.flags = XDP_FLAGS_DRV_MODE;
  Descriptor link(static_cast<int>(bpf(BPF_LINK_CREATE, attributes)));
  if (link.value() < 0 && errno == EOPNOTSUPP && place.may_be_generic) {
    attributes.link_create.flags = XDP_FLAGS_SKB_MODE;
    link = Descriptor(static_cast<int>(bpf(BPF_LINK_CREATE, attributes)));
  }
  if (link.value() >= 0) return XdpProgram(std::move(map), std::move(link));
  const int error = errno;
  if (error == EPERM || error == EACCES)
    return denied_or(error, Code::kAccessDenied, "no XDP program can be attached");
  std::string other = attached_xdp_program(place.index);
  if (!other.empty() || error == EBUSY || error == EEXIST) {
    return failed(Code::kTryAgain,
                  place.interface + " has the XDP program " + other +
                      " already; end the program that attached it, or sudo ip link set " +
                      place.interface + " xdp off, or use l2://" + place.interface,
                  error);
  }
  return failed(Code::kUnsupported, refused_by_driver(place, error), error);
}

Status XdpProgram::direct(uint16_t port, int socket) {
  uint32_t key = port;
  auto value = static_cast<uint32_t>(socket);
  bpf_attr attributes{};
  attributes.map_fd = static_cast<uint32_t>(map_.value());
  attributes.key = reinterpret_cast<uintptr_t>(&key);
  attributes.value = reinterpret_cast<uintptr_t>(&value);
  if (bpf(BPF_MAP_UPDATE_ELEM, attributes) == 0) return Status();
  return denied_or(errno, Code::kNoMemory, "the XDP program takes no further port");
}

void XdpProgram::pass(uint16_t port) {
  uint32_t key = port;
  bpf_attr attributes{};
  attributes.map_fd = static_cast<uint32_t>(map_.value());
  attributes.key = reinterpret_cast<uintptr_t>(&key);
  (void)bpf(BPF_MAP_DELETE_ELEM, attributes);
}

Status xdp_programs_allowed() {
  SLUICE_TRY(Descriptor map, make_map(1));
  return load_program({}, map.value()).status();
}

}  // namespace sluice::l2
