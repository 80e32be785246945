// What the far side of a QP does with one request: checks, places, takes a receive, fails.
// Private to the fabric.
#ifndef SLUICE_TESTS_VERBS_FAKE_RESPONDER_H_
#define SLUICE_TESTS_VERBS_FAKE_RESPONDER_H_

#include "tests/verbs/fake_fabric.h"

namespace sluice::verbs::fake {

class Responder {
 public:
  Responder(Fabric& fabric, Qp& requester, Qp& qp, SendWork& work)
      : fabric_(fabric), requester_(requester), qp_(qp), work_(work) {}

  // What the requester is told.
  ibv_wc_status serve();
  // serve() did nothing: there was no receive for it.
  bool not_ready() const { return not_ready_; }

 private:
  struct Span {
    uint8_t* data;  // null: device memory, nothing to copy
    uint64_t length;
  };
  uint64_t length() const;
  std::vector<Span> source() const;
  ibv_wc_status fail(ibv_wc_status told, ibv_event_type event);
  bool needs_receive() const;
  bool wrong_packets() const;
  ibv_wc_status write();
  ibv_wc_status read();
  ibv_wc_status atomic();
  ibv_wc_status receive(bool place);
  ibv_wc_status fail_receive(const ReceiveWork& taken, ibv_wc_status status, ibv_wc_status told);
  size_t reads_under_way() const;

  Fabric& fabric_;
  Qp& requester_;
  Qp& qp_;
  SendWork& work_;
  bool not_ready_ = false;
};

}  // namespace sluice::verbs::fake

#endif  // SLUICE_TESTS_VERBS_FAKE_RESPONDER_H_
