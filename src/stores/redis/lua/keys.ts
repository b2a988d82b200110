// Lua: jobs with keys, as in sqlite/keys.ts. A job that is ready and has keys is held at the door of one of them; what is taken is counted in the
// sets `kt:` (admitted or running) and `kb:` (of a strict limit: begun, or first at its door), which follow from the records. `admit` of
// job/limits.ts is written a second time here, because admission has to be decided in the script that claims; the conformance suite holds both
// to the same cases.

export const KEYS = /* lua */ `
K = {}
local FIELD = '\\31'
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
function K.wake(id) call('SADD', T .. 'kw', id) end
function K.place(j, place)
  local row = int(j.row)
  for _, key in ipairs(K.list(j)) do
    if place == 't' then
      call('SADD', T .. 'kt:' .. key.id, row)
      call('SADD', T .. 'ku:' .. key.id, row)
    elseif place == 'b' or place == 'f' then call('SADD', T .. 'kb:' .. key.id, row) end
  end
  J.set(j, 'pl', place)
end
function K.unplace(j)
  local row, was = int(j.row), j.d.pl
  for _, key in ipairs(K.list(j)) do
    if was == 't' then
      call('SREM', T .. 'kt:' .. key.id, row)
      call('SREM', T .. 'ku:' .. key.id, row)
    elseif was == 'b' or was == 'f' then call('SREM', T .. 'kb:' .. key.id, row) end
  end
  J.set(j, 'pl', nil)
  return was == 't' or was == 'b' or was == 'f'
end
-- A job has changed its state or its time; called between leave and enter. What it took is free, and one that is ready goes to a door.
function K.relocate(j)
  if not j.d.ks or j.state == RUNNING then return end
  local due = J.runAt(j)
  local ready = j.state == QUEUED and not (due and due > now)
  local strict = K.strict(j)
  local begun = strict and j.fence > 0
  local took = K.unplace(j)
  K.place(j, ready and 'h' or (j.state == QUEUED and begun and 'b') or nil)
  local door = (strict or K.list(j)[1]).id
  J.set(j, 'dr', ready and door or nil)
  if took then for _, key in ipairs(K.list(j)) do K.wake(key.id) end end
  if ready and not took then K.wake(door) end
end
local facts = {}
local function factsOf(key)
  local f = facts[key.id]
  if f then return f end
  local l = K.limit(key.limit)
  local v = call('HMGET', T .. 'key:' .. key.id, 'running', 'interval', 'burst', 'arrival', 'until')
  f = {id = key.id, strict = l.strict, interval = tonumber(v[2] or nil) or l.interval, burst = tonumber(v[3] or nil) or l.burst,
    arrival = tonumber(v[4] or 0), off = tonumber(v[5] or 0)}
  local running = tonumber(v[1] or nil) or l.running
  f.bound = running or math.huge
  if l.strict and f.bound > 1 then f.bound = 1 end
  f.taken = call('SCARD', T .. 'kt:' .. key.id) + (l.strict and call('SCARD', T .. 'kb:' .. key.id) or 0)
  f.unclaimed = f.interval and call('SCARD', T .. 'ku:' .. key.id) or 0
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
  return opens > now and opens or nil
end
local function admitOne(j, door)
  local own, keeps = K.list(j), j.d.pl == 'f'
  if keeps then for _, key in ipairs(own) do if key.id ~= door then local f = factsOf(key) if f.strict then f.taken = f.taken - 1 end end end end
  local blocking = nil
  for _, key in ipairs(own) do if key.id == door and not hasRoom(factsOf(key)) then blocking = key end end
  if not blocking then for _, key in ipairs(own) do if not blocking and key.id ~= door and not hasRoom(factsOf(key)) then blocking = key end end end
  if not blocking then
    for _, key in ipairs(own) do local f = factsOf(key) f.taken = f.taken + 1 f.unclaimed = f.unclaimed + 1 end
    J.leave(j)
    K.unplace(j)
    K.place(j, 't')
    J.set(j, 'dr', nil)
    J.enter(j)
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
  J.leave(j)
  K.unplace(j)
  K.place(j, keepsPlace and 'f' or 'h')
  J.set(j, 'dr', blocking.id)
  J.enter(j)
  K.wake(blocking.id)
  return 'moved'
end
-- Admits what there is room for, at no more than 200 doors and 100 jobs of each. Returns how many.
function K.admit()
  local wakes = call('SPOP', T .. 'kw', 200)
  local due = call('ZRANGEBYSCORE', T .. 'kd', '-inf', int(now), 'LIMIT', 0, 200)
  if #wakes == 0 and #due == 0 then return 0 end
  wrote = true
  if #due > 0 then call('ZREM', T .. 'kd', unpack(due)) end
  local seen, admitted = {}, 0
  for _, list in ipairs({due, wakes}) do
    for _, door in ipairs(list) do
      if not seen[door] then
        seen[door] = true
        local head = call('ZRANGE', T .. 'h:' .. door, 0, 0)[1]
        local j = head and J.get(tonumber(head))
        if j then
          local f
          for _, key in ipairs(K.list(j)) do if key.id == door then f = factsOf(key) end end
          local wanted = math.min(100, math.max(1, f.bound - f.taken))
          local moved, some = false, false
          local rows = call('ZRANGE', T .. 'h:' .. door, 0, wanted - 1)
          for _, row in ipairs(rows) do
            local became = admitOne(J.get(tonumber(row)), door)
            if became == 'moved' then moved = true end
            if became == 'admitted' then admitted = admitted + 1 some = true end
          end
          if #rows == wanted and (moved or (wanted == 100 and some)) then K.wake(door) end
        end
      end
    end
  end
  return admitted
end
-- A claimed job starts now: of a rate that counts from here on.
function K.start(j)
  for _, key in ipairs(K.list(j)) do
    call('SREM', T .. 'ku:' .. key.id, int(j.row))
    facts[key.id] = nil
    local f = factsOf(key)
    if f.interval then
      f.arrival = math.max(now, f.arrival) + f.interval
      call('HSET', T .. 'key:' .. key.id, 'arrival', int(f.arrival))
      local opens = opensByRate(f)
      if opens and opens > now then call('ZADD', T .. 'kd', int(opens), key.id) end
    end
  end
end
-- In how many ms there is more to do at a door; nothing: that is not known.
function K.nextIn()
  if call('SCARD', T .. 'kw') > 0 then return 0 end
  local first = call('ZRANGE', T .. 'kd', 0, 0, 'WITHSCORES')
  if #first == 0 then return nil end
  return math.max(0, tonumber(first[2]) - now)
end
`;
