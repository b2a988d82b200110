// Lua: the scripts of batches, as in sqlite/batches.ts. The keys of a batch, N its number, R a round:
//
// b:N       its record, the truth about it: what its draft says, its state, its rows and their sums, its rounds
// bb:N:R    the blocks of a round by their numbers: the row of each job, or -NUMBER for a block that never had one
// bi, bk:K  its number by its id, and by its key among those of the kind K
// bl        all batches, by N          bw  those in which something may have to be decided          bx  those whose blocks are to be released or cancelled
// be        those that have ended, by when                   bd  those that are deleted, N:R with the latest round, and may have blocks left
// bf:N:R    the numbers of blocks with failed rows           bo:N:R:FILE  those that wrote to a file         bof:N  the files
//
// bi, bk, bl, bw, bx, be and bf follow from the records of batches and of blocks (blocks.ts), as do the jobs in bb; a block without a job is only in bb.
// A batch is bound to its script's size only by what the caller asks for at once, so every verb takes a bounded piece.
import { AUDIT } from "./operations.ts";

import { GET_SHOWN, type GroupKeys, listing, showing } from "./groups.ts";

const KEYS: GroupKeys = { record: "b:", numbers: "bi", all: "bl" };

const SHOW_BATCH = /* lua */ `
local OPEN, SEALED, ABORTING = '0', '1', '2'
${showing(KEYS)}
`;

/** A later round that is aborted while it is filled (\`isFilling\`) is sealed when it has all of its rows. */
const FILLS = /* lua */ `
local function isFilling(state, round, sealed) return state == ABORTING and round ~= '1' and not sealed end
`;

const END = /* lua */ `
${FILLS}
-- Can end, and will by the next that looks.
local function isComplete(n)
  local v = call('HMGET', T .. 'b:' .. n, 'state', 'rows', 'succeeded', 'failed', 'quarantined', 'aborted', 'round', 'sealed')
  local ended = tonumber(v[3]) + tonumber(v[4]) + tonumber(v[5]) + tonumber(v[6])
  return (v[1] == SEALED or v[1] == ABORTING) and ended == tonumber(v[2]) and not isFilling(v[1], v[7], v[8]), ended
end
local function touch(n) call('ZADD', T .. 'bw', n, n) end
`;

/** The same id: its answer was lost, and it is asked again. */
export const OPEN_BATCH = /* lua */ `
${SHOW_BATCH}
${AUDIT}
local entry = readEntry()
local id, kindName, key, context, priority, size, tolerance, held = arg(), arg(), opt(), arg(), arg(), arg(), arg(), arg()
local kind = kindNamed(kindName)
if not kind then return {'!kind', kindName} end
local keys = T .. 'bk:' .. int(kind)
local known = numberOf(id) or (key and call('HGET', keys, key)) or nil
if known then return {0, show(known)} end
wrote = true
local n = int(call('HINCRBY', T .. 'meta', 'batches', 1))
call('HSET', T .. 'b:' .. n, 'id', id, 'kind', int(kind), 'key', key or '', 'state', OPEN, 'held', held, 'context', context, 'priority', priority,
  'blockRows', size, 'tolerance', tolerance, 'round', '1', 'rows', '0', 'blocks', '0', 'succeeded', '0', 'failed', '0', 'quarantined', '0', 'aborted', '0',
  'earlier', '0,0,0,0', 'created', int(now))
call('HSET', T .. 'bi', id, n)
if key then call('HSET', keys, key, n) end
call('ZADD', T .. 'bl', n, n)
audit(entry, 1)
return {1, show(n)}
`;

export const APPEND_BLOCKS = /* lua */ `
${SHOW_BATCH}
${FILLS}
local id, round, asNext = arg(), arg(), arg()
local blocks, jobs = {}, false
for i = 1, num() do
  local one = {number = arg(), rows = num(), rejected = {}}
  one.job = D.readAll()[1]
  jobs = jobs or one.job ~= nil
  for r = 1, num() do one.rejected[r] = B.readRow() end
  blocks[i] = one
end
local n = numberOf(id)
if not n then return {'missing'} end
local batch = call('HMGET', T .. 'b:' .. n, 'state', 'round', 'held', 'blocks', 'rows', 'sealed')
local takes = batch[1] == OPEN or asNext == '1' and not jobs and isFilling(batch[1], batch[2], batch[6])
if not takes or batch[2] ~= round then return {'closed', batch[1]} end
if asNext == '1' and blocks[1] and tonumber(batch[4] or 0) ~= tonumber(blocks[1].number) then
  return {'moved', tonumber(batch[4] or 0), tonumber(batch[5] or 0)}
end
local list = T .. 'bb:' .. n .. ':' .. round
local added, drafts, known = {}, {}, {}
for _, block in ipairs(blocks) do
  if not known[block.number] and call('ZCOUNT', list, block.number, block.number) == 0 then
    known[block.number] = true
    added[#added + 1] = block
    if block.job then
      drafts[#drafts + 1] = block.job
      if batch[3] == '1' then block.job.runAt, block.job.delay = NEVER_DUE, 0 end
    end
  end
end
local unknown = D.undeclared(drafts)
if unknown then return {'!kind', unknown} end
Q.prefetch(drafts)
for _, draft in ipairs(drafts) do if J.rowOf(draft.id) then return {'!job', draft.id} end end
local rows, rejected = 0, 0
for _, block in ipairs(added) do
  wrote = true
  local member = '-' .. block.number
  if block.job then
    local j = D.insert(block.job, nil, nil)
    member = int(j.row)
    J.set(j, 'bn', n) J.set(j, 'br', round) J.set(j, 'bo', block.number) J.set(j, 'bs', block.rows)
  end
  call('ZADD', list, block.number, member)
  for _, one in ipairs(block.rejected) do B.keepFailure(B.place(n, round, block.number), '', one) end
  if #block.rejected > 0 then B.markBad(n, round, block.number) end
  rows, rejected = rows + block.rows + #block.rejected, rejected + #block.rejected
end
if #added > 0 then
  call('HINCRBY', T .. 'b:' .. n, 'rows', rows)
  call('HINCRBY', T .. 'b:' .. n, 'blocks', #added)
  if rejected > 0 then B.add(n, round, {failed = rejected}) end
end
return {'appended', #added, rows}
`;

export const SEAL_BATCH = /* lua */ `
${SHOW_BATCH}
${END}
${AUDIT}
local entry = readEntry()
local id, round = arg(), arg()
local n = numberOf(id)
if not n then return '' end
local v = call('HMGET', T .. 'b:' .. n, 'state', 'round', 'held', 'sealed')
if v[2] ~= round or v[1] ~= OPEN and not isFilling(v[1], v[2], v[4]) then return v[1] end
wrote = true
if v[1] == ABORTING then
  call('HSET', T .. 'b:' .. n, 'sealed', int(now))
  touch(n)
  audit(entry, 1)
  return ABORTING
end
call('HSET', T .. 'b:' .. n, 'state', SEALED, 'sealed', int(now), 'held', '0', 'tended', '-1', 'tending', v[3] == '1' and 'release' or '')
touch(n)
if v[3] == '1' then call('ZADD', T .. 'bx', n, n) end
audit(entry, 1)
return SEALED
`;

export const ABORT_BATCH = /* lua */ `
${SHOW_BATCH}
${END}
${AUDIT}
local entry = readEntry()
local n = numberOf(arg())
if not n then return '' end
local state = call('HGET', T .. 'b:' .. n, 'state')
if state ~= OPEN and state ~= SEALED then return state end
wrote = true
call('HSET', T .. 'b:' .. n, 'state', ABORTING, 'held', '0', 'tended', '-1', 'tending', 'cancel')
touch(n)
call('ZADD', T .. 'bx', n, n)
audit(entry, 1)
return ABORTING
`;

/**
 * Goes through the blocks of one batch once. A block that is asked to end can't be queued again, and none is added to a batch that is not open: so none
 * is missed.
 */
export const TEND_BATCHES = /* lua */ `
local limit, request = num(), arg()
local cancels = C.read()
local n = call('ZRANGE', T .. 'bx', 0, 0)[1]
if not n then return 0 end
wrote = true
local v = call('HMGET', T .. 'b:' .. n, 'round', 'tending', 'tended')
local found = call('ZRANGEBYSCORE', T .. 'bb:' .. n .. ':' .. v[1], '(' .. v[3], '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
local rows = {}
for i = 1, #found, 2 do if tonumber(found[i]) > 0 then rows[#rows + 1] = tonumber(found[i]) end end
J.fetch(rows)
for _, row in ipairs(rows) do
  local j = J.get(row)
  if j and j.state < SUCCEEDED then
    if v[2] == 'cancel' then
      if j.state == QUEUED then C.apply(j, cancels, 'system/batches', nil) else J.askToEnd(j, 'system/batches', request) end
    -- A block that waits for something else, or has begun, has not been held.
    elseif j.state == QUEUED and J.runAt(j) == NEVER_DUE and j.fence == 0 then
      J.leave(j)
      J.set(j, 'ra', nil)
      K.relocate(j)
      J.enter(j)
    end
  end
end
if #found < 2 * limit then
  call('ZREM', T .. 'bx', n)
  call('HSET', T .. 'b:' .. n, 'tending', '')
else call('HSET', T .. 'b:' .. n, 'tended', found[#found]) end
return call('EXISTS', T .. 'bx')
`;

/** The batches that changed, from a number on; the next begins after the last. The two moments of a pace are at most ten seconds apart. */
export const FOLD_BATCHES = /* lua */ `
${SHOW_BATCH}
${END}
local after, limit = arg(), num()
local found = call('ZRANGEBYSCORE', T .. 'bw', '(' .. after, '+inf', 'LIMIT', 0, limit)
local last = #found == limit and found[#found] or '0'
if #found < limit and after ~= '0' then
  for _, n in ipairs(call('ZRANGEBYSCORE', T .. 'bw', '-inf', after, 'LIMIT', 0, limit - #found)) do found[#found + 1] = n end
end
local ids = {}
for i, n in ipairs(found) do
  wrote = true
  local complete, ended = isComplete(n)
  if not complete then call('ZREM', T .. 'bw', n) end
  local v = call('HMGET', T .. 'b:' .. n, 'id', 'created', 'fromAt', 'fromRows', 'toAt', 'toRows')
  local fromAt, fromRows = v[3], v[4]
  if not v[5] then fromAt, fromRows = v[2], '0'
  elseif now - tonumber(v[3]) > ${10_000} then fromAt, fromRows = v[5], v[6] end
  call('HSET', T .. 'b:' .. n, 'fromAt', fromAt, 'fromRows', fromRows, 'toAt', int(now), 'toRows', int(ended))
  ids[i] = v[1]
end
return {last, ids}
`;

/** Rows that have ended stay ended, so the decision holds; that they are all is checked again, for whatever has decided. */
export const FINISH_BATCH = /* lua */ `
${SHOW_BATCH}
${END}
local id, round, from, to = arg(), arg(), arg(), arg()
local follow = D.readAll()
local unknown = D.undeclared(follow)
if unknown then return {'!kind', unknown} end
local n = numberOf(id)
if not n then return 0 end
local v = call('HMGET', T .. 'b:' .. n, 'state', 'round')
if v[1] ~= from or v[2] ~= round or not isComplete(n) then return 0 end
wrote = true
call('HSET', T .. 'b:' .. n, 'state', to, 'ended', int(now), 'tending', '')
call('ZREM', T .. 'bw', n)
call('ZREM', T .. 'bx', n)
call('ZADD', T .. 'be', int(now), n)
D.enqueue(follow, nil)
return 1
`;

export const REOPEN_BATCH = /* lua */ `
${SHOW_BATCH}
${AUDIT}
local entry = readEntry()
local id, round = arg(), arg()
local follow = D.readAll()
local unknown = D.undeclared(follow)
if unknown then return {'!kind', unknown} end
local n = numberOf(id)
if not n then return 0 end
local v = call('HMGET', T .. 'b:' .. n, 'state', 'round', 'earlier', 'succeeded', 'failed', 'quarantined', 'aborted')
if tonumber(v[1]) <= tonumber(ABORTING) or v[2] ~= round then return 0 end
wrote = true
local earlier, place = {}, 3
for sum in string.gmatch(v[3], '%d+') do
  place = place + 1
  earlier[#earlier + 1] = int(tonumber(sum) + tonumber(v[place]))
end
call('HSET', T .. 'b:' .. n, 'state', OPEN, 'round', int(tonumber(round) + 1), 'rows', '0', 'blocks', '0', 'earlier', concat(earlier, ','),
  'succeeded', '0', 'failed', '0', 'quarantined', '0', 'aborted', '0')
call('HDEL', T .. 'b:' .. n, 'sealed', 'ended', 'fromAt', 'fromRows', 'toAt', 'toRows')
call('ZREM', T .. 'be', n)
D.enqueue(follow, nil)
audit(entry, 1)
return 1
`;

export const SET_OUTPUTS = /* lua */ `
local n = call('HGET', T .. 'bi', arg())
if not n or call('HGET', T .. 'b:' .. n, 'round') ~= arg() then return 0 end
wrote = true
call('HSET', T .. 'b:' .. n, 'outputs', arg())
return 1
`;

/**
 * The record of a batch goes first: from then on there is no such batch, and what is left of it is known by its number. A kill anywhere leaves the rest
 * to the next call. The job that follows the end (\`doneDraft\`) has ended as long ago, or is gone.
 */
export const PURGE_BATCHES = /* lua */ `
local before, limit, offset, request = now - num(), num(), num(), arg()
local cancels = C.read()
local ended = call('ZRANGEBYSCORE', T .. 'be', '-inf', '(' .. int(before), 'LIMIT', offset, ${200})
local gone, kept = 0, 0
for _, n in ipairs(ended) do
  local v = call('HMGET', T .. 'b:' .. n, 'id', 'round', 'kind', 'key')
  local done = J.byId(v[1] .. ':done:' .. v[2])
  if gone < limit and not (done and (done.state < SUCCEEDED or done.finished >= before)) then
    wrote = true
    gone = gone + 1
    call('UNLINK', T .. 'b:' .. n)
    call('HDEL', T .. 'bi', v[1])
    if v[4] ~= '' then call('HDEL', T .. 'bk:' .. v[3], v[4]) end
    for _, index in ipairs({'bl', 'be', 'bw', 'bx'}) do call('ZREM', T .. index, n) end
    call('ZADD', T .. 'bd', n, n .. ':' .. v[2])
  else kept = kept + 1 end
end
-- Old ones that had no room, or were not looked at.
local more = #ended == ${200} or gone == limit and kept > 0
local room = limit
while room > 0 do
  local next = call('ZRANGE', T .. 'bd', 0, 0)[1]
  if not next then break end
  wrote = true
  local n, round = string.match(next, '^(%d+):(%d+)$')
  local files = call('ZRANGE', T .. 'bof:' .. n, 0, -1)
  local blocks = call('ZRANGE', T .. 'bb:' .. n .. ':' .. round, 0, room - 1, 'WITHSCORES')
  for i = 1, #blocks, 2 do
    local place = B.place(n, round, blocks[i + 1])
    local j = tonumber(blocks[i]) > 0 and J.get(tonumber(blocks[i]))
    -- One that has marked all of its rows and has not ended: its next attempt would find no batch.
    if j and j.state >= SUCCEEDED then P.remove(j)
    elseif j and j.state == QUEUED then C.apply(j, cancels, 'system/batches', nil)
    elseif j then J.askToEnd(j, 'system/batches', request) end
    call('UNLINK', T .. 'br:' .. place)
    for _, file in ipairs(files) do call('UNLINK', T .. 'bp:' .. place .. ':' .. file) end
  end
  room = room - #blocks / 2
  if room > 0 then
    call('UNLINK', T .. 'bb:' .. n .. ':' .. round, T .. 'bf:' .. n .. ':' .. round)
    for _, file in ipairs(files) do call('UNLINK', concat({T .. 'bo:' .. n, round, file}, ':')) end
    call('ZREM', T .. 'bd', next)
    if round == '1' then call('UNLINK', T .. 'bof:' .. n) else call('ZADD', T .. 'bd', n, n .. ':' .. int(tonumber(round) - 1)) end
  else
    for i = 1, #blocks, 2 do call('ZREM', T .. 'bb:' .. n .. ':' .. round, blocks[i]) end
  end
end
return {gone, (more or call('EXISTS', T .. 'bd') == 1) and 1 or 0, #ended == ${200} and gone < limit and offset + kept or 0}
`;

// ---- reads

export const GET_BATCHES = SHOW_BATCH + GET_SHOWN;
export const LIST_BATCHES = SHOW_BATCH + listing(KEYS);

/** Of each block that failed, or of each: its number, its failures, and if it failed as a whole, or each is asked for, its size, marks, state, kind, input and error. */
export const READ_BLOCKS = /* lua */ `
local id, round, after, limit, all = arg(), arg(), arg(), num(), opt()
local n = call('HGET', T .. 'bi', id)
if not n then return {} end
local blocks = T .. 'bb:' .. n .. ':' .. round
local numbers = {}
if all then
  local found = call('ZRANGEBYSCORE', blocks, '(' .. after, '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
  for i = 2, #found, 2 do numbers[i / 2] = found[i] end
else
  numbers = call('ZRANGEBYSCORE', T .. 'bf:' .. n .. ':' .. round, '(' .. after, '+inf', 'LIMIT', 0, limit)
end
local list = {}
for i, number in ipairs(numbers) do
  local row = tonumber(call('ZRANGEBYSCORE', blocks, number, number)[1])
  local j = row and row > 0 and J.get(row)
  local whole = ''
  if j and (all or j.state == 3 or j.state == 5) then
    whole = {j.d.bs, j.d.mk or '', j.state, kindOf(j.kind).name, J.input(row), j.d.ex or ''}
  end
  list[i] = {number, call('LRANGE', concat({T .. 'br:' .. n, round, number}, ':'), 0, -1), whole}
end
return list
`;

export const OUTPUT_PAGE = /* lua */ `
local id, round, file, after, limit = arg(), arg(), arg(), arg(), num()
local n = call('HGET', T .. 'bi', id)
if not n then return {} end
local list = {}
for i, number in ipairs(call('ZRANGEBYSCORE', concat({T .. 'bo:' .. n, round, file}, ':'), '(' .. after, '+inf', 'LIMIT', 0, limit)) do
  list[i] = {number, call('LRANGE', concat({T .. 'bp:' .. n, round, number, file}, ':'), 0, -1)}
end
return list
`;

export const OUTPUT_FILES = /* lua */ `
local n = call('HGET', T .. 'bi', arg())
return n and call('ZRANGE', T .. 'bof:' .. n, 0, -1) or {}
`;

/** A piece of what the blocks of a batch came to, from a number on, to compare with its record. */
export const COUNT_ROWS = /* lua */ `
local n, round, after = call('HGET', T .. 'bi', arg()), arg(), arg()
if not n then return {0, '', 0, 0, 0, 0, 0, 0} end
local found = call('ZRANGEBYSCORE', T .. 'bb:' .. n .. ':' .. round, '(' .. after, '+inf', 'WITHSCORES', 'LIMIT', 0, 200)
local sums = {rows = 0, succeeded = 0, failed = 0, quarantined = 0, aborted = 0, missing = 0}
local AS = {[2] = 'succeeded', [3] = 'failed', [4] = 'aborted', [5] = 'quarantined'}
for i = 1, #found, 2 do
  local row = tonumber(found[i])
  local j = row > 0 and J.get(row)
  if row > 0 and not j then sums.missing = sums.missing + 1 end
  local ended = 0
  for _, text in ipairs(call('LRANGE', concat({T .. 'br:' .. n, round, found[i + 1]}, ':'), 0, -1)) do
    local own, as = string.match(text, '^(%d*)\\31%d+\\31(%a+)\\31')
    sums[as] = sums[as] + 1
    if own == '' then sums.rows = sums.rows + 1 else ended = ended + 1 end
  end
  if j then
    local size = tonumber(j.d.bs)
    local _, marked = string.gsub(j.d.mk or '', '1', '1')
    sums.rows = sums.rows + size
    sums.succeeded = sums.succeeded + marked - ended
    local as = AS[j.state]
    if as then sums[as] = sums[as] + size - marked end
  end
end
return {#found / 2, #found == 400 and found[#found] or '', sums.rows, sums.succeeded, sums.failed, sums.quarantined, sums.aborted, sums.missing}
`;
