// A Redis server of the rig's own that flushes every write before it replies, and what is done to it: killed, stopped and started, frozen.
import { cpSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { atEnd } from "../../../src/torture/run.ts";
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
  const wait = async (ms: number, signal: AbortSignal): Promise<void> => {
    await pause(ms, undefined, { signal }).catch(() => {});
  };
  const restarting = (key: string, name: string, end: () => Promise<void>): Fault => ({
    key,
    name,
    aftermathMs: HELD_BACK_MS,
    async strike(chance, signal) {
      await end();
      await wait(chance.whole(0, 1_000), signal);
      await server.start();
    },
  });
  return {
    url: server.url(),
    faults: [
      restarting("killServer", "kill the server with SIGKILL and start it again", () => server.kill()),
      restarting("stopServer", "stop the server and start it again", () => server.stop()),
      {
        key: "freezeServer",
        name: "freeze the server",
        aftermathMs: HELD_BACK_MS,
        async strike(chance, signal) {
          server.freeze();
          await wait(chance.whole(200, 3_000), signal);
          server.thaw();
        },
      },
    ],
    async copyTo(folder) {
      await server.stop();
      const kept = join(folder, "redis");
      cpSync(server.folder, kept, { recursive: true });
      process.stderr.write(`The store is in ${kept}: redis-server --dir ${kept} --appendonly yes\n`);
    },
  };
}
