// Redis as tests ask for it: one server for the whole run, a fresh name of a store for each test, and a server of its own for a test that kills,
// freezes or restarts it. The shared one is started by the first that asks (scripts/test.mjs, over a socket).
import { randomBytes } from "node:crypto";
import { connect } from "node:net";
import type { TestContext } from "node:test";
import { type RedisOptions, RedisServer } from "../../proof/servers/redis-server.ts";
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
