// Lua: the scripts of collections, as in sqlite/collections.ts. The keys of a collection, N its number, P the place of a series, G a page of 4,096 ordinals:
//
// n:N          its record, the truth about it: its draft, state, times and transitions; of each series nP its name, eP what is expected, hP how many parts
//              there are, yP their bytes, xP the highest
// np:N:P:G     the parts of a page by ordinal: BYTES|SHA256|BLOB
// nb:N:P:G     one bit for each of them        ng:N:P  how many parts each page has
// ni, nl       its number by its id; all, by N
// nd, nt       those that are open, by when they are due; those that may be complete          nc  how many there are, by KIND:STATE
// pm           parked messages by id           pz, pc:ID  their ids; those of a collection
//
// ni, nl, nd, nt and nc follow from the records, nb and ng from the parts, pz and pc from pm.
import { AUDIT } from "./operations.ts";

import { GET_SHOWN, type GroupKeys, listing, showing } from "./groups.ts";

const KEYS: GroupKeys = { record: "n:", numbers: "ni", all: "nl" };
const PARKED_TOO = /* lua */ `
  flat[#flat + 1] = 'parked'
  flat[#flat + 1] = int(call('SCARD', T .. 'pc:' .. v[2]))`;

/** Ordinals of one page: a part costs its page 512 bytes at most, however high its ordinal is. */
export const PAGE_ORDINALS = 4_096;

const COLLECTION = /* lua */ `
local REQUESTED, COLLECTING, COMPLETE = 0, 1, 2
local PAGE = ${PAGE_ORDINALS}
local NAMES = {'requested', 'collecting', 'complete', 'notified', 'abandoned', 'cancelled'}
${showing(KEYS, PARKED_TOO)}
local records = {}
local function read(id)
  local r = records[id]
  if r ~= nil then return r end
  local n = numberOf(id)
  r = n and hash(call('HGETALL', T .. 'n:' .. n)) or false
  if r then
    r.n, r.id, r.state, r.places = n, id, tonumber(r.state), {}
    for p = 0, tonumber(r.count) - 1 do r.places[r['n' .. p]] = p end
  end
  records[id] = r
  return r
end
local function dueOf(r) return math.min(tonumber(r.active) + tonumber(r.idle), tonumber(r.created) + tonumber(r.total)) end
local function isFull(r)
  for p = 0, tonumber(r.count) - 1 do
    local e = r['e' .. p]
    if e == '' or tonumber(r['h' .. p]) < tonumber(e) then return false end
  end
  return true
end
local function uncount(r)
  local name = r.kind .. ':' .. r.state
  if call('HINCRBY', T .. 'nc', name, -1) == 0 then call('HDEL', T .. 'nc', name) end
end
local function enter(r, to)
  uncount(r)
  call('HINCRBY', T .. 'nc', r.kind .. ':' .. to, 1)
  r.state = to
  r.transitions = r.transitions .. ',' .. NAMES[to + 1] .. ' ' .. int(now)
  call('HSET', T .. 'n:' .. r.n, 'state', to, 'transitions', r.transitions)
end
-- After something came: when it is due next, whether it may be complete, and that it collects.
local function touch(r)
  wrote = true
  r.active = int(now)
  call('HSET', T .. 'n:' .. r.n, 'active', r.active)
  if r.state == REQUESTED then enter(r, COLLECTING) end
  call('ZADD', T .. 'nd', int(dueOf(r)), r.n)
  if isFull(r) then call('ZADD', T .. 'nt', r.n, r.n) else call('ZREM', T .. 'nt', r.n) end
end
local function pageOf(ordinal) return floor((ordinal - 1) / PAGE) end
local function keyOf(of, n, p, g) return concat({T .. of .. ':' .. n, p, int(g)}, ':') end
-- The pages of a series that have parts, in order.
local function pagesOf(n, p)
  local flat, pages = call('HGETALL', T .. 'ng:' .. n .. ':' .. p), {}
  for i = 1, #flat, 2 do pages[#pages + 1] = {tonumber(flat[i]), tonumber(flat[i + 1])} end
  table.sort(pages, function(a, b) return a[1] < b[1] end)
  return pages
end
`;

/** The same id: the first stays as it is. */
export const OPEN_COLLECTION = /* lua */ `
${COLLECTION}
local id, kindName, input, idle, total, keep, state, count = arg(), arg(), arg(), arg(), arg(), arg(), num(), num()
local fields = {}
for p = 0, count - 1 do
  for _, one in ipairs({{'n', arg()}, {'e', arg()}, {'h', '0'}, {'y', '0'}, {'x', '0'}}) do
    fields[#fields + 1] = one[1] .. p
    fields[#fields + 1] = one[2]
  end
end
local follow = D.readAll()
local kind = kindNamed(kindName)
if not kind then return {'!kind', kindName} end
local unknown = D.undeclared(follow)
if unknown then return {'!kind', unknown} end
local known = numberOf(id)
if known then return {0, show(known)} end
wrote = true
local n = int(call('HINCRBY', T .. 'meta', 'collections', 1))
call('HSET', T .. 'n:' .. n, 'id', id, 'kind', int(kind), 'state', state, 'input', input, 'idle', idle, 'total', total, 'keep', keep, 'created', int(now),
  'active', int(now), 'transitions', NAMES[state + 1] .. ' ' .. int(now), 'count', count, unpack(fields))
call('HSET', T .. 'ni', id, n)
call('ZADD', T .. 'nl', n, n)
call('HINCRBY', T .. 'nc', int(kind) .. ':' .. state, 1)
local r = read(id)
call('ZADD', T .. 'nd', int(dueOf(r)), n)
if isFull(r) then call('ZADD', T .. 'nt', n, n) end
D.enqueue(follow, nil)
return {1, show(n)}
`;

/** What stands against it as data: the caller words it. */
export const ANNOUNCE = /* lua */ `
${COLLECTION}
local id, news = arg(), {}
local r = read(id)
if not r then return {'unknown', ''} end
for i = 1, num() do
  local name, count = arg(), arg()
  local p = r.places[name]
  if not p then return {'unknown', name} end
  local e, highest = r['e' .. p], r['x' .. p]
  if e ~= count then
    if e ~= '' then return {'announced before', name, e} end
    if tonumber(highest) > tonumber(count) then return {'beyond', name, highest} end
    news[#news + 1] = {p, count}
  end
end
if #news == 0 then return {'announced'} end
if r.state > COLLECTING then return {'closed', r.state} end
for _, one in ipairs(news) do
  r['e' .. one[1]] = one[2]
  call('HSET', T .. 'n:' .. r.n, 'e' .. one[1], one[2])
end
touch(r)
return {'announced'}
`;

/** Answers are places in PUT_ANSWERS; the rule is \`answerPut\` of job/collections.ts. */
export const PUT = /* lua */ `
${COLLECTION}
local ACCEPTED, DUPLICATE, CONFLICT, CLOSED, UNKNOWN = 0, 1, 2, 3, 4
local answers, touched = {}, {}
for i = 1, num() do
  local id, series, ordinal, bytes, sha256, blob = arg(), arg(), arg(), num(), arg(), arg()
  local r = read(id)
  local p = r and r.places[series]
  if not p then answers[i] = UNKNOWN
  else
    local number = tonumber(ordinal)
    local g, e = pageOf(number), r['e' .. p]
    local parts = keyOf('np', r.n, p, g)
    local known = call('HGET', parts, ordinal)
    if known then answers[i] = string.match(known, '^%d+|([^|]*)|') == sha256 and DUPLICATE or CONFLICT
    elseif r.state > COLLECTING then answers[i] = CLOSED
    elseif e ~= '' and number > tonumber(e) then answers[i] = CONFLICT
    else
      answers[i] = ACCEPTED
      wrote = true
      call('HSET', parts, ordinal, int(bytes) .. '|' .. sha256 .. '|' .. blob)
      call('SETBIT', keyOf('nb', r.n, p, g), int((number - 1) % PAGE), 1)
      call('HINCRBY', T .. 'ng:' .. r.n .. ':' .. p, int(g), 1)
      r['h' .. p] = int(tonumber(r['h' .. p]) + 1)
      r['y' .. p] = int(tonumber(r['y' .. p]) + bytes)
      if number > tonumber(r['x' .. p]) then r['x' .. p] = ordinal end
      local of = touched[r]
      if not of then of = {} touched[r] = of end
      of[p] = true
    end
  end
end
for r, places in pairs(touched) do
  local fields = {}
  for p in pairs(places) do
    for _, of in ipairs({'h', 'y', 'x'}) do
      fields[#fields + 1] = of .. p
      fields[#fields + 1] = r[of .. p]
    end
  end
  call('HSET', T .. 'n:' .. r.n, unpack(fields))
  touch(r)
end
return answers
`;

/** Of each place: nothing without its collection; its kind and state, whether there is the series, what is expected, and the hash of the part. */
export const KNOWN = /* lua */ `
${COLLECTION}
local found = {}
for i = 1, num() do
  local id, series, ordinal = arg(), arg(), arg()
  local r = read(id)
  local p = r and r.places[series]
  local known = p and call('HGET', keyOf('np', r.n, p, pageOf(tonumber(ordinal))), ordinal)
  found[i] = r and {kindOf(tonumber(r.kind)).name, r.state, p and 1 or 0, p and r['e' .. p] or '', known and string.match(known, '^%d+|([^|]*)|') or ''} or ''
end
return found
`;

export const GET_COLLECTIONS = COLLECTION + GET_SHOWN;
export const LIST_COLLECTIONS = COLLECTION + listing(KEYS);

export const COUNT_COLLECTIONS = /* lua */ `
local flat, list = call('HGETALL', T .. 'nc'), {}
for i = 1, #flat, 2 do
  local kind, state = string.match(flat[i], '^(%d+):(%d)$')
  list[#list + 1] = {kindOf(tonumber(kind)).name, state, flat[i + 1]}
end
return list
`;

export const PARTS = /* lua */ `
${COLLECTION}
local id, series, after, limit = arg(), arg(), num(), num()
local r = read(id)
local p = r and r.places[series]
if not p then return {} end
local list = {}
for _, page in ipairs(pagesOf(r.n, p)) do
  local g = page[1]
  if (g + 1) * PAGE > after then
    local bits, ordinals = call('GET', keyOf('nb', r.n, p, g)) or '', {}
    local place = math.max(0, after - g * PAGE)
    while place < #bits * 8 and #list + #ordinals < limit do
      local byte = string.byte(bits, floor(place / 8) + 1)
      if byte == 0 then place = (floor(place / 8) + 1) * 8
      else
        if floor(byte / 2 ^ (7 - place % 8)) % 2 == 1 then ordinals[#ordinals + 1] = int(g * PAGE + place + 1) end
        place = place + 1
      end
    end
    if #ordinals > 0 then
      local values = call('HMGET', keyOf('np', r.n, p, g), unpack(ordinals))
      for i, ordinal in ipairs(ordinals) do if values[i] then list[#list + 1] = {ordinal, values[i]} end end
    end
    if #list >= limit then break end
  end
end
return list
`;

/** Ranges between the bits. Whole bytes of ones, and pages without a part, are passed in one step. */
export const MISSING = /* lua */ `
${COLLECTION}
local id, series, limit = arg(), arg(), num()
local r = read(id)
local p = r and r.places[series]
if not p then return {} end
local upTo = tonumber(r['e' .. p] ~= '' and r['e' .. p] or r['x' .. p])
local ranges, from = {}, 1
-- The next ordinal that is there is \`have\`: what lies between is missing.
local function passed(have)
  if have > from then ranges[#ranges + 1] = {int(from), int(have - 1)} end
  from = have + 1
end
for _, page in ipairs(pagesOf(r.n, p)) do
  if #ranges > limit then break end
  local first = page[1] * PAGE + 1
  if page[2] == PAGE then
    passed(first)
    from = first + PAGE
  else
    local bits, place = call('GET', keyOf('nb', r.n, p, page[1])) or '', 0
    while place < #bits * 8 and #ranges <= limit do
      local index = floor(place / 8) + 1
      local byte = string.byte(bits, index)
      if byte == 255 and place % 8 == 0 and from == first + place then
        local next = (string.find(bits, '[^\\255]', index) or #bits + 1) - 1
        place = next * 8
        from = first + place
      elseif byte == 0 then place = index * 8
      else
        if floor(byte / 2 ^ (7 - place % 8)) % 2 == 1 then passed(first + place) end
        place = place + 1
      end
    end
  end
end
if #ranges <= limit and from <= upTo then ranges[#ranges + 1] = {int(from), int(upTo)} end
return ranges
`;

export const DUE_COLLECTIONS = /* lua */ `
local limit, ids, seen = num(), {}, {}
local function add(numbers)
  for _, n in ipairs(numbers) do
    if not seen[n] and #ids < limit then
      seen[n] = true
      ids[#ids + 1] = call('HGET', T .. 'n:' .. n, 'id') or nil
    end
  end
end
add(call('ZRANGE', T .. 'nt', 0, limit - 1))
add(call('ZRANGEBYSCORE', T .. 'nd', '-inf', int(now), 'LIMIT', 0, limit))
return {int(now), ids}
`;

/** For \`complete\` the bits are counted: the sums only say when it is worth it. */
export const STEP = /* lua */ `
${COLLECTION}
${AUDIT}
local entry = readEntry()
local id, from, to, why, ifDue = arg(), arg(), num(), opt(), arg() == '1'
local follow = D.readAll()
local unknown = D.undeclared(follow)
if unknown then return {'!kind', unknown} end
local r = read(id)
if not r or not string.find(from, r.state, 1, true) then return 0 end
if to == COMPLETE then
  for p = 0, tonumber(r.count) - 1 do
    local have = 0
    for _, page in ipairs(pagesOf(r.n, p)) do have = have + call('BITCOUNT', keyOf('nb', r.n, p, page[1])) end
    if r['e' .. p] == '' or have ~= tonumber(r['e' .. p]) then
      wrote = call('ZREM', T .. 'nt', r.n) == 1
      return 0
    end
  end
end
if ifDue and dueOf(r) > now then return 0 end
wrote = true
enter(r, to)
if why then call('HSET', T .. 'n:' .. r.n, 'why', why) end
call('ZREM', T .. 'nt', r.n)
if to > COLLECTING then call('ZREM', T .. 'nd', r.n) end
D.enqueue(follow, nil)
audit(entry, 1)
return 1
`;

/** A page at a time, and the record last: killed in between, the next call goes on. */
export const REMOVE_COLLECTION = /* lua */ `
${COLLECTION}
local id, limit, gone = arg(), num(), 0
local r = read(id)
if not r or r.state <= COLLECTING then return 0 end
wrote = true
for p = 0, tonumber(r.count) - 1 do
  for _, page in ipairs(pagesOf(r.n, p)) do
    if gone >= limit then return 1 end
    call('UNLINK', keyOf('np', r.n, p, page[1]), keyOf('nb', r.n, p, page[1]))
    call('HDEL', T .. 'ng:' .. r.n .. ':' .. p, int(page[1]))
    gone = gone + page[2]
  end
end
if gone >= limit then return 1 end
call('HDEL', T .. 'ni', id)
for _, index in ipairs({'nl', 'nd', 'nt'}) do call('ZREM', T .. index, r.n) end
uncount(r)
call('UNLINK', T .. 'n:' .. r.n)
return 0
`;

// ---- parked messages

export const PARK = /* lua */ `
for i = 1, num() do
  local id, collection, body = arg(), opt(), arg()
  if call('HSETNX', T .. 'pm', id, int(now) .. ' ' .. body) == 1 then
    wrote = true
    call('ZADD', T .. 'pz', 0, id)
    if collection then call('SADD', T .. 'pc:' .. collection, id) end
  end
end
return 1
`;

/** By id, at most 500 looked at; says where it stopped, or nothing if that was all. */
export const PARKED = /* lua */ `
local collection, after, limit, list = opt(), opt(), num(), {}
local ids
if collection then
  ids = call('SMEMBERS', T .. 'pc:' .. collection)
  table.sort(ids)
else ids = call('ZRANGEBYLEX', T .. 'pz', after and '(' .. after or '-', '+', 'LIMIT', 0, 500) end
for _, id in ipairs(ids) do
  if #list == limit then break end
  if not after or id > after then list[#list + 1] = {id, call('HGET', T .. 'pm', id)} end
end
return {list, not collection and #ids == 500 and #list < limit and ids[500] or ''}
`;

export const UNPARK = /* lua */ `
${AUDIT}
local entry, gone = readEntry(), 0
for i = 1, num() do
  local id = arg()
  local found = call('HGET', T .. 'pm', id)
  if found then
    wrote = true
    gone = gone + 1
    local collection = cjson.decode(string.match(found, '^%d+ (.*)$')).collection
    call('HDEL', T .. 'pm', id)
    call('ZREM', T .. 'pz', id)
    if type(collection) == 'string' then call('SREM', T .. 'pc:' .. collection, id) end
  end
end
audit(entry, gone)
return 1
`;

// ---- check and repair

/** What the records of some collections, from a number on, have to be found by: compared, or made again. */
const EACH_COLLECTION = /* lua */ `
${COLLECTION}
local function each(from, visit)
  local last, upTo = tonumber(call('HGET', T .. 'meta', 'collections') or 0), from + 49
  for number = from, math.min(last, upTo) do
    local n = int(number)
    local id = call('HGET', T .. 'n:' .. n, 'id')
    if id then
      local flat = hash(call('HGETALL', T .. 'n:' .. n))
      flat.n, flat.state = n, tonumber(flat.state)
      visit(flat)
    end
  end
  return upTo >= last and '' or int(upTo + 1)
end
`;

/** Next number; what is wrong; how many there are, and how many of them are open, by KIND:STATE; each input with its id; and what the indexes have. */
export const CHECK_COLLECTIONS = /* lua */ `
${EACH_COLLECTION}
local wrong, count, open, states, inputs = {}, 0, 0, {}, {}
local nextNumber = each(num(), function(r)
  local function check(right, what) if not right then wrong[#wrong + 1] = 'collection ' .. r.id .. ' ' .. what end end
  count = count + 1
  inputs[#inputs + 1] = {r.id, r.input or ''}
  states[r.kind .. ':' .. r.state] = (states[r.kind .. ':' .. r.state] or 0) + 1
  check(numberOf(r.id) == r.n, 'is missing in ' .. T .. 'ni')
  check(call('ZSCORE', T .. 'nl', r.n), 'is missing in ' .. T .. 'nl')
  if r.state <= COLLECTING then
    open = open + 1
    check(tonumber(call('ZSCORE', T .. 'nd', r.n) or 0) == dueOf(r), 'is missing in ' .. T .. 'nd')
    check(not isFull(r) or call('ZSCORE', T .. 'nt', r.n), 'may be complete and is missing in ' .. T .. 'nt')
  end
  for p = 0, tonumber(r.count) - 1 do
    local bits, parts, pages = 0, 0, 0
    for _, page in ipairs(pagesOf(r.n, p)) do
      bits, parts, pages = bits + call('BITCOUNT', keyOf('nb', r.n, p, page[1])), parts + call('HLEN', keyOf('np', r.n, p, page[1])), pages + page[2]
    end
    -- Parts of one that has ended may be on their way out.
    if r.state <= COMPLETE then
      check(parts == tonumber(r['h' .. p]) and bits == parts and pages == parts, 'has ' .. r['h' .. p] .. ' parts of ' .. r['n' .. p] .. ' by its record, '
        .. int(parts) .. ' are kept, and ' .. int(bits) .. ' are marked')
    end
  end
end)
local flat = {}
for name, some in pairs(states) do flat[#flat + 1] = name flat[#flat + 1] = some end
local parked = {call('HLEN', T .. 'pm'), call('ZCARD', T .. 'pz')}
return {nextNumber, wrong, count, open, flat, inputs, {call('HLEN', T .. 'ni'), call('ZCARD', T .. 'nl'), call('ZCARD', T .. 'nd')}, call('HGETALL', T .. 'nc'), parked}
`;

/** From a collection's record and its parts. The caller has removed ni, nl, nd, nt and nc. */
export const REPAIR_COLLECTIONS = /* lua */ `
if not META[5] then return '' end
wrote = true
${EACH_COLLECTION}
return each(num(), function(r)
  call('HSET', T .. 'ni', r.id, r.n)
  call('ZADD', T .. 'nl', r.n, r.n)
  call('HINCRBY', T .. 'nc', r.kind .. ':' .. r.state, 1)
  for p = 0, tonumber(r.count) - 1 do
    local have, pages = 0, {}
    local function take(g)
      local ordinals = call('HKEYS', keyOf('np', r.n, p, g))
      call('UNLINK', keyOf('nb', r.n, p, g))
      for _, ordinal in ipairs(ordinals) do call('SETBIT', keyOf('nb', r.n, p, g), int((tonumber(ordinal) - 1) % PAGE), 1) end
      if #ordinals > 0 then pages[#pages + 1] = {g, #ordinals} end
      have = have + #ordinals
    end
    local listed = {}
    for _, page in ipairs(pagesOf(r.n, p)) do
      listed[page[1]] = true
      take(page[1])
    end
    -- A page that was lost from the list is found by its parts.
    if have ~= tonumber(r['h' .. p]) then
      for g = 0, pageOf(math.max(1, tonumber(r['x' .. p]))) do if not listed[g] then take(g) end end
    end
    call('UNLINK', T .. 'ng:' .. r.n .. ':' .. p)
    for _, page in ipairs(pages) do call('HSET', T .. 'ng:' .. r.n .. ':' .. p, int(page[1]), page[2]) end
    if r.state <= COMPLETE then
      r['h' .. p] = int(have)
      call('HSET', T .. 'n:' .. r.n, 'h' .. p, r['h' .. p])
    end
  end
  if r.state <= COLLECTING then
    call('ZADD', T .. 'nd', int(dueOf(r)), r.n)
    if isFull(r) then call('ZADD', T .. 'nt', r.n, r.n) end
  end
end)
`;

/** Some of the parked messages, from a place in the order of their ids on. A user without the rights for scans may check and repair, too. */
const EACH_PARKED = /* lua */ `
local function each(cursor, visit)
  local ids, from = call('HKEYS', T .. 'pm'), tonumber(cursor)
  table.sort(ids)
  for i = from + 1, math.min(from + 200, #ids) do
    local collection = cjson.decode(string.match(call('HGET', T .. 'pm', ids[i]), '^%d+ (.*)$')).collection
    visit(ids[i], type(collection) == 'string' and T .. 'pc:' .. collection or nil)
  end
  return from + 200 >= #ids and '' or int(from + 200)
end
`;

export const CHECK_PARKED = /* lua */ `
${EACH_PARKED}
local wrong = {}
local nextCursor = each(arg(), function(id, of)
  local function check(right, key) if not right then wrong[#wrong + 1] = 'the parked message ' .. id .. ' is missing in ' .. key end end
  check(call('ZSCORE', T .. 'pz', id), T .. 'pz')
  check(not of or call('SISMEMBER', of, id) == 1, of)
end)
return {nextCursor, wrong}
`;

export const REPAIR_PARKED = /* lua */ `
if not META[5] then return '' end
wrote = true
${EACH_PARKED}
return each(arg(), function(id, of)
  call('ZADD', T .. 'pz', 0, id)
  if of then call('SADD', of, id) end
end)
`;
