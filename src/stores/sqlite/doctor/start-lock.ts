// The start lock: of the processes that find a file unused, one at a time starts up on it. It is held like a liveness lock, so the death
// of its holder releases it. A process that waited for another's start-up learns that it finished, and does not repeat it.
// Whether a worker lives is read from the lock files, because a damaged database has no rows to trust. A start-up takes this lock and
// then probes the workers' locks; a worker takes its own lock and then waits for this one. Whichever is first, each sees the other.
import { existsSync, readdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { ErrorCode, OutliveError } from "../../../job/errors.ts";
import type { Emitter } from "../../../job/events.ts";
import { type Clock, pause } from "../../../job/time.ts";
import type { Verdict } from "../../store-parts.ts";
import { holdExclusively, probeExclusive } from "../database.ts";
import { SQLITE_BUSY, SQLITE_IOERR } from "../errors.ts";
import { exclusiveHolder, sideFolder } from "../lock.ts";

/** Not `.lock`: it is not a worker's lock and is never removed. */
const LOCK_FILE = "start-up.held";
const DONE_FILE = "start-up.json";
const POLL_MS = 10;
/** After this long an event names the process we wait for. */
const REPORT_MS = 1_000;
/** A repair of a large file takes minutes; a holder that takes longer is frozen. */
const GIVE_UP_MS = 600_000;

/** A start-up that finished. Two are compared by their ids only. */
interface FinishedStartUp {
  readonly id: string;
  readonly integrity: Verdict;
}

export interface StartLock {
  /** What another process found while we waited for it; null: no other process has checked, so we must. */
  readonly inherited: Verdict | null;
  /** Lock files next to the database that no process holds: each was left by a worker that died. */
  readonly left: readonly string[];
  /** Releases it. With `done`, the processes that wait take over the verdict. */
  drop(done: FinishedStartUp | null): void;
}

/** Waits for the lock while no worker uses the file; null: one does. The folder next to the database exists already. */
export async function takeStartLock(
  databasePath: string,
  deps: { readonly clock: Clock; readonly events: Emitter },
): Promise<StartLock | null> {
  const path = join(sideFolder(databasePath), LOCK_FILE);
  const before = readDone(databasePath);
  const startedAt = deps.clock.mono();
  let reported = false;
  let lastHeld: string | null = null;
  for (;;) {
    const held = tryToHold(path);
    // A worker that begins from now on sees our lock; we see the lock of one that has begun.
    const locks = workerLocks(databasePath, () => held?.drop());
    if (held && locks.held === null) return startLock(databasePath, held, before, locks.left);
    // A process that removes a dead worker's lock file holds it for a moment; that of a live worker is still held at the next poll.
    if (locks.held !== null && locks.held === lastHeld) return null;
    lastHeld = locks.held;
    const waitedMs = deps.clock.mono() - startedAt;
    if (waitedMs > GIVE_UP_MS) throw heldTooLong(databasePath, path);
    if (waitedMs > REPORT_MS && !reported) {
      reported = true;
      deps.events.emit("open.waits", { pid: null, command: "", ...exclusiveHolder(path) });
    }
    await pause(deps.clock, POLL_MS);
  }
}

/** For a worker that already holds its liveness lock: resolves when no start-up is under way that may have missed it. */
export async function untilNoStartUp(databasePath: string, clock: Clock): Promise<void> {
  const path = join(sideFolder(databasePath), LOCK_FILE);
  const giveUpAt = clock.mono() + GIVE_UP_MS;
  while (existsSync(path) && probeExclusive(path) === "held") {
    if (clock.mono() > giveUpAt) throw heldTooLong(databasePath, path);
    await pause(clock, POLL_MS);
  }
}

/** What the lock files say, which can be read when the database can't. Stops at the first that is held, after calling `release`. */
function workerLocks(
  databasePath: string,
  release: () => void,
): { readonly held: string | null; readonly left: readonly string[] } {
  const folder = sideFolder(databasePath);
  const left: string[] = [];
  try {
    for (const name of readdirSync(folder)) {
      if (!name.endsWith(".lock")) continue;
      const probe = probeExclusive(join(folder, name));
      if (probe === "free") left.push(name);
      else if (probe === "held") {
        release();
        return { held: name, left };
      }
    }
  } catch (thrown) {
    release();
    throw thrown;
  }
  return { held: null, left };
}

function startLock(
  databasePath: string,
  held: { drop: () => void },
  before: FinishedStartUp | null,
  left: readonly string[],
): StartLock {
  const now = readDone(databasePath);
  return {
    left,
    inherited: now && now.id !== before?.id ? now.integrity : null,
    drop(done) {
      if (done) writeDone(databasePath, done);
      held.drop();
    },
  };
}

function tryToHold(path: string): { drop: () => void } | null {
  try {
    return holdExclusively(path);
  } catch (thrown) {
    const sqlite = (thrown as { data?: { sqlite?: unknown } }).data?.sqlite;
    if (sqlite === SQLITE_BUSY || sqlite === SQLITE_IOERR) return null;
    throw thrown;
  }
}

function readDone(databasePath: string): FinishedStartUp | null {
  try {
    return JSON.parse(readFileSync(join(sideFolder(databasePath), DONE_FILE), "utf8")) as FinishedStartUp;
  } catch {
    return null; // None yet.
  }
}

/** Only a hint to the processes that wait: without it they check the file themselves. */
function writeDone(databasePath: string, done: FinishedStartUp): void {
  const path = join(sideFolder(databasePath), DONE_FILE);
  try {
    writeFileSync(`${path}.new`, JSON.stringify(done), { mode: 0o600 });
    renameSync(`${path}.new`, path);
  } catch {
    // A full disk: no process depends on this file.
  }
}

function heldTooLong(databasePath: string, path: string): OutliveError {
  const holder = exclusiveHolder(path);
  const who = holder ? `process ${holder.pid} (${holder.command})` : "another process";
  return new OutliveError(
    ErrorCode.storeBusy,
    `The start-up of ${who} on ${databasePath} has not ended for ${GIVE_UP_MS / 60_000} minutes.`,
    "If that process is frozen, end it, which releases its lock. Nothing was changed here.",
    { path: databasePath, ...(holder && { pid: holder.pid }) },
  );
}
