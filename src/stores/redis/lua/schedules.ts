// Lua: the scripts of schedules. sb, sv and sk are hashes of the bodies, versions and kinds by name; sd and sn are sorted sets of the names, by due time
// and by name; so:NAME has the jobs of a schedule by occurrence. What a job was planned for is in its own record (sn, sa, su), and goes with it.

import { AUDIT } from "./operations.ts";

const ROW = /* lua */ `
local function put(s)
  wrote = true
  call('HSET', T .. 'sb', s.name, s.body)
  call('HSET', T .. 'sv', s.name, int(s.version + 1))
  call('HSET', T .. 'sk', s.name, s.kind)
  call('ZADD', T .. 'sn', 0, s.name)
  if s.due then call('ZADD', T .. 'sd', int(s.due), s.name) else call('ZREM', T .. 'sd', s.name) end
end
local function read() return {name = arg(), version = num(), kind = arg(), due = optnum(), body = arg()} end
local function isPresent(s) return tonumber(call('HGET', T .. 'sv', s.name) or 0) == s.version end
`;

export const DUE = /* lua */ `
local from, limit, due = num(), num(), {}
for i, name in ipairs(call('ZRANGEBYSCORE', T .. 'sd', '-inf', int(now), 'LIMIT', from, limit)) do
  local n = kindNamed(call('HGET', T .. 'sk', name))
  due[i] = {call('HGET', T .. 'sv', name), call('HGET', T .. 'sb', name), n and kindOf(n).paused and 1 or 0}
end
local later = call('ZRANGEBYSCORE', T .. 'sd', '(' .. int(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
return {int(now), due, later[2] or ''}
`;

/** Everything is checked before anything is written: a script that fails half-way is not rolled back. */
export const FIRE = /* lua */ `
${ROW}
${AUDIT}
local entry = readEntry()
local firings, plans = {}, {}
for i = 1, num() do
  firings[i] = read()
  plans[i] = {}
  for k = 1, num() do plans[i][k] = {at = arg(), late = arg()} end
end
local drafts, taken, from = D.readAll(), {}, 0
for i, s in ipairs(firings) do
  s.fires = isPresent(s)
  for k, plan in ipairs(plans[i]) do
    plan.draft = drafts[from + k]
    if s.fires then taken[#taken + 1] = plan.draft end
  end
  from = from + #plans[i]
end
local unknown = D.undeclared(taken)
if unknown then return {'!kind', unknown} end
for _, s in ipairs(firings) do if s.fires then put(s) end end
local enqueued, answers, next, created = D.enqueue(taken, nil), {}, 0, 0
for i, s in ipairs(firings) do
  if not s.fires then answers[i] = 0
  else
    local own, jobs = {}, T .. 'so:' .. s.name
    for k, plan in ipairs(plans[i]) do
      local id = plan.draft.id
      own[k] = enqueued[next + k]
      if own[k] == '1' then
        created = created + 1
        local j = J.get(J.rowOf(id))
        J.set(j, 'sn', s.name)
        J.set(j, 'sa', plan.at)
        J.set(j, 'su', plan.late)
        call('ZADD', jobs, plan.at, id)
      end
    end
    next = next + #plans[i]
    -- Some of the oldest go whose jobs were purged, so a purge need not look for them.
    if #own > 0 then
      for _, id in ipairs(call('ZRANGE', jobs, 0, 9)) do if not J.rowOf(id) then call('ZREM', jobs, id) end end
    end
    answers[i] = own
  end
end
audit(entry, created)
return answers
`;

export const WRITE = /* lua */ `
${ROW}
${AUDIT}
local entry = readEntry()
local s = read()
if not isPresent(s) then return 0 end
put(s)
audit(entry, 1)
return 1
`;

export const REMOVE = /* lua */ `
${AUDIT}
local entry = readEntry()
local name, version = arg(), arg()
local present = call('HGET', T .. 'sv', name)
if not present or (version ~= '' and version ~= present) then return 0 end
wrote = true
for _, key in ipairs({'sb', 'sv', 'sk'}) do call('HDEL', T .. key, name) end
for _, key in ipairs({'sd', 'sn'}) do call('ZREM', T .. key, name) end
audit(entry, 1)
return 1
`;

export const GET = /* lua */ `
local name = arg()
local version = call('HGET', T .. 'sv', name)
return version and {version, call('HGET', T .. 'sb', name)} or 0
`;

export const LIST = /* lua */ `
local limit, after, rows = num(), arg(), {}
for i, name in ipairs(call('ZRANGEBYLEX', T .. 'sn', after == '' and '-' or '(' .. after, '+', 'LIMIT', 0, limit)) do
  rows[i] = {call('HGET', T .. 'sv', name), call('HGET', T .. 'sb', name)}
end
return rows
`;

const PLANNED = /* lua */ `
local function planned(id)
  local row = J.rowOf(id)
  local j = row and J.get(row)
  if j and j.d.sn then return {id, j.d.sn, j.d.sa, j.d.su} end
  return nil
end
`;

export const OCCURRENCES = /* lua */ `
${PLANNED}
local found = {}
for i = 1, num() do found[#found + 1] = planned(arg()) end
return found
`;

export const FIRED = /* lua */ `
${PLANNED}
local name, limit, found, from = arg(), num(), {}, 0
while #found < limit do
  local ids = call('ZREVRANGE', T .. 'so:' .. name, from, from + limit - 1)
  if #ids == 0 then break end
  for _, id in ipairs(ids) do if #found < limit then found[#found + 1] = planned(id) end end
  from = from + #ids
end
return found
`;

export const DECLARE_SCHEDULES = /* lua */ `
wrote = true
local worker, declared = arg(), arg()
for _, id in ipairs(call('HKEYS', T .. 'sc')) do if not call('ZSCORE', T .. 'fleet', id) then call('HDEL', T .. 'sc', id) end end
if declared == '[]' then call('HDEL', T .. 'sc', worker) else call('HSET', T .. 'sc', worker, declared) end
return 1
`;

export const DECLARED = /* lua */ `
local all = {}
for _, id in ipairs(call('HKEYS', T .. 'sc')) do
  if call('ZSCORE', T .. 'fleet', id) then all[#all + 1] = {id, call('HGET', T .. 'sc', id)} end
end
return all
`;

/** One piece: the last name of it, or '' if it is the last piece; those with the first text in their bodies; whether one is without the second. */
export const REVIEW = /* lua */ `
local limit, after, declared, notZoned = num(), arg(), arg(), arg()
local names = call('ZRANGEBYLEX', T .. 'sn', after == '' and '-' or '(' .. after, '+', 'LIMIT', 0, limit)
local found, zoned = {}, 0
for _, name in ipairs(names) do
  local body = call('HGET', T .. 'sb', name) or ''
  if body:find(declared, 1, true) then found[#found + 1] = name end
  if not body:find(notZoned, 1, true) then zoned = 1 end
end
return {#names == limit and names[#names] or '', found, zoned}
`;

export const CLOCK = "return int(now)";
