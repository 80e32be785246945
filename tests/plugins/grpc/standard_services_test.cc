// What gRPC itself adds to servers, over the bridge: reflection and health. Debian has no .proto
// files of them, so their messages are written by hand here.
#include <memory>
#include <string>

#include <catch2/catch.hpp>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/client_unary_call.h>

#include <sluice/base/counters.h>
#include <sluice/grpc/discovery.h>

#include "tests/plugins/grpc/service.h"

namespace sluice::test {
namespace {

using ::grpc::ByteBuffer;
using ::grpc::ClientContext;
using ::grpc::internal::RpcMethod;

By every_path() { return GENERATE(By::kPlain, By::kShm, By::kTcp); }

// A field of type string or message: its number, then what it holds.
std::string field(int number, const std::string& value) {
  REQUIRE(value.size() < 128);
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(value.size())} + value;
}

// Both are there in every server that is built from now on.
void add_standard_services() {
  ::grpc::EnableDefaultHealthCheckService(true);
  ::grpc::reflection::InitProtoReflectionServerBuilderPlugin();
}

// Calls that went over the bridge while it lived.
struct Bridged {
  const uint64_t before = read_counter("grpc.calls_served");
  uint64_t calls() const { return read_counter("grpc.calls_served") - before; }
};

::grpc::Status check_health(::grpc::Channel& channel, const std::string& service,
                            std::string* health) {
  ClientContext context;
  ByteBuffer answer;
  const ::grpc::Status status = ::grpc::internal::BlockingUnaryCall<ByteBuffer, ByteBuffer>(
      &channel, RpcMethod("/grpc.health.v1.Health/Check", RpcMethod::NORMAL_RPC), &context,
      grpc::buffer_of(field(1, service)), &answer);
  *health = grpc::text_of(answer);
  return status;
}

const std::string kServing = "\x08\x01", kNotServing = "\x08\x02";

}  // namespace

TEST_CASE("gRPC's health service answers over the bridge", "[grpc]") {
  add_standard_services();
  const By by = every_path();
  InteropServer server(by);
  ::grpc::HealthCheckServiceInterface* health = server.server().GetHealthCheckService();
  REQUIRE(health != nullptr);
  health->SetServingStatus("resting", false);
  auto channel = server.channel();
  const Bridged bridged;
  std::string said;
  CHECK(check_health(*channel, "", &said).ok());
  CHECK(said == kServing);
  CHECK(check_health(*channel, "resting", &said).ok());
  CHECK(said == kNotServing);
  CHECK(check_health(*channel, "unknown", &said).error_code() == ::grpc::StatusCode::NOT_FOUND);
  // Who watches hears of each change.
  ClientContext context;
  std::unique_ptr<::grpc::ClientReader<ByteBuffer>> watch(
      ::grpc::internal::ClientReaderFactory<ByteBuffer>::Create(
          channel.get(), RpcMethod("/grpc.health.v1.Health/Watch", RpcMethod::SERVER_STREAMING),
          &context, grpc::buffer_of(field(1, "resting"))));
  ByteBuffer change;
  REQUIRE(watch->Read(&change));
  CHECK(grpc::text_of(change) == kNotServing);
  health->SetServingStatus("resting", true);
  REQUIRE(watch->Read(&change));
  CHECK(grpc::text_of(change) == kServing);
  context.TryCancel();
  CHECK_FALSE(watch->Read(&change));
  CHECK(watch->Finish().error_code() == ::grpc::StatusCode::CANCELLED);
  CHECK(bridged.calls() == (by == By::kPlain ? 0 : 4));
}

TEST_CASE("gRPC's reflection names services and files over the bridge", "[grpc]") {
  add_standard_services();
  const By by = every_path();
  InteropServer server(by);
  auto channel = server.channel();
  const Bridged bridged;
  ClientContext context;
  std::unique_ptr<::grpc::ClientReaderWriter<ByteBuffer, ByteBuffer>> stream(
      ::grpc::internal::ClientReaderWriterFactory<ByteBuffer, ByteBuffer>::Create(
          channel.get(),
          RpcMethod("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                    RpcMethod::BIDI_STREAMING),
          &context));
  const auto ask = [&](int number, const std::string& what) {
    ByteBuffer answer;
    REQUIRE(stream->Write(grpc::buffer_of(field(number, what))));
    REQUIRE(stream->Read(&answer));
    return grpc::text_of(answer);
  };
  constexpr int kFileContainingSymbol = 4, kListServices = 7;
  CHECK_THAT(ask(kListServices, "*"), Catch::Contains("sluice.interop.TestService"));
  // The descriptor of the file, with the names of methods and messages.
  const std::string file = ask(kFileContainingSymbol, "sluice.interop.TestService");
  CHECK_THAT(file, Catch::Contains("StreamingInputCall"));
  CHECK_THAT(file, Catch::Contains("aggregated_payload_size"));
  CHECK_THAT(ask(kFileContainingSymbol, "sluice.Nothing"), Catch::Contains("not found"));
  REQUIRE(stream->WritesDone());
  CHECK(stream->Finish().ok());
  CHECK(bridged.calls() == (by == By::kPlain ? 0 : 1));
}

}  // namespace sluice::test
