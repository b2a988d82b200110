// Lua: the scripts of recovery: a worker is condemned, what it holds is read, what was decided is written under guard; and losses of contact as they are
// kept. The decisions are made between the calls, in recovery/.
import { BEGUN } from "./blocks.ts";
import { SHOW_WORKER } from "./workers.ts";

export const CONDEMN = /* lua */ `
local id, proof, beats, identity, word = arg(), arg() == '1', arg(), arg(), arg()
local incident, recovery, json, evidence, how = arg(), arg(), arg(), arg(), arg()
local w = W.find(id)
if not w then return '' end
local holds = W.holds(w)
if w.state == 'live' then
  if not proof and (w.beats ~= beats or w.identity ~= identity) then return '' end
  -- Its subscription is back, and its first heartbeat after that is still on its way. A worker that is frozen keeps its subscription: silence is not asked.
  if how == 'lost' and tonumber(call('PUBSUB', 'NUMSUB', T .. 'w:' .. id)[2]) > 0 then return '' end
elseif w.state ~= 'recovering' and holds == 0 then return '' end
if w.word ~= word then return 'again' end
wrote = true
local known = w.incident and call('HMGET', T .. 'inc:' .. w.incident, 'how', 'held', 'suspects', 'completed', 'cursor')
if known and known[1] then
  local cursor = known[5]
  if known[4] then
    cursor = '0'
    call('HDEL', T .. 'inc:' .. w.incident, 'completed', 'judged')
    call('HSET', T .. 'inc:' .. w.incident, 'cursor', '0')
    if known[1] ~= 'gone' then
      call('HSET', T .. 'lost', id, w.incident)
      call('ZADD', T .. 'losses', 0, w.incident)
    end
    call('HSET', T .. 'w:' .. int(w.n), 'state', 'recovering')
    call('ZADD', T .. 'fleet', 0, id)
    call('ZREM', T .. 'over', id)
  end
  return {w.incident, '0', cursor, known[1], known[2], known[3]}
end
local suspects = #J.heldSuspects(w.n)
call('HSET', T .. 'inc:' .. incident, 'record', json, 'recovery', recovery, 'worker', id, 'how', how, 'evidence', evidence, 'held', holds, 'suspects', suspects, 'cursor', '0', 'jobs', '0')
if w.successor and how ~= 'gone' then call('HSET', T .. 'inc:' .. incident, 'resolution', 'returned') end
call('ZADD', T .. 'inc', 0, incident)
if how ~= 'gone' then
  call('HSET', T .. 'lost', id, incident)
  call('ZADD', T .. 'losses', 0, incident)
end
call('HSET', T .. 'w:' .. int(w.n), 'state', 'recovering', 'incident', incident)
W.changed('left')
return {incident, '1', '0', how, int(holds), int(suspects)}
`;

const SHOW_HELD = /* lua */ `
${BEGUN}
local kinds = {}
local function show(j)
  kinds[j.kind] = true
  local last, ordinal = '', -1
  if j.d.st then
    local steps = call('HGETALL', T .. 's:' .. int(j.row))
    for i = 1, #steps, 2 do
      local n = tonumber(string.match(steps[i + 1], '^(%d+)'))
      if n > ordinal then last, ordinal = steps[i], n end
    end
  end
  return {J.show(j), last, begunInput(j)}
end
local function settings()
  local list = {}
  for n in pairs(kinds) do list[#list + 1] = kindOf(n).name list[#list + 1] = call('HGET', T .. 'k:' .. int(n), 'settings') end
  return list
end
`;

export const HELD = /* lua */ `
${SHOW_HELD}
local id, cursor, limit = arg(), num(), num()
local w = W.find(id)
local list = {}
if w then
  local rows = {}
  for _, row in ipairs(call('SMEMBERS', T .. 'held:' .. int(w.n))) do
    row = tonumber(row)
    if row > cursor then rows[#rows + 1] = row end
  end
  table.sort(rows)
  for i = 1, math.min(limit, #rows) do list[i] = show(J.get(rows[i])) end
end
return {list, settings()}
`;

/** Only workers that may hold something overdue are read, until these hold so many jobs; the time of those that do not is set right. */
export const OVERDUE = /* lua */ `
${SHOW_HELD}
local margin, asOf, steady, limit = num(), num(), num(), num()
local upTo = math.min(now, asOf)
local found, read = {}, 0
for _, n in ipairs(call('ZRANGEBYSCORE', T .. 'dl', '-inf', '(' .. int(upTo - margin), 'LIMIT', 0, 200)) do
  if read > 2000 then break end
  local earliest = nil
  J.eachHeld(tonumber(n), function(row, v)
    read = read + 1
    local deadline, number = J.deadlineIn(v)
    if deadline then
      local kind = kindOf(number)
      local expires = deadline + kind.grace
      if not earliest or expires < earliest then earliest = expires end
      if (kind.timeout or 0) + kind.grace + margin < steady and expires + margin < upTo then found[#found + 1] = {deadline, row, v} end
    end
  end)
  if earliest then call('ZADD', T .. 'dl', int(earliest), n) else call('ZREM', T .. 'dl', n) end
end
table.sort(found, function(a, b) return a[1] < b[1] end)
local list = {}
for i = 1, math.min(limit, #found) do list[i] = show(jobs[found[i][2]] or parse(found[i][2], found[i][3])) end
return {list, settings()}
`;

/** What can't be written of one job is its own failure: it is checked before anything of this job is written. */
export const TAKE_BACK = /* lua */ `
local id, incident, last = arg(), opt(), arg() == '1'
local w = incident and W.find(id)
local verdicts = {}
for i = 1, num() do
  local v = {row = num(), id = arg(), worker = arg(), epoch = num(), fence = num(), deadline = arg()}
  v.change = arg() == '1' and C.read() or nil
  if incident then v.taken, v.cancelled = arg(), arg() end
  verdicts[i] = v
end
local moved = {}
for i = 1, #verdicts do moved[i] = 'moved' end
if incident and (not w or w.incident ~= incident or call('EXISTS', T .. 'inc:' .. incident) == 0) then return moved end
wrote = true
local taken, cursor, noted = {}, 0, 0
for i, v in ipairs(verdicts) do
  local became, note = 'taken', v.taken
  if v.change then
    local j = J.get(v.row)
    local holder = W.find(v.worker)
    if not j or j.id ~= v.id or j.state ~= RUNNING or not holder or holder.n ~= j.worker or j.epoch ~= v.epoch or j.fence ~= v.fence then became = 'moved'
    elseif not incident and (j.deadline and int(j.deadline) or '') ~= v.deadline then became = 'moved'
    else
      local c = C.of(j, v.change)
      local unknown = D.undeclared(c.follow)
      if unknown then became = '!' .. unknown
      else
        C.apply(j, v.change, 'system/recovery', incident)
        D.enqueue(c.follow, nil)
        if c ~= v.change then became, note = 'cancelled', v.cancelled end
      end
    end
  end
  if incident and became ~= 'moved' and sub(became, 1, 1) ~= '!' then noted = noted + call('HSET', T .. 'incj:' .. incident, int(v.row), note) end
  taken[i] = became
  cursor = math.max(cursor, v.row)
end
if incident then
  local key = T .. 'inc:' .. incident
  if call('HEXISTS', key, 'jobs') == 1 then call('HINCRBY', key, 'jobs', noted) end
  if cursor > tonumber(call('HGET', key, 'cursor')) then call('HSET', key, 'cursor', int(cursor)) end
  if last then
    call('HSETNX', key, 'completed', int(now))
    call('HSET', T .. 'w:' .. int(w.n), 'state', 'gone')
    call('ZREM', T .. 'fleet', id)
    W.changed('left')
    call('ZADD', T .. 'over', int(now), id)
    settleIndexes()
    if W.holds(w) == 0 then call('ZREM', T .. 'dl', int(w.n)) end
  end
end
return taken
`;

/** Workers that died without holding any of these jobs: resolved deaths that were not completed before \`since\` of each. */
export const DEATHS = /* lua */ `
local incident = arg()
local list = {}
local ids = call('ZREVRANGE', T .. 'inc', 0, 1999)
for i = 1, num() do
  local row, since, count = arg(), num(), 0
  for _, id in ipairs(ids) do
    if id ~= incident then
      local v = call('HMGET', T .. 'inc:' .. id, 'how', 'resolution', 'completed')
      local death = v[1] == 'gone' or v[2] == 'died' or v[2] == 'away'
      if death and (not v[3] or tonumber(v[3]) >= since) and call('HEXISTS', T .. 'incj:' .. id, row) == 0 then count = count + 1 end
    end
  end
  list[i] = count
end
return list
`;

export const OPEN_LOSSES = /* lua */ `
${SHOW_WORKER}
local list = {}
for _, id in ipairs(call('ZRANGE', T .. 'losses', 0, 999)) do
  local v = call('HMGET', T .. 'inc:' .. id, 'worker', 'resolution', 'completed')
  if v[3] and #list < 100 then list[#list + 1] = {id, v[2] or '', show(v[1], 0) or {}} end
end
return list
`;

/** The first resolution stands. */
export const RESOLVE_LOSS = /* lua */ `
local worker, resolution = arg(), arg()
local incident = call('HGET', T .. 'lost', worker)
if not incident or call('ZSCORE', T .. 'losses', incident) == false then return '' end
wrote = true
call('HSETNX', T .. 'inc:' .. incident, 'resolution', resolution)
return call('HGET', T .. 'inc:' .. incident, 'resolution')
`;

/** A delayed job keeps its time, and a running one everything but its counters. */
export const JUDGE = /* lua */ `
local incident = arg()
local verdicts = {}
for i = 1, num() do
  local v = {row = num(), id = arg(), state = num(), epoch = num(), fence = num(), cr = num(), bl = num(), lo = num(), decision = arg()}
  v.change = arg() == '1' and C.read() or nil
  verdicts[i] = v
  local unknown = v.change and D.undeclared(v.change.follow)
  if unknown then return {'!kind', unknown} end
end
local listed = T .. 'incj:' .. incident
local function judgeOne(v)
  local c = v.change
  if not c then return true end
  local j = J.get(v.row)
  if not j or j.id ~= v.id or j.state ~= v.state or j.epoch ~= v.epoch or j.fence ~= v.fence then return false end
  if J.count(j, 'cr') ~= v.cr or J.count(j, 'bl') ~= v.bl or J.count(j, 'lo') ~= v.lo then return false end
  if c.reason then J.history(j, c.name, c.to, 'system/recovery', j.epoch, j.fence, incident, c.reason) end
  local due, outcome = J.runAt(j), J.outcome(j)
  B.endRows(j, c.rows, false)
  local waits = j.state == QUEUED and (not due or due <= now or due == NEVER_DUE)
  J.leave(j)
  C.counters(j, c)
  if waits then J.set(j, 'ra', c.to == QUEUED and ((c.resolves and NEVER_DUE) or (c.delay > 0 and now + c.delay)) or nil) end
  j.state = c.to
  J.set(j, 'oc', c.outcome or outcome)
  if c.error then J.set(j, 'ex', c.error) end
  if c.to == 5 then j.finished = now end
  K.relocate(j)
  J.enter(j)
  if c.to >= SUCCEEDED then X.consequences(j, true) end
  D.enqueue(c.follow, nil)
  return true
end
for _, v in ipairs(verdicts) do
  if call('HEXISTS', listed, int(v.row)) == 1 and judgeOne(v) then
    wrote = true
    call('HSET', listed, int(v.row) .. ':judged', v.decision)
  end
end
return 1
`;

export const CLOSE_LOSS = /* lua */ `
local incident = arg()
local v = call('HMGET', T .. 'inc:' .. incident, 'resolution', 'judged', 'worker')
if not v[1] or v[2] then return 0 end
wrote = true
call('HSET', T .. 'inc:' .. incident, 'judged', int(now))
call('ZREM', T .. 'losses', incident)
if call('HGET', T .. 'lost', v[3]) == incident then call('HDEL', T .. 'lost', v[3]) end
return 1
`;

/** Keeps what a recovery could not write of one job. */
export const NOTE_JOB = /* lua */ `
wrote = true
local incident = arg()
local noted = call('HSET', T .. 'incj:' .. incident, arg(), arg())
if call('HEXISTS', T .. 'inc:' .. incident, 'jobs') == 1 then call('HINCRBY', T .. 'inc:' .. incident, 'jobs', noted) end
return 1
`;
