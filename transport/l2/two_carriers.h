// Two SLP sessions with one peer that are one connection: messages go as raw frames, whose
// latency is the least, and what lies in memory as UDP datagrams, of which the kernel takes many
// at once. Each window is a number of one of the two, and says of which.
#ifndef SLUICE_L2_TWO_CARRIERS_H_
#define SLUICE_L2_TWO_CARRIERS_H_

#include <memory>
#include <span>
#include <string>
#include <utility>

#include <sluice/l2/connection.h>
#include <sluice/proto/direct_connection.h>

namespace sluice::l2 {

class TwoCarriers final : public proto::DirectConnection {
 public:
  // Where the second one finds it, as long as it lives.
  struct Place {
    TwoCarriers* pair;
  };
  // Requires: a connection that has greeted. Until join() it does everything, and after
  // stay_alone() for good.
  explicit TwoCarriers(std::unique_ptr<Connection> frames);
  ~TwoCarriers() override { place_->pair = nullptr; }
  std::shared_ptr<Place> place() const { return place_; }
  void join(std::unique_ptr<Connection> datagrams);
  void stay_alone() { awaits_ = false; }

  void set_link(proto::DirectLink* to) override;
  Path bulk_path() const override {
    return (datagrams_ != nullptr ? datagrams_ : frames_)->bulk_path();
  }
  uint64_t uncopied_in(uint64_t bytes) override {
    return frames_->uncopied_in(datagrams_ != nullptr ? datagrams_->uncopied_in(bytes) : bytes);
  }
  std::string local_name() const override { return frames_->local_name(); }
  std::string peer_name() const override { return frames_->peer_name(); }
  void fail(Status why) override { frames_->fail(std::move(why)); }
  void set_client(proto::DirectClient* client) override;
  size_t turn(Instant now) override;
  bool has_news() const override;
  bool send(ConstBytes header, std::span<const ConstBytes> payload) override {
    return frames_->send(header, payload);
  }
  Result<bool> read(const wire::Segment& peer, std::span<const MutableBytes> into,
                    uint64_t cookie) override;
  Result<bool> write(std::span<const ConstBytes> from, const wire::Segment& peer, uint64_t cookie,
                     const uint32_t* notice) override;
  bool became_writable() override;
  void cancel_moves(uint64_t cookie) override;
  Result<WindowId> open_window(std::byte* data, uint64_t length, Right rights, uint64_t cookie,
                               wire::Segment& out) override;
  void close_window(WindowId window, bool tell) override;
  void leave() override;
  bool drained() const override;
  void stop() override;

 private:
  // What the second session says: it brings no messages but the one that joins.
  class OfDatagrams final : public proto::DirectClient {
   public:
    explicit OfDatagrams(TwoCarriers& pair) : pair_(pair) {}
    void on_message(ConstBytes, Instant) override {}
    void on_notice(uint32_t notice, Instant now) override { pair_.client_->on_notice(notice, now); }
    void on_moved(uint64_t cookie, uint64_t length, Instant now) override {
      pair_.client_->on_moved(cookie, length, now);
    }
    void on_refused(uint64_t cookie, uint64_t length, const Status& why, Instant now) override {
      pair_.client_->on_refused(cookie, length, why, now);
    }
    void on_window_closed(uint64_t cookie, Instant now) override {
      pair_.client_->on_window_closed(cookie, now);
    }

   private:
    TwoCarriers& pair_;
  };
  // The one that a window of the peer's belongs to, whose number is then its own; null: it has not
  // joined yet.
  Result<Connection*> owner_of(wire::Segment& window);

  std::unique_ptr<Connection> frames_, datagrams_;
  std::shared_ptr<Place> place_;
  OfDatagrams of_datagrams_;
  proto::DirectClient* client_ = nullptr;
  bool awaits_ = true, left_ = false, stopped_ = false, early_ = false;
};

}  // namespace sluice::l2

#endif  // SLUICE_L2_TWO_CARRIERS_H_
