// Lua: the turn of jobs that have keys and are otherwise plain: first attempts, no limit in strict order, no fair kind. What has room at its door is claimed
// straight from there, and neither its record nor that of what ends is taken apart. The turn that knows everything admits such a job to the ready list of
// all workers first, and reads and writes its record three times: 139 us of the server for a job.
//
// Everything is read and decided before the first write. A turn reads about as many doors as its worker takes jobs, and the others keep their wakes.

import { AT, turnHead } from "./plain.ts";

/** How many jobs one script claims, how many doors it reads, and how many jobs behind them, at most. Each end leaves less for doors. */
const MAX_CLAIMS = 100;
const MAX_DOORS = 60;
const MAX_ENDS_AND_DOORS = 180;
/** For how long doors with room wait for a worker that takes their jobs. Then these are made ready for all. */
const WAITS_FOR_WORKER_MS = 250;
/** How many doors it reads although ready jobs fill the worker: a job behind a door may come before those. */
const MIN_DOORS = 16;

export const KEYED = /* lua */ `
-- What a job may have that neither its claim nor its end changes: its trace, the time at which it was due; and from its attempt on steps, progress, a log.
local WAITING, ENDING = {tr = true, ra = true}, {tr = true, ra = true, sp = true, st = true, pg = true, lg = true}
local parsed = {}
local function keysIn(ks)
  local keys = parsed[ks]
  if not keys then
    keys = {}
    for id, limit in string.gmatch(ks .. FIELD, '([^\\31]*)\\31([^\\31]*)\\31[^\\31]*\\31') do keys[#keys + 1] = {id = id, limit = limit} end
    parsed[ks] = keys
  end
  return keys
end
-- The keys of a job in this place, and its door; nothing: it has more than this turn knows.
local function keyedAt(row, place, others)
  local d, ks, door, isThere = call('HGETALL', T .. 'd:' .. row), nil, nil, false
  for i = 1, #d, 2 do
    local name = d[i]
    if name == 'ks' then ks = d[i + 1]
    elseif name == 'pl' then isThere = d[i + 1] == place
    elseif place == 'h' and name == 'dr' then door = d[i + 1]
    elseif place == 'h' and name == 'ln' then if d[i + 1] ~= 'h' then return nil end
    elseif not others[name] then return nil end
  end
  if not ks or not isThere then return nil end
  local keys = keysIn(ks)
  for _, key in ipairs(keys) do if K.limit(key.limit).strict then return nil end end
  return keys, door
end
-- What ends in this turn still counts as taken in the store.
local freed, freedList, freedKeys, ended = {}, {}, {}, {}
local function boundOf(key)
  local f = facts[key.id]
  if not f then
    f = factsOf(key)
    f.taken = f.taken - (freed[key.id] or 0)
  end
  return f
end
local function mayEnd(row, fence)
  local keys = fence == '1' and keyedAt(row, 't', ENDING)
  if not keys then return false end
  for _, key in ipairs(keys) do
    if not freed[key.id] then freedList[#freedList + 1], freedKeys[key.id] = key.id, key end
    freed[key.id] = (freed[key.id] or 0) + 1
  end
  ended[#ended + 1] = {row = row, keys = keys}
  return true
end
local doors, seen, known, hasRings = {}, {}, {}, nil
-- The jobs that a door has room for, up to a number. False: there is something that this turn does not know.
local function readDoor(door, max)
  if hasRings == nil then hasRings = call('EXISTS', T .. 'fk') == 1 end
  if hasRings and call('EXISTS', T .. 'hr:' .. door) == 1 then return false end
  local of = {id = door, rows = {}, keys = {}}
  doors[#doors + 1], seen[door] = of, true
  -- The end of a job gives no room to a key whose rate is used up: what waits there need not be read.
  if freedKeys[door] and not hasRoom(boundOf(freedKeys[door])) then
    of.opens = opensAt(facts[door])
    return true
  end
  local rows = call('ZRANGE', T .. 'h:' .. door, 0, 1)
  if #rows == 0 then return true end
  local keys, at = keyedAt(rows[1], 'h', WAITING)
  if at ~= door then return false end
  for _, key in ipairs(keys) do if key.id == door then of.facts = boundOf(key) end end
  local f = of.facts
  if not f then return false end
  if not hasRoom(f) then
    of.opens = opensAt(f)
    return true
  end
  local room = roomAt(f)
  local wanted = math.min(max, room)
  if wanted > 2 and #rows == 2 then rows = call('ZRANGE', T .. 'h:' .. door, 0, wanted - 1) end
  of.isCut, of.isFull = wanted < room, #rows >= wanted
  for i = 1, math.min(wanted, #rows) do
    if i > 1 then
      keys, at = keyedAt(rows[i], 'h', WAITING)
      if at ~= door then return false end
    end
    of.rows[i], of.keys[i] = rows[i], keys
  end
  return true
end
-- Their records, with one command for each page. False: one of them does not wait for its first attempt.
local function readRecords()
  local pages = {}
  for _, of in ipairs(doors) do
    for _, text in ipairs(of.rows) do
      local row = tonumber(text)
      local p = floor(row / 64)
      local page = pages[p]
      if not page then page = {rows = {}, slots = {}} pages[p] = page end
      page.rows[#page.rows + 1] = row
      page.slots[#page.rows] = slot(row)
    end
  end
  for p, page in pairs(pages) do
    local values = call('HMGET', T .. 'j:' .. int(p), unpack(page.slots))
    for i, row in ipairs(page.rows) do
      local v = values[i]
      if not v or byte(v) ~= QUEUED + 8 or sub(v, ${AT.fence}, ${AT.worker - 1}) ~= '\\0\\0\\0\\0' then return false end
      known[row] = v
    end
  end
  return true
end
-- Decides about each as \`admitOne\` of admission.ts does. \`moves\`: what waits at another door from now on.
local function admitKeyed(moves)
  local admitted = {}
  for _, of in ipairs(doors) do
    for i, text in ipairs(of.rows) do
      local keys, blocking = of.keys[i], nil
      if not hasRoom(of.facts) then blocking = of.id
      else for _, key in ipairs(keys) do if not blocking and key.id ~= of.id and not hasRoom(boundOf(key)) then blocking = key.id end end end
      local row = tonumber(text)
      if not blocking then
        for _, key in ipairs(keys) do local f = boundOf(key) f.taken = f.taken + 1 f.unclaimed = f.unclaimed + 1 end
        local kind, priority = struct.unpack('>I2i2', known[row], ${AT.kind})
        of.some = true
        admitted[#admitted + 1] = {rank = (1000 - priority) * RANKS + row, row = row, text = text, kind = kind, keys = keys, of = of}
      else
        local opens = opensAt(facts[blocking])
        if blocking == of.id then of.opens = opens
        else
          of.moved = true
          moves[#moves + 1] = {text = text, row = row, from = of.id, to = blocking, opens = opens}
        end
      end
    end
  end
  return admitted
end
-- Those of these ranks that this worker takes, and so many ahead, up to the first one that may not wait.
local function choose(ranks, kinds, only, total, ahead)
  local used, chosen = {}, {}
  table.sort(ranks)
  for _, rank in ipairs(ranks) do
    local n, count = kinds[rank % RANKS] or only, #chosen
    local room = not Q.isPaused(n) and Q.roomOf(n)
    if not room then
    elseif count >= total then
      if count == total + ahead or not waits[n] then break end
      chosen[count + 1] = rank
    elseif (used[room] or 0) < room.room then
      used[room] = (used[room] or 0) + 1
      chosen[count + 1] = rank
    elseif not waits[n] then ahead = 0 end
  end
  return chosen
end
-- A claimed job starts now: of a rate that counts from here on.
local started = {}
local function startKeyed(keys)
  local spent = false
  for _, key in ipairs(keys) do
    local f = boundOf(key)
    if f.interval then
      f.unclaimed = math.max(0, f.unclaimed - 1)
      f.arrival = math.max(now, f.arrival) + f.interval
      spent, started[f.id] = true, f
    end
  end
  return spent
end
local function countDoors(counts)
  local ids, set = {}, {}
  for id in pairs(counts) do ids[#ids + 1] = id end
  if #ids == 0 then return end
  for i, score in ipairs(call('ZMSCORE', T .. 'doors', unpack(ids))) do
    set[2 * i - 1], set[2 * i] = int(tonumber(score or 0) + counts[ids[i]]), ids[i]
  end
  call('ZADD', T .. 'doors', unpack(set))
end
`;

/** As TURN_PLAIN: returns {'!full'} and has written nothing if there is more than this turn knows. */
export const TURN_KEYED = /* lua */ `
${turnHead([], ["zk", "xp"])}local ends = Q.ends(w, epoch, list, count, mayEnd)
if #ends.others > 0 then return FULL end
local asked = total
total = math.min(total, ${MAX_CLAIMS})
ahead = math.min(ahead, ${MAX_CLAIMS} - total)
local chosen, kinds, only = Q.ready(total, ahead)
-- Doors: what time has given room, what was woken, and what ends of this turn give room.
local max = math.max(total > 0 and ${MIN_DOORS} or ${MAX_DOORS / 2}, total + ahead - #chosen)
max = math.min(max, ${MAX_DOORS}, math.max(${MIN_DOORS}, ${MAX_ENDS_AND_DOORS} - #ended))
local due = call('ZRANGEBYSCORE', T .. 'kd', '-inf', int(now), 'LIMIT', 0, max)
-- However many are due, a quarter is left for those that were woken.
local woken = call('SRANDMEMBER', T .. 'kw', math.max(max - #due, math.ceil(max / 4)))
for i = #due, math.max(0, max - #woken) + 1, -1 do due[i] = nil end
local left, visited = max, {0, 0, 0}
for which, some in ipairs({due, woken, freedList}) do
  for _, door in ipairs(some) do
    if left <= 0 or #doors >= ${MAX_DOORS} then break end
    visited[which] = visited[which] + 1
    if not seen[door] then
      if not readDoor(door, left) then return FULL end
      left = left - #doors[#doors].rows
    end
  end
end
if not readRecords() then return FULL end
local moves, byRank = {}, {}
local admitted = admitKeyed(moves)
if #admitted > 0 then
  if only then for _, rank in ipairs(chosen) do kinds[rank % RANKS] = only end end
  for _, one in ipairs(admitted) do
    chosen[#chosen + 1] = one.rank
    kinds[one.row], byRank[one.rank] = one.kind, one
  end
  chosen = choose(chosen, kinds, only, total, ahead)
end
local c = Q.claim(w, chosen, aheadBound, known)
local ready = {}
for _, of in ipairs(c.order) do
  for i = 1, #of.slots do
    local v = of.records[i]
    local row = v and tonumber(of.p) * 64 + tonumber(of.slots[i])
    if not v then return FULL end
    if byte(v) ~= QUEUED and not known[row] then
      local keys = byte(v) == QUEUED + 8 and sub(v, ${AT.fence}, ${AT.worker - 1}) == c.none and keyedAt(int(row), 't', WAITING)
      if not keys then return FULL end
      ready[row] = keys
    end
  end
end
-- From here on it writes.
Q.writeEnds(w, ends)
for _, one in ipairs(ended) do
  call('HDEL', T .. 'd:' .. one.row, 'pl')
  for _, key in ipairs(one.keys) do gather('SREM', T .. 'kt:' .. key.id, one.row) end
end
local counts, wake, wokenCount = {}, {}, 0
local function leave(door, row)
  gather('ZREM', T .. 'h:' .. door, row)
  counts[door] = (counts[door] or 0) - 1
end
local runs = struct.pack('>BI6', RUNNING + 8, now)
for _, rank in ipairs(chosen) do
  local of, v = Q.nextOf(c, rank)
  local row = rank % RANKS
  local n, one, keys = kinds[row] or only, byRank[rank], ready[row]
  Q.take(c, w, n, rank, of, v, (one or keys) and runs)
  if one then one.isTaken = true
  else
    if keys then
      local text = int(row)
      if startKeyed(keys) then call('HSET', T .. 'd:' .. text, 'sp', '1') end
      for _, key in ipairs(keys) do gather('SREM', T .. 'ku:' .. key.id, text) end
    end
    R.remove(n, rank)
  end
end
if #chosen > 0 then Q.writeClaim(c, w) end
for _, one in ipairs(admitted) do
  local key = T .. 'd:' .. one.text
  leave(one.of.id, one.text)
  gather('SREM', T .. 'hk:' .. int(one.kind), one.text)
  for _, of in ipairs(one.keys) do gather('SADD', T .. 'kt:' .. of.id, one.text) end
  call('HDEL', key, 'dr', 'ln')
  if one.isTaken and startKeyed(one.keys) then call('HSET', key, 'pl', 't', 'sp', '1') else call('HSET', key, 'pl', 't') end
  if not one.isTaken then
    -- Any worker may take it.
    for _, of in ipairs(one.keys) do gather('SADD', T .. 'ku:' .. of.id, one.text) end
    R.add(one.kind, one.rank)
    wakes, wokenCount = true, wokenCount + 1
  end
end
for _, move in ipairs(moves) do
  leave(move.from, move.text)
  local _, priority = struct.unpack('>I2i2', known[move.row], ${AT.kind})
  gather('ZADD', T .. 'h:' .. move.to, int((1001 - priority) * RANKS + move.row), move.text)
  counts[move.to] = (counts[move.to] or 0) + 1
  call('HSET', T .. 'd:' .. move.text, 'dr', move.to)
  wake[move.to] = true
end
for i = 1, visited[1] do gather('ZREM', T .. 'kd', due[i]) end
for i = 1, visited[2] do gather('SREM', T .. 'kw', woken[i]) end
for i = visited[3] + 1, #freedList do if not seen[freedList[i]] then wake[freedList[i]] = true end end
-- As many were read as there was room, and some of them did not take it: others may.
for _, of in ipairs(doors) do
  if of.isFull and (of.moved or (of.isCut and of.some)) then wake[of.id] = true end
  local opens = of.isFull and not started[of.id] and opensAt(of.facts) or of.opens
  if opens then gather('ZADD', T .. 'kd', int(opens), of.id) end
end
for _, move in ipairs(moves) do if move.opens and not started[move.to] then gather('ZADD', T .. 'kd', int(move.opens), move.to) end end
for key, f in pairs(started) do
  call('HSET', T .. 'key:' .. key, 'arrival', int(f.arrival))
  gather('ZADD', T .. 'ki', int(f.arrival), key)
  local opens = opensByRate(f)
  if opens and opens > now then gather('ZADD', T .. 'kd', int(opens), key) end
end
for door in pairs(wake) do gather('SADD', T .. 'kw', door) end
if #doors > 0 then wrote = true end
countDoors(counts)
for key, of in pairs(pending) do many(of[1], key, of[2]) end
pending = {}
local isFull = #chosen >= total
local isLeft = call('EXISTS', T .. 'kw') == 1
local first = call('ZRANGE', T .. 'kd', 0, 0, 'WITHSCORES')
if first[2] then next = math.min(next or math.huge, math.max(0, tonumber(first[2]) - now)) end
if isLeft then next = 0 end
-- A worker that takes nothing, such as one that drains, does not come back for what is left.
if total == 0 and isLeft then wakes = true end
-- This worker comes back when a slot of it is free. Until then another one may take what is left.
if isFull and total > 0 and next == 0 then
  wakes, next = true, ${WAITS_FOR_WORKER_MS}
end
Q.isCut = Q.isCut or asked > total and isFull
if not isFull and not Q.isCut then next = sleep(next) end
return {{}, c.named, c.claimed, {}, 1, '', {}, next and int(next) or '', wokenCount, int(EPOCH), Q.isCut and 1 or 0}
`;
