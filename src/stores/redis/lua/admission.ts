// Lua: admission, as in sqlite/admission.ts: a turn reads the doors that may have room and the gates of the kinds that it has room for, and admits.
// `admit`, `takeTurns` and `startOf` of job/limits.ts are written a second time here, because admission has to be decided in the script that claims;
// the conformance suite holds both to the same cases.

export const ADMISSION = /* lua */ `
-- How many keys of a ring one turn reads, and how often it goes round gates whose jobs turn out to be held by limits.
local KEYS_PER_TURN, ROUNDS_PER_TURN, RING_SIZE = 200, 4, 4503599627370496
-- How many jobs it looks at behind all doors and at each gate: without a bound for all doors together, 200 keys with room for 100 jobs each took 280 ms.
local heldPerTurn = nil
local rings = {}
local function moveTo(j, door, place)
  J.leave(j)
  K.unplace(j)
  K.place(j, place)
  J.set(j, 'dr', door and door.id or nil)
  local strict = door and not K.isGate(door.id) and K.limit(door.limit).strict
  J.set(j, 'rg', door and j.d.fr and not strict and '1' or nil)
  J.enter(j)
end
-- A candidate: a held job, and where the rings of its door and of the gate of its kind stand after it was looked at.
local function admitOne(candidate)
  local j, door = candidate.job, candidate.door
  local own, keeps = K.bounds(j), j.d.pl == 'f'
  if keeps then for _, key in ipairs(own) do if key.id ~= door then local f = factsOf(key) if f.strict then f.taken = f.taken - 1 end end end end
  -- The door itself first: if it is full, the job stays where it is.
  local blocking = nil
  for _, key in ipairs(own) do if key.id == door and not hasRoom(factsOf(key)) then blocking = key end end
  if not blocking then for _, key in ipairs(own) do if not blocking and key.id ~= door and not hasRoom(factsOf(key)) then blocking = key end end end
  if not blocking or blocking.id ~= door then
    for _, visit in ipairs(candidate.visits) do if not blocking or visit.at ~= blocking.id then rings[visit.at] = visit end end
  end
  if not blocking then
    for _, key in ipairs(own) do local f = factsOf(key) f.taken = f.taken + 1 f.unclaimed = f.unclaimed + 1 end
    moveTo(j, nil, 't')
    return 'admitted'
  end
  local keepsPlace = false
  if keeps or blocking.id ~= door then
    for _, key in ipairs(own) do
      local f = factsOf(key)
      if key.id ~= blocking.id and f.strict and f.taken < f.bound then f.taken = f.taken + 1 keepsPlace = true end
    end
  end
  local opens = opensAt(factsOf(blocking))
  if opens then call('ZADD', T .. 'kd', int(opens), blocking.id) end
  if blocking.id == door then return 'stays' end
  moveTo(j, blocking, keepsPlace and 'f' or 'h')
  K.wake(blocking.id)
  return 'moved'
end
local function distance(at, key) return key >= at and key - at or key - at + RING_SIZE end
local function candidatesAt(door, queue, most)
  local list = {}
  local rows = most > 0 and call('ZRANGE', queue, 0, most - 1) or {}
  for i = 1, #rows do rows[i] = tonumber(rows[i]) end
  J.fetch(rows)
  for i, row in ipairs(rows) do list[i] = {job = J.get(row), door = door, visits = {}} end
  return list
end
local function weightOf(id) return tonumber(call('HGET', T .. 'key:' .. id, 'weight') or 1) end
-- The ring of a door or gate from where it stands on, with enough jobs of each key for \`most\` in all. Jobs of kinds that are not fair are one more
-- member, of the key 0. \`upTo\`: the last key that was read, because the ring has more.
local function ringAt(door, most)
  settleIndexes()
  local v = call('HMGET', T .. 'key:' .. door, 'rat', 'rsv')
  local ring = {at = tonumber(v[1] or 0), served = tonumber(v[2] or 0), members = {}}
  local wanted = math.min(most + 1, KEYS_PER_TURN)
  local ids, plain = {}, call('EXISTS', T .. 'h:' .. door) == 1
  if plain and ring.at == 0 then ids[1] = '0' end
  for _, id in ipairs(call('ZRANGEBYSCORE', T .. 'hr:' .. door, int(ring.at), '+inf', 'LIMIT', 0, wanted)) do ids[#ids + 1] = id end
  if plain and ring.at > 0 then ids[#ids + 1] = '0' end
  if #ids < wanted and ring.at > 0 then
    for _, id in ipairs(call('ZRANGEBYSCORE', T .. 'hr:' .. door, '-inf', '(' .. int(ring.at), 'LIMIT', 0, wanted - #ids)) do ids[#ids + 1] = id end
  end
  local perRound = 0
  for i = 1, math.min(#ids, wanted) do
    local weight = ids[i] == '0' and 1 or weightOf(ids[i])
    perRound = perRound + weight
    ring.members[i] = {id = ids[i], key = tonumber(ids[i]), weight = weight}
  end
  if #ids >= wanted then ring.upTo = ring.members[wanted].key end
  local rounds = perRound > 0 and math.ceil(most / perRound) or 0
  local count, mayHaveMore = 0, false
  for _, member in ipairs(ring.members) do
    local queue = member.id == '0' and T .. 'h:' .. door or T .. 'h:' .. door .. ':' .. member.id
    local share = math.min(most, member.weight * rounds)
    member.jobs = candidatesAt(door, queue, share)
    count = count + #member.jobs
    mayHaveMore = mayHaveMore or #member.jobs == share
  end
  -- Some keys have less than their share, and others may have more.
  ring.isShort = count < most and mayHaveMore
  return ring
end
-- The candidates in the order in which their keys take turns.
local function takeTurns(door, ring)
  local at = ring.at
  table.sort(ring.members, function(a, b) return distance(at, a.key) < distance(at, b.key) end)
  local inRing, behind = {}, {}
  for _, member in ipairs(ring.members) do
    if not ring.upTo or distance(at, member.key) <= distance(at, ring.upTo) then inRing[#inRing + 1] = member else behind[#behind + 1] = member end
  end
  -- Its visit has not ended, or it is the last whose turn it is.
  local first, before = inRing[1], 0
  if first and first.key == at then
    if ring.served < first.weight then before = ring.served end
    if before == 0 then table.insert(inRing, table.remove(inRing, 1)) end
  end
  local turns, left, firstVisit = {}, true, true
  while left do
    left = false
    for _, member in ipairs(inRing) do
      local had = firstVisit and member.key == at and before or 0
      local from = member.taken or 0
      local upTo = math.min(#member.jobs, from + member.weight - had)
      for i = from + 1, upTo do
        local candidate = member.jobs[i]
        table.insert(candidate.visits, {at = door, key = member.key, served = had + i - from})
        turns[#turns + 1] = candidate
      end
      member.taken = upTo
      left = left or upTo < #member.jobs
    end
    firstVisit = false
  end
  for _, member in ipairs(behind) do for _, candidate in ipairs(member.jobs) do turns[#turns + 1] = candidate end end
  return turns
end
-- The gates for which the worker has more room than is ready already, and at which jobs wait, or may come to in this turn.
local function openGates(total, mayCome)
  local gates = {}
  for _, n in ipairs(total > 0 and Q.among(T .. 'fk') or {}) do
    local most, gate = math.min(Q.roomOf(n).room, total, heldPerTurn), K.gate(n)
    if mayCome or call('EXISTS', T .. 'hr:' .. gate) == 1 then
      local ready = R.ready(n)
      if ready < most then
        facts[gate] = {id = gate, bound = most - ready, taken = 0, unclaimed = 0, off = 0}
        gates[#gates + 1] = facts[gate]
      end
    end
  end
  return gates
end
-- What waits at the door of a key, no more than it has room for, and no more than \`most\`.
local function atDoor(door, most)
  -- Only what is read here: what the doors before have gathered is written once for all of them.
  if K.hasLeft() then settleIndexes() K.flush() end
  local inTurns = call('EXISTS', settled(T .. 'hr:' .. door)) == 1
  if inTurns then settleIndexes() end
  local row = call('ZRANGE', settled(T .. 'h:' .. door), 0, 0)[1]
  if not row and inTurns then row = call('ZRANGE', T .. 'h:' .. door .. ':' .. call('ZRANGE', T .. 'hr:' .. door, 0, 0)[1], 0, 0)[1] end
  local head = row and J.get(tonumber(row))
  if not head then return nil end
  local of = {door = door}
  for _, key in ipairs(K.list(head)) do if key.id == door then
    local f = factsOf(key)
    local room = roomAt(f)
    of.facts = f
    of.wanted, of.isCut = math.min(most, room), most < room
  end end
  local ring = inTurns and ringAt(door, of.wanted)
  local found = ring and takeTurns(door, ring) or candidatesAt(door, T .. 'h:' .. door, of.wanted)
  of.isShort = ring and ring.isShort
  of.list = {}
  for i = 1, math.min(of.wanted, #found) do of.list[i] = found[i] found[i].of = of end
  return of
end
local function byRank(a, b) return K.rank(a.job) < K.rank(b.job) end
-- Admits what there is room for, and no more than \`most\`. Returns how many jobs some worker may take now, and whether more may follow at once.
function K.admit(total, most)
  heldPerTurn = most
  settleIndexes()
  local wakes = call('SPOP', T .. 'kw', heldPerTurn)
  local due = call('ZRANGEBYSCORE', T .. 'kd', '-inf', int(now), 'LIMIT', 0, heldPerTurn)
  local gates = openGates(total, #wakes + #due > 0)
  if #wakes == 0 and #due == 0 and #gates == 0 then return 0, false end
  wrote = true
  if #due > 0 then call('ZREM', T .. 'kd', unpack(due)) end
  local ready, moved = 0, false
  local function decide(candidate)
    local of = candidate.of or {}
    local became = admitOne(candidate)
    if became == 'moved' then
      moved, of.moved = true, true
      -- Another worker may have room for it there.
      if K.isGate(candidate.job.d.dr) then ready = ready + 1 end
    elseif became == 'admitted' then
      ready, of.some = ready + 1, true
    end
  end
  local open, looked, seen, left = {}, {}, {}, heldPerTurn
  for _, gate in ipairs(gates) do open[gate.id] = {} end
  for _, list in ipairs({due, wakes}) do
    for _, door in ipairs(list) do
      local of = not seen[door] and left > 0 and atDoor(door, left) or nil
      if not seen[door] and left <= 0 then K.wake(door) end
      seen[door] = true
      if of then
        looked[#looked + 1] = of
        left = left - math.max(1, #of.list)
        for _, candidate in ipairs(of.list) do
          -- Jobs of fair kinds that a door has room for compete at the gate of their kind, together with those that wait there.
          local returning = candidate.job.d.fr and open[K.gate(candidate.job.kind)]
          if returning then returning[#returning + 1] = candidate else decide(candidate) end
        end
      end
    end
  end
  for round = 1, ROUNDS_PER_TURN do
    if round > 1 then moved = false end
    for _, gate in ipairs(gates) do
      local returning = open[gate.id]
      open[gate.id] = {}
      if gate.taken < gate.bound or #returning > 0 then
        local ring = ringAt(gate.id, math.max(0, gate.bound - gate.taken))
        local byKey = {}
        for _, member in ipairs(ring.members) do byKey[member.id] = member end
        for _, candidate in ipairs(returning) do
          local id = candidate.job.d.fr
          if not byKey[id] then
            byKey[id] = {id = id, key = tonumber(id), weight = weightOf(id), jobs = {}}
            table.insert(ring.members, byKey[id])
          end
          table.insert(byKey[id].jobs, candidate)
          byKey[id].mixed = true
        end
        for _, member in ipairs(ring.members) do if member.mixed then table.sort(member.jobs, byRank) end end
        for _, candidate in ipairs(takeTurns(gate.id, ring)) do
          if candidate.door ~= gate.id or gate.taken < gate.bound then decide(candidate) end
        end
      end
    end
    for at, ring in pairs(rings) do
      call('HSET', T .. 'key:' .. at, 'rat', int(ring.key), 'rsv', int(ring.served))
      if not K.isGate(at) then call('ZADD', T .. 'ki', int(now), at) end
    end
    rings = {}
    local demand = false
    for _, gate in ipairs(gates) do demand = demand or gate.taken < gate.bound end
    if not moved or not demand then break end
  end
  -- As many were read as there was room, and some of them did not take it: others may.
  for _, of in ipairs(looked) do
    local more = #of.list >= of.wanted or of.isShort
    if more and (of.moved or ((of.isCut or of.isShort) and of.some)) then K.wake(of.door) end
    local opens = more and opensAt(of.facts)
    if opens then call('ZADD', T .. 'kd', int(opens), of.door) end
  end
  local demand, cut = false, false
  for _, gate in ipairs(gates) do
    demand = demand or gate.taken < gate.bound
    cut = cut or (gate.taken >= gate.bound and gate.bound == heldPerTurn)
  end
  return ready, (moved and demand) or cut
end
-- A claimed job starts now: of a rate that counts from here on.
function K.start(j)
  local spent = nil
  for _, key in ipairs(K.list(j)) do
    local known = facts[key.id]
    gather('SREM', T .. 'ku:' .. key.id, int(j.row))
    local f = factsOf(key)
    if f.interval then
      if known then f.unclaimed = math.max(0, f.unclaimed - 1) end
      spent = '1'
      f.arrival = math.max(now, f.arrival) + f.interval
      call('HSET', T .. 'key:' .. key.id, 'arrival', int(f.arrival))
      call('ZADD', T .. 'ki', int(f.arrival), key.id)
      local opens = opensByRate(f)
      if opens and opens > now then call('ZADD', T .. 'kd', int(opens), key.id) end
    end
  end
  J.set(j, 'sp', spent)
end
-- In how many ms there is more to do at a door; nothing: that is not known.
function K.nextIn()
  if call('SCARD', T .. 'kw') > 0 then return 0 end
  local first = call('ZRANGE', T .. 'kd', 0, 0, 'WITHSCORES')
  if #first == 0 then return nil end
  return math.max(0, tonumber(first[2]) - now)
end
`;
