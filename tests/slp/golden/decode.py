#!/usr/bin/env python3
"""Decodes SLP frames, written from docs/slp.md and nothing else.

    decode.py FILE    lines "end type hex"; prints each frame and the records of its streams

Exit code 1 if a frame is against the page: a wrong checksum, a field that must be zero, a
packet number that comes twice.
"""
import struct
import sys

TYPES = {1: "HELLO", 2: "HELLO_ACK", 3: "RETRY", 4: "NACK", 5: "BYE", 6: "ACK", 7: "PING", 8: "EAGER", 9: "DATA"}
EXTENSION = {"HELLO": 88, "HELLO_ACK": 88, "RETRY": 88, "NACK": 8, "BYE": 0, "ACK": 4, "PING": 0, "EAGER": 8, "DATA": 16}
FLAGS = {0x01: "CE", 0x02: "ACK", 0x04: "ACKREQ", 0x08: "AGAIN", 0x10: "SEALED", 0x20: "PCRC"}
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


def decode(frame):
    """A dictionary of everything in one frame."""
    require(len(frame) >= 40, "shorter than its base")
    names = "head flags source destination payload_bytes connection number ack run age credit marks header_crc payload_crc session"
    out = dict(zip(names.split(), struct.unpack("<BBHHHIIIHHHHIII", frame[:40])))
    require(out["head"] >> 5 == 1, "another version")
    require(out["head"] & 31 in TYPES, "an unknown type")
    kind = out["type"] = TYPES[out.pop("head") & 31]
    require(out["flags"] < 0x40, "a reserved flag")
    extension = frame[40:40 + EXTENSION[kind]]
    payload = frame[40 + EXTENSION[kind]:40 + EXTENSION[kind] + out["payload_bytes"]]
    require(len(extension) == EXTENSION[kind] and len(payload) == out["payload_bytes"], "shorter than it says")
    checked = bytearray(frame[:40] + extension)
    checked[1] &= 0xFE
    checked[28:32] = bytes(4)
    require(crc32c(bytes(checked)) == out["header_crc"], "a wrong header checksum")
    if out["flags"] & 0x20:
        require(crc32c(payload) == out["payload_crc"], "a wrong payload checksum")
    else:
        require(out["payload_crc"] == 0, "a payload checksum that is not announced")
    out["flags"] = [name for bit, name in FLAGS.items() if out["flags"] & bit]
    if kind in ("HELLO", "HELLO_ACK", "RETRY"):
        names = "nonce answers cookie connection_to_use lowest highest capabilities mtu stream_kib transfers handles wait_us"
        out.update(zip(names.split(), struct.unpack("<QQQIHHHHHHHH", extension[:44])))
        require(extension[44:56] == bytes(12), "HELLO: zeros")
        out["salt"], out["tag"] = extension[56:72].hex(), extension[72:].hex()
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


def conversation(lines):
    """(frames, records by end): frames as (end, dictionary), in order."""
    frames, streams, numbers = [], {}, {}
    for line in lines:
        end, kind, text = line.split()
        frame = decode(bytes.fromhex(text))
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
    with open(sys.argv[1], encoding="ascii") as file:
        frames, said = conversation(file.read().splitlines())
    for end, frame in frames:
        print(end, {k: v.hex() if isinstance(v, bytes) else v for k, v in frame.items()})
    for (end, stream), things in said.items():
        for name, fields in things:
            print(end, stream, name, fields)
    return 0


if __name__ == "__main__":
    sys.exit(main())
