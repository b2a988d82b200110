// The floor on Redis: the least that a durable batched claim and settle needs. Records of eleven bytes in hashes of 64 jobs, payloads next to them, a
// list of what is ready; one script per batch settles the last one job by job under its fence and claims the next. Nothing else: no ids, no
// clocks of jobs, no worker that might be dead. It must stay as fast as it can be made, or our ratios lie.
import { createClient, type RedisClientType } from "@redis/client";
import { createHash } from "node:crypto";

const TURN = `#!lua
local T, call = KEYS[1], redis.call
local pages, order = {}, {}
local function pageOf(row)
  local p = math.floor(row / 64)
  local of = pages[p]
  if not of then of = {} pages[p] = of order[#order + 1] = p end
  return of
end
local count = tonumber(ARGV[1])
for i = 2, 1 + 2 * count, 2 do local of = pageOf(tonumber(ARGV[i])) of[#of + 1] = {tonumber(ARGV[i]), tonumber(ARGV[i + 1])} end
local settled = 0
for _, p in ipairs(order) do
  local of, slots, set = pages[p], {}, {}
  for i, one in ipairs(of) do slots[i] = one[1] % 64 end
  local values = call('HMGET', T .. 'j:' .. p, unpack(slots))
  for i, one in ipairs(of) do
    local state, fence, worker = struct.unpack('>BI4I4', values[i])
    if state == 1 and fence == one[2] and worker == 1 then
      settled = settled + 1
      set[#set + 1] = slots[i]
      set[#set + 1] = struct.pack('>BI4I4', 2, fence, worker)
    end
  end
  call('HSET', T .. 'j:' .. p, unpack(set))
end
local rows = call('LPOP', T .. 'ready', ARGV[2 + 2 * count]) or {}
pages, order = {}, {}
for _, row in ipairs(rows) do local of = pageOf(tonumber(row)) of[#of + 1] = row end
local claimed = {}
for _, p in ipairs(order) do
  local of, slots, set = pages[p], {}, {}
  for i, row in ipairs(of) do slots[i] = tonumber(row) % 64 end
  local values = call('HMGET', T .. 'j:' .. p, unpack(slots))
  local inputs = call('HMGET', T .. 'i:' .. p, unpack(slots))
  for i, row in ipairs(of) do
    local _, fence = struct.unpack('>BI4I4', values[i])
    set[#set + 1] = slots[i]
    set[#set + 1] = struct.pack('>BI4I4', 1, fence + 1, 1)
    claimed[#claimed + 1] = row
    claimed[#claimed + 1] = fence + 1
    claimed[#claimed + 1] = inputs[i]
  end
  call('HSET', T .. 'j:' .. p, unpack(set))
end
return {settled, claimed}`;

const FILL = `#!lua
local T, call = KEYS[1], redis.call
local last = call('INCRBY', T .. 'row', #ARGV)
local first = last - #ARGV
local fresh = struct.pack('>BI4I4', 0, 0, 0)
local pages, rows = {}, {}
for i, text in ipairs(ARGV) do
  local row = first + i
  local p = math.floor(row / 64)
  local of = pages[p]
  if not of then of = {{}, {}} pages[p] = of end
  local a, b = of[1], of[2]
  a[#a + 1] = row % 64 a[#a + 1] = fresh
  b[#b + 1] = row % 64 b[#b + 1] = text
  rows[i] = row
end
for p, of in pairs(pages) do
  call('HSET', T .. 'j:' .. p, unpack(of[1]))
  call('HSET', T .. 'i:' .. p, unpack(of[2]))
end
call('RPUSH', T .. 'ready', unpack(rows))
return last`;

const sha = (text: string): string => createHash("sha1").update(text).digest("hex");
const FILL_BATCH = 1_000;

export class RedisFloor {
  readonly #client: RedisClientType;
  readonly #tag: string;

  private constructor(client: RedisClientType, tag: string) {
    this.#client = client;
    this.#tag = tag;
  }

  static async open(address: string): Promise<RedisFloor> {
    const url = new URL(address);
    const tag = `floor:{${url.searchParams.get("store") ?? ""}}:`;
    url.search = "";
    const client = createClient({ url: url.href }) as RedisClientType;
    await client.connect();
    for (const text of [TURN, FILL]) await client.sendCommand(["SCRIPT", "LOAD", text]);
    return new RedisFloor(client, tag);
  }

  /** `count` payloads, `batchSize` of them in each script. */
  async insert(count: number, batchSize: number, payloadOf: (n: number) => string): Promise<void> {
    for (let from = 0; from < count; from += batchSize) {
      const some = Array.from({ length: Math.min(batchSize, count - from) }, (_, n) => payloadOf(from + n));
      await this.#client.sendCommand(["EVALSHA", sha(FILL), "1", this.#tag, ...some]);
    }
  }

  fill(count: number): Promise<void> {
    return this.insert(count, FILL_BATCH, (n) => `{"n":${n}}`);
  }

  /** Runs the queue empty; `done` hears the size of each batch when it is settled. */
  async drain(batchSize: number, done: (count: number) => void): Promise<void> {
    let held: string[] = [];
    for (;;) {
      const args = [String(held.length / 2), ...held, String(batchSize)];
      const reply = await this.#client.sendCommand(["EVALSHA", sha(TURN), "1", this.#tag, ...args]);
      const [settled, claimed] = reply as unknown as [number, (string | number)[]];
      if (settled !== held.length / 2) throw new Error("the floor lost a job");
      if (settled > 0) done(settled);
      if (claimed.length === 0) return;
      held = [];
      for (let i = 0; i < claimed.length; i += 3) held.push(String(claimed[i]), String(claimed[i + 1]));
    }
  }
}
