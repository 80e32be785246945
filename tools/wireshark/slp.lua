-- Wireshark dissector of SLP, sluice's protocol on plain Ethernet, written from docs/slp.md.
--
--   wireshark -X lua_script:tools/wireshark/slp.lua capture.pcap
--   (or copy this file to "Personal Lua Plugins": Help > About Wireshark > Folders)
--
-- EtherType 0x88b5 and UDP port 4799 (preferences), and datagrams of other ports whose header's
-- checksum shows that they are frames. Checksums are verified; records are told in the frame
-- that completes them. A port that another protocol has by habit (7000 is AFS's) needs the
-- preference, or "Decode As". Knows nothing but the page.

local slp = Proto("slp", "SLP, sluice on plain Ethernet")

local ETHERTYPE, UDP_PORT, UNIT, SMALL_UNIT = 0x88b5, 4799, 1344, 1152
local TYPES = {"HELLO", "HELLO_ACK", "RETRY", "NACK", "BYE", "ACK", "PING", "EAGER", "DATA"}
TYPES[16], TYPES[17] = "FIND", "FOUND"  -- of no session
local EXTENSION = {FIND = 72, FOUND = 72, HELLO = 88, HELLO_ACK = 88, RETRY = 88, NACK = 8, BYE = 0, ACK = 4, PING = 0, EAGER = 8, DATA = 16}
local NUMBERED = {BYE = true, ACK = true, PING = true, EAGER = true, DATA = true}
local STATUSES = {[0] = "ok", "no session", "no listener", "bad handle", "bad range", "no right", "cancelled", "busy", "bad version",
                  "not authentic", "refused", "silent", "closed", "restarted", "broken", "local"}
local STREAMS = {[0] = "messages", "control"}
local RECORDS = {[0] = {[0] = "MESSAGE", [1] = "RTS"}, [1] = {[2] = "PULL", [3] = "GRANT", [4] = "PUSH", [5] = "DONE"}}
local SUMS = {[0] = "wrong", "right", "not checked"}

slp.prefs.ethertype = Pref.uint("EtherType", ETHERTYPE, "of frames of carrier A")
slp.prefs.udp_port = Pref.uint("UDP port", UDP_PORT, "of carrier B; 0: none")
slp.prefs.payload_sums = Pref.bool("Verify payload checksums", true, "slower")

local f = {
  version = ProtoField.uint8("slp.version", "Version", base.DEC, nil, 0xe0),
  type = ProtoField.uint8("slp.type", "Type", base.DEC, TYPES, 0x1f),
  flags = ProtoField.uint8("slp.flags", "Flags", base.HEX),
  ce = ProtoField.bool("slp.flags.ce", "Congestion experienced", 8, nil, 0x01),
  has_ack = ProtoField.bool("slp.flags.ack", "Acknowledges", 8, nil, 0x02),
  ackreq = ProtoField.bool("slp.flags.ackreq", "Acknowledge at once", 8, nil, 0x04),
  again = ProtoField.bool("slp.flags.again", "Sent before", 8, nil, 0x08),
  sealed = ProtoField.bool("slp.flags.sealed", "Sealed", 8, nil, 0x10),
  pcrc = ProtoField.bool("slp.flags.pcrc", "Payload checksum", 8, nil, 0x20),
  phase = ProtoField.bool("slp.flags.phase", "Key of an odd epoch", 8, nil, 0x40),
  source = ProtoField.uint16("slp.srcport", "Source port"),
  destination = ProtoField.uint16("slp.dstport", "Destination port"),
  payload_bytes = ProtoField.uint16("slp.payload_bytes", "Payload bytes"),
  connection = ProtoField.uint32("slp.connection", "Connection", base.HEX),
  number = ProtoField.uint32("slp.number", "Packet number, low 32 bits"),
  ack = ProtoField.uint32("slp.ack", "Largest packet number received"),
  run = ProtoField.uint16("slp.run", "Received directly below"),
  age = ProtoField.uint16("slp.age", "Age of the largest (us)"),
  credit = ProtoField.uint16("slp.credit", "Credit (KiB)"),
  marks = ProtoField.uint16("slp.marks", "Frames with congestion"),
  header_crc = ProtoField.uint32("slp.header_crc", "Header checksum", base.HEX),
  header_sum = ProtoField.uint8("slp.header_crc.status", "Header checksum status", base.DEC, SUMS),
  payload_crc = ProtoField.uint32("slp.payload_crc", "Payload checksum", base.HEX),
  payload_sum = ProtoField.uint8("slp.payload_crc.status", "Payload checksum status", base.DEC, SUMS),
  session = ProtoField.uint32("slp.session", "Session", base.HEX),
  nonce = ProtoField.uint64("slp.hello.nonce", "Nonce", base.HEX),
  answers = ProtoField.uint64("slp.hello.answers", "Nonce that is answered", base.HEX),
  cookie = ProtoField.uint64("slp.hello.cookie", "Cookie", base.HEX),
  use = ProtoField.uint32("slp.hello.connection", "Connection to use", base.HEX),
  lowest = ProtoField.uint16("slp.hello.lowest", "Lowest version"),
  highest = ProtoField.uint16("slp.hello.highest", "Highest version"),
  capabilities = ProtoField.uint16("slp.hello.capabilities", "Capabilities", base.HEX),
  mtu = ProtoField.uint16("slp.hello.mtu", "Largest frame taken"),
  stream_kib = ProtoField.uint16("slp.hello.stream_kib", "Buffered of a stream (KiB)"),
  transfers = ProtoField.uint16("slp.hello.transfers", "Transfers of each kind"),
  handles = ProtoField.uint16("slp.hello.handles", "Handles"),
  wait_us = ProtoField.uint16("slp.hello.wait_us", "Longest wait of acknowledgements (us)"),
  salt = ProtoField.bytes("slp.hello.salt", "Salt"),
  tag = ProtoField.bytes("slp.hello.tag", "Tag"),
  reason = ProtoField.uint16("slp.nack.reason", "Reason", base.DEC, STATUSES),
  meant = ProtoField.uint32("slp.nack.meant", "Connection that is meant", base.HEX),
  pairs = ProtoField.uint16("slp.ack.pairs", "Pairs"),
  gap = ProtoField.uint16("slp.ack.gap", "Not received"),
  pair_run = ProtoField.uint16("slp.ack.run", "Received below"),
  stream_offset = ProtoField.uint32("slp.eager.offset", "Offset in the stream"),
  stream = ProtoField.uint8("slp.eager.stream", "Stream", base.DEC, STREAMS),
  offset = ProtoField.uint64("slp.data.offset", "Offset in the transfer"),
  transfer = ProtoField.uint32("slp.data.transfer", "Transfer", base.HEX),
  payload = ProtoField.bytes("slp.payload", "Payload"),
  sealing = ProtoField.bytes("slp.sealing_tag", "Tag of the sealing"),
  padding = ProtoField.bytes("slp.padding", "Padding"),
  find_nonce = ProtoField.uint64("slp.find.nonce", "Nonce of who asks", base.HEX),
  find_name = ProtoField.string("slp.find.name", "Name"),
  record = ProtoField.string("slp.record", "Record"),
}
local fields = {}
for _, field in pairs(f) do fields[#fields + 1] = field end
slp.fields = fields

local e = {
  header = ProtoExpert.new("slp.expert.header_crc", "wrong header checksum: a receiver drops this frame", expert.group.CHECKSUM, expert.severity.ERROR),
  payload = ProtoExpert.new("slp.expert.payload_crc", "wrong payload checksum: a receiver drops this frame", expert.group.CHECKSUM, expert.severity.ERROR),
  malformed = ProtoExpert.new("slp.expert.malformed", "against docs/slp.md: a receiver drops this frame", expert.group.MALFORMED, expert.severity.ERROR),
  again = ProtoExpert.new("slp.expert.again", "content that was sent before", expert.group.SEQUENCE, expert.severity.NOTE),
  hole = ProtoExpert.new("slp.expert.hole", "tells of packet numbers that were not received", expert.group.SEQUENCE, expert.severity.NOTE),
  nack = ProtoExpert.new("slp.expert.nack", "refused", expert.group.RESPONSE_CODE, expert.severity.WARN),
}
slp.experts = {e.header, e.payload, e.malformed, e.again, e.hole, e.nack}

-- CRC32C (RFC 3720, B.4), of a string of bytes.
local crc_table = {}
for i = 0, 255 do
  local c = i
  for _ = 1, 8 do
    local low = bit.band(c, 1)
    c = bit.rshift(c, 1)
    if low == 1 then c = bit.bxor(c, 0x82f63b78) end
  end
  crc_table[i] = c
end
local function crc32c(text)
  local c = 0xffffffff
  for i = 1, #text do c = bit.bxor(bit.rshift(c, 8), crc_table[bit.band(bit.bxor(c, text:byte(i)), 0xff)]) end
  return bit.bnot(c) % 0x100000000
end

-- Little-endian numbers in a string of bytes, from `at` (the first is 1) on.
local function number(text, at, bytes)
  local value = 0
  for i = bytes, 1, -1 do value = value * 256 + text:byte(at + i - 1) end
  return value
end

-- Streams, put together in the order of the capture: [direction] = {next, begun, early, lost}.
-- Frames are looked at again when they are shown: what the first look found is kept.
local streams, told = {}, {}
function slp.init() streams, told = {}, {} end

local function record_text(stream, kind, body)
  local name = RECORDS[stream][kind]
  local function field(label, at, bytes, shape)
    return string.format(" %s " .. (shape or "%.0f"), label, number(body, at, bytes))
  end
  if name == "MESSAGE" then return name .. " bytes " .. #body end
  if name == "RTS" then return name .. field("handle", 1, 4, "%08x") .. field("length", 9, 8) .. " bytes " .. #body - 16 end
  local text = name .. field("transfer", 1, 4, "%08x")
  if name == "GRANT" then return text .. field("limit", 9, 8) end
  if name == "DONE" then return text .. " status " .. (STATUSES[number(body, 5, 4)] or "unknown") end
  text = text .. field("handle", 5, 4, "%08x") .. field("offset", 9, 8) .. field("length", 17, 8)
  if name == "PULL" then return text .. field("limit", 25, 8) end
  return text .. field("notice", 25, 4) .. field("noticed", 29, 4)
end

local LEAST = {MESSAGE = 0, RTS = 16, PULL = 32, GRANT = 16, PUSH = 32, DONE = 8}

local function append(state, stream, bytes, records)
  state.next = (state.next + #bytes) % 0x100000000
  state.begun = state.begun .. bytes
  while #state.begun >= 4 do
    local length, kind = number(state.begun, 1, 3), state.begun:byte(4)
    local name = RECORDS[stream][kind]
    if name == nil or length > 16384 or length < LEAST[name] then
      records[#records + 1] = "NONSENSE kind " .. kind .. " bytes " .. length
      state.lost = true
      return
    end
    if #state.begun < 4 + length then return end
    records[#records + 1] = record_text(stream, kind, state.begun:sub(5, 4 + length))
    state.begun = state.begun:sub(5 + length)
  end
end

local function take(direction, stream, offset, bytes)
  local state = streams[direction]
  if state == nil then
    state = {next = 0, begun = "", early = {}, early_bytes = 0}
    streams[direction] = state
  end
  local records = {}
  if state.lost then return records end
  state.early[offset] = state.early[offset] or bytes
  state.early_bytes = state.early_bytes + #bytes
  local moved = true
  while moved and not state.lost do
    moved = false
    for at, piece in pairs(state.early) do
      local known = (state.next - at) % 0x100000000  -- of this piece, if less than half of the numbers
      if known < 0x80000000 then
        state.early[at] = nil
        state.early_bytes = state.early_bytes - #piece
        if known < #piece then append(state, stream, piece:sub(known + 1), records) end
        moved = true
        break
      end
    end
  end
  if state.early_bytes > 65536 then state.lost, state.early = true, {} end
  return records
end

local function add_hello(tree, ext)
  local names = {{"nonce", 8}, {"answers", 8}, {"cookie", 8}, {"use", 4}, {"lowest", 2}, {"highest", 2}, {"capabilities", 2}, {"mtu", 2},
                 {"stream_kib", 2}, {"transfers", 2}, {"handles", 2}, {"wait_us", 2}}
  local at = 0
  for _, name in ipairs(names) do
    tree:add_le(f[name[1]], ext(at, name[2]))
    at = at + name[2]
  end
  tree:add(f.salt, ext(56, 16))
  tree:add(f.tag, ext(72, 16))
  return ext(44, 12):raw() == string.rep("\0", 12)
end

-- Ranges of no bytes are none: Wireshark has no such ranges at a packet's end.
local function part(range, at, size) return size > 0 and range(at, size) or nil end
local function length(range) return range and range:len() or 0 end

-- The extension of a frame in the clear, and a word for the list. False: it makes no sense.
local function add_extension(tree, kind, ext, payload, pinfo, key)
  if kind == "HELLO" or kind == "HELLO_ACK" or kind == "RETRY" then return add_hello(tree, ext), "" end
  if kind == "NACK" then
    local reason = ext(0, 2):le_uint()
    tree:add_le(f.reason, ext(0, 2)):add_proto_expert_info(e.nack)
    tree:add_le(f.meant, ext(4, 4))
    return ext(2, 2):le_uint() == 0, (STATUSES[reason] or "unknown") .. string.format(" of %08x", ext(4, 4):le_uint())
  end
  if kind == "FIND" or kind == "FOUND" then
    tree:add_le(f.find_nonce, ext(0, 8))
    local name, zeros = ext(8, 64):raw():match("^([a-z0-9._-]+)(%z*)$")
    if name == nil then return false, "" end
    tree:add(f.find_name, ext(8, #name))
    return #name + #zeros == 64, name
  end
  if kind == "ACK" then
    local count, text = ext(0, 2):le_uint(), ""
    local item = tree:add_le(f.pairs, ext(0, 2))
    if count > 32 or length(payload) ~= 4 * count then return false, "" end
    if count > 0 then item:add_proto_expert_info(e.hole) end
    for i = 0, count - 1 do
      tree:add_le(f.gap, payload(4 * i, 2))
      tree:add_le(f.pair_run, payload(4 * i + 2, 2))
      text = text .. string.format(" -%d+%d", payload(4 * i, 2):le_uint(), payload(4 * i + 2, 2):le_uint())
    end
    return ext(2, 2):le_uint() == 0, text
  end
  if kind == "EAGER" then
    local offset, stream = ext(0, 4):le_uint(), ext(4, 1):uint()
    tree:add_le(f.stream_offset, ext(0, 4))
    tree:add(f.stream, ext(4, 1))
    if stream > 1 or length(payload) == 0 or ext(5, 3):uint() ~= 0 then return false, "" end
    if not pinfo.visited then
      told[key.frame] = take(key.direction .. " " .. stream, stream, offset, payload:raw())
    end
    local text = string.format("%s at %d", STREAMS[stream], offset)
    for _, record in ipairs(told[key.frame] or {}) do
      tree:add(f.record, payload, record)
      text = text .. " {" .. record .. "}"
    end
    return true, text
  end
  if kind == "DATA" then
    tree:add_le(f.offset, ext(0, 8))
    tree:add_le(f.transfer, ext(8, 4))
    local offset = ext(0, 8):le_uint64()
    return ext(12, 4):le_uint() == 0 and length(payload) > 0 and ((offset % UNIT):tonumber() == 0 or (offset % SMALL_UNIT):tonumber() == 0),
           string.format("transfer %08x at %s", ext(8, 4):le_uint(), tostring(offset))
  end
  return true, ""
end

local function add_base(tree, frame, kind)
  local flags = tree:add(f.flags, frame(1, 1))
  for _, name in ipairs({"ce", "has_ack", "ackreq", "again", "sealed", "pcrc", "phase"}) do flags:add(f[name], frame(1, 1)) end
  if bit.band(frame(1, 1):uint(), 0x08) ~= 0 then flags:add_proto_expert_info(e.again) end
  local at = 2
  for _, name in ipairs({{"source", 2}, {"destination", 2}, {"payload_bytes", 2}, {"connection", 4}, {"number", 4}, {"ack", 4}, {"run", 2},
                         {"age", 2}, {"credit", 2}, {"marks", 2}}) do
    tree:add_le(f[name[1]], frame(at, name[2]))
    at = at + name[2]
  end
end

-- Base and extension, with CE and the sum itself as zero.
local function header_sum(frame, size)
  local text = frame(0, size):raw()
  return crc32c(text:sub(1, 1) .. string.char(bit.band(text:byte(2), 0xfe)) .. text:sub(3, 28) .. "\0\0\0\0" .. text:sub(33))
end

local function add_sum(tree, field, status, range, right, problem)
  local item = tree:add_le(field, range)
  item:add(status, range, right == nil and 2 or right and 1 or 0):set_generated()
  if right == false then item:add_proto_expert_info(problem) end
end

-- One frame from `at` on; the bytes that it has.
local function dissect_frame(tvb, at, pinfo, root, udp)
  local left = tvb:reported_length_remaining(at)
  local kept = tvb:len() - at
  if kept < 40 then
    root:add(slp, tvb(at)):add_proto_expert_info(e.malformed, "shorter than its base")
    return left
  end
  local frame = tvb(at, kept)
  local tree = root:add(slp, frame)
  local kind = TYPES[bit.band(frame(0, 1):uint(), 31)]
  local extension, payload_bytes = EXTENSION[kind or ""] or 0, frame(6, 2):le_uint()
  local flags = frame(1, 1):uint()
  local sealed = bit.band(flags, 0x10) ~= 0
  local size = 40 + extension + payload_bytes + (sealed and 16 or 0)
  tree:add(f.version, frame(0, 1))
  tree:add(f.type, frame(0, 1))
  local why = bit.rshift(frame(0, 1):uint(), 5) ~= 1 and "another version" or kind == nil and "an unknown type" or
              (flags >= 0x80 or kind:sub(1, 1) == "F" and flags > 1) and "a reserved flag" or size > left and "a payload beyond the frame" or nil
  if why or kept < 40 + extension then
    if why then tree:add_proto_expert_info(e.malformed, why) end
    pinfo.cols.info:append((kind or "?") .. " " .. (why or "cut") .. " ")
    return left
  end
  tree:set_len(math.min(size, kept))
  add_base(tree, frame, kind)
  local right = header_sum(frame, 40 + extension) == frame(28, 4):le_uint()
  add_sum(tree, f.header_crc, f.header_sum, frame(28, 4), right, e.header)
  local whole = kept >= 40 + extension + payload_bytes
  local payload = part(frame, 40 + extension, math.min(payload_bytes, kept - 40 - extension))
  local payload_right = nil
  if bit.band(flags, 0x20) ~= 0 then
    if whole and slp.prefs.payload_sums then payload_right = crc32c(payload and payload:raw() or "") == frame(32, 4):le_uint() end
  elseif frame(32, 4):le_uint() ~= 0 then
    tree:add_proto_expert_info(e.malformed, "a payload checksum that is not announced")
  end
  add_sum(tree, f.payload_crc, f.payload_sum, frame(32, 4), payload_right, e.payload)
  tree:add_le(f.session, frame(36, 4))

  local ports = string.format("%d > %d", frame(2, 2):le_uint(), frame(4, 2):le_uint())
  local text = ""
  if right and payload_right ~= false and not sealed and (whole or kind == "DATA") then
    local key = {frame = pinfo.number .. "/" .. at,
                 direction = tostring(pinfo.src) .. " " .. tostring(pinfo.dst) .. " " .. ports .. " " .. frame(8, 4):le_uint()}
    local sense
    sense, text = add_extension(tree, kind, part(frame, 40, extension), payload, pinfo, key)
    if not sense then tree:add_proto_expert_info(e.malformed, "nonsense in its extension") end
  end
  if payload then tree:add(f.payload, payload) end
  if sealed and kept >= size then tree:add(f.sealing, frame(size - 16, 16)) end
  if not udp and kept > size then tree:add(f.padding, frame(size, kept - size)) end
  local numbered = NUMBERED[kind] and string.format(" #%d", frame(12, 4):le_uint()) or ""
  pinfo.cols.info:append(string.format("%s %s%s %s%s ", ports, kind, numbered, text, right and "" or " [wrong header checksum]"))
  return size
end

function slp.dissector(tvb, pinfo, root)
  pinfo.cols.protocol = "SLP"
  pinfo.cols.info = ""
  local PT_UDP = 3
  if pinfo.port_type ~= PT_UDP then
    dissect_frame(tvb, 0, pinfo, root, false)
    return tvb:len()
  end
  -- Datagrams are captured together before UDP_SEGMENT cuts them up, or after UDP_GRO joined them.
  local at = 0
  while at < tvb:len() do at = at + dissect_frame(tvb, at, pinfo, root, true) end
  return tvb:len()
end

-- At other ports, which the ends choose: only what its checksum proves.
local function in_any_datagram(tvb, pinfo, root)
  if tvb:len() < 40 or bit.rshift(tvb(0, 1):uint(), 5) ~= 1 then return false end
  local kind = TYPES[bit.band(tvb(0, 1):uint(), 31)]
  local size = 40 + (EXTENSION[kind or ""] or 0)
  if kind == nil or tvb:len() < size or header_sum(tvb, size) ~= tvb(28, 4):le_uint() then return false end
  slp.dissector(tvb, pinfo, root)
  return true
end
slp:register_heuristic("udp", in_any_datagram)

local registered = {}
local function register()
  if registered.ethertype then DissectorTable.get("ethertype"):remove(registered.ethertype, slp) end
  if registered.udp_port and registered.udp_port ~= 0 then DissectorTable.get("udp.port"):remove(registered.udp_port, slp) end
  registered = {ethertype = slp.prefs.ethertype, udp_port = slp.prefs.udp_port}
  DissectorTable.get("ethertype"):add(registered.ethertype, slp)
  if registered.udp_port ~= 0 then DissectorTable.get("udp.port"):add(registered.udp_port, slp) end
end
slp.prefs_changed = register
register()
