// A bridged call whose client reads nothing before its end: one operation of gRPC's for all of it,
// and one packet back. Its reaction comes on the thread of the service, which sends the answer.
#ifndef SLUICE_GRPC_WHOLE_CALL_H_
#define SLUICE_GRPC_WHOLE_CALL_H_

#include <cstdint>
#include <memory>
#include <string>

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <sluice/grpc/connection.h>
#include <sluice/grpc/frames.h>
#include <sluice/grpc/message.h>
#include <sluice/grpc/server_call.h>

namespace sluice::grpc {

class WholeCall final : public BridgedCall, public std::enable_shared_from_this<WholeCall> {
 public:
  // Requires: a frame of headers without flaws that says `whole`.
  WholeCall(std::shared_ptr<ServerCallHost> host, std::shared_ptr<::grpc::Channel> channel,
            const Frame& headers, const Metadata& about_the_peer);
  ~WholeCall() override;
  // Waits for the request and the half-close if they did not come with the headers.
  void begin() override;
  void on_frame(const Frame& frame) override;
  void cancel() override;

 private:
  struct Operation;  // gRPC's, of this call

  void on_message(const Frame& frame);
  void lose_request(const ::grpc::Status& why);
  void on_done();
  void end(Outgoing response, Metadata initial, Metadata trailing);

  const std::shared_ptr<ServerCallHost> host_;
  std::shared_ptr<::grpc::Channel> channel_;  // until it is made
  const uint32_t stream_;
  const std::string method_;
  ::grpc::ClientContext context_;
  std::unique_ptr<Operation> operation_;  // before context_ in destruction: it holds the call
  std::shared_ptr<WholeCall> self_;       // until the end
  ::grpc::ByteBuffer request_;
  bool has_request_ = false, request_ready_ = false, half_closed_ = false;
  bool cancelled_ = false;
};

}  // namespace sluice::grpc

#endif  // SLUICE_GRPC_WHOLE_CALL_H_
