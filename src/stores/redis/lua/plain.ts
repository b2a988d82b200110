// Lua: plain jobs, which have nothing but a record, an input and perhaps a result. Most jobs are: no time, no key, no parent, no crash. They are inserted,
// claimed and settled without taking their records apart, and by scripts of their own that have little else in them: what a script defines,
// it defines with every call, and Lua collects it again. An idle turn took 200 us of the server with all parts, and takes a fifth with these.

/**
 * state and flags, finished; fence; worker, epoch, started, deadline (as distance from started, plus one; 0: none); kind, priority, created; then the id. With
 * an id of 22 characters these are 64 bytes. In this order a claim and a success replace what stands in front, and copy the rest as it is
 * (attempts.ts).
 */
export const SLOT = ">BI6I4I4I6I6I5I2i2I6";
export const SLOT_BYTES = 42;
/** One script claims jobs of so many kinds at most. */
export const MAX_KINDS = 100;
/** Where its parts begin, counted from 1. */
export const AT = {
  fence: 8,
  worker: 12,
  started: 22,
  kind: 33,
  priority: 35,
  created: 37,
  id: SLOT_BYTES + 1,
} as const;

/**
 * Q: plain jobs.
 *
 * R: ready jobs of a kind, by priority, then by row, in chunks of 256 rows of one priority: `r:` has the chunks in which there are any by their order, and
 * `rs:` their rows, one byte for each, sorted. A million ready jobs take 4 MB; as members of a sorted set they took 95. How many are ready
 * (`rd`) and how many run (`rn`) is counted in `kc`, together with all jobs of a kind (`jobs`). Chunks that a script has read are kept, and written at its end. `rk` has the kinds
 * that have ready jobs by the rank of their first one: a claim for a thousand kinds reads no more of them than it takes jobs.
 */
export const PLAIN = /* lua */ `
R = {}
local byte, char = string.byte, string.char
local chunks, counts = {}, {}
-- Of kinds whose jobs were added, the lowest rank of these; of kinds of which any were removed, the first one is read again.
local lowest, behead = {}, {}
-- Of kinds that a claim walks along, the names of their first chunks as far as they were read. One that is added may come before all of these.
local ordered = {}
local function chunkOf(kind, c)
  local of = chunks[kind]
  if not of then of = {} chunks[kind] = of end
  local chunk = of[c]
  if not chunk then
    local rows = call('HGET', T .. 'rs:' .. int(kind), int(c)) or ''
    chunk = {rows = rows, kept = rows, taken = 0}
    of[c] = chunk
    if rows == '' then ordered[kind] = nil end
  end
  return chunk
end
local function rowsOf(chunk)
  if chunk.taken > 0 then
    chunk.rows = sub(chunk.rows, chunk.taken + 1)
    chunk.taken = 0
  end
  return chunk.rows
end
function R.count(kind, what, by)
  local of = counts[kind]
  if not of then of = {rd = 0, rn = 0, jobs = 0} counts[kind] = of end
  of[what] = of[what] + by
end
local function lower(kind, rank) if not lowest[kind] or rank < lowest[kind] then lowest[kind] = rank end end
-- Rows as bytes, which belong behind all others of their chunk.
function R.append(kind, c, rows)
  local chunk = chunkOf(kind, c)
  chunk.rows = rowsOf(chunk) .. rows
  wakes = true
  lower(kind, c * 256 + byte(rows))
  R.count(kind, 'rd', #rows)
end
function R.add(kind, rank)
  local b, chunk = rank % 256, chunkOf(kind, floor(rank / 256))
  local rows = rowsOf(chunk)
  local at = #rows
  while at > 0 and byte(rows, at) > b do at = at - 1 end
  if at > 0 and byte(rows, at) == b then return end
  chunk.rows = sub(rows, 1, at) .. char(b) .. sub(rows, at + 1)
  lower(kind, rank)
  R.count(kind, 'rd', 1)
end
-- Mostly it is the first, because it is claimed.
function R.remove(kind, rank)
  local b, chunk = rank % 256, chunkOf(kind, floor(rank / 256))
  if byte(chunk.rows, chunk.taken + 1) == b then chunk.taken = chunk.taken + 1
  else
    local rows = rowsOf(chunk)
    local at = string.find(rows, char(b), 1, true)
    if not at then return end
    chunk.rows = sub(rows, 1, at - 1) .. sub(rows, at + 1)
  end
  behead[kind] = true
  R.count(kind, 'rd', -1)
end
-- The ranks of the first ones, up to a number. Indexes are settled.
function R.first(kind, most)
  local ranks, n, from = {}, 0, 0
  while n < most do
    local found = call('ZRANGE', T .. 'r:' .. int(kind), from, from + 3)
    for _, name in ipairs(found) do
      local c = tonumber(name)
      local rows = rowsOf(chunkOf(kind, c))
      local bytes = {byte(rows, 1, most - n)}
      for i = 1, #bytes do ranks[n + i] = c * 256 + bytes[i] end
      n = n + #bytes
      if n >= most then return ranks end
    end
    if #found < 4 then return ranks end
    from = from + 4
  end
  return ranks
end
-- One after the other, as long as \`R.next\` returns a rank. Indexes are settled.
function R.cursor(kind) return {kind = kind, from = 0, names = {}, at = 0, rows = '', i = 0} end
function R.next(cur)
  while cur.i == #cur.rows do
    if cur.at == #cur.names then
      cur.names = call('ZRANGE', T .. 'r:' .. int(cur.kind), cur.from, cur.from + 1)
      if cur.from == 0 then ordered[cur.kind] = cur.names end
      cur.from, cur.at = cur.from + 2, 0
      if #cur.names == 0 then return nil end
    end
    cur.at = cur.at + 1
    local c = tonumber(cur.names[cur.at])
    cur.rows, cur.i, cur.first = rowsOf(chunkOf(cur.kind, c)), 0, c * 256
  end
  cur.i = cur.i + 1
  return cur.first + byte(cur.rows, cur.i)
end
local function flushHeads()
  local set, gone = {}, {}
  for kind in pairs(behead) do
    local first = nil
    for _, name in ipairs(ordered[kind] or {}) do
      local c = tonumber(name)
      first = first or byte(rowsOf(chunkOf(kind, c))) and c
    end
    -- Fewer than a cursor asks for are all that there are.
    if not first and #(ordered[kind] or {1, 2}) > 1 then first = tonumber(call('ZRANGE', T .. 'r:' .. int(kind), 0, 0)[1] or nil) end
    if first then
      set[#set + 1] = int(first * 256 + byte(rowsOf(chunkOf(kind, first))))
      set[#set + 1] = int(kind)
    else gone[#gone + 1] = int(kind) end
    lowest[kind] = nil
  end
  many('ZADD', T .. 'rk', set)
  many('ZREM', T .. 'rk', gone)
  local lower = {'LT'}
  for kind, rank in pairs(lowest) do
    lower[#lower + 1] = int(rank)
    lower[#lower + 1] = int(kind)
    if #lower == 999 then call('ZADD', T .. 'rk', unpack(lower)) lower = {'LT'} end
  end
  if #lower > 1 then call('ZADD', T .. 'rk', unpack(lower)) end
  lowest, behead, ordered = {}, {}, {}
end
local function flushCounts()
  local fields, by = {}, {}
  for kind, of in pairs(counts) do
    for what, change in pairs(of) do if change ~= 0 then fields[#fields + 1] = what .. ':' .. int(kind) by[#fields] = change end end
  end
  counts = {}
  if #fields <= 3 then
    for i, field in ipairs(fields) do call('HINCRBY', T .. 'kc', field, int(by[i])) end
    return
  end
  for from = 1, #fields, 500 do
    local upTo, set = math.min(from + 499, #fields), {}
    local values = call('HMGET', T .. 'kc', unpack(fields, from, upTo))
    for i = from, upTo do
      set[#set + 1] = fields[i]
      set[#set + 1] = int(tonumber(values[i - from + 1] or 0) + by[i])
    end
    call('HSET', T .. 'kc', unpack(set))
  end
end
function R.flush()
  for kind, of in pairs(chunks) do
    local order, rows = T .. 'r:' .. int(kind), T .. 'rs:' .. int(kind)
    for c, chunk in pairs(of) do
      if rowsOf(chunk) ~= chunk.kept then
        local name = int(c)
        if chunk.rows == '' then
          call('HDEL', rows, name)
          call('ZREM', order, name)
        else
          call('HSET', rows, name, chunk.rows)
          if chunk.kept == '' then call('ZADD', order, name, name) end
        end
        chunk.kept = chunk.rows
      end
    end
  end
  flushHeads()
  flushCounts()
end
function R.ready(kind) return tonumber(call('HGET', T .. 'kc', 'rd:' .. int(kind)) or 0) end

local Q = {}
-- The order of a claim within all kinds: by priority, then by row.
local RANKS = 2199023255552
local function page(row) return int(floor(row / 64)) end
local slots = {}
local function slot(row)
  local s = row % 64
  local text = slots[s]
  if not text then text = int(s) slots[s] = text end
  return text
end
`;

/** New ones. The ids that are known, rows, inputs and drafts are those of all jobs. */
export const INSERTS = /* lua */ `
local function idKey(id) return T .. 'x:' .. sub(id, 1, 7) end
local rowsById = {}
-- Rows are given in the order of insertion, and never twice; those of a reservation that is not used up are never given.
local reserved, lastReserved = 0, 0
function Q.nextRow()
  if reserved == lastReserved then
    lastReserved = call('HINCRBY', T .. 'meta', 'row', 1)
    reserved = lastReserved - 1
  end
  reserved = reserved + 1
  return reserved
end
function Q.reserve(count)
  if count < 2 or reserved ~= lastReserved then return end
  lastReserved = call('HINCRBY', T .. 'meta', 'row', count)
  reserved = lastReserved - count
end
-- Which of these ids are known, with one command for each key.
function Q.prefetch(drafts)
  local keys = {}
  for _, draft in ipairs(drafts) do
    local key = idKey(draft.id)
    local of = keys[key]
    if not of then of = {} keys[key] = of end
    of[#of + 1] = draft.id
  end
  local new = 0
  for key, ids in pairs(keys) do
    for from = 1, #ids, 1000 do
      local upTo = math.min(from + 999, #ids)
      local rows = call('HMGET', key, unpack(ids, from, upTo))
      for i = from, upTo do
        if rowsById[ids[i]] == nil then rowsById[ids[i]] = tonumber(rows[i - from + 1] or nil) or false end
        if not rowsById[ids[i]] then new = new + 1 end
      end
    end
  end
  Q.reserve(new)
end
-- Of a row that was just given. Rows are given in order, so its place is behind all others; those that are missing in between are empty texts.
local newInputs = {}
function Q.addInput(row, text)
  local p = floor(row / 64)
  local of = newInputs[p]
  if not of then
    of = {next = call('LLEN', T .. 'i:' .. int(p))}
    newInputs[p] = of
  end
  for _ = of.next, row % 64 - 1 do of[#of + 1] = '' end
  of[#of + 1] = text
  of.next = row % 64 + 1
end
function Q.flushInputs()
  if not next(newInputs) then return end
  for p, of in pairs(newInputs) do if #of > 0 then call('RPUSH', T .. 'i:' .. int(p), unpack(of)) end end
  newInputs = {}
end
-- Of a draft, all but its id and its input is one text, the same for many of them: it is taken apart once.
local heads = {}
local function headOf(text)
  local parts, from = {}, 1
  for i = 1, 11 do
    local stop = string.find(text, '\\31', from, true)
    parts[i] = sub(text, from, stop - 1)
    from = stop + 1
  end
  local function given(i) return parts[i] ~= '' and parts[i] or nil end
  local ks = sub(text, from)
  local head = {kindName = parts[1], kind = kindNamed(parts[1]), priority = tonumber(parts[2]), runAt = tonumber(given(3)), delay = tonumber(parts[4]),
    dk = given(5), policy = given(6), wait = tonumber(given(7)), max = tonumber(given(8)), fair = given(9), expires = tonumber(given(10)), trace = given(11), ks = ks ~= '' and ks or nil}
  -- It has nothing but its record and its input.
  head.isPlain = not (head.runAt or head.delay > 0 or head.dk or head.wait or head.max or head.expires or head.trace or head.ks)
  heads[text] = head
  return head
end
local function draftOf(id, text, input)
  local h = heads[text] or headOf(text)
  if h.isPlain then return {id = id, input = input, kind = h.kind, kindName = h.kindName, priority = h.priority, delay = 0, isPlain = true} end
  return {id = id, input = input, kind = h.kind, kindName = h.kindName, priority = h.priority, runAt = h.runAt, delay = h.delay, dk = h.dk, policy = h.policy,
    wait = h.wait, max = h.max, ks = h.ks, fair = h.fair, expires = h.expires, trace = h.trace}
end
function Q.read()
  at = at + 3
  return draftOf(A[at - 3], A[at - 2], A[at - 1])
end
-- All drafts of a call: their heads, each once, and then all of them as one text: id, place of the head, and input.
function Q.readAll()
  local count, drafts, texts = num(), {}, {}
  if count == 0 then return drafts end
  for i = 1, num() do texts[int(i)] = arg() end
  local list = unpacked(arg(), 3 * count)
  for i = 1, count do drafts[i] = draftOf(list[3 * i - 2], texts[list[3 * i - 1]], list[3 * i]) end
  return drafts
end
-- Drafts that have nothing but a record and an input: no index but the list of ready jobs, nothing to decide. 250 took 4.5 ms one by one.
function Q.insert(drafts)
  local records, ids, rows = {}, {}, {}
  local zeros = struct.pack('>BI6I4I4I6I6I5', QUEUED, now, 0, 0, 0, now, 0)
  local tails, created = {}, struct.pack('>I6', now)
  for _, draft in ipairs(drafts) do
    local row, kind, priority, id = Q.nextRow(), draft.kind, draft.priority, draft.id
    rowsById[id] = row
    Q.addInput(row, draft.input)
    local tail = tails[kind] and tails[kind][priority]
    if not tail then
      tails[kind] = tails[kind] or {}
      tail = {text = zeros .. struct.pack('>I2i2', kind, priority) .. created, first = (1000 - priority) * RANKS / 256}
      tails[kind][priority] = tail
    end
    local p = floor(row / 64)
    local of = records[p]
    if not of then of = {} records[p] = of end
    of[#of + 1] = slot(row)
    of[#of + 1] = tail.text .. id
    local key = idKey(id)
    of = ids[key]
    if not of then of = {} ids[key] = of end
    of[#of + 1] = id
    of[#of + 1] = int(row)
    local c = tail.first + floor(row / 256)
    if tail.chunk ~= c then
      if tail.chunk then R.append(kind, tail.chunk, concat(tail.rows)) end
      tail.chunk, tail.rows, tail.kind = c, {}, kind
      rows[tail] = true
    end
    tail.rows[#tail.rows + 1] = string.char(row % 256)
    R.count(kind, 'jobs', 1)
  end
  for tail in pairs(rows) do R.append(tail.kind, tail.chunk, concat(tail.rows)) end
  for p, of in pairs(records) do call('HSET', T .. 'j:' .. int(p), unpack(of)) end
  for key, of in pairs(ids) do many('HSET', key, of) end
  wrote = true
end
-- 1: it was created, 0: its id is known.
function Q.enqueue(drafts)
  Q.prefetch(drafts)
  local answers, new = {}, {}
  for i, draft in ipairs(drafts) do
    answers[i] = rowsById[draft.id] and '0' or '1'
    if not rowsById[draft.id] then
      rowsById[draft.id] = 0
      new[#new + 1] = draft
    end
  end
  if #new > 0 then Q.insert(new) end
  return answers
end
`;

/**
 * Ends and claims. Ends come as row, fence, id and result of each, in one text, of one worker and one epoch. Claims return row, id, place of the kind, fence and input of
 * each.
 */
export const TURNS = /* lua */ `
-- What is to be written where a record is a plain one that its attempt still owns; \`others\`: the places of the rest.
function Q.readEnds(count) return count > 0 and unpacked(arg(), 4 * count) or {} end
-- \`mayEnd\`: whether a record that has more than a plain one has nothing that its end would change, but what the caller writes.
function Q.ends(w, epoch, list, count, mayEnd)
  local e = {gone = {}, others = {}, pages = {}}
  if not w then
    for place = 1, count do e.others[place] = place end
    return e
  end
  for place = 1, count do
    local row = tonumber(list[4 * place - 3])
    local p = page(row)
    local of = e.pages[p]
    if not of then of = {places = {}, slots = {}, set = {}, results = {}} e.pages[p] = of end
    of.places[#of.places + 1] = place
    of.slots[#of.slots + 1] = slot(row)
  end
  local done, doneMore = struct.pack('>BI6', SUCCEEDED, now), struct.pack('>BI6', SUCCEEDED + 8, now)
  local holder, guards = struct.pack('>I4I6', w.n, epoch), {}
  for p, of in pairs(e.pages) do
    local records, set = call('HMGET', T .. 'j:' .. p, unpack(of.slots)), of.set
    for i, place in ipairs(of.places) do
      local v, from = records[i], 4 * place - 3
      local fence = list[from + 1]
      local guard = guards[fence]
      if not guard then guard = struct.pack('>I4', tonumber(fence)) .. holder guards[fence] = guard end
      local isPlain = v and byte(v) == RUNNING
      if v and (isPlain or mayEnd and byte(v) == RUNNING + 8) and sub(v, ${AT.fence}, ${AT.started - 1}) == guard and sub(v, ${AT.id}) == list[from + 2]
        and (isPlain or mayEnd(list[from], fence)) then
        set[#set + 1] = of.slots[i]
        set[#set + 1] = (isPlain and done or doneMore) .. sub(v, ${AT.fence})
        e.gone[#e.gone + 1] = list[from]
        if list[from + 3] ~= '' then of.results[#of.results + 1] = of.slots[i] of.results[#of.results + 1] = list[from + 3] end
      else e.others[#e.others + 1] = place end
    end
  end
  return e
end
function Q.writeEnds(w, e)
  if #e.gone == 0 then return end
  wrote = true
  for p, of in pairs(e.pages) do
    local set = of.set
    for i = 2, #set, 2 do
      local high, low = byte(set[i], ${AT.kind}, ${AT.kind + 1})
      R.count(high * 256 + low, 'rn', -1)
    end
    if #set > 0 then call('HSET', T .. 'j:' .. p, unpack(set)) end
    if #of.results > 0 then call('HSET', T .. 'o:' .. p, unpack(of.results)) end
  end
  many('SREM', T .. 'held:' .. int(w.n), e.gone)
end
-- Rooms: of single kinds in the arguments, and one that each kind of a list has, which the worker keeps in its row as one bit for each. A thousand kinds
-- took 3,000 arguments and 4 ms of every turn.
local rooms, single, list, shared = {}, {}, nil, nil
-- The kinds whose jobs may wait for a slot.
local waits = {}
local pauses = nil
-- What a caller says of a kind: s, it shares its room; a, its jobs may be claimed ahead.
local function newRoom(n, room, flags)
  waits[n] = string.find(flags, 'a', 1, true) ~= nil
  if not string.find(flags, 's', 1, true) then return {room = room, used = 0} end
  shared = shared or {room = room, used = 0}
  return shared
end
-- Kinds that are paused are in \`kp\` by when that ends.
function Q.isPaused(n)
  if pauses == nil then pauses = call('EXISTS', T .. 'kp') == 1 end
  local ends = pauses and call('ZSCORE', T .. 'kp', int(n))
  return ends and tonumber(ends) > now
end
-- What comes before everything else in the arguments: the list. False: this worker has not kept it, and nothing was written.
function Q.readList(w)
  local name, room, flags = arg(), num(), arg()
  if name == '' or not w then return true end
  local kept = call('HGET', T .. 'w:' .. int(w.n), 'kinds ' .. name)
  if not kept then return false end
  local stop = string.find(kept, ':', 1, true)
  list = {room = room, flags = flags, count = tonumber(sub(kept, 1, stop - 1)), first = stop + 1, kept = kept}
  return true
end
-- Single kinds.
function Q.readRooms(total)
  if total == 0 then list = nil return end
  for i = 1, num() do
    local name, room, flags = arg(), num(), arg()
    local n = kindNamed(name)
    if n and room > 0 and not rooms[n] then
      single[#single + 1] = n
      rooms[n] = newRoom(n, room, flags)
    end
  end
end
function Q.closeRooms() rooms, single, list = {}, {}, nil end
function Q.roomOf(n)
  local room = rooms[n]
  if room == nil then
    local bits = list and byte(list.kept, list.first + floor(n / 8))
    room = bits and floor(bits / 2 ^ (n % 8)) % 2 == 1 and newRoom(n, list.room, list.flags) or false
    rooms[n] = room
  end
  return room
end
local function countAsked() return #single + (list and list.count or 0) end
local function eachAsked(visit)
  for _, n in ipairs(single) do visit(n) end
  for place = list and list.first or 1, list and #list.kept or 0 do
    local bits = byte(list.kept, place)
    for bit = 0, 7 do
      if bits % 2 == 1 then visit((place - list.first) * 8 + bit) end
      bits = floor(bits / 2)
    end
  end
end
-- Those kinds of a set that there is room for and that are not paused. Neither a large set nor a long list makes it slow.
function Q.among(key)
  local size, found = call('SCARD', key), {}
  if size == 0 then return found end
  local function visit(n) if Q.roomOf(n) and not Q.isPaused(n) then found[#found + 1] = n end end
  if size <= 2 * countAsked() + 16 then for _, n in ipairs(call('SMEMBERS', key)) do visit(tonumber(n)) end
  else eachAsked(function(n) if call('SISMEMBER', key, int(n)) == 1 then visit(n) end end) end
  table.sort(found)
  return found
end
-- Whether a job waits at the gate of a fair kind that there is room for: it is let through when a slot is free, and what is claimed ahead would take each slot
-- before it. Indexes are settled.
function Q.isAtGate()
  for _, n in ipairs(Q.among(T .. 'fk')) do if call('EXISTS', T .. 'hr:-' .. int(n)) == 1 then return true end end
  return false
end
-- In how many ms the first of the pauses that matter here ends. Of very many pauses of other kinds, one of theirs may be the answer.
function Q.resumesIn()
  local first = call('ZRANGEBYSCORE', T .. 'kp', '(' .. int(now), '(' .. int(NEVER_DUE), 'WITHSCORES', 'LIMIT', 0, 64)
  for i = 1, #first, 2 do
    if Q.roomOf(tonumber(first[i])) or i == 127 then return tonumber(first[i + 1]) - now end
  end
  return math.huge
end
-- Calls for one kind after the other, by their first ready jobs: those that there is room for. Either along all kinds that have ready jobs, or, if there
-- are many more of these than are asked for, along those that are asked for: kinds that are full, paused or of others are never many on the way.
local function kindsByFirst(most)
  local found, at, from = {}, 0, 0
  local asked = countAsked()
  local isWalk = list and call('ZCARD', T .. 'rk') <= 2 * asked + 16
  if not isWalk then
    local all, names = {}, {}
    eachAsked(function(n) names[#names + 1] = int(n) end)
    for i = 1, #names, 1000 do
      local upTo = math.min(i + 999, #names)
      local scores = call('ZMSCORE', T .. 'rk', unpack(names, i, upTo))
      for k = i, upTo do if scores[k - i + 1] then all[#all + 1] = {names[k], tonumber(scores[k - i + 1])} end end
    end
    table.sort(all, function(a, b) return a[2] < b[2] end)
    for _, one in ipairs(all) do
      found[#found + 1] = one[1]
      found[#found + 1] = one[2]
    end
  end
  return function()
    while true do
      if at == #found then
        if not isWalk then return nil end
        found, at, from = call('ZRANGE', T .. 'rk', from, from + 63, 'WITHSCORES'), 0, from + 64
        if #found == 0 then return nil end
      end
      local n, first = tonumber(found[at + 1]), tonumber(found[at + 2])
      at = at + 2
      local room = Q.roomOf(n)
      if room and room.used < (most or room.room) and not Q.isPaused(n) then return n, first end
    end
  end
end
-- Of so many kinds one script claims jobs. Each takes 30 to 40 us, and with 250 of them scripts took 9 to 15 ms on a busy machine.
local MAX_KINDS = ${MAX_KINDS}
-- The ranks of ready jobs that there is room for, in order, then so many ahead, up to the first one that may not wait; and the kinds of their rows, or the only
-- kind. No room limits those that are claimed ahead. Indexes are settled.
function Q.ready(total, ahead)
  local most = total + ahead
  if most == 0 then return {}, {} end
  if #single == 1 and not list then
    local n = single[1]
    if Q.isPaused(n) then return {}, {}, n end
    return R.first(n, ahead > 0 and waits[n] and most or math.min(rooms[n].room, total)), {}, n
  end
  local ranks, kinds, count, touched = {}, {}, 0, 0
  -- A heap of kinds by their next jobs.
  local heap, size = {}, 0
  local function push(cur)
    size = size + 1
    local i = size
    while i > 1 do
      local above = floor(i / 2)
      if heap[above].rank <= cur.rank then break end
      heap[i] = heap[above]
      i = above
    end
    heap[i] = cur
  end
  -- The first has another rank, or none.
  local function sink()
    local cur = heap[1]
    if not cur.rank then
      cur = heap[size]
      heap[size] = nil
      size = size - 1
      if size == 0 then return end
    end
    local i = 1
    while 2 * i <= size do
      local below = 2 * i
      if below < size and heap[below + 1].rank < heap[below].rank then below = below + 1 end
      if heap[below].rank >= cur.rank then break end
      heap[i] = heap[below]
      i = below
    end
    heap[i] = cur
  end
  local nextKind = kindsByFirst(ahead > 0 and math.huge or nil)
  local n, first = nextKind()
  while count < most do
    while n and (size == 0 or first < heap[1].rank) do
      local cur = R.cursor(n)
      cur.rank, cur.room = R.next(cur), Q.roomOf(n)
      if cur.rank then push(cur) end
      n, first = nextKind()
    end
    if size == 0 then break end
    local cur = heap[1]
    local room, isFull, mayWait = cur.room, count < total and cur.room.used >= cur.room.room, waits[cur.kind]
    -- What is left behind because its kind is full may not wait either.
    if not mayWait and isFull then most = total end
    if not mayWait and count >= total then break end
    if not isFull then
      if not cur.isTouched then
        if touched == MAX_KINDS then Q.isCut = true break end
        cur.isTouched, touched = true, touched + 1
      end
      if count < total then room.used = room.used + 1 end
      count = count + 1
      ranks[count] = cur.rank
      kinds[cur.rank % RANKS] = cur.kind
    end
    cur.rank = (not isFull or mayWait and most > total) and R.next(cur) or nil
    sink()
  end
  return ranks, kinds
end
-- Those of them that there is room for, in order, and then so many ahead.
function Q.fitting(ranks, kinds, only, total, ahead)
  local used, chosen = {}, {}
  table.sort(ranks)
  for _, rank in ipairs(ranks) do
    if #chosen == total + ahead then break end
    local room = Q.roomOf(kinds[rank % RANKS] or only)
    if #chosen >= total then chosen[#chosen + 1] = rank
    elseif (used[room] or 0) < room.room then
      used[room] = (used[room] or 0) + 1
      chosen[#chosen + 1] = rank
    end
  end
  return chosen
end
-- A claim of these: their records and inputs, read with two commands for each page. \`bound\` is added to their deadlines. \`known\`: records that were read
-- before, by row.
function Q.claim(w, chosen, bound, known)
  local c = {bound = bound, pages = {}, order = {}, claimed = {}, named = {}, places = {}, fronts = {}, held = {}}
  for _, rank in ipairs(chosen) do
    local row = rank % RANKS
    local p, s = floor(row / 64), row % 64
    local of = c.pages[p]
    if not of then of = {p = int(p), slots = {}, records = {}, first = s, last = s, set = {}, next = 0} c.pages[p] = of c.order[#c.order + 1] = of end
    of.slots[#of.slots + 1] = slot(row)
    of.records[#of.slots] = known and known[row]
    of.isUnread = of.isUnread or not of.records[#of.slots]
    of.first, of.last = math.min(of.first, s), math.max(of.last, s)
  end
  for _, of in ipairs(c.order) do
    of.inputs = {}
    if of.isUnread then of.records = call('HMGET', T .. 'j:' .. of.p, unpack(of.slots)) end
    if of.last - of.first < 4 * #of.slots then
      local inputs = call('LRANGE', T .. 'i:' .. of.p, int(of.first), int(of.last))
      for i, s in ipairs(of.slots) do of.inputs[i] = inputs[tonumber(s) - of.first + 1] end
    else for i, s in ipairs(of.slots) do of.inputs[i] = call('LINDEX', T .. 'i:' .. of.p, s) end end
  end
  c.runs, c.none, c.one = struct.pack('>BI6', RUNNING, now), struct.pack('>I4', 0), struct.pack('>I4', 1)
  return c
end
-- The record of the next of them, and whether it is a plain one.
function Q.nextOf(c, rank)
  local of = c.pages[floor(rank % RANKS / 64)]
  of.next = of.next + 1
  local v = of.records[of.next]
  return of, v, v and byte(v) == QUEUED
end
function Q.note(c, w, n, row, id, fence, input)
  local place = c.places[n]
  if not place then
    local kind = kindOf(n)
    c.named[#c.named + 1] = {kind.name, kind.timeout and int(kind.timeout) or ''}
    place = #c.named
    c.places[n] = place
    c.fronts[n] = struct.pack('>I4I6I6I5', w.n, EPOCH, now, kind.timeout and kind.timeout + c.bound + 1 or 0)
    local ends = kind.timeout and now + kind.timeout + c.bound + kind.grace
    if ends and (not c.earliest or ends < c.earliest) then c.earliest = ends end
  end
  R.count(n, 'rn', 1)
  local text, to = int(row), #c.claimed
  c.held[#c.held + 1] = text
  c.claimed[to + 1], c.claimed[to + 2], c.claimed[to + 3], c.claimed[to + 4], c.claimed[to + 5] = text, id, place, fence, input
end
-- \`runs\`: how its record begins, if it has more than a plain one.
function Q.take(c, w, n, rank, of, v, runs)
  local fence, number = sub(v, ${AT.fence}, ${AT.worker - 1}), 1
  if fence == c.none then fence = c.one
  else
    number = struct.unpack('>I4', fence) + 1
    fence = struct.pack('>I4', number)
  end
  Q.note(c, w, n, rank % RANKS, sub(v, ${AT.id}), number, of.inputs[of.next] or '')
  of.set[#of.set + 1] = of.slots[of.next]
  of.set[#of.set + 1] = (runs or c.runs) .. fence .. c.fronts[n] .. sub(v, ${AT.kind})
end
function Q.writeClaim(c, w)
  wrote = true
  for _, of in ipairs(c.order) do if #of.set > 0 then call('HSET', T .. 'j:' .. of.p, unpack(of.set)) end end
  if #c.held > 0 then many('SADD', T .. 'held:' .. int(w.n), c.held) end
  if c.earliest then call('ZADD', T .. 'dl', 'LT', int(c.earliest), int(w.n)) end
end
`;

/** Drafts that are all plain, as their caller knows. */
export const ENQUEUE_PLAIN = /* lua */ `
local drafts = Q.readAll()
for _, draft in ipairs(drafts) do if not draft.kind then return {'!kind', draft.kindName} end end
return Q.enqueue(drafts)
`;

/** What a turn that does not know everything begins with. `existing`, `dues`: if one of these keys exists, or has something due, nothing was written and FULL is returned. */
export function turnHead(existing: readonly string[], dues: readonly string[]): string {
  return /* lua */ `
local FULL = {'!full'}
local id = arg()
local w = W.own(id)
if not Q.readList(w) then return {'!kinds'} end
local owner, epoch, count = arg(), num(), num()
local list = Q.readEnds(count)
local total, ahead, aheadBound = num(), num(), num()
if owner ~= '' and owner ~= id or not w or w.state ~= 'live' then return FULL end
Q.readRooms(total + ahead)
if call('EXISTS', T .. 'fd', T .. 'stc'${existing.map((name) => `, T .. '${name}'`).join("")}, T .. 'cc:' .. int(w.n)) > 0 then return FULL end
if #Q.among(T .. 'uk') > 0 then return FULL end
if Q.isAtGate() then
  if total > 0 then return FULL end
  ahead = 0
end
local resumesIn = Q.resumesIn()
local next = resumesIn < math.huge and resumesIn or nil
if call('EXISTS', ${dues.map((name) => `T .. '${name}'`).join(", ")}) > 0 then
  for _, key in ipairs({${dues.map((name) => `'${name}'`).join(", ")}}) do
    local due = tonumber(call('ZRANGE', T .. key, 0, 0, 'WITHSCORES')[2])
    if due and due <= now then return FULL end
    if due and (not next or due - now < next) then next = due - now end
  end
end
`;
}

/**
 * A turn in which everything is plain: what ends, what is claimed, and nothing else is due. Otherwise it returns {'!full'} and has written nothing, and the caller
 * takes the turn that knows everything.
 */
export const TURN_PLAIN = /* lua */ `
${turnHead(["kw"], ["zk", "kd", "xp"])}local ends = Q.ends(w, epoch, list, count)
if #ends.others > 0 then return FULL end
local chosen, kinds, only = Q.ready(total, ahead)
local c = Q.claim(w, chosen, aheadBound)
for _, of in ipairs(c.order) do
  for i = 1, #of.slots do if not of.records[i] or byte(of.records[i]) ~= QUEUED then return FULL end end
end
Q.writeEnds(w, ends)
for _, rank in ipairs(chosen) do
  local of, v = Q.nextOf(c, rank)
  local n = kinds[rank % RANKS] or only
  Q.take(c, w, n, rank, of, v)
  R.remove(n, rank)
end
if #chosen > 0 then Q.writeClaim(c, w) end
if #chosen < total and not Q.isCut then next = sleep(next) end
return {{}, c.named, c.claimed, {}, 1, '', {}, next and int(next) or '', 0, int(EPOCH), Q.isCut and 1 or 0}
`;
