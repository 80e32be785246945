// One call that came over sluice, made again on the server's in-process channel: whatever style
// the service has, it sees an ordinary call.
#ifndef SLUICE_GRPC_SERVER_CALL_H_
#define SLUICE_GRPC_SERVER_CALL_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/client_callback.h>

#include <sluice/allocator/arena.h>
#include <sluice/grpc/connection.h>
#include <sluice/grpc/frames.h>
#include <sluice/grpc/message.h>

namespace sluice::grpc {

using GenericStub = ::grpc::TemplatedGenericStub<::grpc::ByteBuffer, ::grpc::ByteBuffer>;

// What a call needs of those around it. Thread: the context thread's, but for post, run_soon and
// arena.
class ServerCallHost {
 public:
  virtual void post(std::function<void()> work) = 0;
  virtual void run_soon(std::function<void()> work) = 0;
  virtual Arena& arena() = 0;
  virtual Connection* connection() = 0;       // null once it has ended
  virtual int64_t receive_limit() const = 0;  // of a request; -1: none
  virtual void remove(uint32_t stream) = 0;

 protected:
  ~ServerCallHost() = default;
};

// Thread: the context thread's, all calls.
class BridgedCall {
 public:
  virtual ~BridgedCall() = default;
  // Makes the call, with what came together with its headers: one operation of gRPC's for all.
  virtual void begin() = 0;
  virtual void on_frame(const Frame& frame) = 0;
  virtual void cancel() = 0;
};

// What a call has, whatever carries it on. Both: requires a frame of headers without flaws.
void show_headers(const Frame& headers, const Metadata& about_the_peer,
                  ::grpc::ClientContext& context);
Metadata metadata_of(const std::multimap<::grpc::string_ref, ::grpc::string_ref>& shown);
// Status, details and trailing metadata as a frame that fits.
Frame status_frame(uint32_t stream, const ::grpc::Status& status, Metadata trailing);
// For the client whose request could not be fetched.
::grpc::Status request_lost(const Status& why);

// Of any kind: each message is an operation. Reactions come from gRPC's threads and are posted.
class ServerCall final : public BridgedCall,
                         public std::enable_shared_from_this<ServerCall>,
                         private ::grpc::ClientBidiReactor<::grpc::ByteBuffer, ::grpc::ByteBuffer> {
 public:
  ServerCall(std::shared_ptr<ServerCallHost> host, uint32_t stream)
      : host_(std::move(host)), stream_(stream) {}

  // Requires: a checked frame of headers.
  void start(std::shared_ptr<GenericStub> stub, const Frame& headers,
             const Metadata& about_the_peer);
  void begin() override;
  void on_frame(const Frame& frame) override;
  void cancel() override;

 private:
  struct Incoming {
    bool ready = false;
    ::grpc::ByteBuffer bytes;
  };

  void OnReadInitialMetadataDone(bool ok) override;
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const ::grpc::Status& status) override;

  void send_metadata(Metadata metadata);
  void on_response(Outgoing message);
  void read_next();
  void send_response(Outgoing message);
  void write_next();
  void on_message(const Frame& frame);
  void end(const ::grpc::Status& status, Metadata trailing);
  void let_go();

  const std::shared_ptr<ServerCallHost> host_;
  const uint32_t stream_;
  std::shared_ptr<GenericStub> stub_;  // until begin()
  std::string method_;
  ::grpc::ClientContext context_;
  std::shared_ptr<ServerCall> self_;  // until OnDone

  // gRPC's, between a start and its reaction.
  ::grpc::ByteBuffer read_, write_;

  bool begun_ = false;
  // Set before the last write starts: its end says nothing that OnDone does not.
  bool last_is_small_ = false;
  bool held_ = false;  // no reaction ends the call while operations may still be started
  bool reading_ = false, writing_ = false, half_closed_ = false, closed_ = false;
  bool cancelled_ = false;
  std::deque<std::shared_ptr<Incoming>> requests_;
  std::optional<Outgoing> response_;  // read, and not sent: the client has to take others first
  std::deque<uint64_t> under_way_;
  uint64_t bytes_under_way_ = 0;
};

}  // namespace sluice::grpc

#endif  // SLUICE_GRPC_SERVER_CALL_H_
