// Which path a channel takes, and what is proved of its peer: forced paths, TLS, identities.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include <catch2/catch.hpp>
#include <grpcpp/grpcpp.h>

#include "tests/plugins/grpc/service.h"

namespace sluice::test {
namespace {

using ::grpc::StatusCode;

// Made by openssl for one test, in a folder that goes with it.
struct Certificates {
  Certificates() {
    std::string name = (std::filesystem::temp_directory_path() / "sluice-tls-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    folder = name;
    const std::string in = "cd " + folder.string() + " && ";
    const auto make = [&](const std::string& command) {
      REQUIRE(std::system((in + command + " >/dev/null 2>&1").c_str()) == 0);
    };
    make(
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=root -keyout root.key "
        "-out root.pem");
    for (const std::string name : {"server", "worker-7"}) {
      make("openssl req -newkey rsa:2048 -nodes -subj /CN=" + name + " -keyout " + name +
           ".key -out " + name + ".csr");
      make("printf 'subjectAltName=DNS:localhost' > names && openssl x509 -req -days 2 -in " +
           name + ".csr -CA root.pem -CAkey root.key -CAcreateserial -extfile names -out " + name +
           ".pem");
    }
  }
  ~Certificates() { std::filesystem::remove_all(folder); }
  std::string read(const std::string& name) const {
    std::ifstream file(folder / name);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  std::filesystem::path folder;
};

// Says what auth() said.
class AuthService final : public interop::TestService::Service {
  ::grpc::Status UnaryCall(::grpc::ServerContext* context, const interop::SimpleRequest*,
                           interop::SimpleResponse* response) override {
    const sluice::grpc::Auth auth = sluice::grpc::auth(*context);
    std::string text =
        std::string(auth.bridged ? "bridged" : "plain") + (auth.sealed ? " sealed" : "") + ";";
    for (const auto& [key, value] : auth.properties)
      if (key == "x509_common_name") text += value;
    response->set_peer(text);
    return ::grpc::Status::OK;
  }
};

::grpc::Status ask(const std::shared_ptr<::grpc::Channel>& channel, std::string* peer,
                   const char* forged = nullptr) {
  auto stub = interop::TestService::NewStub(channel);
  ::grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  if (forged != nullptr) context.AddMetadata("sluice-auth-bin", forged);
  interop::SimpleRequest request;
  request.set_fill_peer(true);
  interop::SimpleResponse response;
  const ::grpc::Status status = stub->UnaryCall(&context, request, &response);
  *peer = response.peer();
  return status;
}

std::shared_ptr<::grpc::Channel> insecure(const std::string& target) {
  return sluice::grpc::CreateChannel(target, ::grpc::InsecureChannelCredentials());
}

}  // namespace

TEST_CASE("a target that forces a path gets that path", "[grpc][paths]") {
  InteropServer server(By::kShm);
  std::string peer;
  for (const char* path : {"shm", "tcp"}) {
    const ::grpc::Status status = ask(insecure(path + ("://" + server.target())), &peer);
    INFO(status.error_message());
    CHECK(status.ok());
    CHECK_THAT(peer, Catch::StartsWith(std::string(path) + ":"));
  }
  const ::grpc::Status status = ask(insecure("sluice://" + server.target()), &peer);
  INFO(status.error_message());
  CHECK(status.ok());
  CHECK_THAT(peer, Catch::StartsWith("shm:"));  // the best there is
}

TEST_CASE("a forced path that cannot be had fails, and says why", "[grpc][paths]") {
  std::string peer;
  const auto fails = [&](const std::string& target, const char* why) {
    const ::grpc::Status status = ask(insecure(target), &peer);
    INFO(target << ": " << status.error_message());
    CHECK(status.error_code() == StatusCode::UNAVAILABLE);
    CHECK_THAT(status.error_message(), Catch::StartsWith("sluice: "));
    CHECK_THAT(status.error_message(), Catch::Contains(why));
  };
  {
    InteropServer over_tcp(By::kTcp);
    fails("shm://" + over_tcp.target(), "the target forces shm://, which cannot be had");
    fails("shm://" + over_tcp.target(), "ListenerOptions::address");
    fails("l2://" + over_tcp.target(), "set SLUICE_ETHERNET=1 where it runs");
  }
  {
    // Both ends are of one machine: shared memory is better, and is not what was asked for.
    InteropServer by_shm(By::kShm);
    fails("l2://" + by_shm.target(), "not shm: Requirements::path demands packet");
    fails("kmod://" + by_shm.target(), "have the kernel module");
    fails("rdma://" + by_shm.target(), "need an RDMA device");
  }
  {
    InteropServer plain(By::kPlain);
    fails("shm://" + plain.target(), "no sluice listener");
  }
  fails("tcp://127.0.0.1:1", "cannot be asked");
  fails("tcp://127.0.0.1:1",
        "start it, or check the target: its port is that of the server's gRPC");
  setenv("SLUICE_GRPC", "off", 1);
  InteropServer server(By::kShm);
  fails("shm://" + server.target(), "SLUICE_GRPC=off");
  fails("shm://" + server.target(), "unset it, or leave the scheme out of the target");
  unsetenv("SLUICE_GRPC");
}

TEST_CASE("over TLS the listener is found, and used only where the user allows it",
          "[grpc][paths][tls]") {
  const Certificates certificates;
  AuthService service;
  ::grpc::SslServerCredentialsOptions server_options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  server_options.pem_root_certs = certificates.read("root.pem");
  server_options.pem_key_cert_pairs = {
      {certificates.read("server.key"), certificates.read("server.pem")}};
  ::grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("localhost:0", ::grpc::SslServerCredentials(server_options), &port);
  builder.RegisterService(&service);
  auto server = builder.BuildAndStart();
  REQUIRE(server);
  const std::string target = "localhost:" + std::to_string(port);
  ::grpc::SslCredentialsOptions options;
  options.pem_root_certs = certificates.read("root.pem");
  options.pem_private_key = certificates.read("worker-7.key");
  options.pem_cert_chain = certificates.read("worker-7.pem");
  const auto secure = ::grpc::SslCredentials(options);
  using sluice::grpc::SecureChannel;
  struct Case {
    const char* address;
    SecureChannel allowed;
    const char* expected;
  };
  for (const Case& wanted :
       {Case{"tcp://127.0.0.1:0", SecureChannel::kPlain, "plain sealed;worker-7"},
        Case{"tcp://127.0.0.1:0", SecureChannel::kSealed, "plain sealed;worker-7"},
        Case{"tcp://127.0.0.1:0", SecureChannel::kAny, "bridged;worker-7"},
        Case{"sluice://127.0.0.1:0", SecureChannel::kPlain, "plain sealed;worker-7"},
        Case{"sluice://127.0.0.1:0", SecureChannel::kSealed, "bridged sealed;worker-7"}}) {
    auto listener = sluice::grpc::Listen(server.get(), {.address = wanted.address});
    REQUIRE(listener.ok());
    ::grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    std::string peer;
    const ::grpc::Status status = ask(
        sluice::grpc::CreateCustomChannel(target, secure, arguments, {.secure = wanted.allowed}),
        &peer, "1\x10");
    INFO(wanted.address << " " << status.error_message());
    CHECK(status.ok());
    CHECK(peer == wanted.expected);
  }
  std::string peer;
  const ::grpc::Status barred = ask(sluice::grpc::CreateChannel("tcp://" + target, secure), &peer);
  CHECK(barred.error_code() == StatusCode::UNAVAILABLE);
  CHECK_THAT(barred.error_message(), Catch::Contains("ChannelOptions::secure"));
  server->Shutdown();
}

}  // namespace sluice::test
