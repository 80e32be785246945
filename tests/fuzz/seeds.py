#!/usr/bin/env python3
"""Writes first inputs for every fuzz target below the folder named: from the golden bytes, and by hand."""
import json
import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "wire"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))
import captures  # noqa: E402
import decode_golden  # noqa: E402

MESSAGES = "hello offer want data done release cancel credit ping bye".split()
ADDRESSES = """sluice://host:7000
tcp://127.0.0.1:0
tcp://[fe80::1%eth0]:65535
shm:train.job-1_x
loopback:a
tcp://host:65536
tcp://[::1:7000
tcp://[]:7000
l2://eth0/02:00:00:00:00:0b:7
l2://eth0:7
l2://udp/10.0.0.1:7000
l2://udp/[fd00::1]:7000
l2://udp:7000
shm:../etc
host:7000
sluice://""".splitlines()


def write(folder, target, name, data):
    os.makedirs(os.path.join(folder, target), exist_ok=True)
    with open(os.path.join(folder, target, "seed_" + name), "wb") as out:
        out.write(data)


def layout(offset, shape, strides, form=1, code=2, bits=32, lanes=1, narrow=0):
    return struct.pack("<QBBHBB", offset, code, bits, lanes, narrow, form) + struct.pack(
        "<%dq" % (len(shape) + len(strides)), *shape, *strides)


def write_captures(folder):
    frames = captures.golden(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "slp", "golden", "frames.txt"))
    one_of_each = list({frame[0]: (end, frame) for end, frame in frames if len(frame) < 300}.values())
    for end, frame in one_of_each:
        kind = str(frame[0] & 31)
        write(folder, "capture", "ethernet_" + kind, captures.pcap([captures.ethernet(end, frame)]))
        write(folder, "capture", "blocks_" + kind, captures.pcapng([captures.ethernet(end, frame, (7,))] * 3, "<>"[int(kind) % 2]))
    short = [frame for frame in one_of_each if len(frame[1]) < 100][:4]
    for order in "<>":
        for nanoseconds in (False, True):
            write(folder, "capture", "pcap_%d%d" % (order == "<", nanoseconds),
                  captures.pcap([captures.ethernet(end, frame) for end, frame in short], order, nanoseconds))
    for name, make in (("4", captures.ipv4), ("6", captures.ipv6)):
        write(folder, "capture", "udp_" + name, captures.pcap([make(end, frame) for end, frame in short], link=captures.RAW_IP))
        write(folder, "capture", "long_" + name, captures.pcap([captures.in_ethernet(make("client", b"".join(f for _, f in short)))]))
    write(folder, "capture", "cooked", captures.pcap([captures.cooked(end, frame) for end, frame in short], link=captures.COOKED))
    write(folder, "capture", "cooked2", captures.pcap([captures.cooked2(end, frame) for end, frame in short], link=captures.COOKED2, snap=90))
    write(folder, "capture", "times", captures.section(">") + captures.interface(">", resolution=0x8a, offset=-5) +
          captures.enhanced(">", captures.ethernet(*short[0]), 1 << 40))


def write_graphs(folder):
    """Graphs that are planned, and one of each thing that is refused."""
    processes = [{"name": name, "host": host} for name, host in (("a", "h"), ("b", "h"), ("c", "i"))]
    nodes = [{"name": "n%d" % i, "process": "abc"[i % 3], "in_place": i % 2 == 0} for i in range(6)]
    tensor = {"dtype": "float32", "shape": [4, 4]}
    edges = [dict(tensor, name="e%d" % i, **{"from": "n%d" % i, "to": ["n%d" % (i + 1), "n5"][:1 + (i < 4)]}) for i in range(5)]
    state = dict(tensor, name="state", delay=1, to=["n0", "n3"], **{"from": "n3"})
    order = {"name": "order", "from": "n0", "to": ["n3"], "control": True}
    good = {"schema": "sluice.graph/1", "name": "seed", "processes": processes, "nodes": nodes,
            "edges": edges + [state, order]}
    variants = {"good": good, "cycle": dict(good, edges=edges + [dict(state, delay=0)]),
                "one": dict(good, processes=[dict(each, host="h") for each in processes]),
                "small": dict(good, processes=[dict(each, memory_bytes=128) for each in processes]),
                "large": dict(good, edges=[dict(edges[0], shape=[2 ** 62, 4])]),
                "dtype": dict(good, edges=[dict(edges[0], dtype="float33")]),
                "nobody": dict(good, nodes=[dict(nodes[0], process="z")]),
                "twice": dict(good, nodes=nodes + nodes)}
    for name, graph in variants.items():
        write(folder, "graph", name, json.dumps(graph, separators=(",", ":")).encode())
    write(folder, "graph", "costs", json.dumps({
        "schema": "sluice.graph.costs/1", "view": {"latency_us": 1},
        "cross": {"samples": [[0, 5], [4096, 9]]}, "cores": 2}).encode())


def grpc_frame(kind, body=b"", stream=1, flags=0):
    return struct.pack("<IBBHI", 8 + len(body), kind, flags, 0, stream) + body


def write_grpc_frames(folder):
    """One of each kind, as plugins/grpc/frames.h says, all of them in a row, and an announcement."""
    def text(value):
        return struct.pack("<H", len(value)) + value

    def metadata(*entries):
        return struct.pack("<H", len(entries)) + b"".join(text(key) + text(value) for key, value in entries)

    def message(*parts):
        """(number of a payload, length) or bytes that lie in the frame."""
        lengths = [len(part) if isinstance(part, bytes) else part[1] for part in parts]
        out = struct.pack("<QH", sum(lengths), len(parts))
        for part, length in zip(parts, lengths):
            out += struct.pack("<QQ", 0, length) + part if isinstance(part, bytes) else struct.pack("<QQ", *part)
        return out

    magic, token = 0x52474c53, bytes(range(16))
    some = metadata((b"key", b"value"), (b"empty", b""), (b"a-bin", b"\0\xff"))
    method = text(b"/a.B/C") + struct.pack("<Q", 10 ** 9)
    frames = {
        "hello": grpc_frame(1, struct.pack("<IH", magic, 3) + token, 0), "welcome": grpc_frame(2, struct.pack("<H", 3), 0),
        "headers": grpc_frame(3, method + some), "whole": grpc_frame(3, method + metadata(), flags=1),
        "inline": grpc_frame(4, message(b"0123456789")), "lent": grpc_frame(4, message((9, 1 << 20))),
        "parts": grpc_frame(4, message((9, 20), b"0123456789", (10, 10))), "none": grpc_frame(4, message()),
        "half_close": grpc_frame(5), "cancel": grpc_frame(6), "initial": grpc_frame(7, some),
        "status": grpc_frame(8, struct.pack("<I", 13) + text(b"why") + text(b"more") + some),
        "window": grpc_frame(9, struct.pack("<I", 3)), "go_away": grpc_frame(10, stream=0)}
    for name, frame in frames.items():
        write(folder, "grpc_frames", name, frame)
    write(folder, "grpc_frames", "all", b"".join(frames.values()))
    write(folder, "grpc_frames", "announcement", struct.pack("<IH", magic, 3) + token + text(b"tcp://127.0.0.1:1"))


def write_broker(folder):
    """As transport/l2/carrier/broker_wire.h says: asks of a client, each behind 0 (their usual length), and answers."""
    magic = 0x42504c53
    sockets, open_port, close_port = 3, 4, 5

    def ask(what, port=0, number=0):
        return b"\0" + struct.pack("<IHHI12x", magic, what, port, number)

    two = ask(sockets) + ask(open_port) + ask(sockets, 0, 1) + ask(open_port, 7000, 1) + ask(close_port, 7000) + ask(open_port, 0, 1)
    many = b"".join(ask(sockets, 0, i) + ask(open_port, 0, i) for i in range(24))
    for name, asks in {"two": two, "many": many, "others": ask(sockets) + ask(open_port, 7777), "early": ask(open_port),
                       "again": ask(sockets) * 3 + ask(open_port) + ask(sockets),
                       "packet": b"\0" + struct.pack("<IHH16s", magic, 1, 7000, b"eth0"),
                       "elsewhere": b"\0" + struct.pack("<IHH16s", magic, 2, 0, b"eth1")}.items():
        write(folder, "broker", name, b"\0" + asks)
    for counts, code in ((0o22, 0), (0o10, 0), (0, 0), (0o27, 0), (0, 1), (0o22, 99)):
        answer = struct.pack("<IHHI240sI", magic, 1, 7000, code, b"cause; remedy" if code else b"", 3)
        write(folder, "broker", "answer_%d_%d" % (counts, code), bytes([1, counts]) + answer)


def main():
    folder = sys.argv[1]
    golden = os.path.join(os.path.dirname(decode_golden.__file__), "golden")
    for target in MESSAGES:
        for name, _, data in decode_golden.golden(os.path.join(golden, target + ".txt")):
            write(folder, target, name, data)
            write(folder, "header", target + "_" + name, data[:16])
            payload = struct.unpack_from("<I", data, 4)[0]
            if payload <= 64:
                write(folder, "stream", target + "_" + name, data + bytes(payload))
    hello = dict((name, data) for name, _, data in decode_golden.golden(os.path.join(golden, "handshake.txt")))
    write(folder, "stream", "handshake", hello["client"] + hello["server"])
    for i, text in enumerate(ADDRESSES):
        write(folder, "address", str(i), text.encode())
    for rights in range(9):
        write(folder, "remote_key", str(rights), struct.pack("<QQQIIB7x", 7, 4096, 0x7f0000001000, 3, 0x8a01, rights))
    # Programs of fuzz_session.cc's steps, blindly: the fuzzer finds what they mean.
    for step in range(24):
        write(folder, "session", "step_%d" % step, bytes([step, 1, step, 4]) + bytes((step * 37 + 11 * i) % 256 for i in range(60)))
        write(folder, "session", "steps_%d" % step, bytes((i * (step + 5)) % 96 for i in range(200)))
    write_graphs(folder)
    write_grpc_frames(folder)
    write_broker(folder)
    write_captures(folder)
    top = 2 ** 63 - 1
    for i, data in enumerate([
            layout(0, [], [], 0), layout(0, [4, 5], [], 0), layout(0, [3, 5], [1, 3]), layout(9, [16, 100], [128, 1]),
            layout(0, [top], [], 0), layout(0, [2], [top - 1], 1, 1, 8), layout(0, [3, 0, 5], [top, top, -7]),
            layout(top, [2, 2], [0, 1]), layout(0, [1] * 9, [], 0), layout(0, [7], [], 0, 15, 6, 3),
            layout(0, [2] * 8, [1000, 400, 180, 80, 35, 16, 6, 2], 1, 5, 128, 1, 1)]):
        write(folder, "layout", str(i), data)


if __name__ == "__main__":
    main()
