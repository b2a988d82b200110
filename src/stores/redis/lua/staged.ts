// Lua: an enqueue of more drafts than one script may insert. They are staged in pieces, of which nothing is seen; then one small script decides that they are
// all enqueued; then they are inserted in pieces, by the caller, or by the turns of workers if that is killed. So the call is still whole or nothing,
// and no script takes longer than a piece of it.
//
// stp        the parents of tokens whose drafts are children, enqueued by an attempt
// st:TOKEN   the arguments of its drafts         sta:TOKEN  what became of those that are inserted, which also says how far it is
// stu        all tokens, by when they were begun: what is neither decided nor forgotten within an hour is deleted by the retention
// stc        the tokens that are decided and not wholly inserted, by when

/** Arguments of one draft, as `stagedArgs` makes them, separate ones, so that a piece of them can be read. */
export const DRAFT_ARGUMENTS = 3;

export const STAGED = /* lua */ `
local E = {}
local function enqueue(token, drafts)
  if not D then return Q.enqueue(drafts) end
  local parent = tonumber(call('HGET', T .. 'stp', token) or nil)
  local became = D.enqueue(drafts, parent)
  if parent and F then F.noteNewChildren(parent) end
  return became
end
local PER_DRAFT, ORPHANED_MS, FORGOTTEN_MS = ${DRAFT_ARGUMENTS}, 2000, 3600000
local function forget(token)
  call('UNLINK', T .. 'st:' .. token, T .. 'sta:' .. token)
  call('ZREM', T .. 'stu', token)
  call('HDEL', T .. 'stp', token)
end
-- Inserts the next jobs of a token, up to a number.
function E.insert(token, count)
  if not call('ZSCORE', T .. 'stc', token) then return end
  wrote = true
  local key, inserted = T .. 'st:' .. token, T .. 'sta:' .. token
  local from = call('LLEN', inserted)
  local args, position = A, at
  A, at = call('LRANGE', key, from * PER_DRAFT, (from + count) * PER_DRAFT - 1), 1
  local drafts = {}
  for i = 1, #A / PER_DRAFT do drafts[i] = Q.read() end
  A, at = args, position
  local became = enqueue(token, drafts)
  if #became > 0 then many('RPUSH', inserted, became) end
  if (from + #drafts) * PER_DRAFT >= call('LLEN', key) then call('ZREM', T .. 'stc', token) end
end
-- In how many ms a worker goes on with one that its caller has left; nothing: there is none.
function E.nextIn()
  local first = call('ZRANGE', T .. 'stc', 0, 0, 'WITHSCORES')
  return #first > 0 and math.max(0, tonumber(first[2]) + ORPHANED_MS - now) or nil
end
function E.goOn(most)
  if E.nextIn() ~= 0 then return 0 end
  E.insert(call('ZRANGE', T .. 'stc', 0, 0)[1], most)
  return most
end
function E.forgetOld(most)
  for _, token in ipairs(call('ZRANGEBYSCORE', T .. 'stu', '-inf', int(now - FORGOTTEN_MS), 'LIMIT', 0, most)) do
    if not call('ZSCORE', T .. 'stc', token) then
      wrote = true
      forget(token)
    end
  end
end
`;

/** Kinds are never forgotten: what is checked here holds when the drafts are inserted. */
export const STAGE = /* lua */ `
local token = arg()
local first = at + 1
local drafts = {}
for i = 1, num() do drafts[i] = Q.read() end
local unknown = D.undeclared(drafts)
if unknown then return {'!kind', unknown} end
wrote = true
local args = {}
for i = first, #A do args[#args + 1] = A[i] end
many('RPUSH', T .. 'st:' .. token, args)
call('ZADD', T .. 'stu', int(now), token)
return 1
`;

/** All of it is staged: from here on it is enqueued. */
export const DECIDE_STAGED = /* lua */ `
local token, count = arg(), num()
if call('LLEN', T .. 'st:' .. token) ~= count * ${DRAFT_ARGUMENTS} then return 0 end
wrote = true
call('ZADD', T .. 'stc', int(now), token)
return 1
`;

/** The same under the lease of an attempt, whose children they are. Returns nothing if it was decided, and otherwise why it was refused. */
export const DECIDE_CHILDREN = /* lua */ `
local token, count, lease, tried = arg(), num(), L.read(), arg()
local j = L.owned(lease)
if not j then return L.refused(lease, tried, nil) end
if call('LLEN', T .. 'st:' .. token) ~= count * ${DRAFT_ARGUMENTS} then return {'gone'} end
wrote = true
call('HSET', T .. 'stp', token, int(j.row))
call('ZADD', T .. 'stc', int(now), token)
return {}
`;

/** Returns what became of the drafts from a place on, as far as that is known. */
export const INSERT_STAGED = /* lua */ `
local token, have, count = arg(), num(), num()
E.insert(token, count)
return call('LRANGE', T .. 'sta:' .. token, have, -1)
`;

/** All of it is plain, as the caller knows. */
export const INSERT_PLAIN_STAGED = INSERT_STAGED;

export const FORGET_STAGED = /* lua */ `
wrote = true
forget(arg())
return 1
`;
