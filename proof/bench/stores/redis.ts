// Redis under test: one server of the bench's own, with an append-only file that is flushed every second, as people run it, unless a metric is about
// another flush; each place is a store of its own on it.
import { readFileSync } from "node:fs";
import { open } from "../../../src/index.ts";
import { redisAddress } from "../../../src/stores/redis/address.ts";
import { tagOf } from "../../../src/stores/redis/connection.ts";
import { connect, type Reply, type Wire } from "../../../src/stores/redis/driver.ts";
import { checked, inputOwner } from "../../../src/stores/redis/encoding.ts";
import { SLOT } from "../../../src/stores/redis/lua/plain.ts";
import { noop } from "../programs/noop.ts";
import { RedisServer } from "../../servers/redis-server.ts";
import type { Bench } from "../harness.ts";
import type { Filling, TestedStore } from "./tested-store.ts";

export class TestedRedis implements TestedStore {
  readonly name = "redis";
  readonly floorBatch = 50;
  readonly floors = { drain: "redis/drain-floor", enqueue: "redis/enqueue-floor" };
  #server: Promise<RedisServer> | undefined;
  #started: RedisServer | undefined;
  #places = 0;
  readonly #fsync: "everysec" | "always";

  constructor(fsync: "everysec" | "always" = "everysec") {
    this.#fsync = fsync;
  }

  async place(): Promise<string> {
    const server = await (this.#server ??= this.#start());
    return `${server.url()}?store=bench-${++this.#places}`;
  }

  /** CPU of the server so far, in ms. */
  async cpuMs(): Promise<number | null> {
    const { pid } = await this.#server!;
    try {
      return Number(readFileSync(`/proc/${pid}/schedstat`, "latin1").split(" ")[0]) / 1e6;
    } catch {
      return null;
    }
  }

  /** Everything goes with the server: one store at a time is large. */
  async drop(url: string): Promise<void> {
    const wire = await connect({ url: new URL(url).href.split("?")[0]! });
    await wire.call(["FLUSHALL"], 60_000);
    wire.close();
  }

  /** By a script of the bench's own, which writes what the store's scripts would: 6,000,000 jobs in half a minute. */
  async fill(_bench: Bench, url: string, filling: Filling, count: number, inputBytes = 0): Promise<void> {
    const { wire: at, name } = redisAddress(url);
    const engine = await open(url, { jobs: [noop], logger: false });
    await engine.close();
    const wire = await connect(at);
    const state = filling.finished ? "2" : "0";
    const input = checked(inputBytes > 2 ? `"${"x".repeat(inputBytes - 2)}"` : "{}", inputOwner(filling.kind));
    for (let from = 0; from < count; from += FILLED_AT_ONCE) {
      const some = Math.min(FILLED_AT_ONCE, count - from);
      const args = [state, String(filling.priority), String(some), filling.kind, input];
      await wire.call(["EVAL", FILL, "1", tagOf(name), ...args], 60_000);
    }
    wire.close();
  }

  async wire(): Promise<Wire> {
    return connect({ url: (await this.#server!).url() });
  }

  /** A plain command to the server. */
  async command(...args: readonly string[]): Promise<Reply> {
    const wire = await this.wire();
    try {
      return await wire.call(args, 60_000);
    } finally {
      wire.close();
    }
  }

  destroyNow(): void {
    this.#started?.destroyNow();
  }

  async #start(): Promise<RedisServer> {
    const server = await RedisServer.create({ fsync: this.#fsync });
    this.#started = server;
    const wire = await connect({ url: server.url() });
    const [, version] = /redis_version:(\S+)/.exec(String(await wire.call(["INFO", "server"], 5_000))) ?? [];
    wire.close();
    process.stderr.write(
      `Redis ${version}, appendonly yes, appendfsync ${this.#fsync}, all other settings as shipped\n`,
    );
    return server;
  }
}

const FILLED_AT_ONCE = 5_000;

/** As the store itself writes plain jobs: a worker that claims ahead takes some of them, too. */
const FILL = `#!lua
local T, call, int = KEYS[1], redis.call, function(x) return string.format('%.0f', x) end
local state, priority, count, text = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[5]
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local kind = call('HGET', T .. 'kinds', ARGV[4])
local last = call('HINCRBY', T .. 'meta', 'row', count)
local fence = state == 2 and 1 or 0
local front = struct.pack('${SLOT}', state, now, fence, fence, fence * now, now, 0, tonumber(kind), priority, now)
local row = last - count + 1
while row <= last do
  local p = math.floor(row / 64)
  local records, inputs, ids = {}, {}, {}
  for _ = call('LLEN', T .. 'i:' .. int(p)), row % 64 - 1 do inputs[#inputs + 1] = '' end
  while row <= last and math.floor(row / 64) == p do
    local id = string.format('0f%020d', row)
    records[#records + 1] = int(row % 64)
    records[#records + 1] = front .. id
    inputs[#inputs + 1] = text
    ids[#ids + 1] = id
    ids[#ids + 1] = int(row)
    row = row + 1
  end
  call('HSET', T .. 'j:' .. int(p), unpack(records))
  call('RPUSH', T .. 'i:' .. int(p), unpack(inputs))
  call('HSET', T .. 'x:0f00000', unpack(ids))
end
call('HINCRBY', T .. 'kc', 'jobs:' .. kind, count)
if state == 0 then
  local order = (1000 - priority) * 8589934592
  for c = math.floor((last - count + 1) / 256), math.floor(last / 256) do
    local rows = {}
    for one = math.max(c * 256, last - count + 1), math.min(c * 256 + 255, last) do rows[#rows + 1] = string.char(one % 256) end
    local name = int(order + c)
    call('HSET', T .. 'rs:' .. kind, name, (call('HGET', T .. 'rs:' .. kind, name) or '') .. table.concat(rows))
    call('ZADD', T .. 'r:' .. kind, name, name)
  end
  call('ZADD', T .. 'rk', 'LT', int((1000 - priority) * 2199023255552 + last - count + 1), kind)
  call('HINCRBY', T .. 'kc', 'rd:' .. kind, count)
end
return 1`;
