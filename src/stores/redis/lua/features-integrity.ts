// Lua: what follows from the records of batches (`b:`) and of schedules (`sb`), compared and built again. What follows from the records of their jobs is in
// integrity.ts: the blocks of a batch, those with failed rows, and the jobs of a schedule.
//
// Batches are found by their numbers. Schedules are few: the caller reads their bodies, and says what follows from each.

/** A piece: batches one after the other, until 1,000 of their blocks were walked. A piece goes on from N:PLACE, a batch and a place among its blocks. */
const BATCH = /* lua */ `
local function eachBatch(cursor, visit)
  local from, place = string.match(cursor, '^(%d+):(%d+)$')
  local n, left, numbers = tonumber(from), 1000, 500
  local last = tonumber(call('HGET', T .. 'meta', 'batches') or 0)
  place = tonumber(place)
  while n <= last and left > 0 and numbers > 0 do
    numbers = numbers - 1
    local v = call('HMGET', T .. 'b:' .. int(n), 'id', 'kind', 'key', 'state', 'ended', 'tending', 'round', 'blocks')
    local found = {}
    if v[1] then
      local round = int(n) .. ':' .. v[7]
      found = call('ZRANGE', T .. 'bb:' .. round, place, place + left - 1, 'WITHSCORES')
      visit(int(n), {id = v[1], kind = v[2], key = v[3] ~= '' and v[3] or nil, ended = tonumber(v[4]) > 2 and v[5], tended = (v[6] or '') ~= '',
        round = round, count = tonumber(v[8]), isFirst = place == 0, found = found})
    end
    local walked = #found / 2
    if walked < left then n, place = n + 1, 0 else place = place + walked end
    left = left - walked
  end
  return n > last and '' or int(n) .. ':' .. int(place)
end
`;

export const CHECK_BATCHES = /* lua */ `
${BATCH}
local wrong, count, ended = {}, 0, 0
local cursor = eachBatch(arg(), function(n, b)
  local function check(right, key) if not right then wrong[#wrong + 1] = 'batch ' .. b.id .. ' is missing in ' .. T .. key end end
  for i = 1, #b.found, 2 do
    if tonumber(b.found[i]) <= 0 then check(call('ZSCORE', T .. 'bf:' .. b.round, b.found[i + 1]), 'bf:' .. b.round .. ' (block ' .. b.found[i + 1] .. ')') end
  end
  if not b.isFirst then return end
  count = count + 1
  if b.ended then ended = ended + 1 end
  check(call('HGET', T .. 'bi', b.id) == n, 'bi')
  check(not b.key or call('HGET', T .. 'bk:' .. b.kind, b.key) == n, 'bk:' .. b.kind)
  check(call('ZSCORE', T .. 'bl', n), 'bl')
  check(not b.ended or call('ZSCORE', T .. 'be', n) == b.ended, 'be')
  check(not b.tended or call('ZSCORE', T .. 'bx', n), 'bx')
  check(call('ZCARD', T .. 'bb:' .. b.round) == b.count, 'bb:' .. b.round .. ', or some of its blocks are')
end)
return {wrong, cursor, count, ended, call('HLEN', T .. 'bi'), call('ZCARD', T .. 'bl'), call('ZCARD', T .. 'be')}
`;

/** The blocks that have jobs are there again. Those that never had one have rejected rows, which are kept by number. */
export const REPAIR_BATCHES = /* lua */ `
if not META[5] then return '' end
${BATCH}
wrote = true
return eachBatch(arg(), function(n, b)
  if b.isFirst then
    call('HSET', T .. 'bi', b.id, n)
    if b.key then call('HSET', T .. 'bk:' .. b.kind, b.key, n) end
    call('ZADD', T .. 'bl', n, n)
    if b.ended then call('ZADD', T .. 'be', b.ended, n) else call('ZADD', T .. 'bw', n, n) end
    if b.tended then call('ZADD', T .. 'bx', n, n) end
  end
  local blocks, there = T .. 'bb:' .. b.round, {}
  for i = 1, #b.found, 2 do
    there[tonumber(b.found[i + 1])] = true
    if tonumber(b.found[i]) <= 0 then call('ZADD', T .. 'bf:' .. b.round, b.found[i + 1], b.found[i + 1]) end
  end
  if b.isFirst and call('ZCARD', blocks) < b.count then
    for number = 0, math.min(2 * b.count, 5000) do
      local name = int(number)
      if not there[number] and call('EXISTS', T .. 'br:' .. b.round .. ':' .. name) == 1 and call('ZCOUNT', blocks, name, name) == 0 then
        call('ZADD', blocks, name, '-' .. name)
        call('ZADD', T .. 'bf:' .. b.round, name, name)
      end
    end
  end
end)
`;

export const SCHEDULE_NAMES = /* lua */ `
return {call('HKEYS', T .. 'sb'), call('HLEN', T .. 'sv'), call('HLEN', T .. 'sk'), call('ZCARD', T .. 'sn'), call('ZCARD', T .. 'sd')}
`;

export const SCHEDULE_BODIES = /* lua */ `
local bodies = {}
for i = 1, num() do bodies[i] = call('HGET', T .. 'sb', arg()) or '' end
return bodies
`;

const EACH_SCHEDULE = /* lua */ `
local function eachSchedule(visit)
  for i = 1, num() do visit(arg(), arg(), opt()) end
end
`;

export const CHECK_SCHEDULES = /* lua */ `
${EACH_SCHEDULE}
local wrong = {}
eachSchedule(function(name, kind, due)
  local function check(right, key) if not right then wrong[#wrong + 1] = 'schedule ' .. name .. ' is missing in ' .. T .. key end end
  check(call('HGET', T .. 'sv', name), 'sv')
  check(call('HGET', T .. 'sk', name) == kind, 'sk')
  check(call('ZSCORE', T .. 'sn', name), 'sn')
  local at = call('ZSCORE', T .. 'sd', name)
  check((tonumber(at or nil) or '') == (tonumber(due) or ''), 'sd')
end)
return wrong
`;

/** A version that is lost is one that no caller has read: what it writes is refused, and it reads again. */
export const REPAIR_SCHEDULES = /* lua */ `
if not META[5] then return '' end
${EACH_SCHEDULE}
wrote = true
eachSchedule(function(name, kind, due)
  call('HSETNX', T .. 'sv', name, int(now))
  call('HSET', T .. 'sk', name, kind)
  call('ZADD', T .. 'sn', 0, name)
  if due then call('ZADD', T .. 'sd', due, name) else call('ZREM', T .. 'sd', name) end
end)
return 1
`;
