// Lua that batches and collections share. Both are groups: a record under a number, found by its id, shown with the name of its kind, listed by number.

/** The keys of one sort of group. */
export interface GroupKeys {
  /** A record, before its number. */
  readonly record: string;
  /** Numbers by id. */
  readonly numbers: string;
  /** All of them, by number. */
  readonly all: string;
}

/** `numberOf(id)` and `show(n)`. `more` may add fields to `flat`. */
export function showing({ record, numbers }: GroupKeys, more = ""): string {
  return /* lua */ `
local function numberOf(id) return call('HGET', T .. '${numbers}', id) end
local function show(n)
  local flat = call('HGETALL', T .. '${record}' .. n)
  if #flat == 0 then return nil end
  local v = call('HMGET', T .. '${record}' .. n, 'kind', 'id')
  flat[#flat + 1] = 'kindName'
  flat[#flat + 1] = kindOf(tonumber(v[1])).name${more}
  return flat
end
`;
}

/** Those of these ids, in their order. Needs `showing`. */
export const GET_SHOWN = /* lua */ `
local list = {}
for i = 1, num() do
  local n = numberOf(arg())
  list[#list + 1] = n and show(n) or nil
end
return list
`;

/** The newest first, at most 500 looked at; says where it stopped, or nothing if that was all. Needs `showing`. */
export function listing({ record, all }: GroupKeys): string {
  return /* lua */ `
local before, after, kindName, state, createdAfter, limit = opt(), opt(), opt(), opt(), optnum(), num()
if after then
  before = numberOf(after)
  if not before then return {{}, ''} end
end
local kind = kindName and kindNamed(kindName)
if kindName and not kind then return {{}, ''} end
local found = {}
local numbers = call('ZREVRANGEBYSCORE', T .. '${all}', before and '(' .. before or '+inf', '-inf', 'LIMIT', 0, 500)
for _, n in ipairs(numbers) do
  local v = call('HMGET', T .. '${record}' .. n, 'kind', 'state', 'created')
  if (not kind or v[1] == int(kind)) and (not state or v[2] == state) and (not createdAfter or tonumber(v[3]) > createdAfter) then
    found[#found + 1] = show(n)
    if #found == limit then return {found, n} end
  end
end
return {found, #numbers == 500 and numbers[500] or ''}
`;
}
