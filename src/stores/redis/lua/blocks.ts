// Lua: the rows of a block as they end, whatever ends them, as in sqlite/blocks.ts. A row counts once: by its mark, or with its block if that ends
// before it. The record of a block's job says what it is, and is the truth about its rows:
//
// bn, br, bo   its batch's number, its round, its own number in that      bs  how many rows it has
// mk           a character for each row, 1: it has ended; absent: none     bg, bf  the row that the attempt of this fence was about to begin
//
// What rows leave behind is kept by batch, round and number of the block: `br:` has its failures (the row, its line, how it ended, its input, the error),
// `bp:` with a file's name what they wrote to that file (lines that had ended before and are to be left out, then the texts). `bw` has the batches in
// which something may have to be decided. The rest of the keys is in batches.ts.

export const BLOCKS = /* lua */ `
B = {}
local SEPARATOR = '\\31'
local counted = {}
local function count(j, as, rows)
  local of = j.d.bn .. ':' .. j.d.br
  counted[of] = counted[of] or {n = j.d.bn, round = j.d.br}
  counted[of][as] = (counted[of][as] or 0) + rows
end
function B.place(n, round, number) return concat({n, round, number}, ':') end
local function placeOf(j) return B.place(j.d.bn, j.d.br, j.d.bo) end
function B.readRow() return {row = num(), line = arg(), as = arg(), input = arg(), error = arg()} end
-- Nothing: the write or the change ends no rows.
function B.readRows()
  if arg() ~= '1' then return nil end
  local ends = {succeeded = {}, failed = {}, outputs = {}}
  for row in string.gmatch(arg(), '%-?%d+') do ends.succeeded[#ends.succeeded + 1] = tonumber(row) end
  for i = 1, num() do ends.failed[i] = B.readRow() end
  for i = 1, num() do ends.outputs[i] = {file = arg(), texts = arg()} end
  return ends
end
function B.markBad(n, round, number) call('ZADD', T .. 'bf:' .. n .. ':' .. round, number, number) end
-- \`row\` of a row that was rejected is empty: it has no place in its block.
function B.keepFailure(place, row, one)
  call('RPUSH', T .. 'br:' .. place, concat({row, one.line, one.as, one.input, one.error}, SEPARATOR))
end
-- The lines of a part of an output, [[line,"text"],...], without decoding what Lua would not keep as it is.
local function linesIn(texts)
  local lines, position = {}, 2
  while true do
    local _, stop, line = string.find(texts, '^%[(%d+),"', position)
    if not line then return lines end
    lines[#lines + 1] = line
    position = stop + 1
    while true do
      local found = string.find(texts, '["\\\\]', position)
      if not found then return lines end
      position = found + 2
      if sub(texts, found, found) == '"' then break end
    end
    position = position + 1
  end
end
local function linesEnded(j, marks)
  local input = J.input(j.row)
  local ended, row = {}, 0
  for line in string.gmatch(string.match(input, '"lines":%[([%d,]*)%]') or '', '%d+') do
    row = row + 1
    if sub(marks, row, row) == '1' then ended[line] = true end
  end
  return ended
end
-- A text has its checksum of 9 characters in front.
local function keepOutput(j, part, endedBefore)
  local dropped, kept = {}, true
  if endedBefore then
    kept = false
    for _, line in ipairs(linesIn(sub(part.texts, 10))) do
      if endedBefore[line] then dropped[#dropped + 1] = line else kept = true end
    end
  end
  if not kept then return end
  call('RPUSH', T .. 'bp:' .. placeOf(j) .. ':' .. part.file, concat(dropped, ',') .. SEPARATOR .. part.texts)
  call('ZADD', concat({T .. 'bo:' .. j.d.bn, j.d.br, part.file}, ':'), j.d.bo, j.d.bo)
  call('ZADD', T .. 'bof:' .. j.d.bn, 0, part.file)
end
-- Marks these rows as ended and keeps what they leave behind. Rows that were marked before change nothing, and leave nothing. \`withRest\`: by a success,
-- with which every row that is left succeeds, so that only failed ones need a mark.
function B.endRows(j, ends, withRest)
  if not ends or not j.d.bn then return end
  wrote = true
  local size = tonumber(j.d.bs)
  local before = j.d.mk or string.rep('0', size)
  local isNew, rows, succeeded, failed, repeated = {}, {}, 0, {}, false
  local function mark(row)
    if row < 0 or row >= size or isNew[row] or sub(before, row + 1, row + 1) ~= '0' then
      repeated = true
      return false
    end
    isNew[row] = true
    rows[#rows + 1] = row
    return true
  end
  if not withRest then for _, row in ipairs(ends.succeeded) do if mark(row) then succeeded = succeeded + 1 end end end
  for _, one in ipairs(ends.failed) do if mark(one.row) then failed[#failed + 1] = one end end
  if #ends.outputs > 0 and (withRest or #rows > 0) then
    local endedBefore = (repeated or (withRest and j.d.mk)) and linesEnded(j, before) or nil
    for _, part in ipairs(ends.outputs) do keepOutput(j, part, endedBefore) end
  end
  if #rows == 0 then return end
  table.sort(rows)
  local pieces, last = {}, 0
  for _, row in ipairs(rows) do
    pieces[#pieces + 1] = sub(before, last + 1, row)
    pieces[#pieces + 1] = '1'
    last = row + 1
  end
  pieces[#pieces + 1] = sub(before, last + 1)
  J.set(j, 'mk', concat(pieces))
  for _, one in ipairs(failed) do
    B.keepFailure(placeOf(j), int(one.row), one)
    count(j, one.as, 1)
  end
  if #failed > 0 then B.markBad(j.d.bn, j.d.br, j.d.bo) end
  if succeeded > 0 then count(j, 'succeeded', succeeded) end
end
local ENDS_AS = {[2] = 'succeeded', [3] = 'failed', [4] = 'aborted', [5] = 'quarantined'}
function B.left(j)
  if not j.d.mk then return tonumber(j.d.bs) end
  local _, left = string.gsub(j.d.mk, '0', '0')
  return left
end
-- The block's job has ended: the rows without a mark end with it.
function B.endBlock(j)
  if not j.d.bn then return end
  local as, left = ENDS_AS[j.state], B.left(j)
  if left == 0 then return end
  if as == 'failed' or as == 'quarantined' then B.markBad(j.d.bn, j.d.br, j.d.bo) end
  count(j, as, left)
end
-- A batch that was deleted, or is in another round, has no rows left that could end.
function B.add(n, round, sums)
  if call('HGET', T .. 'b:' .. n, 'round') ~= round then return end
  for _, as in ipairs({'succeeded', 'failed', 'quarantined', 'aborted'}) do
    if sums[as] then call('HINCRBY', T .. 'b:' .. n, as, sums[as]) end
  end
  call('ZADD', T .. 'bw', n, n)
end
function B.flush()
  for _, of in pairs(counted) do B.add(of.n, of.round, of) end
  counted = {}
end
function B.begin(j, row)
  if not j.d.bn then return end
  J.set(j, 'bg', row)
  J.set(j, 'bf', j.fence)
end
`;

/** For scripts that read: the input of a block whose latest attempt has begun a row that has not ended; nothing: there is none. */
export const BEGUN = /* lua */ `
local function begunInput(j)
  local row = j.d.bg
  if not row or j.d.bf ~= int(j.fence) then return '' end
  if sub(j.d.mk or '', tonumber(row) + 1, tonumber(row) + 1) == '1' then return '' end
  return J.input(j.row)
end
`;
