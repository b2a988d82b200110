// The fault of a wall clock that jumps by an hour and back. A file has one host and so one clock: all processes jump together. The
// processes of a server may be on many hosts: one worker jumps alone. No attempt may expire for it, and no worker may count as dead.
import { mkdirSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import type { Chance } from "../../../src/torture/killer.ts";
import type { Fault } from "../processes/fault-schedule.ts";
import { LEASE_MS } from "../processes/settings.ts";
import { enqueueNaps, napsEnded, targetWith, until } from "./jobs-in-flight.ts";
import { expectNoDeath } from "./living-workers.ts";

const HOUR_MS = 3_600_000;
/** In flight across both jumps, and long enough after the second for a look at what is overdue. */
const NAP_MS = 4_000;
const NAPS = 8;
const ENDED_WITHIN_MS = 20_000;

/**
 * Whose clock jumps, and which way. On a file it goes back first and then forward: a delay that is written while the clock is ahead would
 * last an hour once the clock is right again, as it should.
 */
export type Jump = { readonly of: "all"; readonly ms: number } | { readonly of: "worker" };

export interface ShiftableClocks {
  /** For the processes whose clocks are to be moved. */
  readonly env: Readonly<Record<string, string>>;
  readonly fault: Fault;
}

export const BACK_AND_FORTH: Jump = { of: "all", ms: -HOUR_MS };
export const ONE_WORKER: Jump = { of: "worker" };

/** `folder`: a folder of the run. */
export function shiftableClocks(folder: string, jump: Jump): ShiftableClocks {
  const clocks = join(folder, "clocks");
  mkdirSync(clocks);
  const preload = new URL("shifted-clock.ts", import.meta.url).href;
  return {
    env: {
      NODE_OPTIONS: `${process.env["NODE_OPTIONS"] ?? ""} --import ${preload}`.trim(),
      OUTLIVE_TORTURE_CLOCKS: clocks,
    },
    fault: {
      key: "clock",
      name:
        jump.of === "all" ? "set the clock back an hour, and right again" : "move the clock of one worker by an hour",
      aftermathMs: 1_000,
      async strike(chance, signal, context) {
        const first = await enqueueNaps(context, NAPS, NAP_MS);
        const place = await targetWith(context, first, signal);
        const file = join(clocks, jump.of === "all" ? "all" : String(place.pid));
        const wait = async (ms: number): Promise<void> => {
          await pause(ms, undefined, { signal }).catch(() => {});
        };
        await expectNoDeath(context, async () => {
          try {
            shift(file, jump.of === "all" ? jump.ms : sideways(chance));
            const second = await enqueueNaps(context, NAPS, NAP_MS);
            await targetWith(context, second, signal);
            await wait(chance.whole(500, 2_500));
          } finally {
            rmSync(file, { force: true });
          }
          await until(() => napsEnded(context), ENDED_WITHIN_MS, signal);
          await wait(LEASE_MS);
        });
      },
    },
  };
}

function sideways(chance: Chance): number {
  return chance.next() < 0.5 ? HOUR_MS : -HOUR_MS;
}

/** In one step: a file that is half written would be another jump. */
function shift(file: string, ms: number): void {
  writeFileSync(`${file}.new`, String(ms));
  renameSync(`${file}.new`, file);
}
