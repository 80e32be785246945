// A frame as a carrier makes it of what a session gives out.
#ifndef SLUICE_TESTS_SLP_ASSEMBLE_H_
#define SLUICE_TESTS_SLP_ASSEMBLE_H_

#include <vector>

#include "kernel_compat/slp/slp.h"

namespace sluice::slp {

// `memory`: where the user's bytes of this frame are, if it has any. Empty: it could not be sealed.
inline std::vector<uint8_t> assemble(slp_session* session, const slp_tx& tx,
                                     const uint8_t* memory) {
  std::vector<uint8_t> frame;
  if (tx.sealed) {
    slp_piece piece{.data = memory, .bytes = tx.bytes};
    frame.resize(slp_frame_bytes(session));
    frame.resize(slp_seal_tx(session, &tx, &piece, 1, frame.data()));
    return frame;
  }
  frame.assign(tx.header, tx.header + tx.header_bytes);
  for (int i = 0; i < 2; ++i)
    frame.insert(frame.end(), tx.piece[i], tx.piece[i] + tx.piece_bytes[i]);
  if (tx.from_memory) frame.insert(frame.end(), memory, memory + tx.bytes);
  return frame;
}

}  // namespace sluice::slp

#endif  // SLUICE_TESTS_SLP_ASSEMBLE_H_
