// What tests of sealed connections share, whatever carries them: secrets in files, and who is
// refused and why.
#ifndef SLUICE_TESTS_L2_SECRETS_H_
#define SLUICE_TESTS_L2_SECRETS_H_

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include <array>
#include <cstdlib>
#include <string>

#include <sluice/base/status.h>

namespace sluice::test {

class SecretFile {
 public:
  explicit SecretFile(const std::string& content, mode_t mode = 0600) {
    char name[] = "/tmp/sluice-secret-XXXXXX";
    int fd = ::mkstemp(name);
    REQUIRE(fd >= 0);
    REQUIRE(::write(fd, content.data(), content.size()) == static_cast<ssize_t>(content.size()));
    REQUIRE(::fchmod(fd, mode) == 0);
    ::close(fd);
    path = name;
  }
  SecretFile(const SecretFile&) = delete;
  SecretFile& operator=(const SecretFile&) = delete;
  ~SecretFile() { ::unlink(path.c_str()); }
  std::string path;
};

inline constexpr char kOneSecret[] = "the first secret of this test\n",
                      kAnotherSecret[] = "the second secret of this test\n";

// Files of the end that listens and of the one that connects, empty for none, and what the
// refusal must say.
struct Refused {
  std::string listens, connects, cause, remedy;

  void check(const Status& status) const {
    INFO(status.to_string());
    CHECK(status.code() == Code::kAccessDenied);
    CHECK(status.detail().find(cause) != std::string_view::npos);
    CHECK(status.detail().find(remedy) != std::string_view::npos);
  }
};

inline std::array<Refused, 3> who_is_refused(const SecretFile& one, const SecretFile& another) {
  return {Refused{one.path, another.path, "another secret", "give both ends the same file"},
          Refused{one.path, "", "this end has none", "SLUICE_L2_SECRET_FILE"},
          Refused{"", one.path, "the peer has no secret", "go unencrypted"}};
}

}  // namespace sluice::test

#endif  // SLUICE_TESTS_L2_SECRETS_H_
