#!/usr/bin/env python3
"""The golden frames say what the conversation in golden_test.cc said, as docs/slp.md reads them:
in the clear, and sealed, decrypted by another library than the one that sealed them.

    decode_test.py [golden/frames.txt]
"""
import pathlib
import sys

HERE = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__).parent
sys.path.insert(0, str(HERE))
import decode  # noqa: E402

CLIENT, SERVER = 0x0123456789ABCDEF, 0x1122334455667788
SECRET, MESSAGES_FOR_TWO_KEYS = b"the secret of the golden frames", 60
checks = 0


def lines_of(name):
    return (HERE / name).read_text(encoding="ascii").splitlines()


def same(found, expected, what):
    global checks
    checks += 1
    if found != expected:
        sys.exit(f"{what}: found {found!r}, expected {expected!r}")


def check_conversation(frames, said, before):
    """`before`: frames of the client's that are not in the other conversation."""
    same([f"{end} {frame['type']}" for end, frame in frames[:4]],
         ["client HELLO", "server RETRY", "client HELLO", "server HELLO_ACK"], "the beginning")
    first, retry, second, answer = [frame for _, frame in frames[:4]]
    same((first["nonce"], first["cookie"], first["connection"]), (CLIENT, 0, 0), "HELLO")
    same((retry["answers"], retry["nonce"]), (CLIENT, 0), "RETRY")
    same(second["cookie"], retry["cookie"], "the cookie")
    same((answer["nonce"], answer["answers"], answer["connection_to_use"]), (SERVER, CLIENT, 0x00030004), "HELLO_ACK")
    same((answer["stream_kib"], answer["transfers"], answer["mtu"], answer["wait_us"]), (10, 16, 1452, 200), "what HELLO_ACK offers")
    both = CLIENT ^ SERVER
    tag = (both ^ both >> 32) & 0xFFFFFFFF
    for end, frame in frames[4:]:
        if frame["type"] in ("FIND", "FOUND"):
            continue
        same(frame["session"], tag, f"the session of {frame['type']}")
        ports = (40000, 7) if end == "client" else (7, 40000)
        same((frame["source"], frame["destination"]), ports, "ports")
        if frame["type"] != "NACK":
            same(frame["connection"], 0x00030004 if end == "client" else 0x00010002, "the connection")
    same([fields["text"] for name, fields in said["client", 0]][:3], [b"hello", b"lost at first", b"not lost"], "the client's messages")
    same([(name, fields["text"]) for name, fields in said["server", 0]][:2], [("MESSAGE", b"hello back"), ("RTS", b"take")], "the server's messages")
    rts = said["server", 0][1][1]
    same((rts["handle"], rts["length"]), (0x33450000, 2788), "RTS")
    pulls = [fields for name, fields in said["client", 1] if name == "PULL"]
    same(pulls[0], {"transfer": 0x10000, "handle": 0x33450000, "offset": 0, "length": 2788, "limit": 2788}, "the first PULL")
    same(pulls[1]["offset"], 1, "the second PULL")
    push = [fields for name, fields in said["client", 1] if name == "PUSH"][0]
    same(push, {"transfer": 0x18000, "handle": 0x33450001, "offset": 10, "length": 40, "notice": 0x0BADCAFE, "noticed": 1}, "PUSH")
    same([fields for _, fields in said["server", 1]], [{"transfer": 0x20000, "status": 4}, {"transfer": 0x18000, "status": 0}], "both DONE")
    pulled = {frame["offset"]: frame["bytes"] for end, frame in frames if frame["type"] == "DATA" and end == "server"}
    same(b"".join(pulled[offset] for offset in sorted(pulled)), bytes(i * 3 & 255 for i in range(2788)), "what was pulled")
    same([frame["bytes"] for end, frame in frames if frame["type"] == "DATA" and end == "client"], [b"\x5a" * 40], "what was pushed")
    again = [frame for _, frame in frames if "AGAIN" in frame["flags"]]
    same([frame["bytes"][4:] for frame in again], [b"lost at first"], "what was sent again")
    holes = [frame for _, frame in frames if frame["type"] == "ACK" and frame["pairs"]]
    same((holes[0]["ack"], holes[0]["run"], holes[0]["pairs"]), (4 + before, 0, [(1, 2 + before)]), "the ACK that tells the hole")


def check_clear():
    lines = lines_of("frames.txt")
    frames, said = decode.conversation(lines)
    check_conversation(frames, said, 0)
    same({frame["type"] for _, frame in frames}, set(decode.TYPES.values()), "every type")
    same((len(said["client", 0]), len(said["server", 0])), (3, 2), "messages")
    same((frames[-3][1]["type"], frames[-3][1]["reason"], frames[-3][1]["meant"]), ("NACK", 1, 0x00030004), "the end")
    finding = [(end, *(frame[key] for key in ("type", "source", "destination", "asked", "name"))) for end, frame in frames[-2:]]
    same(finding, [("client", "FIND", 40001, 0, 0xFEDCBA9876543210, "worker-3.rack_1"),
                   ("server", "FOUND", 7, 40001, 0xFEDCBA9876543210, "worker-3.rack_1")], "a name that is looked for")
    # A decoder that believes anything proves nothing.
    for line in lines:
        end, kind, text = line.split()
        good = bytes.fromhex(text)
        for at in range(40 + decode.EXTENSION[kind]):
            bad = bytearray(good)
            bad[at] ^= 0x40
            try:
                decode.decode(bytes(bad))
            except decode.AgainstThePage:
                continue
            sys.exit(f"{kind}: byte {at} may be anything")
    return len(frames)


def check_sealed():
    lines = lines_of("sealed.txt")
    frames, said = decode.conversation(lines, SECRET)
    check_conversation(frames, said, 1)  # the PING that confirms
    same({frame["type"] for _, frame in frames}, set(decode.TYPES.values()) - {"NACK", "FIND", "FOUND"}, "every type of sealed sessions")
    same([(frame["epoch_bits"], frame["salt"]) for _, frame in frames[2:4]],
         [(6, bytes(range(0x10, 0x20)).hex()), (6, bytes(range(0x80, 0x90)).hex())], "bits and salts")
    for end, text in (("client", b"ask"), ("server", b"tell")):
        messages = [fields["text"] for _, fields in said[end, 0]]
        same(messages[-MESSAGES_FOR_TWO_KEYS:], [text] * MESSAGES_FOR_TWO_KEYS, f"the messages of {end}")
        phases = {bool("PHASE" in frame["flags"]) for who, frame in frames if who == end and frame["type"] in decode.NUMBERED}
        same(phases, {True, False}, f"two keys of {end}")
    for name, secret in (("another secret", SECRET + b"!"), ("no secret", None)):
        try:
            decode.conversation(lines, secret)
        except decode.AgainstThePage:
            continue
        sys.exit(f"{name} reads them as well")
    # Each bit counts, but CE and the checksum, which is made right again here.
    for line in lines[3:12]:
        end, kind, text = line.split()
        good = bytes.fromhex(text)
        for at in [at for at in range(len(good)) if not 28 <= at < 32]:
            cipher = decode.Cipher(SECRET)
            for before in lines[2:4]:
                decode.decode(bytes.fromhex(before.split()[2]), before.split()[0], cipher)
            bad = bytearray(good)
            bad[at] ^= 0x02
            length = 40 + decode.EXTENSION[kind]
            bad[28:32] = decode.crc32c(decode.without_ce(bytes(bad[:40])) + bytes(bad[40:length])).to_bytes(4, "little")
            try:
                decode.decode(bytes(bad), end, cipher)
            except decode.AgainstThePage:
                continue
            sys.exit(f"sealed {kind}: byte {at} may be anything")
    return len(frames)


def main():
    print(f"{check_clear()} frames in the clear, {check_sealed()} sealed, {checks} checks")


if __name__ == "__main__":
    main()
