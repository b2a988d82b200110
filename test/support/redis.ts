// Redis as tests ask for it: one server for the whole run, a fresh name of a store for each test, and a server of its own for a test that kills,
// freezes or restarts it. The shared one is started by the first that asks (scripts/test.mjs, over a socket).
import { randomBytes } from "node:crypto";
import { connect } from "node:net";
import type { TestContext } from "node:test";
import { type RedisOptions, RedisServer } from "../../proof/servers/redis-server.ts";
import type { Connection } from "../../src/stores/redis/connection.ts";
import * as wires from "../../src/stores/redis/driver.ts";

export { RedisServer };

let asked: Promise<string> | undefined;

/** The address of the shared server. */
export function sharedRedis(): Promise<string> {
  asked ??= ask();
  return asked;
}

async function ask(): Promise<string> {
  const given = process.env["OUTLIVE_TEST_REDIS_URL"];
  if (given) return given;
  const socket = process.env["OUTLIVE_TEST_REDIS_SOCKET"];
  if (socket) return answerOf(socket);
  // Not under `npm test`: this process has its own, and takes it along.
  const server = await RedisServer.create();
  process.once("exit", () => server.destroyNow());
  return server.url();
}

function answerOf(socket: string): Promise<string> {
  return new Promise((resolve, reject) => {
    let answer = "";
    const connection = connect(socket);
    connection.setEncoding("utf8");
    connection.on("data", (text: string) => (answer += text));
    connection.once("error", reject);
    connection.once("end", () => {
      if (answer.startsWith("redis")) resolve(answer);
      else reject(new Error(answer));
    });
  });
}

export interface FreshName {
  readonly url: string;
  readonly name: string;
  /** One command on a connection of its own. */
  readonly call: (...args: readonly string[]) => Promise<wires.Reply>;
}

/** A store's name that no other test has. */
export async function freshName(t: TestContext): Promise<FreshName> {
  const url = await sharedRedis();
  const wire = await wires.connect({ url });
  t.after(() => wire.close());
  return { url, name: `t-${randomBytes(8).toString("hex")}`, call: (...args) => wire.call(args, 5_000) };
}

/** A server of this test's own, gone when the test has ended. */
export async function ownRedis(t: TestContext, options: RedisOptions = {}): Promise<RedisServer> {
  const server = await RedisServer.create(options);
  const destroyNow = (): void => server.destroyNow();
  process.once("exit", destroyNow);
  t.after(async () => {
    process.off("exit", destroyNow);
    await server.destroy();
  });
  return server;
}

/** These have what may be due and what should be looked at; earlier and more is harmless. */
const HINTS = ["meta", "now", "kw", "kd", "fd", "zk", "dl", "bw"];

/** All keys of a store with what is in them, hints aside. */
export async function contents(
  connection: Pick<Connection, "tag" | "command">,
): Promise<Record<string, readonly string[]>> {
  const { tag } = connection;
  const dumped = (await connection.command("EVAL", DUMP, "1", tag)) as [string, string, string[]][];
  const all: Record<string, readonly string[]> = {};
  for (const [key, type, members] of dumped) {
    if (HINTS.includes(key.slice(tag.length))) continue;
    const pairs =
      type === "hash" || type === "zset"
        ? members.flatMap((member, at) => (at % 2 === 0 ? [`${member} = ${members[at + 1]!}`] : []))
        : members;
    // A door without jobs stays known for a while.
    const kept = key === `${tag}doors` ? pairs.filter((pair) => !pair.endsWith(" = 0")) : pairs;
    if (kept.length > 0) all[key] = type === "list" ? kept : kept.toSorted();
  }
  return all;
}

const DUMP = `
local all = {}
for _, key in ipairs(redis.call('KEYS', string.gsub(KEYS[1], '[{}]', '?') .. '*')) do
  local type = redis.call('TYPE', key).ok
  if type == 'hash' then all[#all + 1] = {key, type, redis.call('HGETALL', key)}
  elseif type == 'set' then all[#all + 1] = {key, type, redis.call('SMEMBERS', key)}
  elseif type == 'list' then all[#all + 1] = {key, type, redis.call('LRANGE', key, 0, -1)}
  elseif type == 'zset' then all[#all + 1] = {key, type, redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')} end
end
table.sort(all, function(a, b) return a[1] < b[1] end)
return all
`;
