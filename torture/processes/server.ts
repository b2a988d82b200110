// A PostgreSQL server of the rig's own, with fsync on, and what is done to it: killed, stopped and started, frozen.
import { setTimeout as pause } from "node:timers/promises";
import { atEnd } from "../../src/demo/clean-up.ts";
import { PostgresServer } from "../../src/demo/postgres-server.ts";
import type { Fault } from "../../src/torture/strikes.ts";
import { HELD_BACK_MS } from "./proxy.ts";

export async function startServer(): Promise<{ readonly url: string; readonly faults: readonly Fault[] }> {
  const server = await PostgresServer.create({ fsync: true });
  atEnd(() => server.destroyNow());
  const wait = async (ms: number, signal: AbortSignal): Promise<void> => {
    await pause(ms, undefined, { signal }).catch(() => {});
  };
  return {
    url: server.url(),
    faults: [
      {
        name: "kill the server with SIGKILL and start it again",
        weight: 1,
        aftermathMs: HELD_BACK_MS,
        async strike(chance, signal) {
          await server.kill();
          await wait(chance.whole(0, 1_000), signal);
          await server.start();
        },
      },
      {
        name: "stop the server and start it again",
        weight: 1,
        aftermathMs: HELD_BACK_MS,
        async strike(chance, signal) {
          await server.stop();
          await wait(chance.whole(0, 1_000), signal);
          await server.start();
        },
      },
      {
        name: "freeze the server",
        weight: 2,
        aftermathMs: HELD_BACK_MS,
        async strike(chance, signal) {
          server.freeze();
          await wait(chance.whole(200, 3_000), signal);
          server.thaw();
        },
      },
    ],
  };
}
