// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* Handles: memory of ours that the peer may reach. */
#include "slp_session.h"

bool slp_open_handle(struct slp_session *s, uint64_t cookie, uint64_t length, uint32_t rights, uint32_t *out)
{
	return slp_open_handle_at(s, cookie, 0, length, rights, out);
}

bool slp_open_handle_at(struct slp_session *s, uint64_t cookie, uint64_t base, uint64_t length, uint32_t rights,
			uint32_t *out)
{
	uint32_t i;

	if (s->state == SLP_DOWN)
		return false;
	for (i = 0; i < SLP_HANDLES; ++i) {
		struct slp_handle *handle = &s->handles[i];

		if (handle->open)
			continue;
		++handle->generation;
		if (handle->generation == 0)
			++handle->generation;
		handle->open = true;
		handle->cookie = cookie;
		handle->base = base;
		handle->length = length;
		handle->rights = (uint8_t)rights;
		*out = i | (uint32_t)handle->generation << 16;
		return true;
	}
	return false;
}

struct slp_handle *slp_find_handle(struct slp_session *s, uint32_t number)
{
	struct slp_handle *handle;

	if ((number & 0xffff) >= SLP_HANDLES)
		return 0;
	handle = &s->handles[number & 0xffff];
	return handle->open && handle->generation == number >> 16 ? handle : 0;
}
