// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* What a status means, for people. */
#include "slp.h"

static const char *const kStatusText[] = {
	"all is well",
	"the peer knows no such session: it was restarted",
	"nobody listens at that port",
	"the peer's handle is unknown, closed, or another's",
	"outside the memory of the handle",
	"the handle does not allow this",
	"cancelled",
	"no transfer slot is free: ask again when one has ended",
	"no version of the protocol in common",
	"the peer has another secret, or frames are changed on the way",
	"the listener refuses",
	"the peer has not been heard for too long",
	"the peer closed the session",
	"the peer began a new session from the same place",
	"the peer broke the protocol",
	"ended here",
	"the peer asks for a secret, and this end has none",
	"the peer has no secret, and this end asks for one",
};

const char *slp_status_text(enum slp_status status)
{
	return (size_t)status < sizeof(kStatusText) / sizeof(kStatusText[0]) ? kStatusText[status] : "unknown";
}
