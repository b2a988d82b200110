// Lua: jobs with keys, as in sqlite/keys.ts. A job that is ready and has keys is held at the door of one of them, or at the gate of its kind if that is
// fair, until admission.ts admits it. What is taken is counted in the sets `kt:` (admitted or running), `ku:` (admitted, not claimed) and `kb:` (of a
// strict limit: begun, or first at its door). All of them, and the doors, follow from the records of jobs:
//
// ks       the keys of a job: id, limit and key of each       fr  the key of these by which its kind is fair
// dr, rg   the door at which it waits; whether it waits there in the ring of its fair key
// sp       its latest claim was a start of a rate
// pl       its place: h held, f held and first at a strict door, t taken, b begun under a strict limit
//
// `h:DOOR` has the held jobs of a door by their order; where keys take turns, `h:DOOR:KEY` has those of one key, and `hr:DOOR` the keys of the ring by
// their numbers. A gate is a door of the name `-KIND`. `key:ID` has what a key has of its own: its limit (running, interval, burst, weight), its rate
// (arrival), its hold-off (until), its pause (pa, pu, why) and where its ring stands (rat, rsv). `ko` lists the keys that have settings, by limit and
// key; `ki` all others with such a hash, by when they may be idle.

/** Limits, and what is known of a key. */
export const KEY_FACTS = /* lua */ `
K = {}
local FIELD = '\\31'
function K.gate(kind) return '-' .. int(kind) end
function K.isGate(door) return sub(door, 1, 1) == '-' end
local limits = {}
function K.limit(name)
  local l = limits[name]
  if l then return l end
  local v = call('HGET', T .. 'limits', name)
  if v then
    local running, interval, burst, strict = string.match(v, '^(.*)|(.*)|(.*)|(.*)$')
    l = {running = tonumber(running), interval = tonumber(interval), burst = tonumber(burst), strict = strict == '1'}
  else
    local every = string.match(name, '^throttle/(%d+)$')
    l = {interval = tonumber(every), burst = 1, strict = false}
    -- Of a schedule whose occurrences queue (impliedSettings in job/limits.ts).
    if name == 'schedule/queue' then l = {running = 1, burst = 1, strict = true} end
  end
  limits[name] = l
  return l
end
local facts, hasHashes = {}, nil
local function factsOf(key)
  local f = facts[key.id]
  if f then return f end
  -- The gate of a kind for which this worker has no room.
  if K.isGate(key.id) then f = {id = key.id, bound = 0, taken = 0, unclaimed = 0, off = 0}
  else
    local l = K.limit(key.limit)
    -- Most stores have neither keys with settings nor rates.
    if hasHashes == nil then hasHashes = call('EXISTS', T .. 'ko', T .. 'ki') > 0 end
    local v = hasHashes and call('HMGET', T .. 'key:' .. key.id, 'running', 'interval', 'burst', 'arrival', 'until', 'pa', 'pu') or {}
    f = {id = key.id, strict = l.strict, interval = tonumber(v[2] or nil) or l.interval, burst = tonumber(v[3] or nil) or l.burst,
      arrival = tonumber(v[4] or 0), off = tonumber(v[5] or 0)}
    if v[6] then f.off = math.max(f.off, tonumber(v[7] or nil) or math.huge) end
    f.bound = tonumber(v[1] or nil) or l.running or math.huge
    if l.strict and f.bound > 1 then f.bound = 1 end
    f.taken = call('SCARD', settled(T .. 'kt:' .. key.id)) + (l.strict and call('SCARD', T .. 'kb:' .. key.id) or 0)
    f.unclaimed = f.interval and call('SCARD', settled(T .. 'ku:' .. key.id)) or 0
  end
  facts[key.id] = f
  return f
end
local function opensByRate(f)
  if not f.interval then return 0 end
  local spare = f.burst - 1 - f.unclaimed
  if spare < 0 then return nil end
  return math.ceil(math.max(now, f.arrival) - spare * f.interval)
end
local function hasRoom(f)
  local byRate = opensByRate(f)
  return f.taken < f.bound and byRate ~= nil and math.max(byRate, f.off) <= now
end
local function opensAt(f)
  local byRate = opensByRate(f)
  if byRate == nil or f.taken >= f.bound then return nil end
  local opens = math.max(byRate, f.off)
  return opens > now and opens < math.huge and opens or nil
end
-- How many jobs a key could take now; at least 1, so that one is looked at when it waits for time.
local function roomAt(f)
  local room = f.bound - f.taken
  if f.interval then room = math.min(room, f.burst - f.unclaimed - math.ceil(math.max(0, f.arrival - now) / f.interval)) end
  return math.max(1, room)
end
`;

export const KEYS = /* lua */ `
-- A packed list of keys: id, limit and key of each.
function K.list(j)
  if j.keys == nil then
    j.keys = {}
    if j.d.ks then
      local parts = {}
      for part in string.gmatch(j.d.ks .. FIELD, '([^' .. FIELD .. ']*)' .. FIELD) do parts[#parts + 1] = part end
      for i = 1, #parts, 3 do j.keys[#j.keys + 1] = {id = parts[i], limit = parts[i + 1], key = parts[i + 2]} end
    end
  end
  return j.keys
end
-- All that has to have room for it: its keys, and the gate of its kind.
function K.bounds(j)
  if not j.d.fr then return K.list(j) end
  if j.bounds == nil then
    j.bounds = {unpack(K.list(j))}
    j.bounds[#j.bounds + 1] = {id = K.gate(j.kind)}
  end
  return j.bounds
end
function K.setKeys(j, ks, fair)
  J.set(j, 'ks', ks)
  J.set(j, 'fr', fair)
  if fair then gather('SADD', T .. 'fk', int(j.kind)) end
  j.keys, j.bounds = nil, nil
end
function K.strict(j)
  for _, key in ipairs(K.list(j)) do if K.limit(key.limit).strict then return key end end
  return nil
end
-- Of a door: a job of a strict limit that has begun comes first, then by priority, then by row.
function K.rank(j)
  local strict = K.strict(j)
  local order = 1001 - (strict and 0 or j.priority)
  if strict and j.fence > 0 then order = 0 end
  return order * 2199023255552 + j.row
end
-- Every turn that has room for a kind looks at its gate: it needs no wake.
function K.wake(id) if not K.isGate(id) then call('SADD', T .. 'kw', id) end end
local function queueOf(j)
  if j.d.rg then return T .. 'h:' .. j.d.dr .. ':' .. j.d.fr end
  return T .. 'h:' .. j.d.dr
end
K.queueOf = queueOf
-- Queues of rings that jobs have left: a key without any leaves the ring. Indexes are settled.
local left = {}
function K.flush()
  for queue, of in pairs(left) do if call('EXISTS', queue) == 0 then call('ZREM', of[1], of[2]) end end
  left = {}
end
function K.hasLeft() return next(left) ~= nil end
function K.enterDoor(j)
  local row, door = int(j.row), j.d.dr
  gather('ZADD', queueOf(j), int(K.rank(j)), row)
  if j.d.rg then gather('ZADD', T .. 'hr:' .. door, j.d.fr, j.d.fr) end
  gather('SADD', T .. 'hk:' .. int(j.kind), row)
  if not K.isGate(door) then call('ZINCRBY', T .. 'doors', 1, door) end
end
function K.leaveDoor(j)
  local row, door, queue = int(j.row), j.d.dr, queueOf(j)
  gather('ZREM', queue, row)
  if j.d.rg then left[queue] = {T .. 'hr:' .. door, j.d.fr} end
  gather('SREM', T .. 'hk:' .. int(j.kind), row)
  if not K.isGate(door) then call('ZINCRBY', T .. 'doors', -1, door) end
end
function K.place(j, place)
  local row = int(j.row)
  for _, key in ipairs(K.list(j)) do
    if place == 't' then
      gather('SADD', T .. 'kt:' .. key.id, row)
      gather('SADD', T .. 'ku:' .. key.id, row)
    elseif place == 'b' or place == 'f' then call('SADD', T .. 'kb:' .. key.id, row) end
  end
  J.set(j, 'pl', place)
end
function K.unplace(j)
  local row, was = int(j.row), j.d.pl
  for _, key in ipairs(K.list(j)) do
    if was == 't' then
      gather('SREM', T .. 'kt:' .. key.id, row)
      gather('SREM', T .. 'ku:' .. key.id, row)
    elseif was == 'b' or was == 'f' then call('SREM', T .. 'kb:' .. key.id, row) end
  end
  J.set(j, 'pl', nil)
  return was == 't' or was == 'b' or was == 'f'
end
-- A job has changed its state or its time; called between leave and enter. What it took is free, and one that is ready goes to a door: that of its
-- strict limit, where it is seen whose turn it is and keys take no turns; or the gate of its kind; or that of its first key.
function K.relocate(j)
  if not j.d.ks or j.state == RUNNING then return end
  local due = J.runAt(j)
  local ready = j.state == QUEUED and not (due and due > now)
  local strict = K.strict(j)
  local begun = strict and j.fence > 0
  local took = K.unplace(j)
  K.place(j, ready and 'h' or (j.state == QUEUED and begun and 'b') or nil)
  local door = strict and strict.id or (j.d.fr and K.gate(j.kind)) or K.list(j)[1].id
  J.set(j, 'dr', ready and door or nil)
  J.set(j, 'rg', ready and not strict and j.d.fr and '1' or nil)
  if took then for _, key in ipairs(K.list(j)) do K.wake(key.id) end end
  if ready and not took then K.wake(door) end
end
-- A job was claimed, and never began: the starts that its claim has spent are returned (returnedMs in job/limits.ts).
function K.returnStarts(j)
  if not j.d.sp then return end
  for _, key in ipairs(K.list(j)) do
    local v = call('HMGET', T .. 'key:' .. key.id, 'interval', 'arrival')
    local interval = tonumber(v[1] or nil) or K.limit(key.limit).interval
    if interval and v[2] then
      local alike = 1
      for _, row in ipairs(call('SMEMBERS', settled(T .. 'kt:' .. key.id))) do
        local other = J.get(tonumber(row))
        if other and other.row ~= j.row and other.state == RUNNING and other.started == j.started then alike = alike + 1 end
      end
      local back = math.max(0, math.min(interval, j.started + alike * interval - now))
      call('HSET', T .. 'key:' .. key.id, 'arrival', int(math.ceil(tonumber(v[2]) - back)))
    end
  end
  J.set(j, 'sp', nil)
end
-- Whether a key has settings that people have made, or is held off.
local OWN = {'running', 'interval', 'burst', 'weight', 'pa', 'until'}
function K.keep(id, limit, key)
  wrote = true
  local has = false
  for _, value in ipairs(call('HMGET', T .. 'key:' .. id, unpack(OWN))) do has = has or value end
  local member = concat({limit, key, id}, FIELD)
  if has then
    call('HSET', T .. 'key:' .. id, 'limit', limit, 'key', key)
    call('ZADD', T .. 'ko', 0, member)
  else call('ZREM', T .. 'ko', member) end
  call('ZADD', T .. 'ki', int(now), id)
end
-- Keys that have nothing of their own any more, and at which nothing waits, are the same without their hash. A piece at a time.
function K.forgetIdle(most)
  for _, id in ipairs(call('ZRANGEBYSCORE', T .. 'ki', '-inf', int(now), 'LIMIT', 0, most)) do
    local v = call('HMGET', T .. 'key:' .. id, 'running', 'interval', 'burst', 'weight', 'pa', 'pu', 'until', 'arrival', 'limit', 'key')
    local set = v[1] or v[2] or v[3] or v[4] or (v[5] and (not v[6] or v[6] == '' or tonumber(v[6]) > now))
    local busy = math.max(tonumber(v[7] or 0), tonumber(v[8] or 0), tonumber(call('ZSCORE', T .. 'kd', id) or 0))
    if set or tonumber(call('ZSCORE', T .. 'doors', id) or 0) > 0 then call('ZADD', T .. 'ki', int(now + 3600000), id)
    elseif busy > now then call('ZADD', T .. 'ki', int(busy), id)
    else
      call('UNLINK', T .. 'key:' .. id)
      call('ZREM', T .. 'ki', id)
      if v[9] then call('ZREM', T .. 'ko', concat({v[9], v[10], id}, FIELD)) end
    end
    wrote = true
  end
end
`;
