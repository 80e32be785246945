#!/usr/bin/env python3
"""A second decoder, written from docs/wire.md alone.

Without arguments: decodes tests/wire/golden/*.txt and compares with the values listed there.
With the path of the `verdict` program: also asks it about every golden message with bits flipped, bytes
set, deleted and doubled, and compares acceptance and values one by one.
"""
import glob
import os
import struct
import subprocess
import sys

FIXED = {1: 96, 2: 48, 3: 48, 4: 24, 5: 32, 6: 16, 7: 24, 8: 32, 9: 16, 10: 24}
FLAGS = {2: 15, 9: 1}
WIDTHS = {0: (4, 8, 16, 32, 64), 1: (4, 8, 16, 32, 64), 2: (16, 32, 64), 3: (8, 16, 32, 64), 4: (16,), 5: (64, 128),
          **{code: (8,) for code in range(6, 15)}, 15: (6,), 16: (6,), 17: (4,)}
MOST = 2 ** 63 - 1


class Refused(Exception):
    pass


class Incomplete(Exception):
    pass


def require(condition, why):
    if not condition:
        raise Refused(why)


def tlvs(data, at):
    while at < len(data):
        kind, length = struct.unpack_from("<HH", data, at)
        value = data[at + 4:at + 4 + length]
        end = at + 4 + length
        aligned = (end + 7) // 8 * 8
        require(aligned <= len(data), "TLV beyond the message")
        require(not any(data[end:aligned]), "padding")
        yield kind, value
        at = aligned


def skip(kind):
    require(not kind & 0x8000, "unknown critical TLV %#x" % kind)


def layout(value):
    require(len(value) >= 12, "short layout")
    code, bits, lanes, rank, form, zero, zero_2 = struct.unpack_from("<BBHBBHI", value)
    require(not zero and not zero_2, "reserved")
    require(rank <= 8 and form <= 1, "rank or form")
    require(len(value) == 12 + 8 * rank * (1 + form), "length of layout")
    require(bits in WIDTHS.get(code, ()) and 1 <= lanes <= 1024, "dtype")
    shape = struct.unpack_from("<%dq" % rank, value, 12)
    require(all(n >= 0 for n in shape), "negative dimension")
    size = (bits * lanes + 7) // 8
    strides, count = [], 1
    for n in reversed(shape):
        strides.insert(0, count)
        count *= max(n, 1)
    require(count * size <= MOST, "too large")
    span = 0 if 0 in shape else count * size
    if form == 1 and 0 not in shape:
        sent = struct.unpack_from("<%dq" % rank, value, 12 + 8 * rank)
        reach = 1
        for stride, i in sorted((sent[i], i) for i in range(rank) if shape[i] > 1):
            require(stride >= reach, "strides overlap")
            reach += stride * (shape[i] - 1)
            strides[i] = stride
        require(reach * size <= MOST, "strides reach too far")
        span = reach * size
    show = lambda words: ",".join(map(str, words)) or "-"
    return span, "layout code=%d bits=%d lanes=%d shape=%s strides=%s span=%d" % (
        code, bits, lanes, show(shape), show(strides), span)


def segment(value):
    require(len(value) == 20, "length of segment")
    extent, start, length = struct.unpack("<IQQ", value)
    require(length > 0 and start + length < 2 ** 64, "segment range")
    return length, "segment extent=%d offset=%d length=%d" % (extent, start, length)


def hello(data, flags, payload, ident):
    magic, low, high = struct.unpack_from("<IHH", data, 16)
    require(magic == 0x43554c53 and 1 <= low <= high, "magic or version")
    names = "network_namespace user_namespace uid pid arena_bytes credit_messages credit_bytes".split()
    lines = ["HELLO", "incarnation %d" % ident, "min_version %d" % low, "max_version %d" % high,
             "host " + data[24:40].hex()]
    lines += ["%s %d" % pair for pair in zip(names, struct.unpack_from("<QQIIQQQ", data, 40))]
    features, = struct.unpack_from("<Q", data, 88)
    if features:
        lines.append("features %d" % features)
    seen = False
    port = 0
    ethernet = None
    streams = None
    for kind, value in tlvs(data, 96):
        if kind == 5:
            require(len(value) == 4 and not port, "rdma")
            port, zero = struct.unpack("<HH", value)
            require(port and not zero, "rdma port or reserved")
            continue
        if kind == 6:
            require(len(value) == 4 and not ethernet, "ethernet")
            ethernet = struct.unpack("<HH", value)
            require(any(ethernet), "ethernet ports")
            continue
        if kind == 7:
            require(len(value) == 16 and not streams, "streams")
            streams = value
            continue
        if kind != 4:
            skip(kind)
            continue
        require(len(value) == 32 and not seen, "rendezvous")
        seen = True
        lines += ["rendezvous " + value[:16].hex(), "token " + value[16:].hex()]
    if port:
        lines.append("rdma_port %d" % port)
    if ethernet:
        lines += ["module_port %d" % ethernet[0], "packet_port %d" % ethernet[1]]
    if streams:
        lines.append("streams_token " + streams.hex())
    return lines


def offer(data, flags, payload, ident):
    kind, number, zero_2, epoch, a, offset, total = struct.unpack_from("<BBHIQQQ", data, 16)
    numbered = flags & 8
    require(1 <= kind <= 4 and not zero_2, "kind or reserved")
    require((flags == 8 and kind == 2 and 1 <= number <= 8) if numbered else not number, "layout number")
    lines = ["OFFER", "id %d" % ident, "flags %d" % flags, "payload_bytes %d" % payload, "kind %d" % kind,
             "epoch %d" % epoch, "a %d" % a, "offset %d" % offset, "total %d" % total]
    lines += ["layout_number %d" % number] if numbered else []
    found, lengths = None, []
    for tlv, value in tlvs(data, 48):
        if tlv == 0x8001:
            require(found is None, "two layouts")
            found = layout(value)
        elif tlv == 0x8002:
            length, line = segment(value)
            lengths.append(length)
            lines.append(line)
        else:
            skip(tlv)
    if numbered and not found:  # the layout of before, and one segment
        require(not lengths, "segments beside a number alone")
        length, line = segment(struct.pack("<IQQ", epoch, offset, total))
        lengths.append(length)
        lines.append(line)
    require(total <= MOST, "total")
    require(len(lengths) <= 16, "segments")
    require(not lengths or sum(lengths) == total, "segments and total")
    require(not flags & 1 or (payload == total and not lengths), "inline")
    require(kind != 2 or (found[0] == total if found else numbered), "supply and layout")
    return lines + ([found[1]] if found else [])


def want(data, flags, payload, ident):
    kind, into, zero, key_id, a, offset, length = struct.unpack_from("<BBHIQQQ", data, 16)
    require(1 <= kind <= 3 and into <= 1 and not zero, "kind, into or reserved")
    lines = ["WANT", "id %d" % ident, "kind %d" % kind, "into %d" % into, "key_id %d" % key_id, "a %d" % a,
             "offset %d" % offset, "length %d" % length]
    found, key, windows, following = None, None, [], ()
    for tlv, value in tlvs(data, 48):
        if tlv == 0x8001:
            require(found is None, "two layouts")
            found = layout(value)
        elif tlv == 0x8003:
            require(key is None and 1 <= len(value) <= 255, "key")
            key = value
        elif tlv == 0x8002:
            windows.append(segment(value)[1])
        elif tlv == 0x8009:
            require(not following and len(value) in range(8, 32 * 8, 8), "following")
            following = struct.unpack("<%dQ" % (len(value) // 8), value)
        else:
            skip(tlv)
    require(not following or (kind == 1 and not into and a + len(following) <= 2**64 - 3), "steps")
    require(not into or found, "into without layout")
    require(len(windows) <= 16 and (into or not windows), "windows")
    return (lines + ([found[1]] if found else []) + (["key " + key.hex()] if key else [])
            + ["following %d" % ident for ident in following] + windows)


def skip_all(data, at):
    for kind, _ in tlvs(data, at):
        skip(kind)


def data_message(data, payload, ident):
    offset, = struct.unpack_from("<Q", data, 16)
    lines = ["DATA", "id %d" % ident, "payload_bytes %d" % payload, "offset %d" % offset]
    after = None
    for tlv, value in tlvs(data, FIXED[4]):
        if tlv != 0x8008:
            skip(tlv)
            continue
        require(len(value) == 8 and after is None, "after")
        after, = struct.unpack("<Q", value)
    return lines + ([] if after is None else ["after %d" % after])


def small(data, flags, payload, ident):
    kind = data[0]
    if kind == 6:
        require(ident <= 32 and len(data) >= 16 + 8 * ident, "count")
        skip_all(data, 16 + 8 * ident)
        return ["RELEASE", "count %d" % ident] + ["released %d" % i for i in struct.unpack_from("<%dQ" % ident, data, 16)]
    if kind == 4:
        return data_message(data, payload, ident)
    skip_all(data, FIXED[kind])
    if kind == 5:
        code, zero, count = struct.unpack_from("<IIQ", data, 16)
        require(code <= 12 and not zero, "code or reserved")
        return ["DONE", "id %d" % ident, "code %d" % code, "bytes %d" % count]
    if kind == 7:
        which, = struct.unpack_from("<Q", data, 16)
        require(which <= 1, "kind")
        return ["CANCEL", "id %d" % ident, "offer %d" % which]
    if kind == 8:
        require(ident == 0, "id")
        return ["CREDIT"] + ["%s %d" % p for p in zip(("messages", "bytes"), struct.unpack_from("<QQ", data, 16))]
    if kind == 9:
        return ["PING", "nonce %d" % ident, "reply %d" % (flags & 1)]
    code, = struct.unpack_from("<Q", data, 16)
    require(code <= 12 and ident == 0, "code or id")
    return ["BYE", "code %d" % code]


def decode(data):
    """Lines of the message at the front. Raises Refused or Incomplete."""
    require(len(data) >= 16, "short")
    kind, flags, header, payload, ident = struct.unpack_from("<BBHIQ", data)
    require(kind in FIXED and not flags & ~FLAGS.get(kind, 0), "type or flags")
    require(FIXED[kind] <= header <= 1024 and header % 8 == 0, "header_bytes")
    limit = 4 << 20 if kind == 4 else 65536 if kind == 2 and flags & 1 else 0
    require(payload <= limit, "payload_bytes")
    if len(data) < header:
        raise Incomplete()
    read = {1: hello, 2: offer, 3: want}.get(kind, small)
    return read(data[:header], flags, payload, ident)


def verdict_of(data):
    try:
        return "ok " + ";".join(decode(data))
    except Refused:
        return "refused"
    except Incomplete:
        return "incomplete"


def golden(path):
    variants, target = [], None
    for line in open(path, encoding="ascii").read().splitlines():
        if not line or line.startswith("#"):
            continue
        if line.startswith("variant "):
            variants.append((line[8:], [], []))
            target = variants[-1][1]
        elif line == "bytes":
            target = variants[-1][2]
        else:
            target.append(line)
    return [(name, lines, bytes.fromhex(" ".join(digits))) for name, lines, digits in variants]


def mutants(data):
    for i in range(len(data)):
        for changed in {data[i] ^ (1 << bit) for bit in range(8)} | {0, 1, 0x7f, 0x80, 0xff, (data[i] + 1) & 255}:
            yield data[:i] + bytes([changed]) + data[i + 1:]
        yield data[:i] + data[i + 1:]
        yield data[:i] + data[i:i + 1] + data[i:]


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    failed, messages = 0, []
    for path in sorted(glob.glob(os.path.join(here, "golden", "*.txt"))):
        for name, lines, data in golden(path):
            messages.append(data)
            got = verdict_of(data)
            if got != "ok " + ";".join(lines):
                failed += 1
                print("%s %s:\n listed  %s\n decoded %s" % (os.path.basename(path), name, ";".join(lines), got))
    print("%d golden messages, %d differ" % (len(messages), failed))
    if len(messages) < 60:
        failed += 1
        print("golden files are missing")
    if len(sys.argv) > 1:
        asked = [m for data in messages for m in mutants(data)]
        answer = subprocess.run([sys.argv[1]], input="\n".join(m.hex() for m in asked) + "\n", text=True,
                                stdout=subprocess.PIPE, check=True, timeout=240).stdout.splitlines()
        differ = [(m, a) for m, a in zip(asked, answer) if a != verdict_of(m)]
        for m, a in differ[:5]:
            print("bytes %s\n C++    %s\n Python %s" % (m.hex(), a, verdict_of(m)))
        print("%d mutants, %d answered, %d differ" % (len(asked), len(answer), len(differ)))
        failed += len(differ) + (len(answer) != len(asked))
        accepted = sum(a.startswith("ok") for a in answer)
        print("%d of them accepted" % accepted)
        failed += accepted == 0 or accepted == len(asked)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
