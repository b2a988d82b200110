// Mending a damaged file, from what costs nothing to what may lose something: indexes made anew, the file written anew, and last,
// if it is allowed, everything that can still be read salvaged into a new file. Nobody may work meanwhile.
import { type Clock, pause } from "../../../core/clock.ts";
import { OutliveError } from "../../../core/errors.ts";
import type { IntegrityCheck, Repair, RepairStep, Salvage } from "../../../core/integrity.ts";
import type { Emitter } from "../../../core/events.ts";
import { inChild } from "./run-in-child.ts";
import type { Progress } from "./tasks.ts";
import { assertExists } from "../file.ts";
import { inUse } from "./in-place.ts";
import { checkFile } from "./integrity.ts";
import { makeSideFolder } from "../lock.ts";
import { takeStartLock } from "./start-lock.ts";
import { finishSwap, holdForWholeRepair } from "./swap.ts";

const HOLD_TRIES = 100;
const HOLD_RETRY_MS = 10;

export interface RepairDeps {
  readonly clock: Clock;
  readonly tell?: (step: RepairStep) => void;
  readonly onProgress?: (progress: Progress) => void;
}

/** As `repairFile`, for whoever is not at a start-up: nobody else may begin one before this is over. A file that somebody works on is refused. */
export async function repairUnused(
  path: string,
  allow: { readonly salvage: boolean },
  deps: RepairDeps & { readonly events: Emitter },
): Promise<Repair> {
  finishSwap(path);
  assertExists(path);
  makeSideFolder(path);
  const lock = await takeStartLock(path, deps);
  if (!lock) throw inUse(path);
  try {
    return await repairFile(path, allow, deps);
  } finally {
    lock.drop(null);
  }
}

/**
 * Mends `path` and answers what that came to. The caller holds the start lock, and so knows that nobody works; a file that another process has open is
 * refused (STORE_BUSY), as is a salvage for which there is no room (STORE_FULL): both have changed nothing.
 */
export async function repairFile(
  path: string,
  allow: { readonly salvage: boolean },
  deps: RepairDeps,
): Promise<Repair> {
  finishSwap(path);
  assertExists(path);
  const hold = await holdOverProbes(path, deps.clock);
  try {
    return await mend(path, allow, deps);
  } finally {
    hold.drop();
  }
}

/** Whoever opens the file looks at the lock, and holds it for that moment. */
async function holdOverProbes(path: string, clock: Clock): Promise<{ readonly drop: () => void }> {
  for (let tries = 1; ; tries++) {
    try {
      return holdForWholeRepair(path);
    } catch (thrown) {
      if (tries === HOLD_TRIES || !(thrown instanceof OutliveError) || thrown.code !== "STORE_BUSY") throw thrown;
    }
    await pause(clock, HOLD_RETRY_MS);
  }
}

async function mend(path: string, allow: { readonly salvage: boolean }, deps: RepairDeps): Promise<Repair> {
  const steps: RepairStep[] = [];
  const note = (step: RepairStep): void => {
    steps.push(step);
    deps.tell?.(step);
  };
  let check = await checkFile(path, "full", Number.POSITIVE_INFINITY);
  for (let next = cure(check, steps); next !== null; next = cure(check, steps)) {
    note(await mendInPlace(path, next));
    check = await checkFile(path, "full", Number.POSITIVE_INFINITY);
  }
  let salvage: Salvage | null = null;
  if (check.verdict !== "PASSED" && allow.salvage) {
    salvage = await salvageFile(path, deps, note);
    check = await checkFile(path, "full", Number.POSITIVE_INFINITY);
  }
  return { steps, sound: check.verdict === "PASSED", findings: check.findings, salvage };
}

const INDEX_FINDING =
  /^(row \d+ missing from index |wrong # of entries in index |non-unique entry in index |rowid not at end-of-record for row \d+ of index |row \d+ of index |NULL value in index )/;
const FREE_PAGE_FINDING =
  /^(Freelist: |Main freelist: |Page \d+:? (is )?never used|Page \d+: pointer map |Bad ptr map |Failed to read ptrmap )/i;

/**
 * What can mend these findings without losing anything; null: nothing can, or it was tried. An index that disagrees with its
 * table is made anew. A wrong list of free pages, or pages that nobody uses, go when the file is written anew, and that comes
 * first: making an index takes pages from the list. Where a tree itself is damaged neither may touch the file: a REINDEX frees
 * pages that a wrong pointer names, a VACUUM copies what a wrong pointer leads to.
 */
function cure({ verdict, findings }: IntegrityCheck, done: readonly RepairStep[]): "reindex" | "vacuum" | null {
  if (verdict === "PASSED") return null;
  const free = findings.some((finding) => FREE_PAGE_FINDING.test(finding));
  const known = findings.every((finding) => INDEX_FINDING.test(finding) || FREE_PAGE_FINDING.test(finding));
  if (!known) return null;
  const next = free ? "vacuum" : "reindex";
  return done.some(({ step }) => step === next) ? null : next;
}

async function mendInPlace(path: string, step: "reindex" | "vacuum"): Promise<RepairStep> {
  const what = step === "reindex" ? "all indexes were made anew from their tables" : "the file was written anew";
  try {
    await inChild({ do: step, path });
    return { step, ok: true, detail: what };
  } catch (thrown) {
    // Somebody is in the way: that is for the caller to end. What SQLite could not do is only a step that did not help.
    if (!(thrown instanceof OutliveError) || thrown.code === "STORE_BUSY") throw thrown;
    return { step, ok: false, detail: thrown.message };
  }
}

async function salvageFile(path: string, deps: RepairDeps, note: (step: RepairStep) => void): Promise<Salvage> {
  const { onProgress } = deps;
  const answer = (await inChild(
    { do: "salvage", path, now: deps.clock.now() },
    onProgress === undefined ? {} : { onProgress },
  ))!;
  const { salvage, remarks } = answer;
  const rows = salvage.tables.reduce((sum, table) => sum + table.rows, 0);
  const lost = salvage.tables.reduce((sum, table) => sum + (table.lost ?? 0), 0);
  const unsure = salvage.tables.some((table) => table.lost === null) ? " at least" : "";
  const detail = [
    `${rows} rows of ${salvage.tables.length} tables were brought over,${unsure} ${lost} are lost; the damaged file is kept as ${salvage.keptAs}`,
    ...remarks,
  ].join(". ");
  note({ step: "salvage", ok: true, detail });
  return salvage;
}
