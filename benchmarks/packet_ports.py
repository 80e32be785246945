#!/usr/bin/env python3
"""What a frame of SLP costs a machine by how many packet sockets it has bound to SLP's EtherType.

    benchmarks/packet_ports.py [--frames N] [--rounds N]     as root, or where user namespaces are
                                                             allowed

Each port of carrier A is such a socket with a kernel filter: all filters run for every frame. The
frames cross a veth pair in a namespace of its own, and none of the sockets wants them. Prints
nanoseconds of processor time by frame: `apart` for sockets that are looked at one by one, `fan-out`
for a group of as many, of which a classic BPF program picks one (packet(7), PACKET_FANOUT_CBPF).
The veth pair hands frames over within the sender's call, so the sender's time has both ends.
"""
import argparse
import ctypes
import time
import socket
import statistics
import struct
import subprocess

ETHERTYPE, SOL_PACKET, PACKET_FANOUT, PACKET_FANOUT_DATA = 0x88B5, 263, 18, 22
SO_ATTACH_FILTER, FANOUT_CBPF, CLONE_NEWUSER, CLONE_NEWNET = 26, 6, 0x10000000, 0x40000000
LOAD_HALF, LOAD_BYTE, EQUAL, AND, RETURN, RETURN_A = 0x28, 0x30, 0x15, 0x54, 0x06, 0x16
PACKET_TYPE = 0xFFFFF000 + 4  # SKF_AD_PKTTYPE
COUNTS = (0, 1, 2, 4, 8, 16, 64)


def program(code):
    """struct sock_fprog, and what it points to."""
    instructions = b"".join(struct.pack("<HBBI", *line) for line in code)
    buffer = ctypes.create_string_buffer(instructions, len(instructions))
    return struct.pack("<HxxxxxxQ", len(code), ctypes.addressof(buffer)), buffer


def port_filter(port):
    """As transport/l2/carrier/packet_socket.cc has it: to us, version 1, this port."""
    swapped = struct.unpack(">H", struct.pack("<H", port))[0]
    return program(
        [
            (LOAD_BYTE, 0, 0, PACKET_TYPE), (EQUAL, 0, 5, 0), (LOAD_BYTE, 0, 0, 0),
            (AND, 0, 0, 0xE0), (EQUAL, 0, 2, 0x20), (LOAD_HALF, 0, 0, 4), (EQUAL, 1, 0, swapped),
            (RETURN, 0, 0, 0), (RETURN, 0, 0, 0xFFFFFFFF)])


def open_ports(count, together):
    sockets = []
    for i in range(count):
        one = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
        fprog, keep = port_filter(10_000 + i)
        one.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, fprog)
        one.bind(("right", ETHERTYPE))
        if together:
            one.setsockopt(SOL_PACKET, PACKET_FANOUT, struct.pack("<I", 77 | FANOUT_CBPF << 16))
        sockets.append(one)
        del keep
    if together and sockets:
        # the connection's lowest byte
        fprog, keep = program([(LOAD_BYTE, 0, 0, 8), (RETURN_A, 0, 0, 0)])
        sockets[0].setsockopt(SOL_PACKET, PACKET_FANOUT_DATA, fprog)
        del keep
    return sockets


def close_all(sockets):
    for one in sockets:
        try:
            one.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            one.close()
            continue
        raise SystemExit(
            "a socket got what its filter should have dropped: the figures would be of something"
            " else")


def ns_by_frame(sender, frames):
    frame = bytes.fromhex("02000000000b02000000000a88b5") + bytes([0x27, 0, 1, 0, 7, 0]) + bytes(40)
    before = time.process_time_ns()
    for _ in range(frames):
        sender.send(frame)
    return (time.process_time_ns() - before) / frames


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0 and libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
        raise SystemExit("no network namespace: unshare is refused")
    for command in (
        (
            "ip link add left address 02:00:00:00:00:0a type veth peer name right address"
            " 02:00:00:00:00:0b"),
        "ip link set left up", "ip link set right up"
    ):
        subprocess.run(command.split(), check=True)
    sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    sender.bind(("left", 0))
    found = {}
    for _ in range(options.rounds):
        for together in (False, True):
            for count in COUNTS[together:]:
                sockets = open_ports(count, together)
                found.setdefault((together, count), []).append(ns_by_frame(sender, options.frames))
                close_all(sockets)
    print(
        "sockets     apart   fan-out   (ns of processor time by frame, median of", options.rounds,
        "rounds)")
    for count in COUNTS:
        cells = [
            (
                f"{statistics.median(found[key]):9.0f}"
                if (key := (together, count)) in found
                else "        -")
            for together in (False, True)]
        print(f"{count:7} {cells[0]} {cells[1]}")


if __name__ == "__main__":
    main()
