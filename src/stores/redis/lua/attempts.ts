// Lua: the scripts on a job's way: kinds are declared, jobs enqueued, claimed, written about and settled. `arg`, `num` and the parts are those of the other
// files here. A body that returns {'!kind', name} has written nothing.

/** A record has two bytes for its kind. */
export const DECLARE = /* lua */ `
if tonumber(call('HGET', T .. 'meta', 'kinds') or 0) + tonumber(A[1]) > 65535 then error('a store has at most 65535 kinds') end
wrote = true
for i = 1, num() do
  local name, json, timeout, runtime, grace, keep = arg(), arg(), arg(), arg(), arg(), opt()
  local n = kindNamed(name)
  if not n then
    n = call('HINCRBY', T .. 'meta', 'kinds', 1)
    call('HSET', T .. 'kinds', name, int(n))
    call('HSET', T .. 'k:' .. int(n), 'paused', '0')
    call('HSET', T .. 'kc', 'jobs:' .. int(n), '0', 'rd:' .. int(n), '0', 'rn:' .. int(n), '0')
    numbersRead[name] = n
  end
  call('HSET', T .. 'k:' .. int(n), 'name', name, 'settings', json, 'timeout', timeout, 'runtime', runtime, 'grace', grace)
  if keep then call('HSET', T .. 'keep', int(n), keep) else call('HDEL', T .. 'keep', int(n)) end
end
local changed = false
for i = 1, num() do
  local name, settings = arg(), arg()
  if call('HGET', T .. 'limits', name) ~= settings then
    call('HSET', T .. 'limits', name, settings)
    changed = true
  end
end
if changed then
  call('ZREMRANGEBYSCORE', T .. 'doors', '-inf', 0)
  many('SADD', T .. 'kw', call('ZRANGE', T .. 'doors', 0, -1))
end
return 1
`;

/**
 * A list of kinds for the turns of a worker (Q.readList in plain.ts), in its row, which goes with it. 0: one of them was never declared, or this worker has no
 * row.
 */
export const KEEP_KINDS = /* lua */ `
local w, name, count = W.own(arg()), arg(), num()
if not w then return 0 end
local bytes, last = {}, 0
for i = 1, count do
  local n = kindNamed(arg())
  if not n then return 0 end
  local place = floor(n / 8)
  bytes[place] = (bytes[place] or 0) + 2 ^ (n % 8)
  last = math.max(last, place)
end
for place = 0, last do bytes[place] = string.char(bytes[place] or 0) end
wrote = true
call('HSET', T .. 'w:' .. int(w.n), 'kinds ' .. name, int(count) .. ':' .. concat(bytes, '', 0, last))
return 1
`;

export const ENQUEUE = /* lua */ `
local drafts = D.readAll()
local unknown = D.undeclared(drafts)
if unknown then return {'!kind', unknown} end
return D.enqueue(drafts, nil)
`;

/** First come those of one worker and one epoch that just succeed. Returns what did not apply, as place and answer. */
const SETTLEMENTS = /* lua */ `
local settlements, settled = {}, {}
local owner, ownerEpoch, plainCount = arg(), num(), num()
local plain = Q.readEnds(plainCount)
for i = 1, num() do settlements[i] = {place = plainCount + i, lease = L.read(), change = C.read()} end
local function fetchAll()
  local rows = {}
  for i, s in ipairs(settlements) do rows[i] = s.lease.row end
  J.fetch(rows)
end
fetchAll()
for _, s in ipairs(settlements) do
  local j = L.owned(s.lease)
  local unknown = j and D.undeclared(C.of(j, s.change).follow)
  if unknown then return {'!kind', unknown} end
end
if plainCount > 0 then
  local holder = settlesPlain(owner)
  local ends = Q.ends(holder, ownerEpoch, plain, plainCount)
  Q.writeEnds(holder, ends)
  for _, place in ipairs(ends.others) do
    local from = 4 * place - 3
    local result = plain[from + 3]
    settlements[#settlements + 1] = {place = place,
      lease = {row = tonumber(plain[from]), fence = tonumber(plain[from + 1]), id = plain[from + 2], epoch = ownerEpoch, worker = owner},
      change = {name = 'succeed', to = SUCCEEDED, outcome = 'succeeded', result = result ~= '' and result or nil, follow = {}}}
  end
  fetchAll()
end
local followed = {}
for _, s in ipairs(settlements) do
  local j = L.owned(s.lease)
  if j then
    for _, draft in ipairs(C.apply(j, s.change, 'worker/' .. s.lease.worker, nil).follow) do followed[#followed + 1] = draft end
  else settled[#settled + 1] = {s.place, L.refused(s.lease, s.change.name, s.change.outcome and s.change.name)} end
end
D.enqueue(followed, nil)
`;

const BY_OWNER = "local settlesPlain = W.own\n";

export const SETTLE = `${BY_OWNER}${SETTLEMENTS} return settled`;

/**
 * Ends that were acknowledged, and that the store has lost: it went back to a state in which these attempts ran. They count although their worker is
 * of a former run, because no other attempt has begun since: the record still has their fence.
 */
export const SETTLE_AGAIN = /* lua */ `
local function settlesPlain() return nil end
function L.owned(lease)
  local j = J.get(lease.row)
  if not j or j.id ~= lease.id or j.state ~= RUNNING or j.fence ~= lease.fence or j.epoch ~= lease.epoch then return nil end
  local w = W.find(lease.worker)
  return w and w.n == j.worker and j or nil
end
${SETTLEMENTS}
return #settlements - #settled
`;

/** Jobs that are not plain and that one script of a turn settles, makes ready, admits and claims, all together: 80 of them take 3 to 6 ms. */
const TURN_JOBS = 80;

/**
 * Due jobs are made ready; then doors, then the claim: by priority, then by row,
 * of all kinds within their rooms.
 */
export const TURN = /* lua */ `
local id = arg()
if not Q.readList(W.own(id)) then return {'!kinds'} end
${BY_OWNER}${SETTLEMENTS}
local total, count, together, oldestFirst, ahead, aheadBound = num(), num(), optnum(), arg() == '1', num(), num()
local w = W.own(id)
if not w or w.state ~= 'live' then
  return {settled, {}, {}, {}, 0, W.replaced(id), {}, '', 0, int(EPOCH), 0}
end
J.flush()
-- What this script may still do with jobs that are not plain, in number of jobs: each takes 30 to 100 us. The next script goes on.
local left = ${TURN_JOBS}
local function spend(count) left = math.max(10, left - count) end
spend(#settlements)
spend(F.cancelPiece(left))
-- What has expired must not be claimed. While more of it is left than one turn takes, nothing is.
local moreExpired, expired = F.expirePiece(left)
spend(expired)
spend(E.goOn(left))
for _, kind in ipairs(call('ZRANGEBYSCORE', T .. 'zk', '-inf', int(now), 'LIMIT', 0, 100)) do
  local rows = call('ZRANGEBYSCORE', T .. 'z:' .. kind, '-inf', int(now), 'LIMIT', 0, left)
  local isFull = #rows == left
  spend(#rows)
  for _, row in ipairs(rows) do
    local j = J.get(tonumber(row))
    J.leave(j)
    K.relocate(j)
    J.enter(j)
  end
  local first = call('ZRANGE', T .. 'z:' .. kind, 0, 0, 'WITHSCORES')
  if #first > 0 and tonumber(first[2]) < NO_TIMEOUT then call('ZADD', T .. 'zk', first[2], kind) else call('ZREM', T .. 'zk', kind) end
  wrote = true
  if isFull or left == 10 then break end
end
Q.readRooms(total + ahead)
local resumesIn = Q.resumesIn()
if moreExpired then Q.closeRooms() end
-- What a turn admits, it also claims.
local woken, goesOn = K.admit(total, floor(left / 2))
spend(woken)
woken = woken + (X.woken or 0)
settleIndexes()
local waiting = {}
for _, one in ipairs(Q.among(T .. 'uk')) do
  local n, most = int(one), math.max(1, math.min(Q.roomOf(one).room, total))
  local suspects = oldestFirst and call('ZRANGE', T .. 'u:' .. n, 0, most - 1) or call('ZRANGE', T .. 'v:' .. n, 0, most - 1)
  for _, member in ipairs(suspects) do waiting[#waiting + 1] = J.get(tonumber(oldestFirst and member or sub(member, 17))) end
end
if #waiting > 0 and (not together or count < together) then ahead = 0 end
if ahead > 0 then
  K.flush()
  if Q.isAtGate() then ahead = 0 end
end
local chosen, kinds, only = Q.ready(total, ahead)
if #waiting > 0 then
  table.sort(waiting, function(a, b)
    if a.priority ~= b.priority then return a.priority > b.priority end
    local x, y = J.bound(a), J.bound(b)
    if not oldestFirst and x ~= y then return x > y end
    return a.row < b.row
  end)
  local smallest = together or math.huge
  for _, j in ipairs(waiting) do
    local bound = math.min(smallest, J.bound(j))
    if count + 1 <= bound then
      count, smallest = count + 1, bound
      chosen[#chosen + 1] = rank(j)
      kinds[j.row] = j.kind
    end
  end
end
-- Those that are ready are in order, and no more than there is room for.
if #waiting > 0 then chosen = Q.fitting(chosen, kinds, only, total, ahead) end
local named, claimed, extras = {}, {}, {}
if #chosen > 0 then
  -- Of what was enqueued or admitted by this very call the record is in memory, and is written once, at the end.
  Q.flushInputs()
  local c = Q.claim(w, chosen, aheadBound)
  for _, rank in ipairs(chosen) do
    local row = rank % RANKS
    local n, text = kinds[row] or only, int(row)
    local of, v, isPlain = Q.nextOf(c, rank)
    if not v and not jobs[row] then R.remove(n, rank)
    elseif isPlain and jobs[row] == nil then
      Q.take(c, w, n, rank, of, v)
      R.remove(n, rank)
    elseif left == 0 then Q.isCut = true break
    else
      left = left - 1
      local j = jobs[row] or parse(row, v)
      J.leave(j)
      if j.d.dk then call('HSET', T .. 'dk:' .. int(j.kind), j.d.dk, text) end
      J.set(j, 'ln', nil)
      if j.d.ic then
        local listed = T .. 'incj:' .. j.d.ic
        if call('HEXISTS', listed, text) == 1 then call('HSETNX', listed, text .. ':resumed', int(now)) end
        J.set(j, 'ic', nil)
      end
      if j.d.ks then K.start(j) end
      local d, steps, wait = {}, {}, ''
      for name, value in pairs(j.d) do d[#d + 1] = name d[#d + 1] = value end
      if j.d.st then steps = call('HGETALL', T .. 's:' .. text) end
      if j.d.wt then
        local kept = call('HMGET', T .. 'wt:' .. text, 'step', 'due')
        if kept[1] and (not j.d.st or call('HEXISTS', T .. 's:' .. text, kept[1]) == 0) then wait = {kept[1], kept[2] ~= '' and int(tonumber(kept[2]) - now) or ''} end
      end
      local timeout = kindOf(j.kind).timeout
      j.state, j.worker, j.epoch, j.fence, j.started = RUNNING, w.n, EPOCH, j.fence + 1, now
      j.deadline = timeout and now + timeout + aheadBound or nil
      J.put(j)
      extras[#extras + 1] = {#c.claimed / 5, d, steps, wait, J.suspect(j) and int(J.bound(j)) or ''}
      Q.note(c, w, n, row, j.id, int(j.fence), of.inputs[of.next] or '')
    end
  end
  Q.writeClaim(c, w)
  named, claimed = c.named, c.claimed
end
local cancels = {}
for _, row in ipairs(call('SMEMBERS', T .. 'cc:' .. int(w.n))) do cancels[#cancels + 1] = J.get(tonumber(row)).id end
local next = (F.isDue() or goesOn or moreExpired) and 0 or K.nextIn()
local expiry = call('ZRANGE', T .. 'xp', 0, 0, 'WITHSCORES')
local first = call('ZRANGE', T .. 'zk', 0, 0, 'WITHSCORES')
local dues = {E.nextIn() or math.huge, #first > 0 and math.max(0, tonumber(first[2]) - now) or math.huge,
  resumesIn, #expiry > 0 and math.max(0, tonumber(expiry[2]) - now) or math.huge}
for _, due in ipairs(dues) do if due < (next or math.huge) then next = due end end
if #claimed < 5 * total and not Q.isCut then next = sleep(next) end
wakes = wakes or woken > 0 or goesOn
return {settled, named, claimed, extras, 1, '', cancels, next and int(next) or '', woken, int(EPOCH), Q.isCut and 1 or 0}
`;

/** Some of the jobs that this attempt is about to wait for: more than one script takes. The first piece forgets an earlier wait; 2: it has to be sent again for the rest of that. */
export const PREPARE_WAIT = /* lua */ `
local lease, isFirst, ids = L.read(), arg() == '1', {}
for i = 1, num() do ids[i] = arg() end
local j = L.owned(lease)
if not j then return 0 end
wrote = true
if isFirst then
  X.forget(j)
  local row = int(j.row)
  if call('EXISTS', T .. 'ag:' .. row) == 1 and X.forgetRest(row) then return 2 end
end
X.await(j, ids)
return 1
`;

/** The small writes of attempts. None of them ends an attempt, so who owns what is the same before the first of them as before the last. */
export const WRITE = /* lua */ `
local writes = {}
for i = 1, num() do
  local one = {lease = L.read(), type = arg(), tried = arg()}
  if one.type == 'step' then one.name, one.value = arg(), arg()
  elseif one.type == 'progress' or one.type == 'log' then one.value = arg()
  elseif one.type == 'enqueue' then one.drafts = D.readAll()
  elseif one.type == 'holdOff' then one.key, one.limit, one.name, one.forMs = arg(), arg(), arg(), num()
  elseif one.type == 'signal' then one.step, one.name, one.ended, one.nothing = arg(), arg(), arg() == '1', arg()
  elseif one.type == 'rows' then one.ends = B.readRows()
  elseif one.type == 'rowBegins' then one.row = num() end
  writes[i] = one
  local unknown = one.drafts and L.owned(one.lease) and D.undeclared(one.drafts)
  if unknown then return {'!kind', unknown} end
end
local function keepStep(j, name, value)
  local key = T .. 's:' .. int(j.row)
  local ordinal = call('HLEN', key)
  call('HSET', key, name, concat({int(ordinal), int(now), int(j.fence), value}, '\\31'))
  J.set(j, 'st', '1')
  if J.suspect(j) then
    J.set(j, 'cr', nil) J.set(j, 'bl', nil) J.set(j, 'lo', nil)
  end
end
local answers = {}
for i, one in ipairs(writes) do
  local j = L.owned(one.lease)
  answers[i] = {'applied'}
  if not j then answers[i] = L.refused(one.lease, one.tried, nil)
  else
    wrote = true
    local row = int(j.row)
    if one.type == 'step' then
      if call('HEXISTS', T .. 's:' .. row, one.name) == 0 then keepStep(j, one.name, one.value) end
    elseif one.type == 'progress' then J.set(j, 'pg', one.value)
    elseif one.type == 'log' then
      call('RPUSH', T .. 'l:' .. row, concat({int(now), int(j.fence), one.value}, '\\31'))
      call('LTRIM', T .. 'l:' .. row, -1000, -1)
      J.set(j, 'lg', '1')
    elseif one.type == 'heartbeat' then
      local kind = kindOf(j.kind)
      if kind.timeout then
        j.deadline = math.min(now + kind.timeout, kind.runtime and j.started + kind.runtime or math.huge)
        J.put(j)
        call('ZADD', T .. 'dl', 'LT', int(j.deadline + kind.grace), int(j.worker))
      end
    elseif one.type == 'enqueue' then
      answers[i] = {'applied', 'enqueued', D.enqueue(one.drafts, j.row)}
      F.noteNewChildren(j.row)
    elseif one.type == 'rows' then B.endRows(j, one.ends, false)
    elseif one.type == 'rowBegins' then B.begin(j, one.row)
    elseif one.type == 'holdOff' then
      local key = T .. 'key:' .. one.key
      local before = tonumber(call('HGET', key, 'until') or 0)
      if now + one.forMs > before then
        call('HSET', key, 'until', int(now + one.forMs))
        K.keep(one.key, one.limit, one.name)
      end
    elseif one.type == 'signal' then
      local kept = call('HGET', T .. 's:' .. row, one.step)
      if kept then answers[i] = {'applied', 'signal', 1, kept}
      else
        local found = X.hasSignal(row, one.name)
        if not found and not one.ended then answers[i] = {'applied', 'signal', 0}
        else
          local value = one.nothing
          if found then
            local text = call('HGET', T .. 'sg:' .. row, found)
            value = string.match(text, '^[^\\31]*\\31(.*)$')
            call('LREM', T .. 'sq:' .. row, 1, found)
          end
          keepStep(j, one.step, value)
          answers[i] = {'applied', 'signal', 1, call('HGET', T .. 's:' .. row, one.step)}
        end
      end
    end
  end
end
return answers
`;
