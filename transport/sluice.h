// Everything a program needs: contexts, endpoints, the exchange.
#ifndef SLUICE_SLUICE_H_
#define SLUICE_SLUICE_H_

#include <sluice/allocator/arena.h>
#include <sluice/allocator/device_memory.h>
#include <sluice/api/context.h>
#include <sluice/api/endpoint.h>
#include <sluice/api/task.h>
#include <sluice/exchange/exchange.h>
#include <sluice/select/open.h>
#include <sluice/select/progress_thread.h>

#endif  // SLUICE_SLUICE_H_
