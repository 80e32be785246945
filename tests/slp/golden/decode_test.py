#!/usr/bin/env python3
"""The golden frames say what the conversation in golden_test.cc said, as docs/slp.md reads them.

    decode_test.py [golden/frames.txt]
"""
import pathlib
import sys

HERE = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__).parent
sys.path.insert(0, str(HERE))
import decode  # noqa: E402

CLIENT, SERVER = 0x0123456789ABCDEF, 0x1122334455667788
LINES = (HERE / "frames.txt").read_text(encoding="ascii").splitlines()
checks = 0


def same(found, expected, what):
    global checks
    checks += 1
    if found != expected:
        sys.exit(f"{what}: found {found!r}, expected {expected!r}")


def main():
    frames, said = decode.conversation(LINES)
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
        same(frame["session"], tag, f"the session of {frame['type']}")
        ports = (40000, 7) if end == "client" else (7, 40000)
        same((frame["source"], frame["destination"]), ports, "ports")
        if frame["type"] != "NACK":
            same(frame["connection"], 0x00030004 if end == "client" else 0x00010002, "the connection")
    same({frame["type"] for _, frame in frames}, set(decode.TYPES.values()), "every type")
    same([fields["text"] for name, fields in said["client", 0]], [b"hello", b"lost at first", b"not lost"], "the client's messages")
    same([(name, fields["text"]) for name, fields in said["server", 0]], [("MESSAGE", b"hello back"), ("RTS", b"take")], "the server's messages")
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
    same((holes[0]["ack"], holes[0]["run"], holes[0]["pairs"]), (4, 0, [(1, 2)]), "the ACK that tells the hole")
    same((frames[-1][1]["type"], frames[-1][1]["reason"], frames[-1][1]["meant"]), ("NACK", 1, 0x00030004), "the end")
    # A decoder that believes anything proves nothing.
    for line in LINES:
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
    print(f"{len(frames)} frames, {checks} checks")


if __name__ == "__main__":
    main()
