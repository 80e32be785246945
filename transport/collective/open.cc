// How the ranks of a group find each other: every rank listens, connects to the ranks below and
// accepts those above. With a bootstrap address rank 0 hands out the addresses.
#include <algorithm>
#include <cstring>
#include <string_view>
#include <unordered_map>

#include <sluice/base/counters.h>
#include "transport/collective/algorithms.h"
#include <sluice/collective/group.h>
#include <sluice/spi/endpoint_core.h>

namespace sluice {
namespace {

constexpr const char* kOrigin = "collective/open";
constexpr uint32_t kMagic = 0x48434C53;  // "SLCH"
constexpr uint32_t kVersion = 2;         // of the hello, and of the headers of collectives
constexpr size_t kMostAddress = 255;
// A rank that does not listen yet is asked again after this.
constexpr Duration kAskAgain = 10ms;
// Connections that said nothing yet, beside one per rank. Beyond that the oldest one has to go, for
// a rank says at once who it is.
constexpr size_t kMostSilent = 64;
// Between rank 0's end of patience and the deadline, a tenth of the time at most.
constexpr Duration kTimeToTell = std::chrono::milliseconds(500);
constexpr Tag kHelloTag = internal::lane_tag(internal::Lane::kHello, 0);
constexpr Tag kTableTag = internal::lane_tag(internal::Lane::kHello, 1);
constexpr Tag kFlagTag = internal::lane_tag(internal::Lane::kHello, 2);
Counter strangers_refused("collective.strangers_refused");

struct Hello {
  uint32_t magic = 0;  // kMagic; anything else was sent by a stranger
  uint32_t version = kVersion;
  uint32_t size = 0;
  uint32_t rank = 0;
  char address[kMostAddress + 1] = {};
};

Status invalid(std::string what) {
  return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin, std::move(what));
}

Status check(const GroupOptions& options) {
  if (options.size < 1 || options.size > kMostRanks)
    return invalid("a group of " + std::to_string(options.size) + ": give 1 to " +
                   std::to_string(kMostRanks) + " ranks");
  if (options.rank < 0 || options.rank >= options.size)
    return invalid("rank " + std::to_string(options.rank) + " is not in a group of " +
                   std::to_string(options.size));
  if (options.size == 1) return Status();
  if (options.addresses.empty() == options.bootstrap.empty())
    return invalid("give either addresses, one per rank, or bootstrap");
  if (!options.addresses.empty() && options.addresses.size() != static_cast<size_t>(options.size))
    return invalid(std::to_string(options.addresses.size()) + " addresses for " +
                   std::to_string(options.size) + " ranks");
  std::unordered_map<std::string_view, size_t> owners;
  for (size_t rank = 0; rank < options.addresses.size(); ++rank)
    if (auto [owner, first] = owners.try_emplace(options.addresses[rank], rank); !first)
      return invalid("ranks " + std::to_string(owner->second) + " and " + std::to_string(rank) +
                     " have the same address, " + options.addresses[rank] +
                     "; give each rank its own");
  if (!options.bootstrap.empty() && options.rank > 0 && options.listen.empty())
    return invalid("with bootstrap, ranks above 0 say in listen where they listen");
  return Status();
}

class Opening {
 public:
  Opening(Context& context, const GroupOptions& options, Instant deadline)
      : context_(context),
        options_(options),
        deadline_(deadline),
        peers_(static_cast<size_t>(options.size)),
        addresses_(options.addresses) {}
  ~Opening();

  Result<std::vector<Endpoint>> run();

 private:
  // An accepted connection that has not said who it is.
  struct Guest {
    Endpoint endpoint;
    OperationId operation = kNoOperation;
    uint64_t id = 0;
  };
  Status connect(int rank, const std::string& address);
  Status accept(int first, Instant until);
  Status take_guests();
  Status welcome(Completion& completion);
  Result<Tensor> hello();
  Status read_hello(std::span<const std::byte> bytes, Hello& out) const;
  Status accept_all();
  Status send_table();
  Status receive_table();
  std::string missing(int first) const;
  Endpoint& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }
  size_t table_bytes() const { return static_cast<size_t>(options_.size) * (kMostAddress + 1); }

  Context& context_;
  const GroupOptions& options_;
  Instant deadline_;
  Listener listener_;
  std::vector<Endpoint> peers_;
  std::vector<std::string> addresses_;
  std::vector<Guest> guests_;
  CompletionQueue hellos_;
  uint64_t next_guest_ = 0;
  size_t hellos_pending_ = 0;
};

Opening::~Opening() {
  for (Guest& guest : guests_)
    guest.endpoint.shared()->abort(
        Status(Code::kCancelled, Scope::kEndpoint, kOrigin, "the group is open"));
  // Their receives report to hellos_.
  (void)context_.wait_until(
      [&] {
        Completion completion;
        while (hellos_.poll(completion)) --hellos_pending_;
        return hellos_pending_ == 0;
      },
      kNever);
}

Result<Tensor> Opening::hello() {
  Hello hello{.magic = kMagic,
              .size = static_cast<uint32_t>(options_.size),
              .rank = static_cast<uint32_t>(options_.rank)};
  const std::string address = listener_ ? listener_.address() : std::string();
  if (address.size() > kMostAddress) return invalid("the address is too long: " + address);
  std::memcpy(hello.address, address.data(), address.size());
  SLUICE_TRY(Buffer room, context_.arena().allocate(sizeof hello));
  std::memcpy(room.data(), &hello, sizeof hello);
  return std::move(room).freeze();
}

Status Opening::read_hello(std::span<const std::byte> bytes, Hello& out) const {
  if (bytes.size() != sizeof out) return invalid("no hello of a group");
  std::memcpy(&out, bytes.data(), sizeof out);
  out.address[kMostAddress] = 0;
  if (out.magic != kMagic) return invalid("no hello of a group");
  if (out.version != kVersion)
    return invalid("the other rank speaks version " + std::to_string(out.version) +
                   " of groups, this one " + std::to_string(kVersion));
  if (out.size != static_cast<uint32_t>(options_.size))
    return invalid("rank " + std::to_string(out.rank) + " says that the group has " +
                   std::to_string(out.size) + " ranks, this one " + std::to_string(options_.size));
  if (out.rank >= out.size || out.rank == static_cast<uint32_t>(options_.rank))
    return invalid("another process says that it is rank " + std::to_string(out.rank));
  return Status();
}

Status Opening::connect(int rank, const std::string& address) {
  Result<Endpoint> endpoint = Status(Code::kTimedOut, Scope::kOperation, kOrigin, "no time");
  for (;;) {
    const Instant now = context_.refresh_now();
    if (now >= deadline_)
      return Status(Code::kTimedOut, Scope::kOperation, kOrigin,
                    "rank " + std::to_string(rank) + " never came to " + address + ": " +
                        std::string(endpoint.status().detail()));
    endpoint = context_.connect(
        address, {.require = options_.require,
                  .timeout = deadline_ == kNever ? Duration::max() : deadline_ - now});
    if (endpoint.ok()) break;
    if (endpoint.code() != Code::kUnreachable && endpoint.code() != Code::kTimedOut)
      return endpoint.status();
    (void)context_.wait(std::min(deadline_, after(context_.refresh_now(), kAskAgain)));
  }
  SLUICE_TRY(Tensor ours, hello());
  Result<Receipt> sent = endpoint->send_and_wait(kHelloTag, std::move(ours), deadline_);
  SLUICE_TRY(Buffer room, context_.arena().allocate(sizeof(Hello)));
  Result<Endpoint::Received> answer =
      !sent.ok() ? Result<Endpoint::Received>(sent.status())
                 : endpoint->receive_and_wait({.tag = kHelloTag}, std::move(room), deadline_);
  if (!answer.ok()) {
    const bool late = context_.refresh_now() >= deadline_;
    return Status(late ? Code::kTimedOut : answer.code(), Scope::kOperation, kOrigin,
                  "rank " + std::to_string(rank) + " at " + address +
                      (late ? " never came: "
                            : " sent this rank away; see the error of that rank: the sizes of the "
                              "groups differ, two processes have this rank's number, or too many "
                              "connections to it say nothing (") +
                      std::string(answer.status().detail()) + (late ? "" : ")"));
  }
  Hello theirs;
  SLUICE_RETURN_IF_ERROR(read_hello(answer->buffer.bytes(), theirs));
  if (theirs.rank != static_cast<uint32_t>(rank))
    return invalid("rank " + std::to_string(theirs.rank) + " answers at " + address +
                   ", where rank " + std::to_string(rank) + " should be");
  peer(rank) = std::move(*endpoint);
  return Status();
}

Status Opening::take_guests() {
  for (;;) {
    Result<Endpoint> guest = listener_.try_accept();
    if (guest.code() == Code::kTryAgain) return Status();
    if (!guest.ok()) return guest.status();
    if (guests_.size() >= kMostSilent + static_cast<size_t>(options_.size)) {
      strangers_refused.add();
      guests_.front().endpoint.shared()->abort(
          Status(Code::kTryAgain, Scope::kEndpoint, kOrigin,
                 "too many connections have not said which rank they are; connect again"));
      guests_.erase(guests_.begin());
    }
    SLUICE_TRY(Buffer room, context_.arena().allocate(sizeof(Hello)));
    guests_.push_back({.endpoint = std::move(*guest), .id = next_guest_++});
    Guest& last = guests_.back();
    Result<OperationId> posted =
        last.endpoint.receive({.tag = kHelloTag}, std::move(room),
                              {.sink = &hellos_, .user_data = last.id, .deadline = kNever});
    if (!posted.ok()) {
      guests_.pop_back();
    } else {
      ++hellos_pending_;
    }
  }
}

// A stranger is sent away; a rank that contradicts this one ends the opening.
Status Opening::welcome(Completion& completion) {
  --hellos_pending_;
  auto guest = std::find_if(guests_.begin(), guests_.end(),
                            [&](const Guest& g) { return g.id == completion.user_data; });
  if (guest == guests_.end()) return Status();  // it had to go
  Endpoint endpoint = std::move(guest->endpoint);
  guests_.erase(guest);

  Hello theirs;
  Status fits = completion.status;
  if (fits.ok())
    fits = read_hello(completion.buffers[0].bytes().first(
                          std::min<size_t>(completion.receipt.bytes, sizeof(Hello))),
                      theirs);
  if (!fits.ok()) {
    strangers_refused.add();
    endpoint.shared()->abort(fits);
    const bool rank = completion.status.ok() && theirs.magic == kMagic;
    return rank ? fits : Status();
  }
  const int rank = static_cast<int>(theirs.rank);
  if (peer(rank)) {
    endpoint.shared()->abort(fits);
    return invalid("rank " + std::to_string(rank) +
                   " came twice; give each process of the group another rank");
  }
  SLUICE_TRY(Tensor ours, hello());
  Result<Receipt> sent = endpoint.send_and_wait(kHelloTag, std::move(ours), deadline_);
  if (!sent.ok()) {  // it has gone again: missing() names it, unless it comes back
    endpoint.shared()->abort(sent.status());
    return Status();
  }
  if (addresses_.size() > static_cast<size_t>(rank) && options_.addresses.empty())
    addresses_[static_cast<size_t>(rank)] = theirs.address;
  peer(rank) = std::move(endpoint);
  return Status();
}

std::string Opening::missing(int first) const {
  std::string ranks;
  for (int rank = first; rank < options_.size; ++rank)
    if (!peers_[static_cast<size_t>(rank)])
      ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  return ranks;
}

// Until all ranks from `first` on are there.
Status Opening::accept(int first, Instant until) {
  while (!missing(first).empty()) {
    Completion completion;
    Status taken;
    Status waited = context_.wait_until(
        [&] {
          taken = take_guests();
          return !taken.ok() || hellos_.poll(completion);
        },
        until);
    SLUICE_RETURN_IF_ERROR(taken);
    if (waited == Code::kTimedOut)
      return Status(Code::kTimedOut, Scope::kOperation, kOrigin,
                    "these ranks never came to " + listener_.address() + ": " + missing(first));
    SLUICE_RETURN_IF_ERROR(waited);
    SLUICE_RETURN_IF_ERROR(welcome(completion));
  }
  return Status();
}

// Of rank 0, with bootstrap. It gives up a little before the deadline: only it knows who is
// missing, and tells those who wait for its table.
Status Opening::accept_all() {
  const Instant now = context_.refresh_now();
  Instant until = deadline_;
  if (deadline_ != kNever && deadline_ > now)
    until = deadline_ - std::min<Duration>(kTimeToTell, (deadline_ - now) / 10);
  Status all = accept(1, until);
  if (all != Code::kTimedOut) return all;
  const std::string_view text = all.detail().substr(0, table_bytes() - 1);
  for (int rank = 1; rank < options_.size; ++rank) {
    if (!peer(rank)) continue;
    SLUICE_TRY(Buffer room, context_.arena().allocate(text.size()));
    std::memcpy(room.data(), text.data(), text.size());
    (void)peer(rank).send_and_wait(kTableTag, std::move(room).freeze(), deadline_);
  }
  return all;
}

// Rank 0 has heard from everybody where they listen.
Status Opening::send_table() {
  SLUICE_TRY(Buffer room, context_.arena().allocate(table_bytes()));
  std::memset(room.data(), 0, table_bytes());
  for (size_t rank = 0; rank < addresses_.size(); ++rank)
    std::memcpy(room.data() + rank * (kMostAddress + 1), addresses_[rank].data(),
                std::min(addresses_[rank].size(), kMostAddress));
  const Tensor table = std::move(room).freeze();
  for (int rank = 1; rank < options_.size; ++rank) {
    SLUICE_TRY(Receipt sent, peer(rank).send_and_wait(kTableTag, table, deadline_));
    (void)sent;
  }
  return Status();
}

Status Opening::receive_table() {
  SLUICE_TRY(Buffer room, context_.arena().allocate(table_bytes()));
  Result<Endpoint::Received> table =
      peer(0).receive_and_wait({.tag = kTableTag}, std::move(room), deadline_);
  if (table.code() == Code::kTimedOut)
    return Status(Code::kTimedOut, Scope::kOperation, kOrigin,
                  "rank 0 sent no table of addresses before the deadline; it may wait for ranks "
                  "that have not started");
  SLUICE_RETURN_IF_ERROR(table.status());
  const auto* bytes = reinterpret_cast<const char*>(table->buffer.data());
  if (table->buffer.size_bytes() != table_bytes())
    return Status(Code::kTimedOut, Scope::kOperation, kOrigin,
                  "rank 0 says: " + std::string(bytes, table->buffer.size_bytes()));
  for (size_t rank = 0; rank < addresses_.size(); ++rank) {
    const char* address = bytes + rank * (kMostAddress + 1);
    addresses_[rank].assign(address, ::strnlen(address, kMostAddress));
  }
  return Status();
}

Result<std::vector<Endpoint>> Opening::run() {
  const bool meet = !options_.bootstrap.empty();
  if (meet) addresses_.resize(static_cast<size_t>(options_.size));
  const std::string& here = !meet ? addresses_[static_cast<size_t>(options_.rank)]
                                  : (options_.rank == 0 ? options_.bootstrap : options_.listen);
  SLUICE_TRY(listener_, context_.listen(here, {.require = options_.require}));
  if (meet) {
    if (options_.rank == 0) {
      SLUICE_RETURN_IF_ERROR(accept_all());
      SLUICE_RETURN_IF_ERROR(send_table());
    } else {
      SLUICE_RETURN_IF_ERROR(connect(0, options_.bootstrap));
      SLUICE_RETURN_IF_ERROR(receive_table());
    }
  }
  for (int rank = 0; rank < options_.rank; ++rank)
    if (!peer(rank)) SLUICE_RETURN_IF_ERROR(connect(rank, addresses_[static_cast<size_t>(rank)]));
  SLUICE_RETURN_IF_ERROR(accept(options_.rank + 1, deadline_));
  listener_.close();
  return std::move(peers_);
}

Status lost(int rank, const Status& why) {
  return Status(why == Code::kWrongState ? Code::kUnreachable : why.code(), Scope::kOperation,
                kOrigin,
                "lost rank " + std::to_string(rank) +
                    " while the group opened: " + std::string(why.detail()));
}

// Whether every rank sees all others' memory: all ranks know the same answers.
Result<bool> all_see_all(Context& context, std::vector<Endpoint>& peers, int rank,
                         Instant deadline) {
  const int size = static_cast<int>(peers.size());
  uint8_t mine = 1;
  for (const Endpoint& peer : peers)
    if (peer && !peer.info().path.capabilities.has(Capability::kViews)) mine = 0;
  bool all = mine != 0;
  SLUICE_TRY(Buffer answer, context.arena().allocate(1));
  answer.data()[0] = std::byte{mine};
  const Tensor ours = std::move(answer).freeze();
  for (int other = 0; other < size; ++other) {
    if (other == rank) continue;
    SLUICE_TRY(OperationId posted,
               peers[static_cast<size_t>(other)].send(kFlagTag, ours, {.deadline = deadline}));
    (void)posted;
  }
  for (int other = 0; other < size; ++other) {
    if (other == rank) continue;
    SLUICE_TRY(Buffer room, context.arena().allocate(1));
    Result<Endpoint::Received> theirs = peers[static_cast<size_t>(other)].receive_and_wait(
        {.tag = kFlagTag}, std::move(room), deadline);
    if (!theirs.ok()) return lost(other, theirs.status());
    all = all && theirs->buffer.size_bytes() == 1 && theirs->buffer.data()[0] == std::byte{1};
  }
  return all;
}

}  // namespace

Result<std::unique_ptr<Group>> Group::open(Context& context, const GroupOptions& options,
                                           Instant deadline) {
  SLUICE_RETURN_IF_ERROR(check(options));
  auto mesh = std::make_unique<internal::Mesh>(context, options.rank, options.size);
  if (options.size > 1) {
    std::vector<Endpoint> peers;
    {
      Opening opening(context, options, deadline);
      SLUICE_TRY(peers, opening.run());
    }
    SLUICE_TRY(bool views, all_see_all(context, peers, options.rank, deadline));
    mesh->set_views(views);
    SLUICE_RETURN_IF_ERROR(mesh->start(std::move(peers)));
  }
  return std::unique_ptr<Group>(new Group(std::move(mesh)));
}

}  // namespace sluice
