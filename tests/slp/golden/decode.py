#!/usr/bin/env python3
"""Decodes SLP frames, written from docs/slp.md and nothing else.

    decode.py FILE [--secret-file FILE]    lines "end type hex"; prints each frame and the
                                           records of its streams

Exit code 1 if a frame is against the page: a wrong checksum, a field that must be zero, a
packet number that comes twice, a tag that is not of the secret. Sealed frames need Debian's
python3-cryptography.
"""
import argparse
import re
import struct
import sys

TYPES = {1: "HELLO", 2: "HELLO_ACK", 3: "RETRY", 4: "NACK", 5: "BYE", 6: "ACK", 7: "PING", 8: "EAGER", 9: "DATA", 16: "FIND", 17: "FOUND"}
EXTENSION = {"HELLO": 88, "HELLO_ACK": 88, "RETRY": 88, "NACK": 8, "BYE": 0, "ACK": 4, "PING": 0, "EAGER": 8, "DATA": 16, "FIND": 72, "FOUND": 72}
FLAGS = {0x01: "CE", 0x02: "ACK", 0x04: "ACKREQ", 0x08: "AGAIN", 0x10: "SEALED", 0x20: "PCRC", 0x40: "PHASE"}
NUMBERED = {"BYE", "ACK", "PING", "EAGER", "DATA"}
RECORDS = {(0, 0): "MESSAGE", (0, 1): "RTS", (1, 2): "PULL", (1, 3): "GRANT", (1, 4): "PUSH", (1, 5): "DONE"}


class AgainstThePage(Exception):
    pass


def require(truth, what):
    if not truth:
        raise AgainstThePage(what)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def without_ce(base):
    """The base as it is authenticated: CE and the checksum as zero."""
    return base[:1] + bytes([base[1] & 0xFE]) + base[2:28] + bytes(4) + base[32:40]


def hkdf(secret, salt, info):
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    return HKDF(SHA256(), 32, salt, info).derive(secret)


class Cipher:
    """Section 14: the proof of HELLOs, and the keys of one session as its HELLOs have them."""

    def __init__(self, secret):
        self.secret, self.hellos, self.next_number = secret, {}, {}

    def prove(self, frame, end, fields):
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.hmac import HMAC
        mac = HMAC(hkdf(self.secret, bytes(32), b"slp1 greeting"), SHA256())
        mac.update(without_ce(frame[:40]) + frame[40:112])
        require(mac.finalize()[:16] == frame[112:128], "a HELLO that is not of the secret")
        if fields["type"] != "RETRY":
            self.hellos[end] = fields

    def open(self, frame, end, fields):
        """Extension and payload in the clear."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        client, server = self.hellos["client"], self.hellos["server"]
        bits = min(client["epoch_bits"], server["epoch_bits"])
        # The low 32 bits are enough here: no conversation in a file is longer.
        number, direction = fields["number"], int(end == "server")
        require(("PHASE" in fields["flags"]) == bool(number >> bits & 1), "the phase of another key")
        info = b"slp1 key" + struct.pack("<IQQQ", direction, number >> bits, client["nonce"], server["nonce"])
        key = hkdf(self.secret, bytes.fromhex(client["salt"] + server["salt"]), info)
        length = EXTENSION[fields["type"]] + fields["payload_bytes"] + 16
        require(len(frame) >= 40 + length, "shorter than it says")
        try:
            return AESGCM(key).decrypt(struct.pack("<IQ", direction, number), frame[40:40 + length], without_ce(frame[:40]))
        except InvalidTag:
            raise AgainstThePage("a tag that is not of the key") from None


def decode(frame, end=None, cipher=None):
    """A dictionary of everything in one frame."""
    require(len(frame) >= 40, "shorter than its base")
    names = "head flags source destination payload_bytes connection number ack run age credit marks header_crc payload_crc session"
    out = dict(zip(names.split(), struct.unpack("<BBHHHIIIHHHHIII", frame[:40])))
    require(out["head"] >> 5 == 1, "another version")
    require(out["head"] & 31 in TYPES, "an unknown type")
    kind = out["type"] = TYPES[out.pop("head") & 31]
    require(out["flags"] < 0x80, "a reserved flag")
    sealed = out["flags"] & 0x10
    require(not (out["flags"] & 0x20 if sealed else out["flags"] & 0x40), "flags that do not go together")
    require(bool(sealed) == bool(cipher and kind in NUMBERED), "sealed without a secret, or in the clear with one")
    extension = frame[40:40 + EXTENSION[kind]]
    payload = frame[40 + EXTENSION[kind]:40 + EXTENSION[kind] + out["payload_bytes"]]
    require(len(extension) == EXTENSION[kind] and len(payload) == out["payload_bytes"], "shorter than it says")
    require(crc32c(without_ce(frame[:40]) + extension) == out["header_crc"], "a wrong header checksum")
    if out["flags"] & 0x20:
        require(crc32c(payload) == out["payload_crc"], "a wrong payload checksum")
    else:
        require(out["payload_crc"] == 0, "a payload checksum that is not announced")
    out["flags"] = [name for bit, name in FLAGS.items() if out["flags"] & bit]
    if sealed:
        plain = cipher.open(frame, end, out)
        extension, payload = plain[:EXTENSION[kind]], plain[EXTENSION[kind]:]
    if kind in ("HELLO", "HELLO_ACK", "RETRY"):
        names = "nonce answers cookie connection_to_use lowest highest capabilities mtu stream_kib transfers handles wait_us"
        out.update(zip(names.split(), struct.unpack("<QQQIHHHHHHHH", extension[:44])))
        out["epoch_bits"] = extension[44]
        require(extension[45:56] == bytes(11), "HELLO: zeros")
        out["salt"], out["tag"] = extension[56:72].hex(), extension[72:].hex()
        if cipher:
            cipher.prove(frame, end, out)
        else:
            require(extension[44:] == bytes(44), "HELLO: zeros where there is no secret")
    elif kind == "NACK":
        out["reason"], zero, out["meant"] = struct.unpack("<HHI", extension)
        require(zero == 0, "NACK: zeros")
    elif kind == "ACK":
        pairs, zero = struct.unpack("<HH", extension)
        require(zero == 0 and pairs <= 32 and len(payload) == 4 * pairs, "ACK: its pairs")
        out["pairs"] = [struct.unpack("<HH", payload[4 * i:4 * i + 4]) for i in range(pairs)]
    elif kind == "EAGER":
        out["offset"], out["stream"] = struct.unpack("<IB", extension[:5])
        require(extension[5:] == bytes(3) and out["stream"] < 2 and payload, "EAGER: its extension")
        out["bytes"] = payload
    elif kind == "DATA":
        out["offset"], out["transfer"], zero = struct.unpack("<QII", extension)
        require(zero == 0 and out["offset"] % 1344 == 0 and payload, "DATA: its extension")
        out["bytes"] = payload
    elif kind in ("FIND", "FOUND"):
        out["asked"], = struct.unpack("<Q", extension[:8])
        name = extension[8:].rstrip(b"\0")
        require(re.fullmatch(rb"[a-z0-9._-]{1,64}", name), f"{kind}: its name")
        out["name"] = name.decode("ascii")
        require(not set(out["flags"]) - {"CE"} and frame[6:28] == bytes(22) and frame[32:40] == bytes(8), f"{kind}: zeros")
        require(out["asked"] and out["source"] and (kind == "FIND" or out["destination"]), f"{kind}: a nonce or a port of zero")
    if kind not in NUMBERED:
        require(out["number"] == 0, "a number on a frame that has none")
    return out


def records(stream, data):
    """Whole records of a stream's bytes from the beginning."""
    at = 0
    while at + 4 <= len(data):
        word, = struct.unpack("<I", data[at:at + 4])
        length, kind = word & 0xFFFFFF, word >> 24
        require((stream, kind) in RECORDS, f"a record of kind {kind} in stream {stream}")
        if at + 4 + length > len(data):
            return
        body = data[at + 4:at + 4 + length]
        name = RECORDS[stream, kind]
        if name == "MESSAGE":
            yield name, {"text": body}
        elif name == "RTS":
            handle, zero, total = struct.unpack("<IIQ", body[:16])
            require(zero == 0, "RTS: zeros")
            yield name, {"handle": handle, "length": total, "text": body[16:]}
        elif name == "DONE":
            yield name, dict(zip(("transfer", "status"), struct.unpack("<II", body)))
        elif name == "GRANT":
            yield name, dict(zip(("transfer", "zero", "limit"), struct.unpack("<IIQ", body)))
        elif name == "PULL":
            yield name, dict(zip(("transfer", "handle", "offset", "length", "limit"), struct.unpack("<IIQQQ", body)))
        else:
            yield name, dict(zip(("transfer", "handle", "offset", "length", "notice", "noticed"), struct.unpack("<IIQQII", body)))
        at += 4 + length


def conversation(lines, secret=None):
    """(frames, records by end): frames as (end, dictionary), in order."""
    cipher = Cipher(secret) if secret else None
    frames, streams, numbers = [], {}, {}
    for line in lines:
        end, kind, text = line.split()
        frame = decode(bytes.fromhex(text), end, cipher)
        require(frame["type"] == kind, f"{kind} is {frame['type']}")
        frames.append((end, frame))
        if kind in NUMBERED:
            require(frame["number"] not in numbers.setdefault(end, set()), "a packet number twice")
            numbers[end].add(frame["number"])
        if kind == "EAGER":
            stream = streams.setdefault((end, frame["stream"]), bytearray())
            if len(stream) < frame["offset"] + len(frame["bytes"]):
                stream.extend(bytes(frame["offset"] + len(frame["bytes"]) - len(stream)))
            stream[frame["offset"]:frame["offset"] + len(frame["bytes"])] = frame["bytes"]
    return frames, {key: list(records(key[1], bytes(stream))) for key, stream in streams.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--secret-file", type=argparse.FileType("rb"))
    options = parser.parse_args()
    secret = options.secret_file.read().rstrip(b"\r\n") if options.secret_file else None
    with open(options.file, encoding="ascii") as file:
        frames, said = conversation(file.read().splitlines(), secret)
    for end, frame in frames:
        print(end, {k: v.hex() if isinstance(v, bytes) else v for k, v in frame.items()})
    for (end, stream), things in said.items():
        for name, fields in things:
            print(end, stream, name, fields)
    return 0


if __name__ == "__main__":
    sys.exit(main())
