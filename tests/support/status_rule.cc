#include "tests/support/status_rule.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace sluice::test {
namespace {

// What a remedy begins with, after "; ", ", " or "or ".
constexpr auto kVerbs = std::to_array<std::string_view>(
    {"add",      "allocate", "allow",    "ask",     "begin",   "build", "call",    "check",
     "choose",   "close",    "connect",  "correct", "create",  "drop",  "enable",  "examples:",
     "fetch",    "find",     "free",     "give",    "install", "keep",  "let",     "listen",
     "load",     "look",     "lower",    "make",    "mend",    "merge", "move",    "open",
     "pass",     "post",     "progress", "publish", "raise",   "read",  "receive", "release",
     "remove",   "repeat",   "report",   "retire",  "run",     "see",   "set",     "slice",
     "start",    "stop",     "try",      "unset",   "upgrade", "use",   "wait",    "write",
     "example:", "put"});

// A rule that the call broke is its own remedy: "1 to 255 bytes, not 256".
constexpr auto kRules = std::to_array<std::string_view>(
    {", not ", "at most ", "at least ", " must ", " above ", "outside ", " cannot be ",
     "does not fit", "is negative", "more than ", "for reading only", "needs ", "no such ",
     " strides for ", "unknown scheme", "null memory", "slice of "});

struct Allowed {
  std::string_view part;  // of the text
  std::string_view why;   // it says no more
};
constexpr auto kAllowed = std::to_array<Allowed>({
    {"as planned", "a fault that the test made"},
    {"the context was closed", "the caller closed it"},
    {"handle was dropped without close()", "the caller dropped it"},
    {"the tensor is ", "Exchange adds what to do: FetchRecord::explain()"},
    // Of paths and sessions that a peer ended: what to do is the same for all of kUnreachable.
    {"the peer process ended or dropped the connection", "`sluice explain kUnreachable`"},
    {"the peer closed the connection", "`sluice explain kUnreachable`"},
    {"the connection was closed", "`sluice explain kUnreachable`"},
    {"the connection is closed", "`sluice explain kUnreachable`"},
    {"the connection has ended", "`sluice explain kUnreachable`"},
    {"the peer closed the session", "`sluice explain kUnreachable`"},
    {"the peer ended the connection", "`sluice explain kUnreachable`"},
    {"the peer has gone", "`sluice explain kUnreachable`"},
    {"cancelled by the caller", "the caller knows why, and need do nothing"},
    {"the peer gave it up in the middle", "the peer knows why, and need do nothing"},
    {"the exchange is gone", "the caller destroyed it"},
    {"the endpoint left the exchange", "the caller removed it"},
    {"the endpoint is being closed", "the caller closes it"},
});

bool has_remedy(std::string_view text) {
  for (std::string_view mark : {"; ", ", ", " or ", ": "}) {
    for (size_t at = text.find(mark); at != std::string_view::npos; at = text.find(mark, at + 1)) {
      const std::string_view rest = text.substr(at + mark.size());
      for (std::string_view verb : kVerbs) {
        const bool whole =
            rest.size() == verb.size() ||
            (rest.size() > verb.size() && (rest[verb.size()] == ' ' || rest[verb.size()] == ',' ||
                                           rest[verb.size()] == ';' || rest[verb.size()] == '('));
        if (rest.starts_with(verb) && whole) return true;
      }
    }
  }
  return false;
}

}  // namespace

std::string what_lacks(const Status& status) {
  const std::string_view text = status.detail();
  const auto inside = [&](const auto& each) { return text.find(each) != std::string_view::npos; };
  if (text.find(' ') == std::string_view::npos) return "a cause";
  if (has_remedy(text)) return "";
  const bool wrong_call =
      status.code() == Code::kInvalidArgument || status.code() == Code::kAccessDenied;
  if (wrong_call && std::any_of(kRules.begin(), kRules.end(), inside)) return "";
  for (const Allowed& each : kAllowed) {
    if (inside(each.part)) return "";
  }
  // A peer that breaks the protocol: what it sent is the cause. `sluice explain kCorrupt` has the
  // remedy, which is the same for all.
  if (status.code() == Code::kCorrupt) return "";
  return "a remedy";
}

}  // namespace sluice::test
