// Lua: what is changed by hand, retention, and the store's own epoch and runs.
import { MAX_AUDIT } from "../../../job/audit.ts";

/** Keeps what a person changed, if something was: in the same script. A bulk change adds to its entry with each chunk. */
export const AUDIT = /* lua */ `
local function readEntry()
  local id = opt()
  return id and {id = id, actor = arg(), action = arg(), target = arg(), reason = arg()} or nil
end
local function audit(entry, count)
  if not entry or count == 0 then return end
  wrote = true
  local kept = call('HGET', T .. 'au', entry.id)
  if kept then
    entry = cjson.decode(kept)
    entry.count = entry.count + count
  else
    entry.at, entry.count = now, count
    call('ZADD', T .. 'an', call('HINCRBY', T .. 'meta', 'audits', 1), entry.id)
    if call('ZCARD', T .. 'an') > ${MAX_AUDIT} then call('HDEL', T .. 'au', call('ZPOPMIN', T .. 'an')[1]) end
  end
  call('HSET', T .. 'au', entry.id, cjson.encode(entry))
end
`;

const APPLY_BY_HAND = /* lua */ `
local function cancel(j, actor, request, family, change)
  if family and (j.state < SUCCEEDED or j.state == 4) then F.record(j, actor, family) end
  if family and j.state == 4 then return {'applied', 4} end
  if j.state == RUNNING then
    J.askToEnd(j, actor, request)
    return {'requested'}
  end
  if j.state ~= QUEUED then return {'wrong-state', j.state} end
  C.apply(j, change, actor, nil)
  return {'applied', 4}
end
local function retry(j, actor, changes)
  if j.state < SUCCEEDED then return {'wrong-state', j.state} end
  -- Nothing is left of it that could run.
  if j.d.oc == 'removed' then return {'missing'} end
  local batch = j.d.bn and call('HGET', T .. 'b:' .. j.d.bn, 'id')
  if batch then return {'of-batch', batch} end
  local holder = j.d.dk and call('HGET', T .. 'dk:' .. int(j.kind), j.d.dk)
  if holder then return {'key-held', J.get(tonumber(holder)).id, j.d.dk} end
  -- Asked for again by a person: it has all the time that it needs.
  J.set(j, 'xp', nil)
  C.apply(j, changes[j.state], actor, nil)
  F.withdraw(j.row)
  return {'applied', 0}
end
`;

/** One change of many jobs. With each id comes what is its own: a new input with its checksum, or the change of its children. */
export const CHANGE = /* lua */ `
${AUDIT}
${APPLY_BY_HAND}
local what, actor, entry, request, changes = arg(), arg(), readEntry(), arg(), {}
for i = 1, num() do
  local state = num()
  changes[state] = C.read()
end
local function promote(j)
  if j.state ~= QUEUED then return {'wrong-state', j.state} end
  local batch = j.d.bn and call('HGET', T .. 'b:' .. j.d.bn, 'id')
  if batch then return {'of-batch', batch} end
  local due = J.runAt(j)
  if not due or due <= now or due == NEVER_DUE or j.d.oc == 'waiting' then return {'not-delayed'} end
  C.apply(j, changes[QUEUED], actor, j.d.ic)
  return {'applied', 0}
end
local function edit(j, input)
  J.setInput(j.row, input)
  call('UNLINK', T .. 's:' .. int(j.row))
  X.forget(j)
  J.set(j, 'st', nil)
  J.set(j, 'wt', nil)
end
-- What comes after it by its dedupe key has its contents, and goes with it.
local function remove(j, own)
  if j.state == RUNNING then return {'wrong-state', j.state} end
  local batch = j.d.bn and call('HGET', T .. 'b:' .. j.d.bn, 'id')
  if batch then return {'of-batch', batch} end
  if j.d.rr then
    call('DEL', T .. 'rr:' .. int(j.row))
    J.set(j, 'rr', nil)
  end
  C.apply(j, changes[j.state], actor, nil)
  if j.d.sn then call('ZREM', T .. 'so:' .. j.d.sn, j.id) end
  P.forgetReports(j)
  -- As long as its parent is unfinished, its record stays, without contents.
  if not P.isKept(j) then
    P.remove(j)
    return {'removed'}
  end
  local row = int(j.row)
  J.setInput(j.row, own)
  call('UNLINK', T .. 'hi:' .. row, T .. 's:' .. row, T .. 'l:' .. row, T .. 'sg:' .. row, T .. 'sq:' .. row)
  X.forget(j)
  for _, name in ipairs({'dk', 'pg', 'st', 'lg', 'sg', 'wt', 'sn', 'sa', 'su', 'tr'}) do J.set(j, name, nil) end
  return {'removed'}
end
local answers, changed = {}, 0
for i = 1, num() do
  local id, own = arg(), opt()
  local j = J.byId(id)
  local answer
  if not j then answer = {'missing'}
  elseif what == 'cancel' then answer = cancel(j, actor, request, own, changes[QUEUED])
  elseif what == 'retry' then
    answer = retry(j, actor, changes)
    if own and answer[1] == 'applied' then edit(j, own) end
  elseif what == 'promote' then answer = promote(j)
  else answer = remove(j, own) end
  if answer[1] == 'applied' or answer[1] == 'requested' or answer[1] == 'removed' then changed = changed + 1 end
  answers[i] = answer
end
audit(entry, changed)
return answers
`;

export const CANCEL = /* lua */ `
${APPLY_BY_HAND}
local id, actor, request, family = arg(), arg(), arg(), opt()
local j = J.byId(id)
return j and cancel(j, actor, request, family, C.read()) or {'missing'}
`;

/** The changes from each terminal state come along, because only here is known which of them applies. */
export const RETRY = /* lua */ `
${APPLY_BY_HAND}
local id, actor, changes = arg(), arg(), {}
local j = J.byId(id)
if not j then return {'missing'} end
for state = 2, 5 do changes[state] = C.read() end
return retry(j, actor, changes)
`;

export const SIGNAL = /* lua */ `
${AUDIT}
local entry = readEntry()
local id, name, payload, signal, most = arg(), arg(), arg(), arg(), num()
local j = J.byId(id)
if not j then return {'missing'} end
local row = int(j.row)
if call('HEXISTS', T .. 'sg:' .. row, signal) == 1 then return {'repeated'} end
if j.state >= SUCCEEDED then return {'ended', j.state} end
if call('LLEN', T .. 'sq:' .. row) >= most then return {'full'} end
call('HSET', T .. 'sg:' .. row, signal, name .. '\\31' .. payload)
call('RPUSH', T .. 'sq:' .. row, signal)
J.set(j, 'sg', '1')
wrote = true
X.wake(j)
audit(entry, 1)
return {'kept'}
`;

export const SET_LIMIT = /* lua */ `
${AUDIT}
local entry = readEntry()
local id, limit, key = arg(), arg(), arg()
for _, name in ipairs({'running', 'interval', 'burst', 'weight'}) do
  local value = opt()
  if value then call('HSET', T .. 'key:' .. id, name, value) else call('HDEL', T .. 'key:' .. id, name) end
end
K.keep(id, limit, key)
K.wake(id)
audit(entry, 1)
return 1
`;

/**
 * Nothing of the key is admitted from here on. What was admitted and not claimed goes back to its door, a piece at a time: returns whether some is
 * left, and is called again until none is.
 */
export const PAUSE_KEY = /* lua */ `
${AUDIT}
local entry = readEntry()
local id, limit, key, again, pauses, why, forMs = arg(), arg(), arg(), arg() == '1', arg() == '1', arg(), optnum()
local kept = T .. 'key:' .. id
if not again then
  if pauses then call('HSET', kept, 'pa', int(now), 'pu', forMs and int(now + forMs) or '', 'why', why) else call('HDEL', kept, 'pa', 'pu', 'why') end
  K.keep(id, limit, key)
  audit(entry, 1)
end
local rows = pauses and call('SRANDMEMBER', T .. 'ku:' .. id, 200) or {}
for _, row in ipairs(rows) do
  local j = J.get(tonumber(row))
  J.leave(j)
  K.relocate(j)
  J.enter(j)
end
-- Also when it is paused: what is held there learns when that ends.
K.wake(id)
return call('SCARD', settled(T .. 'ku:' .. id)) > 0 and pauses and 1 or 0
`;

export const SET_PAUSED = /* lua */ `
${AUDIT}
local entry = readEntry()
local n = kindNamed(arg())
if not n then return 0 end
wrote = true
local key = T .. 'k:' .. int(n)
if arg() == '1' then
  local by, why, untilAt, forMs = arg(), arg(), optnum(), optnum()
  local ends = untilAt or (forMs and now + forMs) or nil
  call('ZADD', T .. 'kp', int(ends or NEVER_DUE), int(n))
  call('HSET', key, 'paused', '1', 'pauseAt', int(now), 'pauseUntil', ends and int(ends) or '', 'pauseBy', by, 'pauseWhy', why)
else
  call('ZREM', T .. 'kp', int(n))
  call('HSET', key, 'paused', '0')
  call('HDEL', key, 'pauseAt', 'pauseUntil', 'pauseBy', 'pauseWhy')
end
audit(entry, 1)
return 1
`;

/** A job is deleted with all that belongs to it. */
export const REMOVAL = /* lua */ `
local P = {}
-- An incident says that a job was in flight, and no more about one that a person removes. Its history names the incidents.
function P.forgetReports(j)
  local row = int(j.row)
  for _, line in ipairs(call('LRANGE', T .. 'hi:' .. row, 0, -1)) do
    local fields = {}
    for field in string.gmatch(line .. '\\31', '([^\\31]*)\\31') do fields[#fields + 1] = field end
    local listed = fields[8] ~= '' and T .. 'incj:' .. fields[8]
    local kept = listed and call('HGET', listed, row)
    if kept then
      local note = cjson.decode(kept)
      if note.jobId == j.id then
        note.lastStep, note.error = cjson.null, cjson.null
        call('HSET', listed, row, cjson.encode(note))
      end
    end
  end
end
function P.remove(j)
  wrote = true
  local row = int(j.row)
  J.leave(j)
  local p = page(j.row)
  call('HDEL', T .. 'j:' .. p, slot(j.row))
  -- The places of the others stay; what is left of a page goes with its last job.
  if call('EXISTS', T .. 'j:' .. p) == 0 then call('UNLINK', T .. 'i:' .. p, T .. 'o:' .. p)
  else
    J.setInput(j.row, '')
    call('HDEL', T .. 'o:' .. p, slot(j.row))
  end
  call('HDEL', idKey(j.id), j.id)
  R.count(j.kind, 'jobs', -1)
  call('DEL', T .. 'hi:' .. row)
  F.forget(j.row)
  if j.had then
    X.forget(j)
    for _, waiter in ipairs(j.d.wa and call('SMEMBERS', T .. 'wa:' .. row) or {}) do
      call('SREM', T .. 'al:' .. waiter, row)
      call('SREM', T .. 'aw:' .. waiter, row)
    end
    call('UNLINK', T .. 'd:' .. row, T .. 's:' .. row, T .. 'l:' .. row, T .. 'wa:' .. row, T .. 'sg:' .. row, T .. 'sq:' .. row, T .. 'rr:' .. row)
  end
  jobs[j.row] = false
  rowsById[j.id] = false
  -- One that has just ended has been written in memory.
  dirty[j.row] = nil
end
-- The blocks of a batch stay as long as it does.
function P.isKept(j)
  local parent = j.d.pr and J.get(tonumber(j.d.pr))
  return parent and parent.state < SUCCEEDED or j.d.bn and call('EXISTS', T .. 'b:' .. j.d.bn) == 1
end
`;

/** Whether there is more to forget of waits for many. */
export const FORGET_WAITS = /* lua */ `
return X.forgetSome() and 1 or 0
`;

/** A walk by rows, a piece at a time, that ends at the first job that is too young to have finished long ago. */
export const PURGE = /* lua */ `
local finishedMs, incidentsBefore, limit = num(), now - num(), num()
local keep, shortest = hash(call('HGETALL', T .. 'keep')), finishedMs
for kind, json in pairs(keep) do
  keep[kind] = cjson.decode(json)
  for _, ms in pairs(keep[kind]) do shortest = math.min(shortest, ms) end
end
local finishedBefore = now - shortest
local function isOld(j)
  local own = keep[int(j.kind)]
  return j.finished < now - (own and own[tostring(j.state)] or finishedMs)
end
local after, lastRow = tonumber(call('HGET', T .. 'meta', 'purged') or 0), tonumber(call('HGET', T .. 'meta', 'row') or 0)
local low = tonumber(call('HGET', T .. 'meta', 'low') or 0)
local p, looked, last, scanned = math.max(low, floor((after + 1) / 64)), {}, nil, 0
while #looked < limit and p * 64 <= lastRow and scanned < 500 do
  scanned = scanned + 1
  local flat = call('HGETALL', T .. 'j:' .. int(p))
  -- Not the page in which the next row will be: what is below \`low\` is neither listed, nor checked, nor purged.
  if #flat == 0 and p == low and (p + 1) * 64 <= lastRow then
    low = p + 1
    call('HSET', T .. 'meta', 'low', int(low))
  end
  local rows = {}
  for i = 1, #flat, 2 do
    local row = p * 64 + tonumber(flat[i])
    if row > after then rows[#rows + 1] = {row, flat[i + 1]} end
  end
  table.sort(rows, function(a, b) return a[1] < b[1] end)
  for _, one in ipairs(rows) do
    if #looked < limit then looked[#looked + 1] = parse(one[1], one[2]) last = looked[#looked] end
  end
  p = p + 1
end
local atEnd = (#looked < limit and p * 64 > lastRow) or (last and last.created >= finishedBefore) or false
local gone, purged = {}, 0
for _, j in ipairs(looked) do
  if j.state >= SUCCEEDED and isOld(j) and not P.isKept(j) then
    purged = purged + 1
    P.remove(j)
  end
end
local nextAfter = atEnd and 0 or (last and last.row or p * 64 - 1)
if nextAfter ~= after then call('HSET', T .. 'meta', 'purged', int(nextAfter)) end
K.forgetIdle(100)
E.forgetOld(20)
local forgets = X.forgetSome()
for _, id in ipairs(call('ZRANGE', T .. 'an', 0, 99)) do
  if cjson.decode(call('HGET', T .. 'au', id)).at >= incidentsBefore then break end
  wrote = true
  call('HDEL', T .. 'au', id)
  call('ZREM', T .. 'an', id)
end
local incidents = 0
for _, id in ipairs(call('ZRANGE', T .. 'inc', 0, 999)) do
  if incidents < limit then
    local v = call('HMGET', T .. 'inc:' .. id, 'completed', 'worker')
    if v[1] and tonumber(v[1]) < incidentsBefore then
      wrote = true
      call('UNLINK', T .. 'inc:' .. id, T .. 'incj:' .. id)
      call('ZREM', T .. 'inc', id)
      call('ZREM', T .. 'losses', id)
      if call('HGET', T .. 'lost', v[2]) == id then call('HDEL', T .. 'lost', v[2]) end
      incidents = incidents + 1
    end
  end
end
for _, id in ipairs(call('ZRANGEBYSCORE', T .. 'over', '-inf', '(' .. int(incidentsBefore), 'LIMIT', 0, 1000)) do
  local n = call('HGET', T .. 'ws', id)
  if call('SCARD', T .. 'held:' .. n) == 0 then
    wrote = true
    call('UNLINK', T .. 'w:' .. n)
    call('HDEL', T .. 'ws', id)
    call('HDEL', T .. 'wi', n)
    call('ZREM', T .. 'over', id)
  end
end
return {purged, incidents, (not atEnd or incidents == limit or forgets) and 1 or 0}
`;

export const RAISE_EPOCH = /* lua */ `
wrote = true
EPOCH = math.max(EPOCH + 1, now)
call('HSET', T .. 'meta', 'epoch', int(EPOCH))
return int(EPOCH)
`;

export const NOTICE_RESTORE = /* lua */ `
local why = call('HGET', T .. 'meta', 'unreported')
if not why or why == '' then return '' end
wrote = true
call('HSET', T .. 'meta', 'unreported', '')
return why
`;

/** A caller that knows of more operations of the former run than there were when this one began: the store went back. */
export const NOTE_LOSS = /* lua */ `
local runs, ops = num(), num()
local begun = tonumber(call('HGET', T .. 'meta', 'begun') or 0)
if runs ~= RUNS - 1 or ops <= begun then return 0 end
wrote = true
local lost = math.max(ops - begun, tonumber(call('HGET', T .. 'meta', 'lost') or 0))
call('HSET', T .. 'meta', 'lost', int(lost), 'restored', int(RUNS), 'why', 'the server started again or another one took over, and ' .. int(lost) .. ' operation(s) that a process knew of are missing')
return int(lost)
`;

/** What a survivor found missing and sent again. The most that any process knew of is what is missing; what each sent adds up. */
export const NOTE_RESENT = /* lua */ `
wrote = true
local operations, jobs, ends = num(), num(), num()
if operations > tonumber(call('HGET', T .. 'meta', 'lost') or 0) then call('HSET', T .. 'meta', 'lost', int(operations)) end
call('HINCRBY', T .. 'meta', 'jobsAgain', jobs)
call('HINCRBY', T .. 'meta', 'endsAgain', ends)
return 1
`;

/** What an open should report about the run of the server; once. */
export const OPENING = /* lua */ `
local v = call('HMGET', T .. 'meta', 'unopened', 'begunAt', 'runs', 'lost', 'jobsAgain', 'endsAgain', 'why')
if v[1] ~= '1' then return {} end
wrote = true
call('HSET', T .. 'meta', 'unopened', '')
return {v[2], v[3], v[4] or '0', v[5] or '0', v[6] or '0', v[7] or ''}
`;

export const NOTE_OPENING = /* lua */ `
wrote = true
call('HSET', T .. 'meta', 'opening', arg())
return 1
`;
