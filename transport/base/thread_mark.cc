#include <sluice/base/thread_mark.h>

namespace sluice {

Status ThreadMark::refusal() {
  return Status(Code::kWrongState, Scope::kContext, "base/thread_mark",
                "another thread is inside this context; give each thread a context of its own, or "
                "let one thread call it and reach that with ProgressThread::post() "
                "(docs/threads.md)");
}

}  // namespace sluice
