// Checks and repairs a store by its address, also one that can't be opened. For command lines; it starts nothing and accepts no work.
import { ErrorCode, OutliveError } from "../job/errors.ts";
import type { IntegrityReport, Repair, RepairOptions } from "../stores/integrity.ts";
import { shownAddress, storeAt } from "../stores/registry.ts";
import { attach } from "./open.ts";
import type { EngineOptions } from "./options.ts";

/** A full check, without a time limit. Rows are compared only if the store is sound. With `readOnly` nothing at all is written. */
export async function checkStore(url: string, options: EngineOptions): Promise<IntegrityReport> {
  const doctor = (await storeAt(url).doctor?.(url)) ?? null;
  if (doctor === null) {
    await using engine = await attach(url, { ...options, logger: false });
    return await engine.operator.integrity();
  }
  const check = await doctor.check({ readOnly: options.readOnly ?? false });
  if (check.verdict !== "PASSED") return { ...check, inconsistencies: [] };
  try {
    await using engine = await attach(url, { ...options, logger: false });
    return { ...check, inconsistencies: await engine.operator.inconsistencies() };
  } catch (thrown) {
    // A sound file that is not a store, or not of this version: there is nothing to compare.
    if (!(thrown instanceof OutliveError)) throw thrown;
    return { ...check, inconsistencies: [] };
  }
}

/** A damaged server is repaired with its own tools and backups. */
export function canRepair(url: string): boolean {
  return storeAt(url).doctor !== undefined;
}

/** Repairs a store that `canRepair`. */
export async function repairStore(url: string, options: RepairOptions): Promise<Repair> {
  const doctor = await storeAt(url).doctor?.(url);
  if (doctor) return doctor.repair(options);
  throw new OutliveError(
    ErrorCode.optionInvalid,
    `There is nothing to repair at ${shownAddress(url)}.`,
    "Use the tools and backups of its server.",
    { url: shownAddress(url) },
  );
}
