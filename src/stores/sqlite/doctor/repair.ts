// Repairs a damaged file, from steps that cost nothing to those that may lose data: rebuild the indexes, rewrite the
// file, and finally, if allowed, salvage everything that can still be read into a new file. No other process may use
// the file meanwhile.
import { chmodSync, existsSync, linkSync, renameSync, rmSync, statSync } from "node:fs";
import { dirname } from "node:path";
import { ErrorCode, OutliveError, toStoredError } from "../../../job/errors.ts";
import { type Emitter, EventBus } from "../../../job/events.ts";
import { type Clock, pause } from "../../../job/time.ts";
import { systemClock } from "../../../platform/clock.ts";
import type { IntegrityCheck, Repair, RepairStep, Salvage, StoreDoctor } from "../../store-parts.ts";
import type { Backup, BackupOptions } from "../../port.ts";
import { assertExists, createPrivately } from "../address.ts";
import { type DatabaseSync, openBare } from "../database.ts";
import { wrapError, primaryCode, SQLITE_BUSY } from "../errors.ts";
import { makeSideFolder } from "../lock.ts";
import { checkFile, readFindings } from "./check.ts";
import type { Progress } from "./child.ts";
import { runInChild } from "./run-in-child.ts";
import { takeStartLock } from "./start-lock.ts";
import { finishSwap, flush, flushFolder, holdForRepair, holdForWholeRepair } from "./swap.ts";

const HOLD_TRIES = 100;
const HOLD_RETRY_MS = 10;

interface RepairAllowed {
  /** Whether what can't be repaired in place may be salvaged, which may lose something. */
  readonly salvage: boolean;
}

interface RepairDeps {
  readonly clock: Clock;
  readonly onStep?: (step: RepairStep) => void;
  readonly onProgress?: (progress: Progress) => void;
}

/** `repairFile` outside of a start-up. It takes the start lock itself, and refuses a file that a worker uses. */
async function repairUnused(
  path: string,
  allow: RepairAllowed,
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
 * The caller holds the start lock, so no worker uses the file. A file that another process has open is refused (STORE_BUSY), as is
 * a salvage for which there is no room (STORE_FULL). Neither has changed anything.
 */
export async function repairFile(path: string, allow: RepairAllowed, deps: RepairDeps): Promise<Repair> {
  finishSwap(path);
  assertExists(path);
  const hold = await holdDespiteProbes(path, deps.clock);
  try {
    return await runSteps(path, allow, deps);
  } finally {
    hold.drop();
  }
}

/** A process that opens the file probes the lock, and holds it for that moment. */
async function holdDespiteProbes(path: string, clock: Clock): Promise<{ readonly drop: () => void }> {
  for (let tries = 1; ; tries++) {
    try {
      return holdForWholeRepair(path);
    } catch (thrown) {
      if (tries === HOLD_TRIES || !(thrown instanceof OutliveError) || thrown.code !== "STORE_BUSY") throw thrown;
    }
    await pause(clock, HOLD_RETRY_MS);
  }
}

async function runSteps(path: string, allow: RepairAllowed, deps: RepairDeps): Promise<Repair> {
  const steps: RepairStep[] = [];
  const note = (step: RepairStep): void => {
    steps.push(step);
    deps.onStep?.(step);
  };
  const check = (): Promise<IntegrityCheck> => checkFile(path, "full", Number.POSITIVE_INFINITY);
  let found = await check();
  for (let next = nextStep(found, steps); next !== null; next = nextStep(found, steps)) {
    note(await repairInPlace(path, next));
    found = await check();
  }
  let salvage: Salvage | null = null;
  if (found.verdict !== "PASSED" && allow.salvage) {
    salvage = await salvageFile(path, deps, note);
    found = await check();
  }
  return { steps, sound: found.verdict === "PASSED", findings: found.findings, salvage };
}

const INDEX_FINDING =
  /^(row \d+ missing from index |wrong # of entries in index |non-unique entry in index |rowid not at end-of-record for row \d+ of index |row \d+ of index |NULL value in index )/;
const FREE_PAGE_FINDING =
  /^(Freelist: |Main freelist: |Page \d+:? (is )?never used|Page \d+: pointer map |Bad ptr map |Failed to read ptrmap )/i;

/**
 * What can repair these findings without losing anything; null: nothing can, or it was tried. An index that disagrees with its
 * table is rebuilt. A wrong list of free pages and unused pages disappear when the file is rewritten, and that comes first:
 * rebuilding an index takes pages from the list. Where a tree itself is damaged neither may touch the file: a REINDEX frees pages
 * that a wrong pointer names, a VACUUM copies what a wrong pointer leads to.
 */
function nextStep({ verdict, findings }: IntegrityCheck, done: readonly RepairStep[]): "reindex" | "vacuum" | null {
  if (verdict === "PASSED") return null;
  const free = findings.some((finding) => FREE_PAGE_FINDING.test(finding));
  const known = findings.every((finding) => INDEX_FINDING.test(finding) || FREE_PAGE_FINDING.test(finding));
  if (!known) return null;
  const next = free ? "vacuum" : "reindex";
  return done.some(({ step }) => step === next) ? null : next;
}

async function repairInPlace(path: string, step: "reindex" | "vacuum"): Promise<RepairStep> {
  const detail = step === "reindex" ? "all indexes were rebuilt from their tables" : "the file was rewritten";
  try {
    await runInChild({ do: step, path });
    return { step, ok: true, detail };
  } catch (thrown) {
    // Another process uses the file: the caller has to end it. If SQLite failed, this step just did not help.
    if (!(thrown instanceof OutliveError) || thrown.code === "STORE_BUSY") throw thrown;
    return { step, ok: false, detail: thrown.message };
  }
}

async function salvageFile(path: string, deps: RepairDeps, note: (step: RepairStep) => void): Promise<Salvage> {
  const { onProgress } = deps;
  const task = { do: "salvage", path, now: deps.clock.now() } as const;
  const { salvage, remarks } = (await runInChild(task, onProgress === undefined ? {} : { onProgress }))!;
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

/** In the child, as is `vacuum`. Each is one transaction: killed at any moment, it has not happened. */
export function reindex(path: string): null {
  return exclusively(path, "rebuilding the indexes", (db) => db.exec("REINDEX"));
}

export function vacuum(path: string): null {
  return exclusively(path, "rewriting the file", (db) => db.exec("VACUUM"));
}

function exclusively(path: string, doing: string, work: (db: DatabaseSync) => void): null {
  const hold = holdForRepair(path);
  const db = openBare(path);
  try {
    // In this mode SQLite refuses if any other process has the file open, as a reader or a writer.
    db.exec("PRAGMA locking_mode = EXCLUSIVE; PRAGMA synchronous = FULL; BEGIN IMMEDIATE; COMMIT");
    work(db);
    return null;
  } catch (thrown) {
    if (primaryCode(thrown) === SQLITE_BUSY) throw inUse(path, thrown);
    throw wrapError(doing, thrown);
  } finally {
    db.close();
    hold.drop();
  }
}

export function inUse(path: string, cause?: unknown): OutliveError {
  return new OutliveError(
    ErrorCode.storeBusy,
    `${path} is open in another process.`,
    "Stop all workers and everything else that has it open, then try again. Nothing was changed.",
    { path },
    { cause },
  );
}

// A backup of a live store: as it was at one moment, compact, checked, and under its name only once it is complete and on the disk.

const PROGRESS_MS = 250;
const BUSY_MS = 5_000;

/** Copies while workers run, in one read transaction that blocks no writer. SQLite does not reset the log until it has ended. */
export async function backupFile(path: string, to: string, options: BackupOptions = {}): Promise<Backup> {
  const { onProgress, force = false, signal } = options;
  if (!force && existsSync(to)) throw taken(to);
  const draft = `${to}.partial-${process.pid}`;
  const started = performance.now();
  rmSync(draft, { force: true });
  // SQLite fills an empty file. It is created here, so that no other user can read it at any moment.
  createPrivately(draft);
  const total = statSync(path).size;
  const timer =
    onProgress && setInterval(() => onProgress({ bytes: statSync(draft).size, totalBytes: total }), PROGRESS_MS);
  try {
    const copied = await runInChild({ do: "backup", path, to: draft }, signal ? { signal } : {});
    if (copied!.findings.length > 0) throw unsound(path, copied!.findings);
    chmodSync(draft, 0o600);
    flush(draft);
    // A file that is already there may still be needed: it is replaced only when the new one is complete.
    if (force) renameSync(draft, to);
    else linkSync(draft, to);
    flushFolder(to);
    return { file: to, bytes: statSync(to).size, tookMs: Math.round(performance.now() - started) };
  } catch (thrown) {
    throw (thrown as NodeJS.ErrnoException).code === "EEXIST" ? taken(to) : thrown;
  } finally {
    clearInterval(timer);
    rmSync(draft, { force: true });
    rmSync(`${draft}-journal`, { force: true });
  }
}

/** The copy, in the child. `to` does not exist or is an empty file. Returns what a quick check of the copy finds. */
export function copyTo(path: string, to: string): { readonly findings: readonly string[] } {
  try {
    const db = openBare(path, { readOnly: true, timeout: BUSY_MS });
    try {
      db.prepare("VACUUM INTO ?").run(to);
    } finally {
      db.close();
    }
  } catch (thrown) {
    throw wrapError(`copying ${path}`, thrown);
  }
  return { findings: readFindings(to, "quick") };
}

function taken(to: string): OutliveError {
  return new OutliveError(
    ErrorCode.wrongState,
    `There is a file ${to} already.`,
    "Name another one, or add --force (`force: true`) to replace it. Nothing was written.",
    { path: to, folder: dirname(to) },
  );
}

function unsound(path: string, findings: readonly string[]): OutliveError {
  return new OutliveError(
    ErrorCode.storeCorrupt,
    `The copy of ${path} is not sound: ${findings.slice(0, 3).join("; ")}.`,
    "It was not kept. Check the store itself: outlive check --integrity.",
    { path, findings },
  );
}

// The doctor of one file, as a command line calls it: no worker runs, and the store may be too damaged to be opened.

export function fileDoctor(path: string): StoreDoctor {
  return {
    check({ readOnly }) {
      finishSwap(path, readOnly);
      return checkFile(path, "full", Number.POSITIVE_INFINITY);
    },
    repair({ salvage, onStep, onProgress }) {
      const events = new EventBus(toStoredError);
      events.on("open.waits", ({ pid }) => onProgress?.(`waiting for the start-up of process ${pid ?? "unknown"}`));
      return repairUnused(
        path,
        { salvage },
        {
          clock: systemClock,
          events,
          ...(onStep && { onStep }),
          ...(onProgress && { onProgress: ({ done, total, what }) => onProgress(`${what} (${done + 1} of ${total})`) }),
        },
      );
    },
  };
}
