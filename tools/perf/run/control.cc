#include "tools/perf/run/control.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace sluice::tools {
namespace {

constexpr const char* kOrigin = "perf/control";

Status corrupt(std::string why) {
  return Status(Code::kCorrupt, Scope::kEndpoint, kOrigin, std::move(why));
}

// A peer's text is printed, and a terminal would obey what is no letter in it.
std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return text;
}

}  // namespace

ControlChannel::~ControlChannel() {
  if (posted_ == kNoOperation || done_) return;
  // The completion must not find us gone.
  if (endpoint_) (void)endpoint_.cancel(posted_);
  (void)context_.wait_until([&] { return done_; }, after(sluice::now(), kStallLimit));
}

Status ControlChannel::send(const Json& message) {
  // A peer's text may be cut in the middle of a letter, or be no text.
  std::string text = message.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > kLargestMessageBytes) {
    return Status(Code::kInternal, Scope::kOperation, kOrigin,
                  "a control message of " + std::to_string(text.size()) + " bytes");
  }
  SLUICE_TRY(Buffer buffer, context_.arena().allocate(text.size()));
  std::memcpy(buffer.data(), text.data(), text.size());
  SLUICE_TRY(Receipt receipt, endpoint_.send_and_wait(kControlTag, std::move(buffer).freeze(),
                                                      after(sluice::now(), kStallLimit)));
  copies_ += {receipt.copied_bytes, receipt.kernel_copied_bytes};
  return Status();
}

Status ControlChannel::expect() {
  if (posted_ != kNoOperation) return Status();
  SLUICE_TRY(Buffer buffer, context_.arena().allocate(kLargestMessageBytes));
  done_ = false;
  SLUICE_TRY(posted_, endpoint_.receive({kControlTag}, std::move(buffer),
                                        {.sink = this, .deadline = kNever}));
  return Status();
}

Result<Json> ControlChannel::receive(Duration limit) {
  SLUICE_RETURN_IF_ERROR(expect());
  SLUICE_RETURN_IF_ERROR(context_.wait_until([&] { return done_; }, after(sluice::now(), limit)));
  posted_ = kNoOperation;
  SLUICE_RETURN_IF_ERROR(completion_.status);
  copies_ += {completion_.receipt.copied_bytes, completion_.receipt.kernel_copied_bytes};
  auto* text = reinterpret_cast<const char*>(completion_.buffers[0].data());
  Json message = Json::parse(text, text + completion_.receipt.bytes, nullptr, false);
  completion_ = Completion();
  if (!message.is_object())
    return corrupt("the peer sent something that is no control message; is it `sluice perf`?");
  return message;
}

void ControlChannel::on_completion(Completion&& completion) noexcept {
  completion_ = std::move(completion);
  done_ = true;
}

Result<Json> ask(ControlChannel& control, const Json& request) {
  SLUICE_RETURN_IF_ERROR(control.send(request));
  SLUICE_TRY(Json answer, control.receive());
  auto error = answer.find("error");
  if (error == answer.end()) return answer;
  return Status(Code::kUnreachable, Scope::kEndpoint, kOrigin,
                "the server says: " +
                    printable(error->is_string() ? error->get<std::string>() : error->dump()));
}

Result<uint64_t> number_field(const Json& message, const char* name) {
  auto field = message.find(name);
  if (field == message.end() || !field->is_number_unsigned()) {
    return corrupt(std::string("a control message without the number '") + name +
                   "'; run the same version on both sides");
  }
  return field->get<uint64_t>();
}

Result<std::string> text_field(const Json& message, const char* name) {
  auto field = message.find(name);
  if (field == message.end() || !field->is_string()) {
    return corrupt(std::string("a control message without the text '") + name +
                   "'; run the same version on both sides");
  }
  return printable(field->get<std::string>());
}

}  // namespace sluice::tools
