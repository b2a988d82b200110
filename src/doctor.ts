// Checks and repairs a store by its address, also one that can't be opened. For command lines; it starts nothing and accepts no work.
import { storeNameOf } from "./backends.ts";
import type { EngineOptions } from "./engine/options.ts";
import { OutliveError, toStoredError } from "./core/errors.ts";
import { EventBus } from "./core/events.ts";
import type { IntegrityReport, Repair, RepairStep } from "./core/integrity.ts";
import { attach } from "./open.ts";
import { systemClock } from "./platform/clock.ts";
import { sqlitePath } from "./stores/sqlite/address.ts";
import { checkFile, finishSwap, repairUnused } from "./stores/sqlite/doctor/index.ts";

/** A full check, without a time limit. Rows are compared only if the file is sound. With `readOnly` nothing at all is written. */
export async function checkStore(url: string, options: EngineOptions): Promise<IntegrityReport> {
  if (storeNameOf(url) !== "sqlite" || sqlitePath(url) === ":memory:") return viaEngine(url, options);
  const path = sqlitePath(url);
  finishSwap(path, options.readOnly);
  const check = await checkFile(path, "full", Number.POSITIVE_INFINITY);
  if (check.verdict !== "PASSED") return { ...check, inconsistencies: [] };
  try {
    await using engine = await attach(url, { ...options, logger: false });
    return { ...check, inconsistencies: await engine.inconsistencies() };
  } catch (thrown) {
    // A sound file that is not a store, or not of this version: there is nothing to compare.
    if (!(thrown instanceof OutliveError)) throw thrown;
    return { ...check, inconsistencies: [] };
  }
}

export interface RepairOptions {
  /** Whether what can't be repaired may be salvaged into a new file: the old one is kept, but something may be lost. */
  readonly salvage: boolean;
  readonly onStep?: (step: RepairStep) => void;
  readonly onProgress?: (what: string) => void;
}

/** A damaged server is repaired with its own tools and backups. */
export function canRepair(url: string): boolean {
  return storeNameOf(url) === "sqlite";
}

/** Repairs the file of a store that `canRepair`. */
export async function repairStore(url: string, { salvage, onStep, onProgress }: RepairOptions): Promise<Repair> {
  const events = new EventBus(toStoredError);
  events.on("open.waits", ({ pid }) => onProgress?.(`waiting for the start-up of process ${pid ?? "unknown"}`));
  return repairUnused(
    sqlitePath(url),
    { salvage },
    {
      clock: systemClock,
      events,
      ...(onStep && { onStep }),
      ...(onProgress && { onProgress: ({ done, total, what }) => onProgress(`${what} (${done + 1} of ${total})`) }),
    },
  );
}

async function viaEngine(url: string, options: EngineOptions): Promise<IntegrityReport> {
  await using engine = await attach(url, { ...options, logger: false });
  return await engine.integrity();
}
