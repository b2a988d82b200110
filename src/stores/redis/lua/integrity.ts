// Lua: what follows from the records of jobs, compared with what is kept, and built again. `I.own` and `I.awaited` are the list of all indexes: check and repair
// have no other. An index that a record belongs to and that is not listed there is neither checked nor repaired.
//
// Records are found by the numbers of their pages, from the lowest to the last row that was given, so no key is looked for by its name.

/**
 * Calls `put(type, key, member, value)` for everything that has to be kept because of this record. Types: h: field of a hash. s: member of a set.
 * q: the rank of a ready job of a kind, which is its member. z: member of a sorted set with this score. o: likewise, its order may be that of settings that have changed. l: likewise, at this score or a
 * lower one. k: member of a sorted set at this score, in which there is more than follows from the records of jobs: it is never removed. r: member of a sorted set that several jobs share. f: likewise, of a set. n: adds one to a score. c: adds one to a field.
 */
export const INDEXES = /* lua */ `
local I = {}
local LANES = {z = true, u = true, h = true}
function I.own(j, put)
  local row, kind, d = int(j.row), int(j.kind), j.d
  put('h', idKey(j.id), j.id, row)
  put('c', T .. 'kc', 'jobs:' .. kind, 1)
  if isNewChild(j) then put('z', T .. 'ch:' .. d.pr, row, j.row) end
  if mayExpire(j) then put('z', T .. 'xp', row, tonumber(d.xp)) end
  if j.state == QUEUED then
    local lane = LANES[d.ln] and d.ln or nil
    if lane == 'z' then
      local due = J.runAt(j) or 0
      put('z', T .. 'z:' .. kind, row, due)
      if due < NO_TIMEOUT then put('l', T .. 'zk', kind, due) end
    elseif lane == 'u' then
      put('z', T .. 'u:' .. kind, row, rank(j))
      put('z', T .. 'v:' .. kind, suspectMember(j), 0)
      put('f', T .. 'uk', kind)
    elseif lane == 'h' and d.dr then
      put('o', K.queueOf(j), row, K.rank(j))
      if d.rg then put('r', T .. 'hr:' .. d.dr, d.fr, d.fr) end
      put('s', T .. 'hk:' .. kind, row)
      if not K.isGate(d.dr) then put('n', T .. 'doors', d.dr, 1) end
    else
      put('q', T .. 'rs:' .. kind, j.kind, rank(j))
      put('c', T .. 'kc', 'rd:' .. kind, 1)
    end
  elseif j.state == RUNNING then
    put('s', T .. 'held:' .. int(j.worker), row)
    put('c', T .. 'kc', 'rn:' .. kind, 1)
    if d.ca then put('s', T .. 'cc:' .. int(j.worker), row) end
    if j.deadline then put('l', T .. 'dl', int(j.worker), j.deadline + (kindOf(j.kind).grace or 0)) end
  elseif j.state > SUCCEEDED then put('s', T .. 't' .. j.state .. ':' .. kind, row) end
  if d.dk and j.state < SUCCEEDED then put('h', T .. 'dk:' .. kind, d.dk, row) end
  if d.fr then put('f', T .. 'fk', kind) end
  if d.sn then put('k', T .. 'so:' .. d.sn, j.id, tonumber(d.sa)) end
  if d.bn and call('EXISTS', T .. 'b:' .. d.bn) == 1 then
    local round = d.bn .. ':' .. d.br
    put('k', T .. 'bb:' .. round, row, tonumber(d.bo))
    local endedBadly = (j.state == 3 or j.state == 5) and string.find(d.mk or '0', '0', 1, true)
    if endedBadly or call('EXISTS', T .. 'br:' .. round .. ':' .. d.bo) == 1 then put('k', T .. 'bf:' .. round, d.bo, tonumber(d.bo)) end
  end
  for _, key in ipairs(d.pl and K.list(j) or {}) do
    if d.pl == 't' then
      put('s', T .. 'kt:' .. key.id, row)
      if j.state == QUEUED then put('s', T .. 'ku:' .. key.id, row) end
    elseif d.pl == 'b' or d.pl == 'f' then put('s', T .. 'kb:' .. key.id, row) end
  end
end
-- Whom it waits for is kept as it is; who of them is unfinished, and who waits for them, follows from that. Those whose rows have this remainder, or all.
function I.awaited(j, put, remainder, of)
  local row = int(j.row)
  for _, one in ipairs(j.d.wt and call('SMEMBERS', T .. 'al:' .. row) or {}) do
    local awaited = (not of or one % of == remainder) and J.get(tonumber(one))
    if awaited then
      put('s', T .. 'wa:' .. one, row)
      if awaited.state < SUCCEEDED then put('s', T .. 'aw:' .. row, one) end
    end
  end
end
-- Of some pages, and then, if their jobs wait for others, of these in pieces: one that waits for 2,000 took 35 ms. The argument says which piece, and so does what is returned:
-- where the walk goes on.
function I.inPieces(text, visit)
  local page, piece, pieces = string.match(text, '^(%d+)/?(%d*)/?(%d*)$')
  page, piece, pieces = tonumber(page), tonumber(piece), tonumber(pieces)
  local awaits = 0
  local nextPage = I.pages(page, function(j)
    if not piece and j.d.wt then awaits = awaits + call('SCARD', T .. 'al:' .. int(j.row)) end
    visit(j, not piece and I.own or function(one, put) I.awaited(one, put, piece, pieces) end, not piece)
  end)
  if piece and piece + 1 < pieces then return concat({int(page), int(piece + 1), int(pieces)}, '/') end
  if not piece and awaits > 0 then return concat({int(page), '0', int(math.ceil(awaits / 200))}, '/') end
  return nextPage
end
-- Every key that may have something about this job, whether or not its record says so now.
function I.names(j, name, each)
  local row = int(j.row)
  each(j, function(type, key) if type == 'h' or type == 's' or type == 'z' or type == 'o' or type == 'r' then name(key, type) end end)
  name(T .. 'ch:' .. row, 'z')
  name(T .. 'xp', 'z')
  name(T .. 'wa:' .. row, 's')
  name(T .. 'aw:' .. row, 's')
  for _, key in ipairs(K.bounds(j)) do
    name(T .. 'h:' .. key.id, 'o')
    if j.d.fr then
      name(T .. 'h:' .. key.id .. ':' .. j.d.fr, 'o')
      name(T .. 'hr:' .. key.id, 'r')
    end
    for _, of in ipairs({'kt:', 'ku:', 'kb:'}) do name(T .. of .. key.id, 's') end
  end
end
-- The jobs of a page, or of the first of many that are empty: a check of 1,024 jobs took 64 ms.
function I.pages(p, visit)
  local lastRow, low = tonumber(call('HGET', T .. 'meta', 'row') or 0), tonumber(call('HGET', T .. 'meta', 'low') or 0)
  local seen, empty = 0, 0
  p = math.max(p, low)
  while seen < 64 and empty < 200 and p * 64 <= lastRow do
    local flat = call('HGETALL', T .. 'j:' .. int(p))
    empty = empty + 1
    for i = 1, #flat, 2 do
      local row = p * 64 + tonumber(flat[i])
      visit(jobs[row] or parse(row, flat[i + 1]))
      seen = seen + 1
    end
    p = p + 1
  end
  return p * 64 > lastRow and '' or int(p)
end
-- The workers with these numbers; those whose rows were purged are left out.
function I.workers(from, visit)
  local last, upTo = tonumber(call('HGET', T .. 'meta', 'workers') or 0), from + 249
  for n = from, math.min(last, upTo) do
    local v = call('HMGET', T .. 'w:' .. int(n), 'id', 'state', 'incident', 'heartbeat')
    if v[1] then visit(int(n), v[1], v[2], v[3] or nil, v[4] or '0') end
  end
  return upTo >= last and '' or int(upTo + 1)
end
-- The kinds with these numbers; \`nextWorker\` is where the workers go on.
function I.kinds(from, nextWorker, visit)
  local last, upTo = tonumber(call('HGET', T .. 'meta', 'kinds') or 0), from + 249
  for n = from, math.min(last, upTo) do visit(n, int(n)) end
  return nextWorker == '' and upTo < last and int(upTo + 1) or nextWorker
end
-- A loss of contact that has not been judged; nothing: there is none, or it has.
function I.openLoss(incident)
  if not incident then return false end
  local v = call('HMGET', T .. 'inc:' .. incident, 'how', 'judged')
  return v[1] and v[1] ~= 'gone' and not v[2]
end
`;

/**
 * A piece of the store: every job of some pages with its texts, what its indexes lack, and how much each index has to have because of these jobs.
 * The sums of a whole walk are compared by \`sizes\`: an index that lacks nothing and has the right size has nothing else in it.
 */
export const CHECK = /* lua */ `
local list, wrong, sums, order = {}, {}, {}, {}
local function add(type, key, member, by)
  local name = type .. key .. (member and FIELD .. member or '')
  if not sums[name] then sums[name] = 0 order[#order + 1] = name end
  sums[name] = sums[name] + by
end
local nextPage = I.inPieces(arg(), function(j, each, isFirst)
  local row = int(j.row)
  local function missing(key) wrong[#wrong + 1] = 'job ' .. j.id .. ' is missing in ' .. key end
  local function compare(type, key, member, value)
    if type == 'h' then
      if call('HGET', key, member) ~= value then missing(key) end
    elseif type == 'q' then
      local c = int(floor(value / 256))
      local rows = call('ZSCORE', T .. 'r:' .. int(member), c) and call('HGET', key, c)
      if not rows or not string.find(rows, string.char(value % 256), 1, true) then missing(key) end
    elseif type == 's' or type == 'f' then
      if call('SISMEMBER', key, member) == 0 then missing(key) end
    elseif type == 'z' or type == 'o' or type == 'l' or type == 'r' or type == 'k' then
      local score = tonumber(call('ZSCORE', key, member) or nil)
      if not score or ((type == 'z' or type == 'k') and score ~= value) or (type == 'l' and key == T .. 'zk' and score > value) then missing(key) end
    end
    if type == 'n' or type == 'c' then add(type, key, member, 1)
    elseif type == 'q' then add('q', key, nil, 1)
    elseif type == 'h' or type == 's' or type == 'z' or type == 'o' then add(type == 'o' and 'z' or type, key, nil, 1) end
  end
  each(j, compare)
  if not isFirst then return end
  I.names(j, function(key, type)
    if type == 'h' or type == 'r' then return end
    local has = type == 's' and call('SCARD', key) or call('ZCARD', key)
    if has > 0 then add(type == 'o' and 'z' or type, key, nil, 0) end
  end, I.own)
  if j.state == RUNNING and not call('HGET', T .. 'w:' .. int(j.worker), 'id') then
    wrong[#wrong + 1] = 'job ' .. j.id .. ' is held by a worker that has no row'
  end
  if j.had and next(j.d) == nil then wrong[#wrong + 1] = 'job ' .. j.id .. ' has lost the part of its record in d:' .. row .. ' (its counters, its time, its keys)' end
  list[#list + 1] = {j.id, kindOf(j.kind).name or '', J.input(j.row), J.result(j.row),
    j.d.st and call('HGETALL', T .. 's:' .. row) or {}, j.state}
end)
local flat = {}
for i, name in ipairs(order) do flat[i * 2 - 1], flat[i * 2] = name, sums[name] end
return {list, wrong, nextPage, flat}
`;

/** Whether each index has as many members as its jobs are. */
export const SIZES = /* lua */ `
local wrong = {}
for i = 1, num() do
  local name, expected = arg(), num()
  local type, key, member = sub(name, 1, 1), string.match(sub(name, 2), '^([^' .. FIELD .. ']*)' .. FIELD .. '?(.*)$')
  local has
  if type == 'h' then has = call('HLEN', key)
  elseif type == 'q' then
    has = 0
    local chunks = call('HVALS', key)
    for _, rows in ipairs(chunks) do has = has + #rows end
    if call('ZCARD', (string.gsub(key, 'rs:(%d+)$', 'r:%1'))) ~= #chunks then has = -1 end
  elseif type == 's' then has = call('SCARD', key)
  elseif type == 'z' then has = call('ZCARD', key)
  elseif type == 'n' then has = tonumber(call('ZSCORE', key, member) or 0)
  else has = tonumber(call('HGET', key, member) or 0) end
  if has ~= expected then
    wrong[#wrong + 1] = key .. (member ~= '' and ' (' .. member .. ')' or '') .. ' has ' .. int(has) .. ' entries, and ' .. int(expected) .. ' jobs belong to it'
  end
end
return wrong
`;

/** Workers, their incidents, and kinds, and how many of the kinds are in each index of kinds. */
export const CHECK_WORKERS = /* lua */ `
local wrong, count = {}, 0
local from = num()
local function check(right, what) if not right then wrong[#wrong + 1] = what end end
local nextNumber = I.workers(from, function(n, id, state, incident)
  count = count + 1
  check(call('HGET', T .. 'ws', id) == n and call('HGET', T .. 'wi', n) == id, 'worker ' .. id .. ' is missing in the index of workers')
  local list = (state == 'live' or state == 'recovering') and 'fleet' or 'over'
  check(call('ZSCORE', T .. list, id), 'worker ' .. id .. ' is ' .. state .. ' and missing in ' .. T .. list)
  if incident and call('EXISTS', T .. 'inc:' .. incident) == 1 then
    check(call('ZSCORE', T .. 'inc', incident), 'incident ' .. incident .. ' is missing in ' .. T .. 'inc')
    if I.openLoss(incident) then
      check(call('ZSCORE', T .. 'losses', incident) and call('HGET', T .. 'lost', id) == incident, 'the loss ' .. incident .. ' is missing in ' .. T .. 'losses')
    end
  end
end)
local ready, suspects, pauses = 0, 0, 0
nextNumber = I.kinds(from, nextNumber, function(n, k)
  local name, first = call('HGET', T .. 'k:' .. k, 'name'), R.first(n, 1)[1]
  check(name, 'kind ' .. k .. ' has lost its settings; it is complete again when a program declares it')
  check(not name or call('HGET', T .. 'kinds', name) == k, 'the kind ' .. (name or '') .. ' is missing in ' .. T .. 'kinds')
  local kept, isSuspect = tonumber(call('ZSCORE', T .. 'rk', k) or nil), call('SISMEMBER', T .. 'uk', k)
  check(kept == first, 'the first ready job of the kind ' .. (name or k) .. ' is not the one in ' .. T .. 'rk')
  check(isSuspect == call('EXISTS', T .. 'u:' .. k), 'the suspects of the kind ' .. (name or k) .. ' do not match ' .. T .. 'uk')
  local pause, ends = call('HMGET', T .. 'k:' .. k, 'paused', 'pauseUntil'), call('ZSCORE', T .. 'kp', k)
  local expected = pause[1] == '1' and (tonumber(pause[2] or nil) or NEVER_DUE) or nil
  check(tonumber(ends or nil) == expected, 'the pause of the kind ' .. (name or k) .. ' is not the one in ' .. T .. 'kp')
  ready, suspects, pauses = ready + (kept and 1 or 0), suspects + isSuspect, pauses + (ends and 1 or 0)
end)
return {wrong, nextNumber, count, {call('HLEN', T .. 'ws'), call('HLEN', T .. 'wi'), call('ZCARD', T .. 'fleet') + call('ZCARD', T .. 'over')},
  {ready, suspects, pauses}, {call('ZCARD', T .. 'rk'), call('SCARD', T .. 'uk'), call('ZCARD', T .. 'kp')}}
`;

/** How many kinds and workers there ever were, and which of the workers are live: the names of their locks. */
export const EXTENT = /* lua */ `
local v = call('HMGET', T .. 'meta', 'kinds', 'workers')
return {v[1] or '0', v[2] or '0'}
`;

export const LIVE_WORKERS = /* lua */ `
local live = {}
local nextNumber = I.workers(num(), function(n, id, state) if state == 'live' then live[#live + 1] = id end end)
return {nextNumber, live}
`;

/** From here on every other call is refused, also after this process was killed, until a repair has come to its end. */
export const REPAIR_BEGIN = /* lua */ `
wrote = true
call('HSET', T .. 'meta', 'repair', '1')
-- Where the records begin is found again as well.
call('HDEL', T .. 'meta', 'low')
return 1
`;

/** Indexes by their names. UNLINK frees them in the background. */
export const REPAIR_CLEAR = /* lua */ `
if not META[5] then return 0 end
wrote = true
for i = 1, num() do call('UNLINK', arg()) end
return 1
`;

export const REPAIR_CLEAR_PAGES = /* lua */ `
if not META[5] then return '' end
wrote = true
local names = {}
local nextPage = I.inPieces(arg(), function(j, each) I.names(j, function(key) names[key] = true end, each) end)
for key in pairs(names) do call('UNLINK', key) end
return nextPage
`;

/** The argument is a change that releases a job whose worker has no row: no recovery would ever find it. */
export const REPAIR_FILL = /* lua */ `
if not META[5] then return '' end
wrote = true
local at, release = arg(), C.read()
return I.inPieces(at, function(j, each, isFirst)
  local orphan = isFirst and j.state == RUNNING and not call('HGET', T .. 'w:' .. int(j.worker), 'id')
  each(j, function(type, key, member, value)
    if type == 'h' then call('HSET', key, member, value)
    elseif type == 'q' then R.add(member, value)
    elseif type == 's' or type == 'f' then call('SADD', key, member)
    elseif type == 'l' then call('ZADD', key, 'LT', int(value), member)
    elseif type == 'n' then call('ZINCRBY', key, 1, member)
    elseif type == 'c' then if sub(member, 1, 3) ~= 'rd:' then call('HINCRBY', key, member, 1) end
    else call('ZADD', key, int(value), member) end
    local awaited = type == 's' and string.match(key, ':wa:(%d+)$')
    if awaited then J.set(J.get(tonumber(awaited)), 'wa', '1') end
  end)
  if orphan then C.apply(j, release, 'system/repair', nil) end
end)
`;

export const REPAIR_WORKERS = /* lua */ `
if not META[5] then return '' end
wrote = true
local from = num()
local nextNumber = I.workers(from, function(n, id, state, incident, heartbeat)
  call('HSET', T .. 'ws', id, n)
  call('HSET', T .. 'wi', n, id)
  if state == 'live' or state == 'recovering' then
    call('ZADD', T .. 'fleet', 0, id)
    call('ZREM', T .. 'over', id)
  else call('ZADD', T .. 'over', 'NX', heartbeat, id) end
  if incident and call('EXISTS', T .. 'inc:' .. incident) == 1 then
    call('ZADD', T .. 'inc', 0, incident)
    if I.openLoss(incident) then
      call('ZADD', T .. 'losses', 0, incident)
      call('HSET', T .. 'lost', id, incident)
    end
  end
end)
return I.kinds(from, nextNumber, function(n, k)
  local v = call('HMGET', T .. 'k:' .. k, 'name', 'paused', 'pauseUntil')
  if v[1] then call('HSET', T .. 'kinds', v[1], k) end
  call('HSET', T .. 'kc', 'jobs:' .. k, '0', 'rd:' .. k, '0', 'rn:' .. k, '0')
  if v[2] == '1' then call('ZADD', T .. 'kp', (v[3] or '') ~= '' and v[3] or int(NEVER_DUE), k) end
end)
`;

/** Every door is looked at again, and every cancel of a family that has children left. */
export const REPAIR_END = /* lua */ `
if not META[5] then return 0 end
wrote = true
many('SADD', T .. 'kw', call('ZRANGE', T .. 'doors', 0, -1))
for _, parent in ipairs(call('HKEYS', T .. 'fc')) do
  if call('EXISTS', T .. 'ch:' .. parent) == 1 then call('ZADD', T .. 'fd', int(now), parent) end
end
call('HDEL', T .. 'meta', 'repair')
return 1
`;
