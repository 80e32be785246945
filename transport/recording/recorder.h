// Records the messages of one context, and what its thread did between them: around every link, and
// in a hook of its loop. A context that does not record has neither, and no instruction more.
#ifndef SLUICE_RECORDING_RECORDER_H_
#define SLUICE_RECORDING_RECORDER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <sluice/api/context.h>
#include <sluice/api/progress_hook.h>
#include <sluice/base/process_mark.h>
#include <sluice/recording/file.h>
#include <sluice/recording/format.h>
#include <sluice/spi/link_decorator.h>

namespace sluice::recording {

// How the time of a thread goes. The loop calls the hook once in each turn, and asks for its next
// timeout before each sleep. Between two turns that follow each other closely it polls. If there is
// more between them, the kernel tells whether the thread ran, slept, or was not given a processor.
//
// Thread: the context's. Ownership: shared by the context and the links, which may outlive it.
class Recorder final : public LinkDecorator,
                       public ProgressHook,
                       public std::enable_shared_from_this<Recorder> {
 public:
  Recorder(File file, uint32_t context, uint64_t started_ns);
  ~Recorder();

  std::unique_ptr<ViewLink> decorate(std::unique_ptr<ViewLink> inner) override;
  std::unique_ptr<StreamLink> decorate(std::unique_ptr<StreamLink> inner) override;
  std::unique_ptr<DeviceLink> decorate(std::unique_ptr<DeviceLink> inner) override;

  // ProgressHook.
  size_t progress(Instant now) override;
  Instant next_timeout() override;

  // For links. The time since the last of these calls:
  void note_call();  // the program's own
  void note_poll();  // polling, unless it is long
  void note_move();  // the library moved bytes
  // `bytes` of them have left meanwhile: it may have moved them, or else waited for room.
  void note_moved(uint64_t bytes);
  void note_message(EventKind kind, uint32_t connection, uint64_t bytes, bool view = false);
  // Events that have come together are written, and so is that they are all.
  void flush();

 private:
  template <typename Link, typename Kind>
  std::unique_ptr<Kind> make(std::unique_ptr<Kind> inner);
  // Adds the time since the last call to `part` if it is short and no sleep.
  void account(uint64_t Event::*part);
  // How long the thread ran since the last time, less ran_since_.
  uint64_t ask_kernel();

  static constexpr size_t kEventsTogether = 128;

  File file_;
  const uint32_t context_;
  const ProcessMark owner_ = ProcessMark::current();
  Instant last_;  // what is before it is accounted for
  Instant last_flush_;
  bool asleep_ = false;
  // What the kernel said of the thread the last time, and what it has run since as we know.
  uint64_t thread_cpu_ns_ = 0, ran_since_ = 0;
  int64_t thread_sleeps_ = 0;
  bool slept_elsewhere_ = false;
  Event next_;  // its times grow until it comes
  std::array<Event, kEventsTogether> events_;
  size_t together_ = 0;
  uint64_t all_events_ = 0;
  uint32_t connections_ = 0;
};

// What SLUICE_RECORD asks for; null: nothing, or, with a line in the log, it cannot be. A program
// goes on without it. Blocks: makes a local file.
std::shared_ptr<Recorder> open_recorder(const ContextOptions& options);

}  // namespace sluice::recording

#endif  // SLUICE_RECORDING_RECORDER_H_
