// -b: what a side of a bandwidth test does in one direction, and what its peer does, at the
// same time on one connection. Each direction is the test itself.
#include <utility>

#include "tools/perf/load/workload.h"

namespace sluice::tools {
namespace {

std::unique_ptr<Workload> one_way(Side side, Load load, Role role) {
  side.role = role;
  load.bidirectional = false;
  return make_workload(side, load);
}

class Duplex final : public Steps {
 public:
  Duplex(const Side& side, const Load& load)
      : Steps(side, load),
        out_(one_way(side, load, Role::kClient)),
        in_(one_way(side, load, Role::kServer)) {}

  Result<Json> prepare() override {
    SLUICE_TRY(Json out, out_->prepare());
    SLUICE_TRY(Json in, in_->prepare());
    return Json{{"out", std::move(out)}, {"in", std::move(in)}};
  }
  // What goes out here comes in there.
  Status adopt(const Json& peer) override {
    auto out = peer.find("out"), in = peer.find("in");
    if (out == peer.end() || in == peer.end() || !out->is_object() || !in->is_object()) {
      return Status(Code::kCorrupt, Scope::kEndpoint, "perf/duplex",
                    "the peer names no two directions; run the same version on both sides");
    }
    SLUICE_RETURN_IF_ERROR(out_->adopt(*in));
    return in_->adopt(*out);
  }
  Status arm(const Round& round) override {
    SLUICE_RETURN_IF_ERROR(in_->arm(round));
    return out_->arm(round);
  }
  void begin(const Round& round, Samples* samples) override {
    if (in_->steps() != nullptr) in_->steps()->begin(round, nullptr);
    out_->steps()->begin(round, samples);
  }
  Status advance() override {
    if (in_->steps() != nullptr) SLUICE_RETURN_IF_ERROR(in_->steps()->advance());
    return out_->steps()->advance();
  }
  // A target does not know when its peer has done with it: the control channel says so.
  bool over() const override {
    return out_->steps()->over() && (in_->steps() == nullptr || in_->steps()->over());
  }
  bool stuck() const override { return !out_->steps()->over() && out_->steps()->stuck(); }
  uint64_t ended() const override {
    return out_->steps()->ended() + (in_->steps() != nullptr ? in_->steps()->ended() : 0);
  }
  void inspect(const Round& round) override {
    buffers_.source_at =
        out_->buffers().source_at ? out_->buffers().source_at : in_->buffers().source_at;
    buffers_.destination_at = out_->buffers().destination_at ? out_->buffers().destination_at
                                                             : in_->buffers().destination_at;
    out_->inspect(round);
    in_->inspect(round);
    verdict_.verified_bytes = out_->verdict().verified_bytes + in_->verdict().verified_bytes;
    verdict_.mismatched_bytes = out_->verdict().mismatched_bytes + in_->verdict().mismatched_bytes;
  }

 private:
  std::unique_ptr<Workload> out_, in_;
};

}  // namespace

std::unique_ptr<Workload> make_duplex_workload(const Side& side, const Load& load) {
  return std::make_unique<Duplex>(side, load);
}

}  // namespace sluice::tools
