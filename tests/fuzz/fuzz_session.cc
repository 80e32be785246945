// A hostile peer, a hostile clock and a full link against one session: no undefined
// behaviour, every operation ends once, what leaves is well-formed, nothing stays behind.
//
// The input is a program: one byte names a step, the bytes after it are its arguments.
#include <algorithm>
#include <array>
#include <cstring>

#include "tests/fuzz/input.h"
#include "tests/fuzz/session_messages.h"
#include "tests/fuzz/session_world.h"
#include "tests/fuzz/target.h"

#include <sluice/runtime/mailbox.h>
#include <sluice/spi/endpoint_core.h>

namespace sluice::fuzz {
namespace {

constexpr int kMostSteps = 200;

constexpr uint64_t kAmounts[] = {0,
                                 1,
                                 2,
                                 8,
                                 100,
                                 4096,
                                 1000,
                                 65536,
                                 65537,
                                 1 << 20,
                                 uint64_t{1} << 32,
                                 static_cast<uint64_t>(INT64_MAX),
                                 uint64_t{1} << 63,
                                 ~uint64_t{0}};

LinkTraits traits_of(Input& in, bool views) {
  LinkTraits traits;
  traits.properties.path = Path::kLoopback;
  traits.inline_bytes = in.chance() ? 64 : 4096;
  traits.data_bytes = views ? 0 : 1000;
  return traits;
}

class World final : private WantHandler {
 public:
  explicit World(Input& in)
      : in_(in),
        arena_(shared_arena()),
        outstanding_before_(arena_->statistics().outstanding),
        views_(in.chance()),
        peer_(in, record_, views_) {
    LinkTraits traits = traits_of(in, views_);
    wire::Hello ours, peer;
    ours.credit_messages = 8;
    ours.credit_bytes = 10000;
    const uint8_t able = in.byte();
    peer.credit_messages = able % 8;
    peer.features = (able & 8) != 0 ? ~uint64_t{0} : 0;
    peer.credit_bytes = 5000;
    proto::SessionOptions options;
    options.operation_limit = in.chance() ? 8 : 32;
    options.want_limit = 8;
    options.credit_messages = ours.credit_messages;
    options.credit_bytes = ours.credit_bytes;
    if (in.chance()) options.silence_limit = std::chrono::seconds(10);
    mailbox_ = std::make_shared<Mailbox>(-1);
    session_ = std::make_unique<proto::Session>(proto::SessionParts{.link = make_link(traits),
                                                                    .arena = arena_,
                                                                    .mailbox = mailbox_,
                                                                    .host = &host_,
                                                                    .ours = ours,
                                                                    .peer = peer,
                                                                    .options = options,
                                                                    .reason = "fuzz"});
  }

  void run() {
    for (int step = 0; step < kMostSteps && !in_.empty(); ++step) {
      one_step(in_.byte());
      verify();
    }
    end_by_deadline();
    end_session();
  }

 private:
  AnyLink make_link(const LinkTraits& traits) {
    if (views_) return std::make_unique<FakeViewLink>(traits, record_, mapping_, *arena_);
    return std::make_unique<FakeStreamLink>(traits, record_);
  }
  // WantHandler.
  void on_want(EndpointCore&, const WantRequest& request) noexcept override {
    if (tokens_.size() < 64) tokens_.push_back(request.token);
    if (request.key.size() > kMaxKeyBytes) require_no("a key of more than 255 bytes");
  }
  bool on_want_cancelled(EndpointCore&, uint64_t token) noexcept override {
    return std::erase(tokens_, token) > 0;
  }
  void on_endpoint_closed(EndpointCore&, const Status& why) noexcept override {
    ++closed_;
    if (why.ok()) require_no("closed without a reason");
  }

  void verify() {
    require_no(record_.problem);
    require_no(sink_.problem);
    EndpointCounters counters = session_->counters();
    if (counters.completed > counters.posted) require_no("more completed than posted");
    if (sink_.count > posted_) require_no("more completions than posts");
  }

  void one_step(uint8_t step) {
    switch (step % 24) {
      case 0: return raw_message();
      case 1:
      case 2:
      case 3: return deliver_offer(peer_.offer());
      case 4:
      case 5: return deliver(peer_.want());
      case 6:
        return deliver(
            wire::Done{peer_.id(), static_cast<Code>(in_.byte() % kCodeCount), in_.amount()});
      case 7: return deliver(peer_.release());
      case 8: return deliver(wire::Cancel{peer_.id(), in_.chance()});
      case 9: return deliver(wire::Credit{in_.amount(), in_.amount()});
      case 10: return deliver(wire::Ping{in_.amount(), in_.chance()});
      case 11: return deliver(wire::Bye{static_cast<Code>(in_.byte() % kCodeCount)});
      case 12: return data();
      case 13: return acknowledge();
      case 14: record_.room = in_.byte() % 8; return;
      case 15: return make_room();
      case 16: return pass_time();
      case 17:
      case 18: (void)session_->progress(host_.time); return;
      case 19: return post();
      case 20: return post_one_sided();
      case 21: return answer_want();
      case 22: return manage();
      default: return in_.chance() ? drop_values() : deliver_offer(peer_.supply());
    }
  }

  void deliver_bytes(ConstBytes header, ConstBytes payload) {
    if (down_) return;
    auto checked = wire::decode_header(header);
    bool whole = checked.ok() && checked->header_bytes == header.size() &&
                 checked->payload_bytes == payload.size();
    if (!whole || checked->type == wire::MessageType::kHello)
      return;  // a link refuses these itself
    if (checked->type == wire::MessageType::kData) return;
    // Blocks of exactly that size: a sanitizer sees a read beyond them.
    std::vector<std::byte> own_header(header.begin(), header.end()),
        own_payload(payload.begin(), payload.end());
    BytesPayload reader{own_payload};
    settle(session_->handle_message(own_header, reader, host_.time));
    require_no(reader.problem);
  }

  void settle(const Status& status) {
    if (status.ok()) return;
    if (status.detail().empty())
      require_no("the peer was refused without a reason: " + status.to_string());
    link_down(status);
  }

  void link_down(const Status& why) {
    if (down_) return;
    down_ = true;
    session_->link_down(why, host_.time);
  }

  template <typename Message>
  void deliver(const Message& message, size_t payload = 0) {
    std::array<std::byte, wire::kMaxHeaderBytes> header;
    size_t length = wire::encode(message, header);
    static const std::vector<std::byte> zeros(wire::kMaxInlineBytes);
    deliver_bytes(ConstBytes(header).first(length),
                  ConstBytes(zeros).first(std::min(payload, zeros.size())));
  }

  void deliver_offer(const wire::Offer& offer) { deliver(offer, offer.payload_bytes); }

  void raw_message() {
    std::vector<std::byte> header(16 + 8 * (in_.byte() % 32));
    ConstBytes bytes = std::as_bytes(in_.rest(header.size()));
    std::copy(bytes.begin(), bytes.end(), header.begin());
    uint32_t payload = 0;
    std::memcpy(&payload, header.data() + 4, 4);
    deliver_bytes(header, std::vector<std::byte>(std::min(payload, wire::kMaxInlineBytes)));
  }

  // DATA as a stream link hands it over: asks where it goes, fills that, says so.
  void data() {
    if (down_) return;
    uint64_t which = peer_.id(), offset = in_.amount(), length = 1 + in_.amount() % 4096;
    if (record_.data == nullptr) return;
    Placement place = record_.data->place(which, offset, length);
    uint64_t taken = 0;
    for (size_t i = 0; i < place.count; ++i) {
      std::memset(place.runs[i].data(), 0x77, place.runs[i].size());
      taken += place.runs[i].size();
    }
    if (taken > length) require_no("more room than bytes");
    settle(record_.data->placed(which, offset, place.count == 0 ? length : taken, host_.time));
  }

  void acknowledge() {
    if (record_.in_flight.empty() || down_) return;
    SentData sent = record_.in_flight.front();
    record_.in_flight.pop_front();
    record_.data->pushed(sent.cookie, sent.length, host_.time);
  }

  void make_room() {
    record_.room = ~uint64_t{0};
    if (!std::exchange(record_.refused, false) || down_) return;
    session_->writable(host_.time);
  }

  void pass_time() {
    static constexpr Duration kSteps[] = {Duration(0), Duration(1), 1ms, 400ms, 1s,
                                          4s,          29s,         31s, 1h};
    host_.time += kSteps[in_.byte() % std::size(kSteps)];
    session_->handle_timeout(host_.time);
  }

  PostOptions options() {
    PostOptions options;
    options.sink = &sink_;
    options.user_data = sink_.times_ended.size();
    options.level = static_cast<Level>(in_.byte() % 3);
    if (in_.chance()) options.deadline = host_.time + std::chrono::seconds(in_.byte());
    return options;
  }

  template <typename Id>
  void note(const Id& id) {
    if (!id.ok()) return;
    ++posted_;
    sink_.times_ended.push_back(0);
    if (ours_.size() < 64) ours_.push_back(*id);
  }

  // Memory that is not of the arena.
  Tensor foreign() {
    static std::array<std::byte, 300> memory{};
    auto made = Tensor::wrap(
        memory.data(), TensorDescriptor::bytes(memory.size()), [](void*) {}, nullptr);
    return made.ok() ? std::move(made).value() : Tensor();
  }

  Buffer buffer() {
    static constexpr size_t kSizes[] = {1, 8, 64, 100, 1000, 4096, 5000, 9000};
    auto made = arena_->allocate(kSizes[in_.byte() % std::size(kSizes)]);
    if (!made.ok()) return {};
    Buffer buffer = std::move(made).value();
    std::memset(buffer.data(), 1, buffer.size_bytes());
    return buffer;
  }

  void post() {
    PostOptions chosen = options();
    uint8_t kind = in_.byte();
    std::array<Buffer, 2> two = {buffer(), buffer()};
    if (!two[0] || !two[1]) return;
    size_t count = 1 + (kind >> 7);
    if (kind % 3 == 0) {
      std::array<Tensor, 2> tensors = {std::move(two[0]).freeze(), std::move(two[1]).freeze()};
      if (in_.byte() > 200) tensors[0] = foreign();
      bool quiet = in_.chance();
      if (quiet) chosen.sink = nullptr;
      auto id = session_->post_send(in_.byte() % 4, std::span(tensors).first(count), chosen);
      if (!quiet) note(id);
      return;
    }
    if (kind % 3 == 1)
      return note(session_->post_receive({in_.byte() % uint64_t{4}, in_.chance() ? ~Tag{0} : 0},
                                         std::span(two).first(count), chosen));
    WantOptions want;
    want.key_id = in_.byte();
    std::string key(in_.byte(), 'q');
    want.key = key;
    if (in_.chance()) want.destination = std::move(two[0]);
    note(session_->post_want(want, chosen));
  }

  void post_one_sided() {
    PostOptions chosen = options();
    RemoteKey key{.grant = in_.amount(),
                  .length = in_.amount(),
                  .epoch = in_.byte(),
                  .rights = Right::kReadWrite};
    Buffer memory = buffer();
    if (!memory) return;
    uint64_t offset = in_.byte() < 128 ? 0 : in_.amount();
    if (in_.chance()) return note(session_->post_read(key, offset, memory, chosen));
    Tensor tensor = std::move(memory).freeze();
    note(session_->post_write(key, offset, tensor, chosen));
  }

  void answer_want() {
    if (tokens_.empty()) return;
    uint64_t token = tokens_.front();
    tokens_.erase(tokens_.begin());
    if (in_.chance())
      return (void)session_->refuse_want(token,
                                         static_cast<Code>(1 + in_.byte() % (kCodeCount - 1)));
    PostOptions chosen = options();
    Buffer memory = buffer();
    if (!memory) return;
    note(session_->post_supply(token, std::move(memory).freeze(), chosen));
  }

  void manage() {
    uint8_t what = in_.byte();
    switch (what % 8) {
      case 0: {
        Buffer memory = buffer();
        auto key = session_->grant(memory, {.rights = static_cast<Right>(1 + in_.byte() % 3),
                                            .deadline = in_.chance() ? kNever : host_.time + 5s});
        if (key.ok()) peer_.learn(*key);
        return;
      }
      case 1:
        if (const auto& keys = peer_.keys(); !keys.empty())
          (void)session_->revoke(keys[in_.byte() % keys.size()]);
        return;
      case 2:
      case 3:
        if (!ours_.empty()) (void)session_->cancel(ours_[in_.byte() % ours_.size()]);
        return;
      case 4: return session_->set_want_handler(in_.chance() ? this : nullptr);
      case 5: return session_->start_close();
      case 6:
        if (what > 200)
          session_->abort(Status(Code::kCancelled, Scope::kEndpoint, "fuzz", "aborted"));
        return;
      default:
        if (what > 200)
          link_down(Status(Code::kUnreachable, Scope::kEndpoint, "fuzz", "the line was cut"));
        return;
    }
  }

  void drop_values() {
    sink_.tensors.clear();
    sink_.buffers.clear();
    (void)mailbox_->open_all();
  }

  void settle_down() {
    for (int i = 0; i < 1000 && session_->has_work(); ++i) (void)session_->progress(host_.time);
    verify();
  }

  // Every operation has a deadline, and ends by it, whatever the peer did.
  void end_by_deadline() {
    settle_down();
    host_.time += 2h;
    session_->handle_timeout(host_.time);
    settle_down();
    EndpointCounters counters = session_->counters();
    if (counters.posted != counters.completed) {
      require_no(std::to_string(counters.posted) + " posted, " +
                 std::to_string(counters.completed) + " ended two hours after the last deadline");
    }
    if (sink_.count != posted_) require_no("an operation ended without its completion");
  }

  void end_session() {
    if (in_.byte() == 0)
      link_down(Status(Code::kUnreachable, Scope::kEndpoint, "fuzz", "the peer is gone"));
    if (!down_)
      session_->abort(Status(Code::kCancelled, Scope::kEndpoint, "fuzz", "aborted at the end"));
    settle_down();
    if (session_->state() != EndpointState::kClosed)
      require_no("not closed after the link went down");
    if (!record_.closed) require_no("the link was not closed");
    session_.reset();
    drop_values();
    record_.quarantined.clear();
    if (mapping_.references != 0)
      require_no(std::to_string(mapping_.references) + " references to the peer's memory are left");
    mailbox_->close();
    if (arena_->statistics().outstanding != outstanding_before_)
      require_no("memory of the arena is still held");
  }

  Input& in_;
  std::shared_ptr<Arena> arena_;
  size_t outstanding_before_;
  const bool views_;
  LinkRecord record_;
  HostilePeer peer_;
  FakeMapping mapping_;
  FakeHost host_;
  CountingSink sink_;
  std::shared_ptr<Mailbox> mailbox_;
  std::vector<uint64_t> tokens_;  // requests for keys waiting for an answer
  std::vector<OperationId> ours_;
  uint64_t posted_ = 0;
  int closed_ = 0;
  bool down_ = false;
  std::unique_ptr<proto::Session> session_;
};

}  // namespace
}  // namespace sluice::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sluice::fuzz::Input in(data, size, sluice::fuzz::kAmounts);
  sluice::fuzz::World(in).run();
  return 0;
}
