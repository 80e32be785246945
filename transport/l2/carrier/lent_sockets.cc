#include <sluice/l2/carrier/lent_sockets.h>

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <unordered_set>

namespace sluice::l2 {
namespace {

constexpr const char* kOrigin = "l2/broker";

Status refused(Code code, std::string why) {
  return Status(code, Scope::kOperation, kOrigin, std::move(why));
}

// Packet sockets of this network namespace. False: the table cannot be read.
bool open_packet_sockets(std::unordered_set<ino_t>& out) {
  std::ifstream table("/proc/self/net/packet");
  std::string line;
  if (!std::getline(table, line)) return false;
  while (std::getline(table, line)) {
    // sk RefCnt Type Proto Iface R Rmem User Inode
    std::istringstream words(line);
    std::string ignored;
    ino_t inode = 0;
    for (int i = 0; i < 8; ++i) words >> ignored;
    if (words >> inode) out.insert(inode);
  }
  return true;
}

}  // namespace

bool LentSockets::of_another(uid_t user, uint16_t port) const {
  return std::any_of(lent_.begin(), lent_.end(),
                     [&](const Lent& lent) { return lent.port == port && lent.user != user; });
}

Status LentSockets::limit(uid_t user) const {
  auto own = static_cast<size_t>(std::count_if(
      lent_.begin(), lent_.end(), [&](const Lent& lent) { return lent.user == user; }));
  if (own >= most_by_user_) {
    return refused(Code::kTryAgain,
                   "user " + std::to_string(user) + " has borrowed " + std::to_string(own) +
                       " sockets; close some, or start the broker with a larger --sockets-by-user");
  }
  size_t most = own < most_ / 16 ? most_ : most_ - most_ / 4;
  if (lent_.size() < most) return Status();
  return refused(Code::kTryAgain,
                 std::to_string(lent_.size()) +
                     " sockets are lent; close some, or start the broker with a larger --sockets");
}

Status LentSockets::may_lend(uid_t user, uint16_t port) {
  if (!limit(user).ok() || of_another(user, port)) take_back();
  SLUICE_RETURN_IF_ERROR(limit(user));
  if (of_another(user, port))
    return refused(
        Code::kInvalidArgument,
        "port " + std::to_string(port) + " was lent to another user, who still has its socket");
  return Status();
}

void LentSockets::add(uid_t user, uint16_t port, int socket) {
  struct stat found {};
  if (::fstat(socket, &found) == 0) lent_.push_back({port, user, found.st_ino});
}

void LentSockets::let_go(uint16_t port) {
  std::erase_if(lent_, [&](const Lent& lent) { return lent.port == port && lent.inode == kHeld; });
}

void LentSockets::take_back() {
  std::unordered_set<ino_t> open;
  if (!open_packet_sockets(open)) return;
  std::erase_if(
      lent_, [&](const Lent& lent) { return lent.inode != kHeld && open.count(lent.inode) == 0; });
}

}  // namespace sluice::l2
