#include "tests/plugins/grpc/service.h"

#include <chrono>
#include <cstdlib>

#include <catch2/catch.hpp>
#include <grpcpp/impl/client_unary_call.h>

#include <sluice/grpc/discovery.h>

#include "tests/l2/wire.h"

namespace sluice::test {
namespace {

constexpr char kInitialKey[] = "x-grpc-test-echo-initial";
constexpr char kTrailingKey[] = "x-grpc-test-echo-trailing-bin";

void echo_metadata(::grpc::ServerContext& context) {
  const auto& sent = context.client_metadata();
  if (auto found = sent.find(kInitialKey); found != sent.end())
    context.AddInitialMetadata(kInitialKey,
                               std::string(found->second.data(), found->second.size()));
  if (auto found = sent.find(kTrailingKey); found != sent.end()) {
    context.AddTrailingMetadata(kTrailingKey,
                                std::string(found->second.data(), found->second.size()));
  }
}

::grpc::Status status_of(const interop::EchoStatus& asked) {
  if (asked.code() == 0) return ::grpc::Status::OK;
  return ::grpc::Status(static_cast<::grpc::StatusCode>(asked.code()), asked.message(),
                        "details \x01\xff of " + asked.message());
}

// Counts itself, and whether the client gave up.
class Running {
 public:
  Running(InteropService& service, ::grpc::ServerContext& context)
      : service_(service), context_(context) {
    service_.started();
  }
  ~Running() { service_.ended(context_.IsCancelled()); }

 private:
  InteropService& service_;
  ::grpc::ServerContext& context_;
};

}  // namespace

void InteropService::started() {
  std::lock_guard lock(mutex_);
  ++running_;
}

void InteropService::ended(bool cancelled) {
  if (cancelled) ++calls_cancelled;
  std::lock_guard lock(mutex_);
  --running_;
  idle_.notify_all();
}

bool InteropService::becomes_idle() {
  std::unique_lock lock(mutex_);
  return idle_.wait_for(lock, std::chrono::seconds(20), [&] { return running_ == 0; });
}

std::multimap<std::string, std::string> InteropService::metadata() {
  std::lock_guard lock(mutex_);
  return metadata_;
}

::grpc::Status InteropService::EmptyCall(::grpc::ServerContext*, const interop::Empty*,
                                         interop::Empty*) {
  return ::grpc::Status::OK;
}

::grpc::Status InteropService::UnaryCall(::grpc::ServerContext* context,
                                         const interop::SimpleRequest* request,
                                         interop::SimpleResponse* response) {
  Running running(*this, *context);
  echo_metadata(*context);
  if (request->fill_peer()) {
    response->set_peer(sluice::grpc::peer(*context));
    std::lock_guard lock(mutex_);
    metadata_.clear();
    for (const auto& [key, value] : context->client_metadata())
      metadata_.emplace(std::string(key.data(), key.size()),
                        std::string(value.data(), value.size()));
  }
  if (request->response_size() > 0)
    response->mutable_payload()->mutable_body()->assign(
        static_cast<size_t>(request->response_size()), '\0');
  if (request->compress()) context->set_compression_algorithm(GRPC_COMPRESS_GZIP);
  if (request->echo()) *response->mutable_payload() = request->payload();
  return status_of(request->response_status());
}

::grpc::Status InteropService::StreamingInputCall(
    ::grpc::ServerContext* context,
    ::grpc::ServerReader<interop::StreamingInputCallRequest>* reader,
    interop::StreamingInputCallResponse* response) {
  Running running(*this, *context);
  interop::StreamingInputCallRequest request;
  int sum = 0;
  while (reader->Read(&request)) sum += static_cast<int>(request.payload().body().size());
  response->set_aggregated_payload_size(sum);
  return ::grpc::Status::OK;
}

::grpc::Status InteropService::StreamingOutputCall(
    ::grpc::ServerContext* context, const interop::StreamingOutputCallRequest* request,
    ::grpc::ServerWriter<interop::StreamingOutputCallResponse>* writer) {
  Running running(*this, *context);
  for (const auto& wanted : request->response_parameters()) {
    interop::StreamingOutputCallResponse response;
    response.mutable_payload()->mutable_body()->assign(static_cast<size_t>(wanted.size()), '\0');
    if (!writer->Write(response)) break;
    ++responses_written;
  }
  return status_of(request->response_status());
}

::grpc::Status InteropService::FullDuplexCall(
    ::grpc::ServerContext* context,
    ::grpc::ServerReaderWriter<interop::StreamingOutputCallResponse,
                               interop::StreamingOutputCallRequest>* stream) {
  Running running(*this, *context);
  echo_metadata(*context);
  interop::StreamingOutputCallRequest request;
  while (stream->Read(&request)) {
    if (request.response_status().code() != 0) return status_of(request.response_status());
    for (const auto& wanted : request.response_parameters()) {
      interop::StreamingOutputCallResponse response;
      response.mutable_payload()->mutable_body()->assign(static_cast<size_t>(wanted.size()), '\0');
      if (!stream->Write(response)) break;
      ++responses_written;
    }
  }
  return ::grpc::Status::OK;
}

const char* rdma_host() { return std::getenv("SLUICE_LAB_ADDRESS"); }

bool have_ethernet() {
  static const bool have = [] {
    if (far_node() == nullptr || !run("ip address add 10.9.0.1/24 dev left") ||
        !far_node()->run_inside("ip address add 10.9.0.2/24 dev right"))
      return false;
    ::setenv("SLUICE_ETHERNET", "1", 1);
    return true;
  }();
  return have;
}

InteropServer::InteropServer(By by, int most_bytes, int port) : by_(by) {
  if (by == By::kEthernet) {
    // Its sockets and its threads are there.
    far_node()->inside([&] { start("10.9.0.2", most_bytes, port); });
  } else {
    start(rdma_host() != nullptr ? rdma_host() : "127.0.0.1", most_bytes, port);
  }
}

InteropServer::InteropServer(NotWished) : by_(By::kEthernet) {
  ::setenv("SLUICE_ETHERNET", "0", 1);
  far_node()->inside([&] { start("10.9.0.2", -1, 0); });
  ::setenv("SLUICE_ETHERNET", "1", 1);
}

void InteropServer::start(const std::string& host, int most_bytes, int wanted) {
  ::grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(host + ":" + std::to_string(wanted), ::grpc::InsecureServerCredentials(),
                           &port);
  builder.RegisterService(&service_);
  if (most_bytes != kUsualLimit) builder.SetMaxReceiveMessageSize(most_bytes);
  server_ = builder.BuildAndStart();
  REQUIRE(server_);
  target_ = host + ":" + std::to_string(port);
  if (by_ == By::kPlain) return;
  sluice::grpc::ListenerOptions options;
  options.address = by_ == By::kTcp    ? "tcp://127.0.0.1:0"
                    : by_ == By::kRdma ? "rdma://" + host + ":0"
                                       : "sluice://0.0.0.0:0";
  auto listener = sluice::grpc::Listen(server_.get(), options);
  INFO(listener.status().to_string());
  REQUIRE(listener.ok());
  listener_ = std::move(*listener);
}

InteropServer::~InteropServer() {
  const auto soon = std::chrono::system_clock::now() + std::chrono::seconds(5);
  if (listener_) listener_->Shutdown(soon);
  server_->Shutdown(soon);
}

std::shared_ptr<::grpc::Channel> InteropServer::channel(bool bridged) const {
  ::grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (!bridged)
    return ::grpc::CreateCustomChannel(target_, ::grpc::InsecureChannelCredentials(), arguments);
  return sluice::grpc::CreateCustomChannel(target_, ::grpc::InsecureChannelCredentials(),
                                           arguments);
}

sluice::grpc::Announcement InteropServer::announcement() const {
  using ::grpc::ByteBuffer;
  using ::grpc::internal::RpcMethod;
  ::grpc::ClientContext context;
  ByteBuffer answer;
  REQUIRE(::grpc::internal::BlockingUnaryCall<ByteBuffer, ByteBuffer>(
              channel(false).get(), RpcMethod(sluice::grpc::kFindMethod, RpcMethod::NORMAL_RPC),
              &context, sluice::grpc::buffer_of(""), &answer)
              .ok());
  const auto found = sluice::grpc::decode_announcement(sluice::grpc::text_of(answer));
  REQUIRE(found);
  return *found;
}

std::string InteropServer::expected_peer() const {
  switch (by_) {
    case By::kPlain: return "ipv4:127.0.0.1:";
    case By::kShm: return "shm:";
    case By::kTcp: return "tcp:127.0.0.1:";
    case By::kEthernet: return "packet:";
    case By::kRdma: return "verbs:";
  }
  return {};
}

}  // namespace sluice::test
