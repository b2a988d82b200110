// Lua: the scripts about workers: registering, beating, leaving, listing, and what is written about a worker's end.
import { AT } from "./plain.ts";

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
W.changed('joined')
if predecessor ~= '' then
  local before = W.find(predecessor)
  if before then call('HSET', T .. 'w:' .. int(before.n), 'successor', id) end
  local open = call('HGET', T .. 'lost', predecessor)
  if open and not call('HGET', T .. 'inc:' .. open, 'resolution') then call('HSET', T .. 'inc:' .. open, 'resolution', 'returned') end
end
return {int(EPOCH), int(now)}
`;

/**
 * Which process checks all workers and polls for all: the one that asked first, until it has not asked again for this long, or its worker's subscription is gone,
 * or it has not asked for `late` ms although it had to. Every other process hears of it by the way that wake-ups take. Behind a proxy that hides subscriptions
 * only time ends it.
 */
export const LEAD = /* lua */ `
local name, channel, ms, late = arg(), arg(), arg(), optnum()
local function subscribed(to) return to ~= '' and tonumber(call('PUBSUB', 'NUMSUB', to)[2]) > 0 end
local holder = call('GET', T .. 'detector')
if holder then
  local other, its, had = string.match(holder, '^(%S+) (%S*) ?(%d*)$')
  local isLate = late and (tonumber(had) or 0) - call('PTTL', T .. 'detector') > late
  if other ~= name and not isLate and (its == '' or subscribed(its)) then return 0 end
end
call('SET', T .. 'detector', concat({name, subscribed(channel) and channel or '', ms}, ' '), 'PX', ms)
redis.pcall('PUBLISH', T .. 'wakeup', 'proof ' .. ms)
return 1
`;

/** What a record that is held says of its attempt: the same for all jobs that one script has claimed, so it is taken apart once. */
const HELD_RECORDS = /* lua */ `
local fronts, overdue = {}, {}
local function frontOf(v)
  local text = sub(v, ${AT.fence}, ${AT.priority - 1})
  local front = fronts[text]
  if not front then
    local fence, _, epoch, started, left, kind = struct.unpack('>I4I4I6I6I5I2', text)
    local k = kindOf(kind)
    front = {fence = fence, epoch = epoch, kind = k, expires = left > 0 and started + left - 1 + k.grace or math.huge}
    -- What epoch and fence add to \`leaseHash\` of job/lease.ts.
    front.mix = (epoch % 67108864) * 15485863 % 67108864 + (fence % 67108864) * 22695477 % 67108864
    fronts[text] = front
  end
  if front.expires < now then overdue[#overdue + 1] = {sub(v, ${AT.id}), int(front.expires), int((front.kind.timeout or 0) + front.kind.grace)} end
  return front
end
`;

/** What one script sums up: 5,000 records took 11 ms one by one. The list of a worker that holds more is read in pieces. */
const MAX_SUMMED = 4_000;

/** The digest is the sum of \`leaseHash\`. Empty: the list of leases has to be read, because it was asked for, or because there are too many. */
export const BEAT = /* lua */ `
local id, lag, leases = arg(), arg(), arg() == '1'
local replaced, w = W.replaced(id), W.own(id)
local live = w and w.state == 'live'
if live then
  wrote = true
  call('HSET', T .. 'w:' .. int(w.n), 'beats', int(tonumber(w.beats) + 1), 'heartbeat', int(now), 'lag', lag)
  call('HINCRBY', T .. 'meta', 'beats', 1)
end
if w and (leases or W.holds(w) > ${MAX_SUMMED}) then return {live and 1 or 0, replaced, W.holds(w), '', {}, int(now)} end
${HELD_RECORDS}
local count, digest = 0, 0
if w then
  J.eachHeld(w.n, function(row, v)
    local x = ((row % 67108864) * 40503021 % 67108864 + frontOf(v).mix) % 67108864
    count, digest = count + 1, digest + floor(x * x / 1048576)
  end)
end
return {live and 1 or 0, replaced, count, int(digest), overdue, int(now)}
`;

/** Those whose rows have this remainder, so that what is held from the first call to the last is listed once, whatever comes and goes meanwhile. */
export const HELD_LEASES = /* lua */ `
${HELD_RECORDS}
local w, remainder, of = W.own(arg()), num(), num()
local rows, list, NOTHING = {}, {}, {}
for _, row in ipairs(w and call('SMEMBERS', T .. 'held:' .. int(w.n)) or {}) do if row % of == remainder then rows[#rows + 1] = row end end
J.each(rows, function(row, v)
  local front = frontOf(v)
  list[#list + 1] = {int(row), sub(v, ${AT.id}), front.kind.name, int(front.epoch), int(front.fence), byte(v) >= 8 and call('HGETALL', T .. 'd:' .. int(row)) or NOTHING}
end)
return {list, overdue}
`;

/** A worker of a former run of the server that was not recovered yet. */
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
W.changed('left')
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
W.changed('left')
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

export const SHOW_WORKER = /* lua */ `
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
