#include <sluice/fault/plan.h>

namespace sluice::fault {

std::string to_string(Call call) {
  switch (call) {
    case Call::kSend: return "send()";
    case Call::kPush: return "push()";
    case Call::kFlush: return "flush()";
    case Call::kExport: return "export_run()";
    case Call::kImport: return "import_run()";
    case Call::kMessage: return "handle_message()";
    case Call::kPlaced: return "placed()";
    case Call::kPushed: return "pushed()";
    case Call::kWritable: return "writable()";
  }
  return "?";
}

std::string to_string(Action action) {
  switch (action) {
    case Action::kNothing: return "nothing";
    case Action::kFail: return "fails";
    case Action::kDrop: return "is dropped";
    case Action::kTruncateHeader: return "has half a header";
    case Action::kTruncatePayload: return "has half a payload";
    case Action::kReorder: return "is overtaken";
  }
  return "?";
}

}  // namespace sluice::fault
