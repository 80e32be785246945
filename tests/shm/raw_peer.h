// A peer over shared memory that is none of ours: its packets and its ring are what a test writes,
// and it goes only as far as a test lets it. The other side is a real context.
#ifndef SLUICE_TESTS_SHM_RAW_PEER_H_
#define SLUICE_TESTS_SHM_RAW_PEER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <sluice/shm/ring.h>
#include <sluice/wire/messages.h>

namespace sluice::test {

inline constexpr uint64_t kMiB = uint64_t{1} << 20;
// What a peer's memory has to have (F_SEAL_...).
int all_seals();

// Memory as a peer passes it; the caller closes it.
int memfd(uint64_t bytes, int seals, bool populated);

// Sends one packet without waiting. False: errno says why.
bool send_raw(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors);

class RawPeer {
 public:
  // Connects to a listener at shm:NAME, and says nothing.
  explicit RawPeer(const std::string& name);
  ~RawPeer();
  RawPeer(const RawPeer&) = delete;
  RawPeer& operator=(const RawPeer&) = delete;

  int socket() const { return socket_; }
  bool connected() const { return connected_; }

  bool say(std::span<const std::byte> bytes, std::span<const int> descriptors = {}) {
    return send_raw(socket_, bytes, descriptors);
  }
  bool say(uint8_t byte, std::span<const int> descriptors = {});
  // HELLO with a control region that is as it should be.
  bool greet(uint64_t arena_bytes = 64 * kMiB);
  wire::Hello hello;  // as greet() says it; the token (has_rendezvous) stays
  bool announce(uint32_t id, uint64_t offset, uint64_t length, int memory);

  // Reads what has come. One packet at most for each call; none: nothing has, or (ended()) nothing
  // will.
  std::optional<std::vector<std::byte>> hear();
  // The listener's HELLO came: its region is mapped.
  bool met();
  // The other side is gone, or has refused us; its BYE is kept.
  bool ended();
  std::optional<Code> bye() const { return bye_; }
  bool has_bell();

  // Of a peer that met().
  bool write(const wire::Ping& message);
  bool write(std::span<const std::byte> header, std::span<const std::byte> payload = {});
  // Takes a message out of the other's ring; its header.
  std::optional<wire::Header> read();
  // The other side says that it has to be rung for.
  bool other_sleeps() const { return writer_->reader_sleep() != 0; }
  bool ring() { return say(1); }
  shm::RingReader<std::atomic>& reader() { return *reader_; }
  shm::SharedRegion* region() { return region_; }
  // Memory that the other's region had when it met us, also what nobody has mapped.
  uint64_t other_region_bytes() const { return other_region_bytes_; }

 private:
  void take_packet(std::span<const std::byte> bytes, int fd);

  int socket_ = -1;
  bool connected_ = false, ended_ = false, bell_ = false;
  std::optional<Code> bye_;
  uint64_t other_region_bytes_ = 0;
  shm::SharedRegion* region_ = nullptr;
  const shm::SharedRegion* theirs_ = nullptr;
  std::unique_ptr<shm::RingWriter<std::atomic>> writer_;
  std::unique_ptr<shm::RingReader<std::atomic>> reader_;
};

}  // namespace sluice::test

#endif  // SLUICE_TESTS_SHM_RAW_PEER_H_
