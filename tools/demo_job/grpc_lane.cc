#include "tools/demo_job/grpc_lane.h"

#include <chrono>

#include <sluice/grpc/bridge.h>

namespace sluice::tools::demo {
namespace {

std::shared_ptr<::grpc::Channel> open_channel(const Visit& visit, const std::string& address) {
  ::grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const auto insecure = ::grpc::InsecureChannelCredentials();
  if (visit.mode != Mode::kGrpcOverSluice)
    return ::grpc::CreateCustomChannel(address, insecure, arguments);
  // The changed line. The path is forced: a figure is that path's, or there is none.
  return sluice::grpc::CreateCustomChannel(std::string(to_string(visit.route)) + "://" + address,
                                           insecure, arguments);
}

}  // namespace

GrpcLane::GrpcLane(const GrpcLaneParameters& parameters)
    : shard_(parameters.shard),
      worker_(parameters.worker),
      visit_(parameters.visit),
      kill_(parameters.kill) {
  for (const TensorSpec& spec : shard_.tensors)
    gradients_.push_back(std::make_unique_for_overwrite<float[]>(spec.elements));
}

Status GrpcLane::connect(const std::string& address) {
  channel_ = open_channel(visit_, address);
  if (!channel_->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(20))) {
    return Status(Code::kUnreachable, Scope::kEndpoint, "demo/grpc",
                  "no gRPC connection to " + address);
  }
  stub_ = ::sluice::demo::ParameterServer::NewStub(channel_);
  return Status();
}

void GrpcLane::limit(::grpc::ClientContext& call, Instant deadline) {
  call.set_deadline(std::chrono::system_clock::now() +
                    std::chrono::duration_cast<std::chrono::milliseconds>(deadline - now()));
}

Status GrpcLane::told(const ::grpc::Status& status) {
  if (status.ok()) return Status();
  const Code code = status.error_code() == ::grpc::StatusCode::DEADLINE_EXCEEDED
                        ? Code::kTimedOut
                        : Code::kUnreachable;
  return Status(
      code, Scope::kEndpoint, "demo/grpc",
      "gRPC status " + std::to_string(status.error_code()) + ": " + status.error_message());
}

}  // namespace sluice::tools::demo
