// Lua: the scripts that people, reports and checks read with.
import { BEGUN } from "./blocks.ts";
import { AT } from "./plain.ts";

export const GET_JOB = /* lua */ `
local j = J.byId(arg())
if not j then return {} end
local row = int(j.row)
return {J.show(j), J.input(j.row), J.result(j.row), j.d.st and call('HGETALL', T .. 's:' .. row) or {},
  call('LRANGE', T .. 'hi:' .. row, 0, -1), j.d.lg and call('LRANGE', T .. 'l:' .. row, 0, -1) or {}, int(now)}
`;

/** Jobs by their rows, with the settings of their kinds, their steps, their histories, and the input of a block that has begun a row. */
export const JOBS = /* lua */ `
${BEGUN}
local list, kinds = {}, {}
for i = 1, num() do
  local j = J.get(num())
  if j then
    kinds[j.kind] = true
    list[i] = {J.show(j), j.d.st and call('HGETALL', T .. 's:' .. int(j.row)) or {}, call('LRANGE', T .. 'hi:' .. int(j.row), 0, -1), begunInput(j)}
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
  list[i] = j and {j.state, J.result(j.row), j.d.ex or ''} or {}
end
return list
`;

/** So many pages of 64 jobs one script walks, 2 ms. With 160 of them a busy machine had scripts of more than 10 ms. */
export const LISTED_PAGES = 48;

/**
 * Walks pages from the top, a bounded number of them; says at which row it stopped, or nothing if that was all. What a record says in its bytes is compared there:
 * a page without a hit costs 25 to 45 us, and took 150 when each of its records was taken apart.
 */
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
local kindBytes = kind and struct.pack('>I2', kind)
local function mayFit(v)
  local b = byte(v)
  if state and b % 8 ~= state then return false end
  if kindBytes and sub(v, ${AT.kind}, ${AT.priority - 1}) ~= kindBytes then return false end
  if parent and b < 8 then return false end
  if createdBefore or createdAfter then
    local created = struct.unpack('>I6', v, ${AT.created})
    if createdBefore and created >= createdBefore or createdAfter and created <= createdAfter then return false end
  end
  return not text or b >= 8 or string.find(v, text, ${AT.id}, true) ~= nil
end
local function fitsWhole(j)
  return (not state or j.state == state) and (not kind or j.kind == kind) and (not parent or j.d.pr == parent)
    and (not createdBefore or j.created < createdBefore) and (not createdAfter or j.created > createdAfter)
    and (not text or string.find(j.id, text, 1, true) or string.find(j.d.dk or '', text, 1, true) or string.find(j.d.ex or '', text, 1, true))
end
local p, scanned, found, stopped = floor(math.min(before - 1, lastRow) / 64), 0, {}, nil
-- The few that have ended badly have their own sets: a million records were walked for none of them, in 0.5 s.
local lastKind = kind or tonumber(call('HGET', T .. 'meta', 'kinds') or 0)
local rare = state and state >= 3 and (kind or lastKind <= 2000) and {}
for n = kind or 1, rare and lastKind or 0 do
  local key = T .. 't' .. int(state) .. ':' .. int(n)
  if not rare or #rare + call('SCARD', key) > 1000 then rare = nil break end
  for _, row in ipairs(call('SMEMBERS', key)) do if tonumber(row) < before then rare[#rare + 1] = tonumber(row) end end
end
if rare then
  table.sort(rare, function(a, b) return a > b end)
  for i, row in ipairs(rare) do
    local j = J.get(row)
    if j and fitsWhole(j) then
      if #found == limit then return {found, int(stopped), int(now)} end
      found[#found + 1] = J.show(j)
      stopped = row
    end
    -- Each may have a hash of its own.
    if i % 300 == 0 and i < #rare then return {found, int(row), int(now)} end
  end
  return {found, '', int(now)}
end
while p >= low and scanned < ${LISTED_PAGES} do
  scanned = scanned + 1
  local key, fits = T .. 'j:' .. int(p), false
  for _, v in ipairs(call('HVALS', key)) do
    if mayFit(v) then fits = true break end
  end
  local flat = fits and call('HGETALL', key) or {}
  local rows = {}
  for i = 1, #flat, 2 do
    local row = p * 64 + tonumber(flat[i])
    if row < before and mayFit(flat[i + 1]) then rows[#rows + 1] = {row, flat[i + 1]} end
  end
  table.sort(rows, function(a, b) return a[1] > b[1] end)
  for _, one in ipairs(rows) do
    local j = jobs[one[1]] or parse(one[1], one[2])
    if fitsWhole(j) then
      if #found == limit then return {found, int(stopped), int(now)} end
      found[#found + 1] = J.show(j)
      stopped = j.row
    end
  end
  -- Records that are taken apart, each with a hash of its own perhaps, take longer than those that are not.
  scanned = scanned + #rows / 10
  p = p - 1
end
if p >= low then return {found, int((p + 1) * 64), int(now)} end
return {found, '', int(now)}
`;

/** Of 250 kinds, each as it is at one moment: about 3 ms if all have jobs. */
export const COUNTS = /* lua */ `
local list, from, last = {}, num(), tonumber(call('HGET', T .. 'meta', 'kinds') or 0)
for n = from, math.min(last, from + 249) do
  local kind, k = kindOf(n), int(n)
  local counted = call('HMGET', T .. 'kc', 'jobs:' .. k, 'rd:' .. k, 'rn:' .. k)
  local all, ready, running = tonumber(counted[1] or 0), tonumber(counted[2] or 0), tonumber(counted[3] or 0)
  local oldest, delayed, held, dead, cancelled, quarantined = '', 0, 0, 0, 0, 0
  local first = ready > 0 and R.first(n, 1)[1]
  if all > ready + running then
    delayed = call('ZCARD', T .. 'z:' .. k)
    local due = delayed > 0 and call('ZCOUNT', T .. 'z:' .. k, '-inf', int(now)) or 0
    delayed = delayed - due
    ready = ready + call('ZCARD', T .. 'u:' .. k) + due
    held = call('SCARD', T .. 'hk:' .. k)
    if all > ready + running + delayed + held then
      dead, cancelled, quarantined = call('SCARD', T .. 't3:' .. k), call('SCARD', T .. 't4:' .. k), call('SCARD', T .. 't5:' .. k)
    end
  end
  local j = first and J.get(first % RANKS)
  if j then oldest = int(math.max(0, now - math.max(j.created, J.runAt(j) or 0))) end
  local pause = kind.paused and call('HMGET', T .. 'k:' .. k, 'pauseAt', 'pauseUntil', 'pauseBy', 'pauseWhy') or {}
  for i = 1, 4 do pause[i] = pause[i] or '' end
  list[#list + 1] = {kind.name, kind.paused and 1 or 0, ready, oldest, delayed, held, running,
    all - ready - delayed - held - running - dead - cancelled - quarantined, dead, cancelled, quarantined, pause}
end
return {list, last > from + 249 and int(from + 250) or ''}
`;

/**
 * What people changed: au has the entries by id, as JSON, and an their ids in the order in which they were written. A filter goes through so many of them, and
 * says after which it goes on; nothing: that was all, or enough.
 */
export const AUDIT = /* lua */ `
local actor, action, target, limit, after = opt(), opt(), opt(), num(), opt()
local list, most = {}, '+inf'
if after then
  local score = call('ZSCORE', T .. 'an', after)
  if not score then return {list, ''} end
  most = '(' .. score
end
local filtered = actor or action or target
local ids = call('ZREVRANGEBYSCORE', T .. 'an', most, '-inf', 'LIMIT', 0, filtered and 500 or math.min(limit, 500))
local texts = #ids > 0 and call('HMGET', T .. 'au', unpack(ids)) or {}
for _, text in ipairs(texts) do
  if #list == limit then return {list, ''} end
  local e = filtered and cjson.decode(text)
  if not e or (not actor or e.actor == actor) and (not action or e.action == action) and (not target or e.target == target) then list[#list + 1] = text end
end
return {list, #ids == 500 and #list < limit and ids[500] or ''}
`;

/** Keys with what they have of their own: the one that is asked for, or those of a limit, or of all, that have any settings. */
export const KEY_STATES = /* lua */ `
local function show(id, limit, key)
  local v = call('HMGET', T .. 'key:' .. id, 'running', 'interval', 'burst', 'weight', 'until', 'pa', 'pu', 'why')
  for i = 1, 8 do v[i] = v[i] or '' end
  local held = tonumber(call('ZSCORE', T .. 'doors', id) or 0)
  return {limit, key, call('HGET', T .. 'limits', limit) or '', v, call('SCARD', T .. 'kt:' .. id), held}
end
if arg() == '1' then
  local id, limit, key = arg(), arg(), arg()
  return {{show(id, limit, key)}, '', int(now)}
end
local limit, after, most = opt(), opt(), num()
local from = after and '(' .. after or limit and '[' .. limit .. FIELD or '-'
local upTo = limit and '(' .. limit .. ' ' or '+'
local list, members = {}, call('ZRANGEBYLEX', T .. 'ko', from, upTo, 'LIMIT', 0, most)
for _, member in ipairs(members) do
  local name, key, id = string.match(member, '^([^' .. FIELD .. ']*)' .. FIELD .. '(.*)' .. FIELD .. '([^' .. FIELD .. ']*)$')
  local one = show(id, name, key)
  local own = one[4]
  if own[1] ~= '' or own[2] ~= '' or own[3] ~= '' or own[4] ~= '' or own[6] ~= '' or tonumber(own[5]) > now then list[#list + 1] = one end
end
return {list, #members == most and members[most] or '', int(now)}
`;

/** Nothing: it was never declared. */
export const KIND_SETTINGS = /* lua */ `
local n = kindNamed(arg())
return n and call('HGET', T .. 'k:' .. int(n), 'settings') or ''
`;

/** How many jobs are in 1,000 chunks in front of it, and from which chunk on there are more; nothing: that was all. 256,000 jobs take 0.6 ms. */
export const AHEAD = /* lua */ `
local j, from = J.byId(arg()), num()
if not j or j.state ~= QUEUED or j.d.ln then return {} end
local order, rows, c = T .. 'r:' .. int(j.kind), T .. 'rs:' .. int(j.kind), floor(rank(j) / 256)
local own = call('ZRANK', order, int(c))
local position = own and string.find(call('HGET', rows, int(c)), string.char(rank(j) % 256), 1, true)
if not position then return {} end
local upTo = math.min(own, from + 1000)
local before = 0
if upTo > from then
  for _, one in ipairs(call('HMGET', rows, unpack(call('ZRANGE', order, from, upTo - 1)))) do before = before + #(one or '') end
end
if upTo < own then return {before, upTo} end
return {before + position - 1, ''}
`;

/** Of workers from an id on, until these hold so many jobs; then the id after which it goes on, or nothing if that was all. */
export const SUSPECTS = /* lua */ `
local after, list, read = arg(), {}, 0
local ids = call('ZRANGEBYLEX', T .. 'fleet', after == '' and '-' or '(' .. after, '+', 'LIMIT', 0, 200)
for _, id in ipairs(ids) do
  if read > 2000 then return {list, after} end
  after = id
  local w = W.find(id)
  if w and w.state == 'live' then
    local suspects, together = J.heldSuspects(w.n), 2147483647
    for _, j in ipairs(suspects) do together = math.min(together, J.bound(j)) end
    if #suspects > 0 then list[#list + 1] = {id, #suspects, together} end
    read = read + W.holds(w)
  end
end
return {list, #ids == 200 and after or ''}
`;

/** Without its jobs, which may be thousands: \`incj:\` has them, and more about some of them, so how many there are is counted in its record. */
const SHOW_INCIDENT = /* lua */ `
local function show(id)
  local v = call('HMGET', T .. 'inc:' .. id, 'record', 'recovery', 'worker', 'how', 'resolution', 'completed', 'evidence', 'held', 'jobs')
  if not v[1] then return nil end
  local count = tonumber(v[9] or nil)
  -- Written by a version that did not count them.
  if not count then
    count = 0
    for _, field in ipairs(call('HKEYS', T .. 'incj:' .. id)) do if not string.find(field, ':', 1, true) then count = count + 1 end end
  end
  return {id, v[1], v[2], v[3], v[4], v[5] or '', v[6] or '', v[7] or '', v[8], count}
end
`;

export const INCIDENTS = /* lua */ `
${SHOW_INCIDENT}
local limit, after = num(), opt()
local list = {}
for _, id in ipairs(call('ZREVRANGEBYLEX', T .. 'inc', after and '(' .. after or '+', '-', 'LIMIT', 0, limit)) do list[#list + 1] = show(id) end
return list
`;

export const INCIDENT = /* lua */ `
${SHOW_INCIDENT}
return show(arg()) or {}
`;

/** Of the latest recovery that has any, the oldest first. */
export const LATEST_RECOVERY = /* lua */ `
${SHOW_INCIDENT}
local newest = call('ZREVRANGE', T .. 'inc', 0, 999)
local list, recovery = {}, nil
for _, id in ipairs(newest) do
  local of = call('HGET', T .. 'inc:' .. id, 'recovery')
  recovery = recovery or of
  if of ~= recovery then break end
  table.insert(list, 1, show(id))
end
return list
`;

/** What a worker's turn would act on, claim, or wait for. Of kinds by their names. */
export const PENDING = /* lua */ `
local is = call('EXISTS', T .. 'fd', T .. 'stc', T .. 'kw') > 0
-- Kinds without ready jobs are the most, and cost two short questions each.
local hasFair, hasSuspects = call('EXISTS', T .. 'fk') == 1, call('EXISTS', T .. 'uk') == 1
for i = 1, num() do
  local n = not is and kindNamed(arg())
  local has = n and (call('ZSCORE', T .. 'rk', int(n)) or hasSuspects and call('SISMEMBER', T .. 'uk', int(n)) == 1
    or hasFair and call('EXISTS', T .. 'hr:' .. K.gate(n)) == 1)
  if has and not kindOf(n).paused then is = true end
end
local ids = is and {} or call('ZRANGE', T .. 'fleet', 0, -1)
for from = 1, #ids, 1000 do
  local keys = {}
  for _, n in ipairs(call('HMGET', T .. 'ws', unpack(ids, from, math.min(#ids, from + 999)))) do if n then keys[#keys + 1] = T .. 'cc:' .. n end end
  if #keys > 0 and call('EXISTS', unpack(keys)) > 0 then is = true end
end
local next = nil
for _, key in ipairs({'zk', 'kd', 'xp'}) do
  local due = tonumber(call('ZRANGE', T .. key, 0, 0, 'WITHSCORES')[2] or nil)
  if due and (not next or due < next) then next = due end
end
if next and next <= now then is = true end
local isQuiet = call('EXISTS', T .. 'dl', T .. 'losses', T .. 'bx', T .. 'bw', T .. 'nt', T .. 'nd') == 0
local ops = call('HMGET', T .. 'meta', 'ops', 'beats')
return {is and 1 or 0, next and int(math.max(0, next - now)) or '', isQuiet and 1 or 0, int(ops[1] - (ops[2] or 0))}
`;
