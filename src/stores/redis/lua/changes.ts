// Lua: drafts and changes as they come in the arguments, and what applying them does. What is decided comes from job/; a script adds increments,
// chooses the alternative of a requested cancel, and writes the consequences in the same call: what follows, what waited for this job, and the
// run that was asked for while it was under way.

export const DRAFTS = /* lua */ `
D = {}
local X = {}
D.readAll = Q.readAll
-- The name of the first kind that was never declared; nothing: all were.
function D.undeclared(drafts)
  for _, draft in ipairs(drafts) do if not draft.kind then return draft.kindName end end
  return nil
end
local function runAtOf(draft, latest)
  if draft.wait then return math.min(now + draft.wait, latest or 9007199254740991) end
  return draft.runAt or (draft.delay > 0 and now + draft.delay) or nil
end
-- When it expires; nothing: never.
local function expiryOf(draft, runAt) return draft.expires and math.max(now, runAt or now) + draft.expires or nil end
local function latestOf(draft) return draft.max and now + draft.max or nil end
function D.insert(draft, parent, latest)
  local row = Q.nextRow()
  local j = {row = row, id = draft.id, kind = draft.kind, state = QUEUED, priority = draft.priority, fence = 0, worker = 0, epoch = 0, started = now,
    finished = now, created = now, d = {}, had = false}
  jobs[row] = j
  rowsById[draft.id] = row
  gather('HSET', idKey(draft.id), draft.id, int(row))
  Q.addInput(row, draft.input)
  R.count(draft.kind, 'jobs', 1)
  J.set(j, 'dk', draft.dk)
  if draft.ks then K.setKeys(j, draft.ks, draft.fair) end
  local runAt = runAtOf(draft, latest)
  J.set(j, 'ra', runAt)
  J.set(j, 'xp', expiryOf(draft, runAt))
  J.set(j, 'la', latest)
  if parent then J.set(j, 'pr', parent) end
  J.set(j, 'tr', draft.trace)
  K.relocate(j)
  J.enter(j)
  return j
end
local function replace(holder, draft)
  local latest = tonumber(holder.d.la or nil) or latestOf(draft)
  local due = J.runAt(holder)
  local runAt = runAtOf(draft, latest)
  if not runAt and due and due > now then runAt = due end
  J.leave(holder)
  if K.unplace(holder) then for _, key in ipairs(K.list(holder)) do K.wake(key.id) end end
  J.setInput(holder.row, draft.input)
  holder.priority = draft.priority
  if draft.ks then K.setKeys(holder, draft.ks, draft.fair) end
  J.set(holder, 'ra', runAt)
  J.set(holder, 'xp', expiryOf(draft, runAt))
  J.set(holder, 'la', latest)
  K.relocate(holder)
  J.enter(holder)
end
local function markRerun(holder, draft)
  local key = T .. 'rr:' .. int(holder.row)
  local latest = tonumber(call('HGET', key, 'la') or nil) or latestOf(draft)
  local runAt = runAtOf(draft, latest)
  call('HSET', key, 'id', draft.id, 'input', draft.input, 'priority', int(draft.priority), 'dk', draft.dk, 'ks', draft.ks or '', 'fr', draft.fair or '',
    'ra', runAt and int(runAt) or '', 'la', latest and int(latest) or '', 'xp', draft.expires and int(draft.expires) or '', 'tr', draft.trace or '')
  J.set(holder, 'rr', '1')
end
-- An unfinished job that has run, or will, has the key of this draft.
local function meet(holder, draft)
  if not draft.policy then return 'k' .. holder.id end
  if holder.state == QUEUED and holder.fence == 0 then
    replace(holder, draft)
    return 'p' .. holder.id
  end
  if draft.policy == 'replace' then return 'k' .. holder.id end
  markRerun(holder, draft)
  return 'r' .. holder.id
end
-- What became of each: 1 it was created, 0 its id is known; or the id of the job that has its key, behind k (that is kept as it is), p (it was
-- replaced by the draft) or r (it will run again).
function D.enqueue(drafts, parent)
  local answers = {}
  if #drafts == 0 then return answers end
  Q.prefetch(drafts)
  local plain = {}
  for i, draft in ipairs(drafts) do
    local known = J.rowOf(draft.id)
    local holder = not known and draft.dk and call('HGET', T .. 'dk:' .. int(draft.kind), draft.dk)
    if known then answers[i] = '0'
    elseif holder then answers[i] = meet(J.get(tonumber(holder)), draft)
    elseif draft.isPlain and not parent then
      -- The same id a second time is known.
      rowsById[draft.id] = 0
      plain[#plain + 1] = draft
      answers[i] = '1'
    else
      if #plain > 0 then Q.insert(plain) plain = {} end
      D.insert(draft, parent, latestOf(draft))
      answers[i] = '1'
    end
  end
  if #plain > 0 then Q.insert(plain) end
  return answers
end
local function rerun(j)
  if not j.d.rr then return end
  local key = T .. 'rr:' .. int(j.row)
  local kept = hash(call('HGETALL', key))
  call('DEL', key)
  J.set(j, 'rr', nil)
  if not kept.id or J.rowOf(kept.id) then return end
  D.insert({id = kept.id, kind = j.kind, input = kept.input, priority = tonumber(kept.priority), runAt = tonumber(kept.ra), delay = 0, dk = kept.dk,
    expires = tonumber(kept.xp or nil), ks = kept.ks ~= '' and kept.ks or nil, fair = (kept.fr or '') ~= '' and kept.fr or nil,
    trace = (kept.tr or '') ~= '' and kept.tr or nil}, nil, tonumber(kept.la))
end
`;

export const WAITS = /* lua */ `
-- Whether the job waits: not one that has been woken, and not one in backoff.
local function waits(j) return j.state == QUEUED and j.d.oc == 'waiting' and j.d.ra ~= nil and j.d.wt ~= nil end
function X.hasSignal(row, name)
  for _, id in ipairs(call('LRANGE', T .. 'sq:' .. row, 0, -1)) do
    if string.match(call('HGET', T .. 'sg:' .. row, id), '^([^\\31]*)\\31') == name then return id end
  end
  return nil
end
function X.wake(j)
  if not j or not waits(j) then return end
  local row = int(j.row)
  local wait = call('HMGET', T .. 'wt:' .. row, 'signal', 'jobs')
  local ended = false
  if wait[1] and wait[1] ~= '' then ended = X.hasSignal(row, wait[1]) ~= nil
  elseif wait[2] == '1' then ended = call('SCARD', T .. 'aw:' .. row) == 0 end
  if not ended then return end
  J.leave(j)
  J.set(j, 'ra', nil)
  K.relocate(j)
  J.enter(j)
  X.woken = (X.woken or 0) + 1
end
-- Of a job that begins another wait, or is deleted. What is more than one script may forget is left to \`forgetRest\`: until then some jobs say that this one waits for
-- them, which it is not woken by as long as it has another wait.
function X.forget(j)
  if not j.d.wt then return end
  local row = int(j.row)
  local awaited, rest = T .. 'al:' .. row, T .. 'ag:' .. row
  for _, one in ipairs(call('SPOP', awaited, 200)) do call('SREM', T .. 'wa:' .. one, row) end
  if call('EXISTS', awaited) == 1 then
    -- A wait for many begins when the rest of an earlier one is forgotten.
    if call('EXISTS', rest) == 0 then call('RENAME', awaited, rest) else call('SUNIONSTORE', rest, rest, awaited) end
    call('SADD', T .. 'agl', row)
  end
  call('UNLINK', awaited, T .. 'aw:' .. row, T .. 'wt:' .. row)
end
-- Whether there is more of it. A row is never given to another job.
function X.forgetRest(row)
  local rest = T .. 'ag:' .. row
  for _, one in ipairs(call('SPOP', rest, 1000)) do
    if call('SISMEMBER', T .. 'al:' .. row, one) == 0 then call('SREM', T .. 'wa:' .. one, row) end
  end
  if call('EXISTS', rest) == 1 then return true end
  call('SREM', T .. 'agl', row)
  return false
end
-- Of any job. Returns whether there is more.
function X.forgetSome()
  local row = call('SRANDMEMBER', T .. 'agl')
  if not row then return false end
  wrote = true
  return X.forgetRest(row) or call('EXISTS', T .. 'agl') == 1
end
-- Whom it waits for. Before it does, this changes nothing: only a job that waits is woken.
function X.await(j, ids)
  local row = int(j.row)
  J.set(j, 'wt', '1')
  for _, id in ipairs(ids) do
    local one = J.byId(id)
    if one then
      call('SADD', T .. 'al:' .. row, int(one.row))
      call('SADD', T .. 'wa:' .. int(one.row), row)
      J.set(one, 'wa', '1')
      if one.state < SUCCEEDED then call('SADD', T .. 'aw:' .. row, int(one.row)) end
    end
  end
end
function X.begin(j, wait)
  if not wait.isPrepared then X.forget(j) end
  call('HSET', T .. 'wt:' .. int(j.row), 'step', wait.step, 'due', wait.forMs and int(now + wait.forMs) or '', 'signal', wait.signal or '', 'jobs', wait.jobs and '1' or '')
  X.await(j, wait.jobs or {})
  if wait.signal or wait.jobs then X.wake(j) end
end
-- A job has ended, or was taken out of its end again. Every change of a job's state comes through here.
function X.consequences(j, ended)
  if ended then
    B.endBlock(j)
    rerun(j)
  end
  if not j.d.wa then return end
  local row = int(j.row)
  for _, waiter in ipairs(call('SMEMBERS', T .. 'wa:' .. row)) do
    if ended then
      call('SREM', T .. 'aw:' .. waiter, row)
      X.wake(J.get(tonumber(waiter)))
    elseif call('SISMEMBER', T .. 'al:' .. waiter, row) == 1 then call('SADD', T .. 'aw:' .. waiter, row) end
  end
end
`;

/** The counters, in the order in which a change names what it adds to them. */
export const COUNTERS = ["errors", "crashes", "blamed", "timeouts", "interruptions", "losses"] as const;
export const COUNTER_FIELDS = ["er", "cr", "bl", "ti", "in", "lo"] as const;

export const CHANGES = /* lua */ `
local C = {}
local COUNTERS = {'er', 'cr', 'bl', 'ti', 'in', 'lo'}
function C.read()
  local name = arg()
  if name == 'succeed' then return {name = name, to = SUCCEEDED, outcome = 'succeeded', result = opt(), rows = B.readRows(), follow = D.readAll()} end
  local c = {name = name, to = num(), outcome = opt(), delay = num(), error = opt(), reason = opt(), add = {}}
  for i, field in ipairs(COUNTERS) do c.add[field] = num() end
  c.resets, c.resolves, c.together, c.unstarted, c.result = opt(), opt(), optnum(), opt(), opt()
  local what = arg()
  if what ~= '' then
    local wait = {step = arg(), forMs = optnum()}
    if what == 'signal' then wait.signal = arg() end
    if what == 'jobs' then
      wait.jobs, wait.isPrepared = {}, arg() == '1'
      for i = 1, num() do wait.jobs[i] = arg() end
    end
    c.wait = wait
  end
  c.rows = B.readRows()
  c.follow = D.readAll()
  if arg() == '1' then c.alt = C.read() end
  return c
end
function C.of(j, change) return j.d.ca and change.alt or change end
local function dueAt(c)
  if c.to ~= QUEUED then return nil end
  if c.resolves then return NEVER_DUE end
  if c.wait then return c.wait.forMs and now + c.wait.forMs or NO_TIMEOUT end
  return c.delay > 0 and now + c.delay or nil
end
function C.counters(j, c)
  for _, field in ipairs(COUNTERS) do
    local count = math.max(0, (c.resets and 0 or J.count(j, field)) + c.add[field])
    J.set(j, field, count > 0 and count or nil)
  end
end
local function setResult(j, result)
  if result then J.setResult(j.row, result) elseif j.state >= SUCCEEDED or j.had then call('HDEL', T .. 'o:' .. page(j.row), slot(j.row)) end
end
-- Writes the change, or its alternative if a cancel was requested, and its history. Returns which.
function C.apply(j, change, actor, incident)
  local c = C.of(j, change)
  local before, outcome = j.state, J.outcome(j)
  B.endRows(j, c.rows, c.name == 'succeed')
  J.leave(j)
  if c.name == 'succeed' then
    setResult(j, c.result)
    j.state, j.finished = SUCCEEDED, now
    J.set(j, 'oc', nil)
    K.relocate(j)
    J.enter(j)
    X.consequences(j, true)
    return c
  end
  if c.reason then J.history(j, c.name, c.to, actor, j.epoch, j.fence, incident, c.reason) end
  if before == SUCCEEDED then setResult(j, nil) end
  C.counters(j, c)
  j.state, j.finished = c.to, now
  J.set(j, 'oc', c.outcome or outcome)
  if c.error then J.set(j, 'ex', c.error) end
  J.set(j, 'ra', dueAt(c))
  J.set(j, 'ic', c.to == QUEUED and incident or nil)
  if c.together or c.resets then J.set(j, 'to', (c.together or 0) > 0 and c.together or nil) end
  J.set(j, 'ca', nil)
  if c.unstarted then K.returnStarts(j) end
  K.relocate(j)
  J.enter(j)
  if c.wait then X.begin(j, c.wait) end
  if (c.to >= SUCCEEDED) ~= (before >= SUCCEEDED) then X.consequences(j, c.to >= SUCCEEDED) end
  return c
end
`;

/**
 * A cancel that includes the children of a job, as in sqlite/families.ts. `fc` has one field for each such parent, who asked and the change of a
 * child as its arguments; `fd` has those parents that may have children left to cancel. `ch:` of a parent has its children that have not begun, and
 * follows from their records, so a piece needs no cursor: what is cancelled leaves it. `EXPIRE` is the change of a job that expires (scripts.ts).
 */
export const FAMILIES = /* lua */ `
F = {}
-- Each takes 25 to 40 us, and a turn has other work: with 250 and 500 it took more than 10 ms.
function F.record(j, actor, change)
  wrote = true
  call('HSET', T .. 'fc', int(j.row), cjson.encode({actor, change}))
  call('ZADD', T .. 'fd', int(now), int(j.row))
end
function F.withdraw(row)
  call('HDEL', T .. 'fc', int(row))
  call('ZREM', T .. 'fd', int(row))
end
function F.noteNewChildren(row)
  if call('HEXISTS', T .. 'fc', int(row)) == 1 then call('ZADD', T .. 'fd', int(now), int(row)) end
end
-- The parent is deleted: what is left to cancel stays.
function F.forget(row)
  if not call('ZSCORE', T .. 'fd', int(row)) then call('HDEL', T .. 'fc', int(row)) end
end
function F.isDue() return call('EXISTS', T .. 'fd') == 1 end
local function changeOf(texts)
  local args, position = A, at
  A, at = cjson.decode(texts), 1
  local change = C.read()
  A, at = args, position
  return change
end
-- Ends a piece of the jobs of which no attempt has begun in time: \`expire\` of job/transitions.ts. Returns whether more are left.
function F.expirePiece(most)
  local rows = call('ZRANGEBYSCORE', T .. 'xp', '-inf', int(now), 'LIMIT', 0, most)
  if #rows == 0 then return false, 0 end
  wrote = true
  for i = 1, #rows do rows[i] = tonumber(rows[i]) end
  J.fetch(rows)
  local change = changeOf(EXPIRE)
  for _, row in ipairs(rows) do C.apply(J.get(row), change, 'system/expiry', nil) end
  settleIndexes()
  return #rows == most, #rows
end
-- Cancels a piece of the family that has waited longest. Indexes are settled.
function F.cancelPiece(most)
  local row = call('ZRANGE', T .. 'fd', 0, 0)[1]
  if not row then return 0 end
  wrote = true
  local kept = cjson.decode(call('HGET', T .. 'fc', row))
  local children = call('ZRANGE', T .. 'ch:' .. row, 0, most - 1)
  for i = 1, #children do children[i] = tonumber(children[i]) end
  J.fetch(children)
  local change = changeOf(kept[2])
  for _, child in ipairs(children) do C.apply(J.get(child), change, kept[1], nil) end
  if #children == most then return most end
  -- A parent that runs may enqueue more.
  local parent = J.get(tonumber(row))
  if parent and parent.state < SUCCEEDED then call('ZREM', T .. 'fd', row) else F.withdraw(tonumber(row)) end
  return #children
end
`;

/** Writes under a lease: who owns the job, and what a refused write is answered with. */
export const LEASES = /* lua */ `
local L = {}
function L.read() return {row = num(), id = arg(), epoch = num(), fence = num(), worker = arg()} end
function L.owned(lease)
  local j = J.get(lease.row)
  if not j or j.id ~= lease.id or j.state ~= RUNNING or j.fence ~= lease.fence or j.epoch ~= lease.epoch then return nil end
  local w = W.own(lease.worker)
  return w and w.n == j.worker and j or nil
end
local function wasAccepted(j, lease, name)
  local of, actor = {}, 'worker/' .. lease.worker
  for _, text in ipairs(call('LRANGE', T .. 'hi:' .. int(j.row), 0, -1)) do
    local event, from, by, epoch, attempt = string.match(text, '^[^\\31]*\\31([^\\31]*)\\31([^\\31]*)\\31[^\\31]*\\31([^\\31]*)\\31([^\\31]*)\\31([^\\31]*)\\31')
    if tonumber(epoch) == lease.epoch and tonumber(attempt) == lease.fence then
      if name ~= 'succeed' and event == name and by == actor then return true end
      if name == 'succeed' and event == 'retry' and from == '2' then return true end
    end
  end
  if name ~= 'succeed' then return false end
  local w = W.find(lease.worker)
  return j.epoch == lease.epoch and j.fence == lease.fence and j.state ~= RUNNING and w and w.n == j.worker and J.outcome(j) == 'succeeded'
end
-- At most 100 refusals are kept of one job. \`settles\`: the name of the change that was tried.
function L.refused(lease, tried, settles)
  local j = J.get(lease.row)
  if j and j.id ~= lease.id then j = nil end
  if not j then return {'stale', '', '', '0', '0'} end
  if settles and wasAccepted(j, lease, settles) then return {'repeated'} end
  local refusals = 0
  for _, text in ipairs(call('LRANGE', T .. 'hi:' .. int(j.row), 0, -1)) do
    if string.find(text, '\\31write.rejected\\31', 1, true) then refusals = refusals + 1 end
  end
  if refusals < 100 then
    J.history(j, 'write.rejected', j.state, 'worker/' .. lease.worker, lease.epoch, lease.fence, nil,
      'refused: "' .. tried .. '" by worker ' .. lease.worker .. ' with (epoch ' .. int(lease.epoch) .. ', fence ' .. int(lease.fence) .. ')')
  end
  local worker = j.worker > 0 and call('HGET', T .. 'wi', int(j.worker)) or ''
  return {'stale', tostring(j.state), worker or '', int(j.epoch), int(j.fence)}
end
`;
