// The service of the interoperability tests, a server that has it, and channels to it.
#ifndef SLUICE_TESTS_PLUGINS_GRPC_SERVICE_H_
#define SLUICE_TESTS_PLUGINS_GRPC_SERVICE_H_

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include <grpcpp/grpcpp.h>

#include <sluice/grpc/bridge.h>
#include <sluice/grpc/frames.h>

#include "tests/plugins/grpc/interop.grpc.pb.h"

namespace sluice::test {

class InteropService final : public interop::TestService::Service {
 public:
  ::grpc::Status EmptyCall(::grpc::ServerContext*, const interop::Empty*, interop::Empty*) override;
  ::grpc::Status UnaryCall(::grpc::ServerContext* context, const interop::SimpleRequest* request,
                           interop::SimpleResponse* response) override;
  ::grpc::Status StreamingInputCall(
      ::grpc::ServerContext* context,
      ::grpc::ServerReader<interop::StreamingInputCallRequest>* reader,
      interop::StreamingInputCallResponse* response) override;
  ::grpc::Status StreamingOutputCall(
      ::grpc::ServerContext* context, const interop::StreamingOutputCallRequest* request,
      ::grpc::ServerWriter<interop::StreamingOutputCallResponse>* writer) override;
  ::grpc::Status FullDuplexCall(
      ::grpc::ServerContext* context,
      ::grpc::ServerReaderWriter<interop::StreamingOutputCallResponse,
                                 interop::StreamingOutputCallRequest>* stream) override;

  // Waits until no call runs any more; false: one still does.
  bool becomes_idle();
  void started();
  void ended(bool cancelled);

  // What the last unary call that asked for its peer came with.
  std::multimap<std::string, std::string> metadata();

  std::atomic<int> responses_written{0}, calls_cancelled{0};

 private:
  std::mutex mutex_;
  std::condition_variable idle_;
  int running_ = 0;
  std::multimap<std::string, std::string> metadata_;
};

// How calls reach the server. kEthernet: it is on another node, which a cable leads to. kRdma: at
// rdma_host().
enum class By { kPlain, kShm, kTcp, kEthernet, kRdma };

// The address of this machine's RDMA device; null: it is no guest of `sluice lab`.
const char* rdma_host();

// Moves the process into a network of its own where kEthernet can be; false where that is refused.
// Called before anything of gRPC's, which starts threads.
bool have_ethernet();

class InteropServer {
 public:
  static constexpr int kUsualLimit = -2;  // gRPC's own, 4 MiB
  // kPlain: without a listener. `most_bytes`: of a request; -1: no limit.
  explicit InteropServer(By by, int most_bytes = -1, int port = 0);
  // By kEthernet, and its process does not wish Ethernet: SLUICE_ETHERNET is not set there.
  struct NotWished {};
  explicit InteropServer(NotWished);
  ~InteropServer();

  std::shared_ptr<::grpc::Channel> channel(bool bridged = true) const;
  std::unique_ptr<interop::TestService::Stub> stub() const {
    return interop::TestService::NewStub(channel());
  }
  const std::string& target() const { return target_; }
  // What the server tells who asks it for its listener, without the bridge.
  sluice::grpc::Announcement announcement() const;
  // What UnaryCall's peer starts with.
  std::string expected_peer() const;
  InteropService& service() { return service_; }
  ::grpc::Server& server() { return *server_; }
  sluice::grpc::Listener* listener() { return listener_.get(); }

 private:
  void start(const std::string& host, int most_bytes, int port);

  const By by_;
  InteropService service_;
  std::unique_ptr<::grpc::Server> server_;
  std::unique_ptr<sluice::grpc::Listener> listener_;
  std::string target_;
};

}  // namespace sluice::test

#endif  // SLUICE_TESTS_PLUGINS_GRPC_SERVICE_H_
