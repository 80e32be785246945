// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* What happens before there is a session: HELLOs are answered from a secret, not from
 * memory, so that a flood of them costs nothing but its frames. */
#include "slp_session.h"

/* A cookie is good in the period it was made in, and in the next: 8 to 16 s. */
#define SLP_COOKIE_PERIOD (8 * (uint64_t)1000000000)

static uint64_t cookie_of(const struct slp_listener *listener, uint64_t period, const uint8_t *address,
			  uint32_t address_bytes, uint16_t port, uint64_t nonce)
{
	uint8_t text[32 + 8 + 8 + 2] = {0};

	memcpy(text, address, slp_min(address_bytes, 32));
	slp_store64(text + 32, nonce);
	slp_store64(text + 40, period);
	slp_store16(text + 48, port);
	return slp_siphash(listener->secret, text, sizeof(text)) | 1; /* never zero */
}

static uint32_t answer(uint8_t *reply, uint8_t type, const struct slp_base *asked, uint32_t connection)
{
	struct slp_base base = {.type = type, .session = asked->session};

	base.source_port = asked->destination_port;
	base.destination_port = asked->source_port;
	base.connection = connection;
	slp_encode_base(reply, &base);
	return SLP_BASE_BYTES + slp_extension_bytes(type);
}

static uint32_t refuse(uint8_t *reply, const struct slp_base *asked, uint32_t connection, enum slp_status reason,
		       uint32_t meant)
{
	memset(reply, 0, SLP_MAX_HEADER);
	slp_store16(reply + SLP_BASE_BYTES, (uint16_t)reason);
	slp_store32(reply + SLP_BASE_BYTES + 4, meant);
	return answer(reply, SLP_NACK, asked, connection);
}

/* What is against a HELLO, before its cookie is looked at. */
static enum slp_status refusal_of(const struct slp_listener *listener, const struct slp_hello *hello, const uint8_t *frame)
{
	bool seals = hello->capabilities & SLP_CAN_SEAL;

	if (hello->min_version > SLP_VERSION || hello->max_version < SLP_VERSION)
		return SLP_BAD_VERSION;
	if (seals != (listener->cipher != 0))
		return seals ? SLP_HAS_NO_KEY : SLP_NEEDS_KEY;
	if (seals && !slp_greeting_proven(listener->cipher, listener->cipher_user, frame))
		return SLP_NOT_AUTHENTIC;
	return SLP_OK;
}

enum slp_answer slp_listen(const struct slp_listener *listener, uint64_t now, const uint8_t *address,
			   uint32_t address_bytes, const struct slp_frame *frame, struct slp_meeting *out)
{
	uint64_t period = now / SLP_COOKIE_PERIOD;
	struct slp_hello *hello = &out->hello;
	enum slp_status refusal;
	struct slp_base base;
	uint32_t age;

	memset(out, 0, sizeof(*out));
	out->why = slp_decode_base(frame->data, frame->present, frame->bytes, &base);
	if (out->why == SLP_TAKEN && (base.type != SLP_HELLO || base.destination_port != listener->port))
		out->why = SLP_DROP_SESSION;
	if (out->why != SLP_TAKEN)
		return SLP_LISTEN_DROP;
	slp_decode_hello(frame->data + SLP_BASE_BYTES, hello);
	out->peer_port = base.source_port;
	if (hello->nonce == 0 || hello->connection == 0 || hello->peer_nonce != 0) {
		out->why = SLP_DROP_CONTENT;
		return SLP_LISTEN_DROP;
	}
	refusal = refusal_of(listener, hello, frame->data);
	if (refusal != SLP_OK) {
		out->why = refusal == SLP_NOT_AUTHENTIC ? SLP_DROP_FORGED : refusal == SLP_BAD_VERSION ? SLP_DROP_VERSION : SLP_DROP_UNSEALED;
		out->reply_bytes = refuse(out->reply, &base, hello->connection, refusal, hello->connection);
		return SLP_LISTEN_REPLY;
	}
	for (age = 0; age < 2 && age <= period; ++age)
		if (hello->cookie == cookie_of(listener, period - age, address, address_bytes, base.source_port, hello->nonce))
			return SLP_LISTEN_ACCEPT;
	{
		struct slp_hello retry;

		memset(&retry, 0, sizeof(retry));
		retry.peer_nonce = hello->nonce;
		retry.cookie = cookie_of(listener, period, address, address_bytes, base.source_port, hello->nonce);
		retry.min_version = retry.max_version = SLP_VERSION;
		retry.mtu = listener->mtu;
		retry.capabilities = listener->cipher ? SLP_CAN_SEAL : 0;
		slp_encode_hello(out->reply + SLP_BASE_BYTES, &retry);
		out->reply_bytes = answer(out->reply, SLP_RETRY, &base, hello->connection);
		if (listener->cipher)
			slp_greet(listener->cipher, listener->cipher_user, out->reply);
	}
	return SLP_LISTEN_REPLY;
}

uint32_t slp_refuse(const struct slp_frame *frame, enum slp_status reason, uint8_t reply[SLP_MAX_HEADER])
{
	struct slp_hello hello;
	struct slp_base base;

	if (slp_decode_base(frame->data, frame->present, frame->bytes, &base) != SLP_TAKEN || base.type != SLP_HELLO)
		return 0;
	slp_decode_hello(frame->data + SLP_BASE_BYTES, &hello);
	return refuse(reply, &base, hello.connection, reason, hello.connection);
}

uint32_t slp_no_session(const struct slp_frame *frame, uint8_t reply[SLP_MAX_HEADER])
{
	struct slp_base base;

	if (slp_decode_base(frame->data, frame->present, frame->bytes, &base) != SLP_TAKEN)
		return 0;
	/* Never a NACK for a NACK, nor for what carries no proof of a session. */
	if (base.type == SLP_NACK || base.type == SLP_HELLO_ACK || base.type == SLP_RETRY || base.type == SLP_BYE)
		return 0;
	if (base.type == SLP_HELLO)
		return slp_refuse(frame, SLP_NO_LISTENER, reply);
	if (base.flags & SLP_FLAG_SEALED)
		return 0; /* nobody would believe it */
	return refuse(reply, &base, 0, SLP_NO_SESSION, base.connection);
}
