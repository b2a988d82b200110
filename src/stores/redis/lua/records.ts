// Lua: what every script begins with, and the records of jobs. A job's record is a slot of 42 bytes and its id in a hash of 64 jobs (`j:`), which Redis
// keeps as one compact block as long as no value is longer than 64 bytes. Its input is in a list of the same 64 jobs (`i:`) at the place of its slot: a
// hash would need 55 bytes more for each, because inputs are longer. What only some jobs have is in a hash of their own (`d:`). These are the truth:
// every other key can be rebuilt from them.
//
// Nothing is rolled back. So a script reads and checks everything first, changes records in memory, and writes them at its end (`J.flush`).

import { AT, SLOT } from "./plain.ts";

/** Wake-ups closer together than this are merged into one. */
export const WAKE_APART_MS = 10;

/** `RUN`, `REPAIRS`, `WAKES`, `NOW` and the name of the store's keys are filled in by scripts.ts. Every number that becomes a text goes through `int`: Lua writes 3e+8. */
export const BASE = /* lua */ `
local T, A, at = KEYS[1], ARGV, 1
local call, floor, fmt, sub, concat = redis.call, math.floor, string.format, string.sub, table.concat
local NEVER_DUE, NO_TIMEOUT = 253402300799999, 253402300799998
local QUEUED, RUNNING, SUCCEEDED = 0, 1, 2
local function int(x) return fmt('%.0f', x) end
local function arg() at = at + 1 return A[at - 1] end
local function num() return tonumber(arg()) end
local function opt() local v = arg() if v == '' then return nil end return v end
local function optnum() return tonumber(opt() or nil) end
-- Many short texts are one argument: what a client sends is a fourth of the work that way, and what it keeps to send it again is one text.
local function unpacked(text, count)
  local list, from = {}, 1
  for i = 1, count do
    local stop = string.find(text, '\\31', from, true)
    list[i] = sub(text, from, stop - 1)
    from = stop + 1
  end
  if from ~= #text + 1 then error('a text has a character in it that separates texts') end
  return list
end
local META = call('HMGET', T .. 'meta', 'run', 'epoch', 'runs', 'restored', 'repair', 'asleep', 'woken')
if META[1] ~= RUN then return {0, META[1] or ''} end
if META[5] and not REPAIRS then return {2} end
local EPOCH, RUNS, RESTORED = tonumber(META[2]), tonumber(META[3]), tonumber(META[4])
local now = NOW()
local wrote = false
-- A worker that found less than it has room for says that it sleeps (\`asleep\`). Whatever then writes what may be something to do wakes all, once. Right after
-- that a worker comes back instead: else each of many small writes would wake all of them.
local wakes = WAKES
local function wake()
  if not wakes or not META[6] then return end
  call('HSET', T .. 'meta', 'woken', int(now))
  call('HDEL', T .. 'meta', 'asleep')
  -- A user who may not publish has workers that poll.
  redis.pcall('PUBLISH', T .. 'wakeup', '')
end
-- In how many ms to come back, if it would be in \`next\` otherwise; nil: never.
local function sleep(next)
  local left = ${WAKE_APART_MS} - (now - tonumber(META[7] or 0))
  if left > 0 and left <= ${WAKE_APART_MS} then return next and next < left and next or left end
  if not META[6] then call('HSET', T .. 'meta', 'asleep', '1') end
  return next
end
local K, B, R, D, F
local function hash(flat)
  local h = {}
  for i = 1, #flat, 2 do h[flat[i]] = flat[i + 1] end
  return h
end
-- Calls with many members, in pieces that fit on Lua's stack.
local function many(command, key, list)
  for i = 1, #list, 1000 do call(command, key, unpack(list, i, math.min(i + 999, #list))) end
end
-- Writes to indexes are gathered by key and made at the end of a phase: 50 jobs are one command. The order of two different commands on one key
-- is kept. What reads such a key calls \`settleIndexes\` first.
local pending = {}
local function perform(key, of)
  many(of[1], key, of[2])
  pending[key] = nil
end
local function gather(command, key, first, second)
  local of = pending[key]
  if of and of[1] ~= command then
    perform(key, of)
    of = nil
  end
  if not of then
    of = {command, {}}
    pending[key] = of
  end
  local list = of[2]
  list[#list + 1] = first
  if second then list[#list + 1] = second end
end
local function settleIndexes()
  for key, of in pairs(pending) do many(of[1], key, of[2]) end
  pending = {}
  R.flush()
end
-- Before a key is read that may have writes gathered.
local function settled(key)
  if pending[key] then perform(key, pending[key]) end
  return key
end
local kindsRead = {}
local function kindOf(n)
  local k = kindsRead[n]
  if k == nil then
    local v = call('HMGET', T .. 'k:' .. int(n), 'name', 'timeout', 'runtime', 'grace', 'paused', 'pauseUntil')
    local resumes = tonumber(v[6] or nil)
    k = {n = n, name = v[1], timeout = tonumber(v[2] or nil), runtime = tonumber(v[3] or nil), grace = tonumber(v[4] or nil),
      paused = v[5] == '1' and not (resumes and resumes <= now), resumes = resumes}
    kindsRead[n] = k
  end
  return k
end
local numbersRead = {}
local function kindNamed(name)
  local n = numbersRead[name]
  if n == nil then
    n = tonumber(call('HGET', T .. 'kinds', name) or nil) or false
    numbersRead[name] = n
  end
  return n
end
`;

export const RECORDS = /* lua */ `
local J = {}
local jobs, dirty, texts = {}, {}, {}
local function parse(row, v)
  local b, finished, fence, worker, epoch, started, left, kind, priority, created = struct.unpack('${SLOT}', v)
  local j = {row = row, state = b % 8, kind = kind, priority = priority, fence = fence, worker = worker, epoch = epoch, started = started,
    deadline = left > 0 and started + left - 1 or nil, finished = finished, created = created, id = sub(v, ${AT.id}), had = b >= 8}
  j.d = j.had and hash(call('HGETALL', T .. 'd:' .. int(row))) or {}
  jobs[row] = j
  return j
end
function J.get(row)
  local j = jobs[row]
  if j ~= nil then return j end
  local v = call('HGET', T .. 'j:' .. page(row), slot(row))
  if v then return parse(row, v) end
  jobs[row] = false
  return false
end
-- The row of an id, or false; also of one that this very script has added.
function J.rowOf(id)
  local row = rowsById[id]
  if row == nil then
    row = tonumber(call('HGET', idKey(id), id) or nil) or false
    rowsById[id] = row
  end
  return row
end
function J.byId(id)
  local row = J.rowOf(id)
  return row and J.get(row)
end
-- Reads many records with one command for each page.
function J.fetch(rows)
  local pages = {}
  for _, row in ipairs(rows) do
    if jobs[row] == nil then
      local p = page(row)
      local of = pages[p]
      if not of then of = {} pages[p] = of end
      of[#of + 1] = row
    end
  end
  for p, of in pairs(pages) do
    local slots = {}
    for i, row in ipairs(of) do slots[i] = slot(row) end
    local values = call('HMGET', T .. 'j:' .. p, unpack(slots))
    for i, row in ipairs(of) do
      if jobs[row] == nil then
        if values[i] then parse(row, values[i]) else jobs[row] = false end
      end
    end
  end
end
-- Records as they are kept, with one command for each page. Taken apart one by one, 5,000 of them took 25 ms.
function J.each(rows, visit)
  local pages = {}
  for _, text in ipairs(rows) do
    local row = tonumber(text)
    local p = floor(row / 64)
    local of = pages[p]
    if not of then of = {rows = {}, slots = {}} pages[p] = of end
    local i = #of.rows + 1
    of.rows[i], of.slots[i] = row, slot(row)
  end
  for p, of in pairs(pages) do
    local values = call('HMGET', T .. 'j:' .. int(p), unpack(of.slots))
    for i, row in ipairs(of.rows) do if values[i] then visit(row, values[i]) end end
  end
end
function J.eachHeld(n, visit) J.each(call('SMEMBERS', T .. 'held:' .. int(n)), visit) end
-- When the attempt of a record that is held has to end, if it has to, and of which kind it is.
function J.deadlineIn(v)
  local started, left, kind = struct.unpack('>I6I5I2', v, ${AT.started})
  return left > 0 and started + left - 1 or nil, kind
end
function J.put(j) dirty[j.row] = j wrote = true end
function J.set(j, name, value)
  if value == nil and j.d[name] == nil then return end
  if value ~= nil then value = type(value) == 'number' and int(value) or value end
  if j.d[name] == value then return end
  j.d[name] = value
  j.changed = j.changed or {}
  j.changed[name] = true
  dirty[j.row] = j
  wrote = true
end
-- Inputs and results have their checksums in front.
function J.setResult(row, text)
  local key = T .. 'o:' .. page(row)
  local list = texts[key]
  if not list then list = {} texts[key] = list end
  list[#list + 1] = slot(row)
  list[#list + 1] = text
end
function J.result(row) return call('HGET', T .. 'o:' .. page(row), slot(row)) or '' end
function J.setInput(row, text)
  Q.flushInputs()
  local key = T .. 'i:' .. page(row)
  if call('LLEN', key) > row % 64 then call('LSET', key, slot(row), text) else Q.addInput(row, text) end
end
function J.input(row)
  Q.flushInputs()
  return call('LINDEX', T .. 'i:' .. page(row), slot(row)) or ''
end
function J.count(j, name) return tonumber(j.d[name] or 0) end
function J.runAt(j) return tonumber(j.d.ra or nil) end
-- Most records have nothing that could make them suspects.
function J.heldSuspects(n)
  local list = {}
  J.eachHeld(n, function(row, v)
    local j = byte(v) >= 8 and (jobs[row] or parse(row, v))
    if j and J.suspect(j) then list[#list + 1] = j end
  end)
  return list
end
function J.suspect(j) return J.count(j, 'cr') + J.count(j, 'lo') > 0 end
function J.bound(j)
  local together = J.count(j, 'to')
  if together > 0 then return together end
  return J.count(j, 'cr') + J.count(j, 'lo') > 1 and 1 or 2147483647
end
function J.outcome(j) return j.d.oc or (j.state == SUCCEEDED and 'succeeded') or nil end
function J.flush()
  settleIndexes()
  K.flush()
  Q.flushInputs()
  local pages = {}
  for row, j in pairs(dirty) do
    if j.changed then
      local set, del = {}, {}
      for name in pairs(j.changed) do
        local v = j.d[name]
        if v == nil then del[#del + 1] = name else set[#set + 1] = name set[#set + 1] = v end
      end
      local key = T .. 'd:' .. int(row)
      if next(j.d) == nil then call('DEL', key) j.had = false
      else
        if #set > 0 then call('HSET', key, unpack(set)) end
        if #del > 0 and j.had then call('HDEL', key, unpack(del)) end
        j.had = true
      end
      j.changed = nil
    end
    local left = j.deadline and j.deadline - j.started + 1 or 0
    if left < 0 then left = 1 end
    local p = page(row)
    local list = pages[p]
    if not list then list = {} pages[p] = list end
    list[#list + 1] = slot(row)
    list[#list + 1] = struct.pack('${SLOT}', j.state + (j.had and 8 or 0), j.finished, j.fence, j.worker, j.epoch, j.started, left,
      j.kind, j.priority, j.created) .. j.id
  end
  dirty = {}
  for p, list in pairs(pages) do call('HSET', T .. 'j:' .. p, unpack(list)) end
  for key, list in pairs(texts) do call('HSET', key, unpack(list)) end
  texts = {}
end
local function rank(j) return (1000 - j.priority) * RANKS + j.row end
local function suspectMember(j) return fmt('%04d:%010d:%016.0f', 1000 - j.priority, 2147483647 - J.bound(j), j.row) end
local function delay(kind, row, due)
  call('ZADD', T .. 'z:' .. int(kind), int(due), int(row))
  if due < NO_TIMEOUT then call('ZADD', T .. 'zk', 'LT', int(due), int(kind)) end
end
-- A child that no attempt has begun: hasNotBegun of job/transitions.ts.
local function isNewChild(j) return j.d.pr and j.state == QUEUED and j.fence == 0 end
-- No attempt has begun, and it ends if none does in time.
local function mayExpire(j) return j.d.xp and j.state == QUEUED and j.fence == 0 end
-- Takes a job out of every index that its record says it is in, before that changes.
function J.leave(j)
  local row, kind = int(j.row), int(j.kind)
  if isNewChild(j) then gather('ZREM', T .. 'ch:' .. j.d.pr, row) end
  if mayExpire(j) then gather('ZREM', T .. 'xp', row) end
  if j.state == QUEUED then
    local lane = j.d.ln
    if lane == nil then R.remove(j.kind, rank(j))
    elseif lane == 'z' then call('ZREM', T .. 'z:' .. kind, row)
    elseif lane == 'u' then
      call('ZREM', T .. 'u:' .. kind, row)
      call('ZREM', T .. 'v:' .. kind, suspectMember(j))
      if call('EXISTS', T .. 'u:' .. kind) == 0 then call('SREM', T .. 'uk', kind) end
    elseif lane == 'h' then K.leaveDoor(j) end
  elseif j.state == RUNNING then
    gather('SREM', T .. 'held:' .. int(j.worker), row)
    R.count(j.kind, 'rn', -1)
    if j.d.ca then call('SREM', T .. 'cc:' .. int(j.worker), row) end
  elseif j.state > SUCCEEDED then call('SREM', T .. 't' .. j.state .. ':' .. kind, row) end
  if j.d.dk and j.state < SUCCEEDED then call('HDEL', T .. 'dk:' .. kind, j.d.dk) end
end
-- Puts it where its record belongs now.
function J.enter(j)
  local row, kind = int(j.row), int(j.kind)
  local lane = nil
  if isNewChild(j) then gather('ZADD', T .. 'ch:' .. j.d.pr, row, row) end
  if mayExpire(j) then gather('ZADD', T .. 'xp', j.d.xp, row) end
  if j.state == QUEUED then
    wakes = true
    local due = J.runAt(j)
    if due and due > now then lane = 'z' delay(j.kind, j.row, due)
    elseif j.d.pl == 'h' or j.d.pl == 'f' then
      lane = 'h'
      K.enterDoor(j)
    elseif J.suspect(j) then
      lane = 'u'
      call('ZADD', T .. 'u:' .. kind, int(rank(j)), row)
      call('ZADD', T .. 'v:' .. kind, 0, suspectMember(j))
      call('SADD', T .. 'uk', kind)
    else R.add(j.kind, rank(j)) end
  elseif j.state == RUNNING then
    gather('SADD', T .. 'held:' .. int(j.worker), row)
    R.count(j.kind, 'rn', 1)
    if j.d.ca then call('SADD', T .. 'cc:' .. int(j.worker), row) end
  elseif j.state > SUCCEEDED then call('SADD', T .. 't' .. j.state .. ':' .. kind, row) end
  if j.d.dk and j.state < SUCCEEDED then call('HSET', T .. 'dk:' .. kind, j.d.dk, row) end
  J.set(j, 'ln', lane)
  J.put(j)
end
-- The job's own record still has the start and the worker of its latest attempt.
function J.history(j, event, to, actor, epoch, attempt, incident, reason)
  local isLatest = attempt > 0 and attempt == j.fence
  local started = isLatest and int(j.started) or ''
  local owner = isLatest and j.worker > 0 and call('HGET', T .. 'wi', int(j.worker)) or ''
  call('RPUSH', T .. 'hi:' .. int(j.row), concat({int(now), event, j.state, to, actor, int(epoch), int(attempt), incident or '', started, owner, reason}, '\\31'))
  wrote = true
end
function J.askToEnd(j, actor, request)
  J.history(j, 'cancel.requested', j.state, actor, j.epoch, j.fence, nil, request)
  J.set(j, 'ca', '1')
  call('SADD', T .. 'cc:' .. int(j.worker), int(j.row))
end
function J.hasSteps(j) return j.d.st ~= nil end
-- As the program reads it: the slot by name, then what else there is.
function J.show(j)
  local worker = j.worker > 0 and call('HGET', T .. 'wi', int(j.worker)) or ''
  local parent = j.d.pr and J.get(tonumber(j.d.pr))
  local step = j.d.wt and call('HGET', T .. 'wt:' .. int(j.row), 'step') or ''
  local d = {}
  for name, value in pairs(j.d) do d[#d + 1] = name d[#d + 1] = value end
  return {int(j.row), j.id, kindOf(j.kind).name, j.state, j.priority, int(j.fence), worker or '', int(j.epoch), int(j.started),
    j.deadline and int(j.deadline) or '', int(j.finished), int(j.created), parent and parent.id or '', step or '', d}
end
`;

/** Workers as the scripts see them. `W.own`: the row of a worker as far as it may write, and otherwise nothing. */
export const WORKERS = /* lua */ `
local W = {}
local workers = {}
function W.find(id)
  local w = workers[id]
  if w ~= nil then return w end
  local n = call('HGET', T .. 'ws', id)
  if n then
    local v = call('HMGET', T .. 'w:' .. n, 'state', 'runs', 'incident', 'beats', 'identity', 'word', 'successor')
    w = {id = id, n = tonumber(n), state = v[1], runs = tonumber(v[2]), incident = v[3] or nil, beats = v[4], identity = v[5] or '', word = v[6] or '',
      successor = v[7] or nil}
  else w = false end
  workers[id] = w
  return w
end
function W.own(id)
  local w = W.find(id)
  return w and w.runs == RUNS and w or nil
end
-- Why the store is not the one that this worker registered with; nothing: it is, or the server only started again.
function W.replaced(id)
  local w = W.find(id)
  if not w then return 'worker ' .. id .. ' has no row in it' end
  if w.runs < RESTORED then return call('HGET', T .. 'meta', 'why') or 'the store went back to an earlier state' end
  return ''
end
function W.holds(w) return call('SCARD', T .. 'held:' .. int(w.n)) end
-- A process that watches all workers reads them again: one has joined or left.
function W.changed(how) redis.pcall('PUBLISH', T .. 'wakeup', how) end
`;
