// What stdout has, in the format that was asked for. Results only: notes go to stderr.
#pragma once

#include "tools/perf/report/document_file.h"
#include "tools/perf/run/run.h"

namespace sluice::tools {

class Output {
 public:
  // `options` outlive it.
  explicit Output(const PerfOptions& options) : options_(options) {}

  void begin(const EndpointInfo& link);
  // As it ends, before its size's result.
  void add(const Load& load, const Interval& part);
  // As it is measured.
  void add(const Measurement& measurement);
  // One of several runs leaves the document to their caller. Errors: kInternal where stdout took
  // less than all.
  Status end(const Json& document);

 private:
  const PerfOptions& options_;
};

}  // namespace sluice::tools
