// Question: how long does it take from the start of a process until a message of 64 B of its own
// memory has been read by another process, with the system calls that this needs?
//
// The process maps a memory file of --size bytes, all of whose pages it gets (huge ones where the
// kernel gives them), and another of 8 KiB for control; passes both over a Unix socket; the server
// maps them, looks at the 64 bytes, and answers. Both wait by epoll.
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "benchmarks/bare/starts.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace {

constexpr size_t kMessage = 64, kControl = 8192, kPage = size_t{2} << 20;
constexpr unsigned char kFirst = 0x5a;

struct Request {
  uint64_t bytes = 0;
};

bool must(bool held, const char* what) {
  if (!held) std::perror(what), std::exit(bare::kExitFailed);
  return held;
}

sockaddr_un address_of(const std::string& name, socklen_t* length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // abstract
  *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

void wait_readable(int watched, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  must(::epoll_ctl(watched, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
  must(::epoll_wait(watched, &event, 1, 10'000) == 1, "epoll_wait");
}

void* populated(int file, size_t bytes) {
  must(::ftruncate(file, static_cast<off_t>(bytes)) == 0, "ftruncate");
  // Where a huge page can begin.
  void* room = ::mmap(nullptr, bytes + kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  must(room != MAP_FAILED, "mmap");
  const size_t before = kPage - reinterpret_cast<uintptr_t>(room) % kPage;
  void* memory = ::mmap(static_cast<char*>(room) + before, bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_FIXED, file, 0);
  must(memory != MAP_FAILED, "mmap");
  (void)::madvise(memory, bytes, MADV_HUGEPAGE);
  for (size_t at = 0; at < bytes; at += kPage) {
    auto* piece = static_cast<char*>(memory) + at;
    const size_t length = std::min(kPage, bytes - at);
    if (length == kPage) {
      (void)::madvise(piece, 4096, MADV_POPULATE_WRITE);
      (void)::madvise(piece, length, MADV_COLLAPSE);  // a machine without huge pages refuses
    }
    must(::madvise(piece, length, MADV_POPULATE_WRITE) == 0, "madvise");
  }
  return memory;
}

int start(const std::string& place) {
  const std::string name = place.substr(0, place.find(' '));
  const size_t bytes = std::strtoull(place.c_str() + name.size(), nullptr, 10);
  const int watched = ::epoll_create1(EPOLL_CLOEXEC);
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  socklen_t length = 0;
  const sockaddr_un to = address_of(name, &length);
  must(::connect(socket, reinterpret_cast<const sockaddr*>(&to), length) == 0, "connect");
  int files[2] = {::memfd_create("message", MFD_CLOEXEC), ::memfd_create("control", MFD_CLOEXEC)};
  std::memset(populated(files[0], bytes), kFirst, kMessage);
  (void)populated(files[1], kControl);
  Request request{bytes};
  iovec piece{&request, sizeof(request)};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(files))] = {};
  msghdr message{};
  message.msg_iov = &piece, message.msg_iovlen = 1;
  message.msg_control = room, message.msg_controllen = sizeof(room);
  cmsghdr* rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET, rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(files));
  std::memcpy(CMSG_DATA(rights), files, sizeof(files));
  must(::sendmsg(socket, &message, 0) == sizeof(request), "sendmsg");
  wait_readable(watched, socket);
  char answer = 0;
  must(::recv(socket, &answer, 1, 0) == 1 && answer == 'y', "the server's answer");
  bare::first_operation_done();
  return 0;
}

void serve_one(int listener, bool corrupt) {
  const int socket = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  must(socket >= 0, "accept");
  const int watched = ::epoll_create1(EPOLL_CLOEXEC);
  wait_readable(watched, socket);
  Request request;
  int files[2] = {-1, -1};
  iovec piece{&request, sizeof(request)};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(files))] = {};
  msghdr message{};
  message.msg_iov = &piece, message.msg_iovlen = 1;
  message.msg_control = room, message.msg_controllen = sizeof(room);
  must(::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) == sizeof(request), "recvmsg");
  const cmsghdr* rights = CMSG_FIRSTHDR(&message);
  must(rights != nullptr && rights->cmsg_len == CMSG_LEN(sizeof(files)), "descriptors");
  std::memcpy(files, CMSG_DATA(rights), sizeof(files));
  void* control = ::mmap(nullptr, kControl, PROT_READ, MAP_SHARED, files[1], 0);
  void* memory = ::mmap(nullptr, request.bytes, PROT_READ, MAP_SHARED, files[0], 0);
  must(control != MAP_FAILED && memory != MAP_FAILED, "mmap");
  unsigned char copy[kMessage];
  std::memcpy(copy, memory, kMessage);
  if (corrupt) copy[kMessage / 2] ^= 0x10;
  bool right = true;
  for (unsigned char byte : copy) right = right && byte == kFirst;
  const char answer = right ? 'y' : 'n';
  must(::send(socket, &answer, 1, MSG_NOSIGNAL) == 1, "send");
  ::munmap(control, kControl);
  ::munmap(memory, request.bytes);
  for (int fd : {files[0], files[1], watched, socket}) ::close(fd);
}

int serve(int told, uint64_t bytes, bool corrupt) {
  const std::string name = "bare-first-message-" + std::to_string(::getpid());
  const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  socklen_t length = 0;
  const sockaddr_un at = address_of(name, &length);
  must(::bind(listener, reinterpret_cast<const sockaddr*>(&at), length) == 0, "bind");
  must(::listen(listener, 16) == 0, "listen");
  const std::string place = name + " " + std::to_string(bytes);
  must(::write(told, place.data(), place.size()) > 0, "write");
  for (;;) serve_one(listener, corrupt);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == bare::kStarted) return start(argv[2]);
  bare::Options options;
  options.name = "first_message";
  options.size = 8u << 20;
  options.iterations = 40;
  bare::parse_or_exit(options, argc, argv);
  return bare::measure_starts(options,
                              [&](int told) { return serve(told, options.size, options.corrupt); });
}
