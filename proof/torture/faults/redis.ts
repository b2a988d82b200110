// A Redis server of the rig's own that flushes every write before it replies, and what is done to it: killed, stopped and started, frozen.
import { cpSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { atEnd } from "../../../src/torture/run.ts";
import { connect } from "../../../src/stores/redis/driver.ts";
import { RedisServer } from "../../servers/redis-server.ts";
import type { Fault } from "../processes/fault-schedule.ts";
import { HELD_BACK_MS } from "./proxy.ts";

export interface TorturedRedis {
  readonly url: string;
  readonly faults: readonly Fault[];
  /** Stops it, copies what it holds, and says how that is started. */
  copyTo(folder: string): Promise<void>;
}

export async function startRedis(): Promise<TorturedRedis> {
  const server = await RedisServer.create({ fsync: "always" });
  atEnd(() => server.destroyNow());
  return {
    url: server.url(),
    faults: [...faultsOf(server, "Server", "the server"), fillMemory(server)],
    async copyTo(folder) {
      await server.stop();
      const kept = join(folder, "redis");
      cpSync(server.folder, kept, { recursive: true });
      process.stderr.write(`The store is in ${kept}: redis-server --dir ${kept} --appendonly yes\n`);
    },
  };
}

/** The server of the workers' liveness, where their jobs are on PostgreSQL. It keeps nothing, so each start is an empty one. */
export async function startPulse(): Promise<{ readonly url: string; readonly faults: readonly Fault[] }> {
  const server = await RedisServer.create();
  atEnd(() => server.destroyNow());
  return { url: server.url(), faults: faultsOf(server, "Pulse", "the Redis server of the liveness") };
}

async function wait(ms: number, signal: AbortSignal): Promise<void> {
  await pause(ms, undefined, { signal }).catch(() => {});
}

function faultsOf(server: RedisServer, key: string, what: string): readonly Fault[] {
  const restarting = (name: string, text: string, end: () => Promise<void>): Fault => ({
    key: `${name}${key}`,
    name: text,
    aftermathMs: HELD_BACK_MS,
    async strike(chance, signal) {
      await end();
      await wait(chance.whole(0, 1_000), signal);
      await server.start();
    },
  });
  return [
    restarting("kill", `kill ${what} with SIGKILL and start it again`, () => server.kill()),
    restarting("stop", `stop ${what} and start it again`, () => server.stop()),
    {
      key: `freeze${key}`,
      name: `freeze ${what}`,
      aftermathMs: HELD_BACK_MS,
      async strike(chance, signal) {
        server.freeze();
        await wait(chance.whole(200, 3_000), signal);
        server.thaw();
      },
    },
  ];
}

/** Nothing new is taken meanwhile; what runs ends. */
function fillMemory(server: RedisServer): Fault {
  return {
    key: "fillMemory",
    name: "let the server's memory be full",
    aftermathMs: 0,
    async strike(chance, signal) {
      const wire = await connect({ url: server.url() });
      try {
        await wire.call(["CONFIG", "SET", "maxmemory", "1mb"], CALL_MS);
        await wait(chance.whole(200, 2_000), signal);
        await wire.call(["CONFIG", "SET", "maxmemory", "0"], CALL_MS);
      } finally {
        wire.close();
      }
    },
  };
}

const CALL_MS = 20_000;
