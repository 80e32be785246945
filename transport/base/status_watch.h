// Tests see each Status that is made with a text. Programs do not use this.
#ifndef SLUICE_BASE_STATUS_WATCH_H_
#define SLUICE_BASE_STATUS_WATCH_H_

#include <sluice/base/status.h>

namespace sluice {

// `see` is called from the thread that makes the Status; null: nobody. It makes none itself.
void watch_statuses(void (*see)(const Status&));

}  // namespace sluice

#endif  // SLUICE_BASE_STATUS_WATCH_H_
