// A PostgreSQL server of the rig's own, with fsync on, and what is done to it: killed, stopped and started, frozen, and its disk filled.
// Its folder is in memory, on the small disk: processes and servers die here, machines don't, and what a dead server has written is there.
import pg from "pg";
import { spawnSync } from "node:child_process";
import { chmodSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { atEnd } from "../../../src/torture/run.ts";
import { PostgresServer } from "../../servers/postgres-server.ts";
import type { Fault } from "../processes/fault-schedule.ts";
import { HELD_BACK_MS } from "./proxy.ts";
import { FILL, FILL_KEY, type SmallDisk, whileFull } from "./small-disk.ts";

const MOST_FULL_MS = 3_000;
/** How often a full disk is met by the server's log, too: on its own it needs a new file only every 16 MB. */
const LOG_TOO = 0.4;
/** Of a machine that is busy with starting programs. */
const UP_AGAIN_MS = 60_000;

export interface Server {
  readonly url: string;
  readonly faults: readonly Fault[];
  /** Where one of PostgreSQL's own programs is. */
  program(name: string): string;
  /** Stops it, copies what it holds, and says how that is started. */
  copyTo(folder: string, schema: string): Promise<void>;
}

/** Null: on the system's own disk, which is never filled. */
export async function startServer(disk: SmallDisk | null): Promise<Server> {
  const server = await PostgresServer.create({
    fsync: true,
    // Old files of its log are not used again: each new one needs room.
    ...(disk ? { parent: disk.folder, settings: { wal_recycle: "off" } } : {}),
  });
  atEnd(() => server.destroyNow());
  const wait = async (ms: number, signal: AbortSignal): Promise<void> => {
    await pause(ms, undefined, { signal }).catch(() => {});
  };
  return {
    url: server.url(),
    faults: [
      {
        key: "killServer",
        name: "kill the server with SIGKILL and start it again",
        aftermathMs: HELD_BACK_MS,
        async strike(chance, signal) {
          await server.kill();
          await wait(chance.whole(0, 1_000), signal);
          await server.start();
        },
      },
      {
        key: "stopServer",
        name: "stop the server and start it again",
        aftermathMs: HELD_BACK_MS,
        async strike(chance, signal) {
          await server.stop();
          await wait(chance.whole(0, 1_000), signal);
          await server.start();
        },
      },
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
      ...(disk ? [filling(disk, server)] : []),
    ],
    program: (name) => server.program(name),
    async copyTo(folder, schema) {
      await server.stop();
      const kept = join(folder, "postgres");
      // With its owner, who alone can start it, and who has to get there.
      const { status, stderr } = spawnSync("cp", ["-a", server.folder, kept], { encoding: "utf8" });
      if (status !== 0) throw new Error(`The server could not be kept: ${stderr.trim()}`);
      chmodSync(folder, 0o755);
      const start = server.leaveNow().replaceAll(server.folder, kept);
      process.stderr.write(`The store is the schema ${schema} of the server that this starts: ${start}\n`);
    },
  };
}

/**
 * Tables that can't grow are errors of a statement. A log that can't grow is a panic: the server ends all sessions and recovers, and if
 * there is no room for that either, it ends.
 */
function filling(disk: SmallDisk, server: PostgresServer): Fault {
  return {
    key: FILL_KEY,
    name: FILL,
    aftermathMs: HELD_BACK_MS,
    async strike(chance, signal) {
      const [logToo, fullMs] = [chance.next() < LOG_TOO, chance.whole(100, MOST_FULL_MS)];
      try {
        await whileFull(disk, async () => {
          if (logToo) await ask(server.url(), "SELECT pg_switch_wal()").catch(() => {});
          await pause(fullMs, undefined, { signal }).catch(() => {});
        });
      } finally {
        await upAgain(server);
      }
    },
  };
}

async function upAgain(server: PostgresServer): Promise<void> {
  for (const giveUpAt = performance.now() + UP_AGAIN_MS; ; await pause(50)) {
    try {
      if (!server.isRunning) await server.start();
      return await ask(server.url(), "SELECT pg_current_xact_id()");
    } catch (thrown) {
      if (performance.now() > giveUpAt) throw thrown;
    }
  }
}

async function ask(url: string, text: string): Promise<void> {
  const client = new pg.Client({ connectionString: url });
  // Said again by whatever was asked.
  client.on("error", () => {});
  try {
    await client.connect();
    await client.query(text);
  } finally {
    await client.end().catch(() => {});
  }
}
