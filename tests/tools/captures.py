"""Capture files made by hand, from frames: what tests give to readers of captures."""
import socket
import struct

ETHERNET, RAW_IP, COOKED, COOKED2 = 1, 101, 113, 276
CLIENT_MAC, SERVER_MAC = bytes.fromhex("02000000000a"), bytes.fromhex("02000000000b")
ETHERTYPE = 0x88B5
UDP_PORT = 4799


def golden(path):
    """[(end, frame)] of tests/slp/golden/frames.txt."""
    with open(path, encoding="ascii") as file:
        return [(line.split()[0], bytes.fromhex(line.split()[2])) for line in file]


def ethernet(end, frame, vlans=(), ethertype=ETHERTYPE):
    macs = (SERVER_MAC, CLIENT_MAC) if end == "client" else (CLIENT_MAC, SERVER_MAC)
    tags = b"".join(struct.pack(">HH", 0x8100 if i else 0x88A8 if len(vlans) > 1 else 0x8100, vlan) for i, vlan in enumerate(vlans))
    return macs[0] + macs[1] + tags + struct.pack(">H", ethertype) + frame.ljust(46, b"\0")


def _udp(end, payload):
    ports = (50000, UDP_PORT) if end == "client" else (UDP_PORT, 50000)
    return struct.pack(">HHHH", *ports, 8 + len(payload), 0) + payload


def ipv4(end, payload, congested=False, fragment=0, options=b""):
    ends = ["192.0.2.1", "192.0.2.2"]
    source, destination = ends if end == "client" else ends[::-1]
    datagram = _udp(end, payload)
    header = 20 + len(options)
    return struct.pack(">BBHHHBBH4s4s", 0x40 + header // 4, 3 if congested else 0, header + len(datagram), 1, fragment, 64, 17, 0,
                       socket.inet_aton(source), socket.inet_aton(destination)) + options + datagram


def ipv6(end, payload, congested=False, extensions=0):
    ends = ["2001:db8::1", "2001:db8::2"]
    source, destination = ends if end == "client" else ends[::-1]
    datagram = _udp(end, payload)
    following = [0, 60, 43][:extensions]
    chain = b""
    for i, _ in enumerate(following):
        after = following[i + 1] if i + 1 < len(following) else 17
        chain += bytes([after, i]) + bytes(6 + 8 * i)
    first = following[0] if following else 17
    return struct.pack(">IHBB", 0x60000000 | (3 << 20 if congested else 0), len(chain) + len(datagram), first, 64) + \
        socket.inet_pton(socket.AF_INET6, source) + socket.inet_pton(socket.AF_INET6, destination) + chain + datagram


def in_ethernet(packet):
    return SERVER_MAC + CLIENT_MAC + struct.pack(">H", 0x86DD if packet[0] >> 4 == 6 else 0x0800) + packet


def cooked(end, frame):
    return struct.pack(">HHH", 0, 1, 6) + (CLIENT_MAC if end == "client" else SERVER_MAC) + bytes(2) + struct.pack(">H", ETHERTYPE) + frame


def cooked2(end, frame):
    return struct.pack(">HHIHBB", ETHERTYPE, 0, 1, 1, 0, 6) + (CLIENT_MAC if end == "client" else SERVER_MAC) + bytes(2) + frame


def pcap(packets, order="<", nanoseconds=False, link=ETHERNET, snap=None):
    """`packets`: bytes, one each microsecond from 1,700,000,000 s on."""
    out = struct.pack(order + "IHHiIII", 0xA1B23C4D if nanoseconds else 0xA1B2C3D4, 2, 4, 0, 0, 262144, link)
    for i, packet in enumerate(packets):
        kept = packet[:snap]
        out += struct.pack(order + "IIII", 1_700_000_000, i * 1000 if nanoseconds else i, len(kept), len(packet)) + kept
    return out


def block(order, kind, body):
    body += bytes(-len(body) % 4)
    return struct.pack(order + "II", kind, 12 + len(body)) + body + struct.pack(order + "I", 12 + len(body))


def section(order, length=0xFFFFFFFFFFFFFFFF):
    return block(order, 0x0A0D0D0A, struct.pack(order + "IHHQ", 0x1A2B3C4D, 1, 0, length))


def option(order, code, value):
    return struct.pack(order + "HH", code, len(value)) + value + bytes(-len(value) % 4)


def interface(order, link=ETHERNET, snap=0, resolution=None, offset=None):
    options = option(order, 2, b"eth0")
    if resolution is not None:
        options += option(order, 9, bytes([resolution]))
    if offset is not None:
        options += option(order, 14, struct.pack(order + "q", offset))
    return block(order, 1, struct.pack(order + "HHI", link, 0, snap) + options + option(order, 0, b""))


def enhanced(order, packet, ticks, number=0, snap=None):
    kept = packet[:snap]
    return block(order, 6, struct.pack(order + "IIIII", number, ticks >> 32, ticks & 0xFFFFFFFF, len(kept), len(packet)) + kept + bytes(-len(kept) % 4)
                 + option(order, 2, b"\1\0\0\0") + option(order, 0, b""))


def simple(order, packet):
    return block(order, 3, struct.pack(order + "I", len(packet)) + packet)


def old(order, packet, ticks):
    return block(order, 2, struct.pack(order + "HHIIII", 0, 3, ticks >> 32, ticks & 0xFFFFFFFF, len(packet), len(packet)) + packet)


def pcapng(packets, order="<"):
    """Each packet in another kind of block, with blocks between that nobody needs."""
    out = section(order) + interface(order)
    for i, packet in enumerate(packets):
        ticks = 1_700_000_000_000_000 + i
        out += (enhanced(order, packet, ticks), simple(order, packet), old(order, packet, ticks))[i % 3]
        out += block(order, 0x0BAD + i, bytes(i * 5))
    return out
