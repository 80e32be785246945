// Two exchanges that are connected: tensors published `here` are fetched `there`.
#ifndef SLUICE_TESTS_EXCHANGE_EXCHANGES_H_
#define SLUICE_TESTS_EXCHANGE_EXCHANGES_H_

#include <sluice/exchange/exchange.h>

#include "tests/contract/pair.h"

namespace sluice::test {

struct Exchanges {
  Exchanges() {
    REQUIRE(here.add(pair.server).ok());
    REQUIRE(there.add(pair.client).ok());
  }
  Tensor four_floats() { return floats(*pair.server_context, {4}, 1); }

  Pair pair;
  Exchange here{*pair.server_context}, there{*pair.client_context};
};

}  // namespace sluice::test

#endif  // SLUICE_TESTS_EXCHANGE_EXCHANGES_H_
