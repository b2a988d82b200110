// The fault of another program that holds the write lock of the file: a VACUUM, a `sqlite3` shell, a long transaction. For longer than a
// lease no worker can write a heartbeat. That silence is the store's: no worker may count as dead for it.
import { fork } from "node:child_process";
import { setTimeout as pause } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { atEnd } from "../../../src/torture/run.ts";
import { type Fault, NotDone } from "../processes/fault-schedule.ts";
import { LEASE_MS } from "../processes/settings.ts";
import { enqueueNaps, targetWith } from "./jobs-in-flight.ts";
import { expectNoDeath } from "./living-workers.ts";

const HOLDER = fileURLToPath(new URL("write-lock-holder.ts", import.meta.url));
const NAPS = 8;
const NAP_MS = 1_500;

/** `file`: the database. */
export function writeLock(file: string): Fault {
  return {
    key: "writeLock",
    name: "hold the write lock for longer than a lease",
    aftermathMs: LEASE_MS,
    async strike(chance, signal, context) {
      await targetWith(context, await enqueueNaps(context, NAPS, NAP_MS), signal);
      await expectNoDeath(context, async () => {
        await holdWriteLock(file, chance.whole(1.5 * LEASE_MS, 3 * LEASE_MS), signal);
        // A worker that is taken for silent is recovered within a lease.
        await pause(LEASE_MS, undefined, { signal }).catch(() => {});
      });
    },
  };
}

/** Resolves when the lock is free again. The holder ends after this time, or with this process. */
export async function holdWriteLock(file: string, ms: number, signal: AbortSignal): Promise<void> {
  const holder = fork(HOLDER, [file, String(ms)], {
    execArgv: ["--disable-warning=ExperimentalWarning"],
    stdio: ["ignore", "ignore", "inherit", "ipc"],
    signal,
  });
  atEnd(() => holder.kill("SIGKILL"));
  holder.on("error", () => {}); // the signal aborted it
  const code = await new Promise<number | null>((resolve) => holder.once("exit", resolve));
  if (code !== 0 && !signal.aborted) throw new NotDone(`the holder of the lock ended with exit code ${code}`);
}
