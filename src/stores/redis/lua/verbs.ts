// Lua: the body of each script. `arg`, `num` and the parts are those of the other files here. A body that returns {'!kind', name} has written nothing.

export const DECLARE = /* lua */ `
wrote = true
for i = 1, num() do
  local name, json, timeout, runtime, grace = arg(), arg(), arg(), arg(), arg()
  local n = kindNamed(name)
  if not n then
    n = call('HINCRBY', T .. 'meta', 'kinds', 1)
    call('HSET', T .. 'kinds', name, int(n))
    call('HSET', T .. 'k:' .. int(n), 'paused', '0', 'jobs', '0')
    numbersRead[name] = n
  end
  call('HSET', T .. 'k:' .. int(n), 'name', name, 'settings', json, 'timeout', timeout, 'runtime', runtime, 'grace', grace)
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

export const ENQUEUE = /* lua */ `
local drafts = D.readAll()
local unknown = D.undeclared(drafts)
if unknown then return {'!kind', unknown} end
return D.enqueue(drafts, nil)
`;

export const REGISTER = /* lua */ `
local id, json, lock, predecessor = arg(), arg(), arg(), arg()
if W.find(id) then return {'!known'} end
wrote = true
local n = call('HINCRBY', T .. 'meta', 'workers', 1)
call('HSET', T .. 'ws', id, int(n))
call('HSET', T .. 'wi', int(n), id)
call('HSET', T .. 'w:' .. int(n), 'id', id, 'record', json, 'state', 'live', 'started', int(now), 'heartbeat', int(now), 'beats', '0', 'lag', '0', 'runs', int(RUNS),
  'identity', lock)
call('ZADD', T .. 'fleet', 0, id)
if predecessor ~= '' then
  local before = W.find(predecessor)
  if before then call('HSET', T .. 'w:' .. int(before.n), 'successor', id) end
  local open = call('HGET', T .. 'lost', predecessor)
  if open and not call('HGET', T .. 'inc:' .. open, 'resolution') then call('HSET', T .. 'inc:' .. open, 'resolution', 'returned') end
end
return {int(EPOCH), int(now)}
`;

const SETTLEMENTS = /* lua */ `
local settlements = {}
local rows = {}
for i = 1, num() do
  settlements[i] = {lease = L.read(), change = C.read()}
  rows[i] = settlements[i].lease.row
end
J.fetch(rows)
for _, s in ipairs(settlements) do
  local j = L.owned(s.lease)
  local unknown = j and D.undeclared(C.of(j, s.change).follow)
  if unknown then return {'!kind', unknown} end
end
local settled, followed = {}, {}
for i, s in ipairs(settlements) do
  local j = L.owned(s.lease)
  if j then
    for _, draft in ipairs(C.apply(j, s.change, 'worker/' .. s.lease.worker, nil).follow) do followed[#followed + 1] = draft end
    settled[i] = {'applied'}
  else settled[i] = L.refused(s.lease, s.change.name, s.change.outcome and s.change.name) end
end
D.enqueue(followed, nil)
`;

export const SETTLE = `${SETTLEMENTS} return settled`;

/** Due jobs are made ready, at most 1,000 a turn; then doors, then the claim: by priority, then by row, of all kinds within their rooms. */
export const TURN = /* lua */ `
local id = arg()
${SETTLEMENTS}
local total, count, together, oldestFirst = num(), num(), optnum(), arg() == '1'
local w = W.own(id)
if not w or w.state ~= 'live' then
  return {settled, {}, 0, W.replaced(id), {}, '', 0, int(EPOCH)}
end
J.flush()
local left = 1000
for _, kind in ipairs(call('ZRANGEBYSCORE', T .. 'zk', '-inf', int(now), 'LIMIT', 0, 100)) do
  local rows = call('ZRANGEBYSCORE', T .. 'z:' .. kind, '-inf', int(now), 'LIMIT', 0, left)
  left = left - #rows
  for _, row in ipairs(rows) do
    local j = J.get(tonumber(row))
    J.leave(j)
    K.relocate(j)
    J.enter(j)
  end
  local first = call('ZRANGE', T .. 'z:' .. kind, 0, 0, 'WITHSCORES')
  if #first > 0 and tonumber(first[2]) < NO_TIMEOUT then call('ZADD', T .. 'zk', first[2], kind) else call('ZREM', T .. 'zk', kind) end
  wrote = true
  if left == 0 then break end
end
local woken = K.admit() + (X.woken or 0)
settleIndexes()
local ready, waiting, rooms = {}, {}, {}
if total > 0 then
  for i = 1, num() do
    local name, room, shares = arg(), num(), arg() == '1'
    local n = kindNamed(name)
    local kind = n and kindOf(n)
    if kind and not kind.paused and room > 0 then
      local most = math.min(room, total)
      rooms[n] = {place = shares and 0 or n, room = room}
      local rows = call('ZRANGE', T .. 'r:' .. int(n), 0, most - 1, 'WITHSCORES')
      for at = 1, #rows, 2 do ready[#ready + 1] = {row = tonumber(rows[at]), rank = tonumber(rows[at + 1]), kind = n} end
      local suspects = oldestFirst and call('ZRANGE', T .. 'u:' .. int(n), 0, most - 1) or call('ZRANGE', T .. 'v:' .. int(n), 0, most - 1)
      for _, member in ipairs(suspects) do waiting[#waiting + 1] = J.get(tonumber(oldestFirst and member or sub(member, 17))) end
    end
  end
end
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
      ready[#ready + 1] = {row = j.row, rank = rank(j), kind = j.kind}
    end
  end
end
table.sort(ready, function(a, b) return a.rank < b.rank end)
local chosen, used = {}, {}
for _, one in ipairs(ready) do
  if #chosen == total then break end
  local r = rooms[one.kind]
  if (used[r.place] or 0) < r.room then
    used[r.place] = (used[r.place] or 0) + 1
    chosen[#chosen + 1] = one
  end
end
local claimed = {}
if #chosen > 0 then
  -- What was enqueued by this very call is read like everything else.
  J.flush()
  wrote = true
  local pages, order = {}, {}
  for _, one in ipairs(chosen) do
    local p = page(one.row)
    if not pages[p] then pages[p] = {slots = {}, rows = {}} order[#order + 1] = p end
    local of = pages[p]
    of.slots[#of.slots + 1] = slot(one.row)
    of.rows[#of.rows + 1] = one.row
  end
  local inputs = {}
  for _, p in ipairs(order) do
    local of = pages[p]
    local records = call('HMGET', T .. 'j:' .. p, unpack(of.slots))
    local texts = call('HMGET', T .. 'i:' .. p, unpack(of.slots))
    for i, row in ipairs(of.rows) do
      if jobs[row] == nil then parse(row, records[i]) end
      inputs[row] = texts[i] or ''
    end
  end
  local plain, held, running, earliest = {}, {}, {}, nil
  for _, one in ipairs(chosen) do
    local j = jobs[one.row]
    local kind, text = kindOf(j.kind), int(j.row)
    local extra = ''
    if j.had or j.changed then
      J.leave(j)
      settleIndexes()
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
      extra = {d, steps, wait, J.suspect(j) and int(J.bound(j)) or ''}
    else
      plain[j.kind] = plain[j.kind] or {}
      table.insert(plain[j.kind], text)
    end
    running[j.kind] = running[j.kind] or {}
    table.insert(running[j.kind], text)
    held[#held + 1] = text
    j.state, j.worker, j.epoch, j.fence, j.started = RUNNING, w.n, EPOCH, j.fence + 1, now
    j.deadline = kind.timeout and now + kind.timeout or nil
    if j.deadline and (not earliest or j.deadline + kind.grace < earliest) then earliest = j.deadline + kind.grace end
    J.put(j)
    claimed[#claimed + 1] = {text, j.id, kind.name, int(j.fence), inputs[j.row], kind.timeout and int(kind.timeout) or '', extra}
  end
  for kind, rows in pairs(plain) do many('ZREM', T .. 'r:' .. int(kind), rows) end
  for kind, rows in pairs(running) do many('SADD', T .. 'run:' .. int(kind), rows) end
  many('SADD', T .. 'held:' .. int(w.n), held)
  if earliest then call('ZADD', T .. 'dl', 'LT', int(earliest), int(w.n)) end
end
local cancels = {}
for _, row in ipairs(call('SMEMBERS', T .. 'cc:' .. int(w.n))) do cancels[#cancels + 1] = J.get(tonumber(row)).id end
local next = K.nextIn()
local first = call('ZRANGE', T .. 'zk', 0, 0, 'WITHSCORES')
if #first > 0 then
  local due = math.max(0, tonumber(first[2]) - now)
  if not next or due < next then next = due end
end
return {settled, claimed, 1, '', cancels, next and int(next) or '', woken, int(EPOCH)}
`;

/** The small writes of attempts. None of them ends an attempt, so who owns what is the same before the first of them as before the last. */
export const WRITE = /* lua */ `
local writes = {}
for i = 1, num() do
  local one = {lease = L.read(), type = arg(), tried = arg()}
  if one.type == 'step' then one.name, one.value = arg(), arg()
  elseif one.type == 'progress' or one.type == 'log' then one.value = arg()
  elseif one.type == 'enqueue' then one.drafts = D.readAll()
  elseif one.type == 'holdOff' then one.key, one.forMs = arg(), num()
  elseif one.type == 'signal' then one.step, one.name, one.ended, one.nothing = arg(), arg(), arg() == '1', arg() end
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
    elseif one.type == 'enqueue' then answers[i] = {'applied', 'enqueued', D.enqueue(one.drafts, j.row)}
    elseif one.type == 'holdOff' then
      local key = T .. 'key:' .. one.key
      local before = tonumber(call('HGET', key, 'until') or 0)
      if now + one.forMs > before then call('HSET', key, 'until', int(now + one.forMs)) end
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

/** The digest is \`leaseHash\` of job/lease.ts. */
export const BEAT = /* lua */ `
local id, lag, leases = arg(), arg(), arg() == '1'
local replaced, w = W.replaced(id), W.own(id)
local live = w and w.state == 'live'
if live then
  wrote = true
  call('HSET', T .. 'w:' .. int(w.n), 'beats', int(tonumber(w.beats) + 1), 'heartbeat', int(now), 'lag', lag)
end
local count, digest, overdue, list = 0, 0, {}, {}
if w then
  local rows = call('SMEMBERS', T .. 'held:' .. int(w.n))
  for _, row in ipairs(rows) do
    local j = J.get(tonumber(row))
    local x = ((j.row % 67108864) * 40503021 % 67108864 + (j.epoch % 67108864) * 15485863 % 67108864 + (j.fence % 67108864) * 22695477 % 67108864) % 67108864
    count, digest = count + 1, digest + floor(x * x / 1048576)
    local kind = kindOf(j.kind)
    if j.deadline and j.deadline + kind.grace < now then
      overdue[#overdue + 1] = {j.id, int(j.deadline + kind.grace), int((kind.timeout or 0) + kind.grace)}
    end
    if leases then list[#list + 1] = J.show(j) end
  end
end
return {live and 1 or 0, replaced, count, int(digest), overdue, list, int(now)}
`;

/** A worker of a former run of the server that nobody has recovered. */
export const FORMER = /* lua */ `
local w = W.find(arg())
return w and w.runs < RUNS and w.state == 'live' and 1 or 0
`;

export const END_FORMER = /* lua */ `
local w = W.find(arg())
if not w or w.runs == RUNS or w.state ~= 'live' or W.holds(w) > 0 then return 0 end
wrote = true
call('HSET', T .. 'w:' .. int(w.n), 'state', 'gone')
call('ZREM', T .. 'fleet', w.id)
call('ZADD', T .. 'over', int(now), w.id)
call('ZREM', T .. 'dl', int(w.n))
return 1
`;

export const LEAVE = /* lua */ `
local w = W.own(arg())
if not w or w.state ~= 'live' or W.holds(w) > 0 then return 0 end
wrote = true
call('HSET', T .. 'w:' .. int(w.n), 'state', 'stopped', 'heartbeat', int(now))
call('ZREM', T .. 'fleet', w.id)
call('ZADD', T .. 'over', int(now), w.id)
call('ZREM', T .. 'dl', int(w.n))
return 1
`;

/** Under guard: the evidence of its incident is still the one from which the new one was made. */
export const NOTE_DEATH = /* lua */ `
local id, words, before, after = arg(), arg(), arg(), arg()
local w = W.find(id)
if not w then return 1 end
local incident = w.incident and call('EXISTS', T .. 'inc:' .. w.incident) == 1 and w.incident
if incident and (call('HGET', T .. 'inc:' .. incident, 'evidence') or '') ~= before then return 0 end
wrote = true
call('HSET', T .. 'w:' .. int(w.n), 'word', words)
if incident then call('HSET', T .. 'inc:' .. incident, 'evidence', after) end
return 1
`;

const SHOW_WORKER = /* lua */ `
local function show(id, ids)
  local n = call('HGET', T .. 'ws', id)
  if not n then return nil end
  local v = call('HMGET', T .. 'w:' .. n, 'record', 'state', 'started', 'heartbeat', 'beats', 'lag', 'word', 'runs', 'incident', 'identity', 'id')
  local held = call('SCARD', T .. 'held:' .. n)
  local names = {}
  if ids > 0 and held > 0 then
    local rows = call('SMEMBERS', T .. 'held:' .. n)
    for i = 1, #rows do rows[i] = tonumber(rows[i]) end
    table.sort(rows)
    for i = 1, math.min(ids, #rows) do names[i] = J.get(rows[i]).id end
  end
  return {v[11], v[1], v[2], v[3], v[4], v[5], v[6], v[7] or '', v[7] and 1 or 0, tonumber(v[8]) < RESTORED and 1 or 0, v[9] or '', held, names}
end
`;

export const WORKER = /* lua */ `
${SHOW_WORKER}
local id = arg()
local shown = show(id, 0)
if not shown then return {} end
local evidence = shown[11] ~= '' and call('HGET', T .. 'inc:' .. shown[11], 'evidence') or ''
return {shown, evidence or ''}
`;

/** Present workers by id; of those that ended a piece at a time, by when. */
export const LIST_WORKERS = /* lua */ `
${SHOW_WORKER}
local which, after, limit, ids = arg(), arg(), num(), num()
local list = {}
if which == 'present' then
  for _, id in ipairs(call('ZRANGEBYLEX', T .. 'fleet', after == '' and '-' or '(' .. after, '+', 'LIMIT', 0, limit)) do list[#list + 1] = show(id, ids) end
  return list
end
local from = num()
local over = call('ZRANGE', T .. 'over', from, from + 999)
for _, id in ipairs(over) do
  local n = call('HGET', T .. 'ws', id)
  if which == 'all' or call('SCARD', T .. 'held:' .. n) > 0 then list[#list + 1] = show(id, ids) end
end
return {#over, list}
`;

export const CONDEMN = /* lua */ `
local id, proof, beats, identity, word = arg(), arg() == '1', arg(), arg(), arg()
local incident, recovery, json, evidence, how = arg(), arg(), arg(), arg(), arg()
local w = W.find(id)
if not w then return '' end
local holds = W.holds(w)
if w.state == 'live' then
  if not proof and (w.beats ~= beats or w.identity ~= identity) then return '' end
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
local suspects = 0
for _, row in ipairs(call('SMEMBERS', T .. 'held:' .. int(w.n))) do if J.suspect(J.get(tonumber(row))) then suspects = suspects + 1 end end
call('HSET', T .. 'inc:' .. incident, 'record', json, 'recovery', recovery, 'worker', id, 'how', how, 'evidence', evidence, 'held', holds, 'suspects', suspects, 'cursor', '0')
if w.successor and how ~= 'gone' then call('HSET', T .. 'inc:' .. incident, 'resolution', 'returned') end
call('ZADD', T .. 'inc', 0, incident)
if how ~= 'gone' then
  call('HSET', T .. 'lost', id, incident)
  call('ZADD', T .. 'losses', 0, incident)
end
call('HSET', T .. 'w:' .. int(w.n), 'state', 'recovering', 'incident', incident)
return {incident, '1', '0', how, int(holds), int(suspects)}
`;

const SHOW_HELD = /* lua */ `
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
  return {J.show(j), last}
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

/** Only workers that may hold something overdue are read; the time of those that do not is set right. */
export const OVERDUE = /* lua */ `
${SHOW_HELD}
local margin, asOf, steady, limit = num(), num(), num(), num()
local upTo = math.min(now, asOf)
local found = {}
for _, n in ipairs(call('ZRANGEBYSCORE', T .. 'dl', '-inf', '(' .. int(upTo - margin), 'LIMIT', 0, 200)) do
  local earliest = nil
  for _, row in ipairs(call('SMEMBERS', T .. 'held:' .. n)) do
    local j = J.get(tonumber(row))
    local kind = kindOf(j.kind)
    if j.deadline then
      local expires = j.deadline + kind.grace
      if not earliest or expires < earliest then earliest = expires end
      if (kind.timeout or 0) + kind.grace + margin < steady and expires + margin < upTo then found[#found + 1] = j end
    end
  end
  if earliest then call('ZADD', T .. 'dl', int(earliest), n) else call('ZREM', T .. 'dl', n) end
end
table.sort(found, function(a, b) return a.deadline < b.deadline end)
local list = {}
for i = 1, math.min(limit, #found) do list[i] = show(found[i]) end
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
local taken, cursor = {}, 0
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
  if incident and became ~= 'moved' and sub(became, 1, 1) ~= '!' then call('HSET', T .. 'incj:' .. incident, int(v.row), note) end
  taken[i] = became
  cursor = math.max(cursor, v.row)
end
if incident then
  local key = T .. 'inc:' .. incident
  if cursor > tonumber(call('HGET', key, 'cursor')) then call('HSET', key, 'cursor', int(cursor)) end
  if last then
    call('HSETNX', key, 'completed', int(now))
    call('HSET', T .. 'w:' .. int(w.n), 'state', 'gone')
    call('ZREM', T .. 'fleet', id)
    call('ZADD', T .. 'over', int(now), id)
    settleIndexes()
    if W.holds(w) == 0 then call('ZREM', T .. 'dl', int(w.n)) end
  end
end
return taken
`;

/** A walk by rows, a piece at a time, that ends at the first job that is too young to have finished long ago. */
export const PURGE = /* lua */ `
local finishedBefore, incidentsBefore, limit = now - num(), now - num(), num()
local after, lastRow = tonumber(call('HGET', T .. 'meta', 'purged') or 0), tonumber(call('HGET', T .. 'meta', 'row') or 0)
local low = tonumber(call('HGET', T .. 'meta', 'low') or 0)
local p, looked, last, scanned = math.max(low, floor((after + 1) / 64)), {}, nil, 0
while #looked < limit and p * 64 <= lastRow and scanned < 500 do
  scanned = scanned + 1
  local flat = call('HGETALL', T .. 'j:' .. int(p))
  if #flat == 0 and p == low then
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
  local parent = j.d.pr and J.get(tonumber(j.d.pr))
  if j.state >= SUCCEEDED and j.finished < finishedBefore and not (parent and parent.state < SUCCEEDED) then
    wrote = true
    purged = purged + 1
    local row = int(j.row)
    J.leave(j)
    call('HDEL', T .. 'j:' .. page(j.row), slot(j.row))
    call('HDEL', T .. 'i:' .. page(j.row), slot(j.row))
    call('HDEL', T .. 'o:' .. page(j.row), slot(j.row))
    call('HDEL', idKey(j.id), j.id)
    call('HINCRBY', T .. 'k:' .. int(j.kind), 'jobs', -1)
    call('DEL', T .. 'hi:' .. row)
    if j.had then
      X.forget(j)
      for _, waiter in ipairs(j.d.wa and call('SMEMBERS', T .. 'wa:' .. row) or {}) do
        call('SREM', T .. 'al:' .. waiter, row)
        call('SREM', T .. 'aw:' .. waiter, row)
      end
      call('UNLINK', T .. 'd:' .. row, T .. 's:' .. row, T .. 'l:' .. row, T .. 'wa:' .. row, T .. 'sg:' .. row, T .. 'sq:' .. row, T .. 'rr:' .. row)
    end
    jobs[j.row] = false
  end
end
local nextAfter = atEnd and 0 or (last and last.row or p * 64 - 1)
if nextAfter ~= after then call('HSET', T .. 'meta', 'purged', int(nextAfter)) end
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
return {purged, incidents, (not atEnd or incidents == limit) and 1 or 0}
`;

export const GET_JOB = /* lua */ `
local j = J.byId(arg())
if not j then return {} end
local row = int(j.row)
local p, s = page(j.row), slot(j.row)
return {J.show(j), call('HGET', T .. 'i:' .. p, s) or '', call('HGET', T .. 'o:' .. p, s) or '', j.d.st and call('HGETALL', T .. 's:' .. row) or {},
  call('LRANGE', T .. 'hi:' .. row, 0, -1), j.d.lg and call('LRANGE', T .. 'l:' .. row, 0, -1) or {}, int(now)}
`;

/** Jobs by their rows, with the settings of their kinds, their steps and their histories. */
export const JOBS = /* lua */ `
local list, kinds = {}, {}
for i = 1, num() do
  local j = J.get(num())
  if j then
    kinds[j.kind] = true
    list[i] = {J.show(j), j.d.st and call('HGETALL', T .. 's:' .. int(j.row)) or {}, call('LRANGE', T .. 'hi:' .. int(j.row), 0, -1)}
  else list[i] = {} end
end
local settings = {}
for n in pairs(kinds) do settings[#settings + 1] = kindOf(n).name settings[#settings + 1] = call('HGET', T .. 'k:' .. int(n), 'settings') end
return {list, settings, int(now)}
`;

export const OUTCOMES = /* lua */ `
local list = {}
for i = 1, num() do
  local j = J.byId(arg())
  list[i] = j and {j.state, call('HGET', T .. 'o:' .. page(j.row), slot(j.row)) or '', j.d.ex or ''} or {}
end
return list
`;

/** Walks pages from the top, at most 160 of them; says at which row it stopped, or nothing if that was all. */
export const LIST = /* lua */ `
local before, limit, state, kindName, parentId, text, createdBefore, createdAfter = num(), num(), optnum(), opt(), opt(), opt(), optnum(), optnum()
local kind = nil
if kindName then
  kind = kindNamed(kindName)
  if not kind then return {{}, '', int(now)} end
end
local parent = nil
if parentId then
  local j = J.byId(parentId)
  if not j then return {{}, '', int(now)} end
  parent = int(j.row)
end
local lastRow = tonumber(call('HGET', T .. 'meta', 'row') or 0)
local low = tonumber(call('HGET', T .. 'meta', 'low') or 0)
local p, scanned, found, stopped = floor(math.min(before - 1, lastRow) / 64), 0, {}, nil
while p >= low and scanned < 160 do
  scanned = scanned + 1
  local flat = call('HGETALL', T .. 'j:' .. int(p))
  local rows = {}
  for i = 1, #flat, 2 do
    local row = p * 64 + tonumber(flat[i])
    if row < before then rows[#rows + 1] = {row, flat[i + 1]} end
  end
  table.sort(rows, function(a, b) return a[1] > b[1] end)
  for _, one in ipairs(rows) do
    local j = jobs[one[1]] or parse(one[1], one[2])
    if (not state or j.state == state) and (not kind or j.kind == kind) and (not parent or j.d.pr == parent)
      and (not createdBefore or j.created < createdBefore) and (not createdAfter or j.created > createdAfter)
      and (not text or string.find(j.id, text, 1, true) or string.find(j.d.dk or '', text, 1, true) or string.find(j.d.ex or '', text, 1, true)) then
      if #found == limit then return {found, int(stopped), int(now)} end
      found[#found + 1] = J.show(j)
      stopped = j.row
    end
  end
  p = p - 1
end
if p >= low then return {found, int((p + 1) * 64), int(now)} end
return {found, '', int(now)}
`;

export const COUNTS = /* lua */ `
local list = {}
for n = 1, tonumber(call('HGET', T .. 'meta', 'kinds') or 0) do
  local kind, k = kindOf(n), int(n)
  local all = tonumber(call('HGET', T .. 'k:' .. k, 'jobs'))
  local due = call('ZCOUNT', T .. 'z:' .. k, '-inf', int(now))
  local delayed = call('ZCARD', T .. 'z:' .. k) - due
  local ready = call('ZCARD', T .. 'r:' .. k) + call('ZCARD', T .. 'u:' .. k) + due
  local held, running = call('SCARD', T .. 'hk:' .. k), call('SCARD', T .. 'run:' .. k)
  local dead, cancelled, quarantined = call('SCARD', T .. 't3:' .. k), call('SCARD', T .. 't4:' .. k), call('SCARD', T .. 't5:' .. k)
  local oldest = ''
  local first = call('ZRANGE', T .. 'r:' .. k, 0, 0)[1]
  local j = first and J.get(tonumber(first))
  if j then oldest = int(math.max(0, now - math.max(j.created, J.runAt(j) or 0))) end
  list[n] = {kind.name, kind.paused and 1 or 0, ready, oldest, delayed, held, running,
    all - ready - delayed - held - running - dead - cancelled - quarantined, dead, cancelled, quarantined}
end
return list
`;

export const AHEAD = /* lua */ `
local j = J.byId(arg())
if not j or j.state ~= QUEUED or j.d.ln then return '' end
local before = call('ZRANK', T .. 'r:' .. int(j.kind), int(j.row))
return before and int(before) or ''
`;

export const SUSPECTS = /* lua */ `
local list = {}
for _, id in ipairs(call('ZRANGE', T .. 'fleet', 0, -1)) do
  local w = W.find(id)
  if w and w.state == 'live' then
    local count, together = 0, 2147483647
    for _, row in ipairs(call('SMEMBERS', T .. 'held:' .. int(w.n))) do
      local j = J.get(tonumber(row))
      if J.suspect(j) then count = count + 1 together = math.min(together, J.bound(j)) end
    end
    if count > 0 then list[#list + 1] = {id, count, together} end
  end
end
return list
`;

const SHOW_INCIDENT = /* lua */ `
local function show(id, whole)
  local v = call('HMGET', T .. 'inc:' .. id, 'record', 'recovery', 'worker', 'how', 'resolution', 'completed', 'evidence', 'held')
  if not v[1] then return nil end
  local flat = call('HGETALL', T .. 'incj:' .. id)
  local count = 0
  for i = 1, #flat, 2 do if not string.find(flat[i], ':', 1, true) then count = count + 1 end end
  return {id, v[1], v[2], v[3], v[4], v[5] or '', v[6] or '', v[7] or '', v[8], count, whole and flat or {}}
end
`;

export const INCIDENTS = /* lua */ `
${SHOW_INCIDENT}
local limit, after = num(), opt()
local list = {}
for _, id in ipairs(call('ZREVRANGEBYLEX', T .. 'inc', after and '(' .. after or '+', '-', 'LIMIT', 0, limit)) do list[#list + 1] = show(id, false) end
return list
`;

export const INCIDENT = /* lua */ `
${SHOW_INCIDENT}
return show(arg(), true) or {}
`;

export const LATEST_RECOVERY = /* lua */ `
${SHOW_INCIDENT}
local newest = call('ZREVRANGE', T .. 'inc', 0, 999)
local list, recovery = {}, nil
for _, id in ipairs(newest) do
  local of = call('HGET', T .. 'inc:' .. id, 'recovery')
  recovery = recovery or of
  if of ~= recovery then break end
  table.insert(list, 1, show(id, true))
end
return list
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
call('HSET', T .. 'incj:' .. arg(), arg(), arg())
return 1
`;

/** The jobs of a loss, as its incident keeps them. */
export const LOST_JOBS = /* lua */ `
return call('HGETALL', T .. 'incj:' .. arg())
`;

export const CANCEL = /* lua */ `
local id, actor = arg(), arg()
local j = J.byId(id)
if not j then return {'missing'} end
if j.state == RUNNING then
  J.history(j, 'cancel.requested', j.state, actor, j.epoch, j.fence, nil, 'its end was asked for while it ran')
  J.set(j, 'ca', '1')
  call('SADD', T .. 'cc:' .. int(j.worker), int(j.row))
  return {'requested'}
end
if j.state ~= QUEUED then return {'wrong-state', j.state} end
C.apply(j, C.read(), actor, nil)
return {'applied', 4}
`;

/** The changes from each terminal state come along, because only here is known which of them applies. */
export const RETRY = /* lua */ `
local id, actor = arg(), arg()
local j = J.byId(id)
if not j then return {'missing'} end
if j.state < SUCCEEDED then return {'wrong-state', j.state} end
local holder = j.d.dk and call('HGET', T .. 'dk:' .. int(j.kind), j.d.dk)
if holder then return {'key-held', J.get(tonumber(holder)).id, j.d.dk} end
local changes = {}
for state = 2, 5 do changes[state] = C.read() end
C.apply(j, changes[j.state], actor, nil)
return {'applied', 0}
`;

export const SIGNAL = /* lua */ `
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
return {'kept'}
`;

export const SET_LIMIT = /* lua */ `
local key = arg()
wrote = true
for _, name in ipairs({'running', 'interval', 'burst'}) do
  local value = opt()
  if value then call('HSET', T .. 'key:' .. key, name, value) else call('HDEL', T .. 'key:' .. key, name) end
end
K.wake(key)
return 1
`;

export const SET_PAUSED = /* lua */ `
local n = kindNamed(arg())
if not n then return 0 end
wrote = true
call('HSET', T .. 'k:' .. int(n), 'paused', arg())
return 1
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
call('HSET', T .. 'meta', 'lost', int(lost), 'restored', int(RUNS), 'why', 'the server started again or another one took over, and ' .. int(lost) .. ' operation(s) that a process had been told of are missing')
return int(lost)
`;

/** A piece of the store: every job of some pages with its texts, and what its indexes lack. */
export const CHECK = /* lua */ `
local p = num()
local lastRow = tonumber(call('HGET', T .. 'meta', 'row') or 0)
local list, wrong = {}, {}
local function missing(j, what) wrong[#wrong + 1] = 'job ' .. j.id .. ' is missing in ' .. what end
local stop = p + 16
while p < stop and p * 64 <= lastRow do
  local flat = call('HGETALL', T .. 'j:' .. int(p))
  for i = 1, #flat, 2 do
    local j = parse(p * 64 + tonumber(flat[i]), flat[i + 1])
    local row, kind, lane = int(j.row), int(j.kind), j.d.ln
    if call('HGET', idKey(j.id), j.id) ~= row then missing(j, 'the index of ids') end
    if j.state == QUEUED then
      local key = lane == 'h' and T .. 'h:' .. (j.d.dr or '') or T .. (lane or 'r') .. ':' .. kind
      if not call('ZSCORE', key, row) then missing(j, key) end
    elseif j.state == RUNNING then
      if call('SISMEMBER', T .. 'held:' .. int(j.worker), row) == 0 then missing(j, 'what its worker holds') end
    end
    if j.d.dk and j.state < SUCCEEDED and call('HGET', T .. 'dk:' .. kind, j.d.dk) ~= row then missing(j, 'the dedupe keys') end
    list[#list + 1] = {j.id, kindOf(j.kind).name, call('HGET', T .. 'i:' .. int(p), slot(j.row)) or '', call('HGET', T .. 'o:' .. int(p), slot(j.row)) or '',
      j.d.st and call('HGETALL', T .. 's:' .. row) or {}, j.state}
  end
  p = p + 1
end
return {list, wrong, p * 64 > lastRow and '' or int(p)}
`;
