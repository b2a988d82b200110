// The start lock: one process at a time begins on a file that nobody works on. It is held like a liveness lock, so that the death of
// its holder frees it. Whoever waited for another's start-up learns that it was finished, and need not do the same again.
import { existsSync, readdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { type Clock, pause } from "../../../core/clock.ts";
import { ErrorCode, OutliveError } from "../../../core/errors.ts";
import type { Emitter } from "../../../core/events.ts";
import type { Verdict } from "../../../core/integrity.ts";
import { holdExclusively, probeExclusive } from "../database.ts";
import { SQLITE_BUSY, SQLITE_IOERR } from "../errors.ts";
import { exclusiveHolder } from "../lock-holder.ts";
import { sideFolder } from "../lock.ts";

/** Not `.lock`: it is nobody's sign of life and is never cleared away. */
const LOCK_FILE = "start-up.held";
const DONE_FILE = "start-up.json";
const LOOK_MS = 10;
/** After this long it is told whom we wait for. */
const TELL_MS = 1_000;
/** A repair of a large file takes minutes; a holder that stands still for longer is frozen. */
const GIVE_UP_MS = 600_000;

/** A start-up that was finished. Two are compared by their ids only. */
interface Done {
  readonly id: string;
  readonly integrity: Verdict;
}

export interface StartLock {
  /** What another process found while we waited for it; null: nobody has looked, so we must. */
  readonly inherited: Verdict | null;
  /** Lock files beside the database that nobody holds: each is left of a worker that died. */
  readonly left: readonly string[];
  /** Lets go. With `done`, whoever waits need not look again. */
  drop(done: Done | null): void;
}

/** Waits for the lock as long as nobody works on the file; null: somebody does. The folder beside the database is there already. */
export async function takeStartLock(
  databasePath: string,
  deps: { readonly clock: Clock; readonly events: Emitter },
): Promise<StartLock | null> {
  const path = join(sideFolder(databasePath), LOCK_FILE);
  const before = readDone(databasePath);
  const startedAt = deps.clock.mono();
  let told = false;
  let lastHeld: string | null = null;
  for (;;) {
    const held = tryToHold(path);
    // Whoever begins to work from now on sees our lock; whoever has begun, we see.
    const beside = locksBeside(databasePath, () => held?.drop());
    if (held && beside.held === null) return startLock(databasePath, held, before, beside.left);
    // Whoever removes a dead worker's lock file holds it for a moment: a living one is held at the next look, too.
    if (beside.held !== null && beside.held === lastHeld) return null;
    lastHeld = beside.held;
    const waitedMs = deps.clock.mono() - startedAt;
    if (waitedMs > GIVE_UP_MS) throw heldTooLong(databasePath, path);
    if (waitedMs > TELL_MS && !told) {
      told = true;
      deps.events.emit("open.waits", { pid: null, command: "", ...exclusiveHolder(path) });
    }
    await pause(deps.clock, LOOK_MS);
  }
}

/** For a worker that holds its liveness lock already: resolves when no start-up is under way that may not know of it. */
export async function untilNoStartUp(databasePath: string, clock: Clock): Promise<void> {
  const path = join(sideFolder(databasePath), LOCK_FILE);
  const giveUpAt = clock.mono() + GIVE_UP_MS;
  while (existsSync(path) && probeExclusive(path) === "held") {
    if (clock.mono() > giveUpAt) throw heldTooLong(databasePath, path);
    await pause(clock, LOOK_MS);
  }
}

/** What the lock files say: they can be asked when the database itself can't. Ends, after `letGo`, at the first that is held. */
function locksBeside(
  databasePath: string,
  letGo: () => void,
): { readonly held: string | null; readonly left: readonly string[] } {
  const folder = sideFolder(databasePath);
  const left: string[] = [];
  try {
    for (const name of readdirSync(folder)) {
      if (!name.endsWith(".lock")) continue;
      const probe = probeExclusive(join(folder, name));
      if (probe === "free") left.push(name);
      else if (probe === "held") {
        letGo();
        return { held: name, left };
      }
    }
  } catch (thrown) {
    letGo();
    throw thrown;
  }
  return { held: null, left };
}

function startLock(
  databasePath: string,
  held: { drop: () => void },
  before: Done | null,
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

function readDone(databasePath: string): Done | null {
  try {
    return JSON.parse(readFileSync(join(sideFolder(databasePath), DONE_FILE), "utf8")) as Done;
  } catch {
    return null; // None yet.
  }
}

/** Only a hint to whoever waits: without it they look themselves. */
function writeDone(databasePath: string, done: Done): void {
  const path = join(sideFolder(databasePath), DONE_FILE);
  try {
    writeFileSync(`${path}.new`, JSON.stringify(done), { mode: 0o600 });
    renameSync(`${path}.new`, path);
  } catch {
    // A full disk: nobody waits for this file.
  }
}

function heldTooLong(databasePath: string, path: string): OutliveError {
  const holder = exclusiveHolder(path);
  const who = holder ? `process ${holder.pid} (${holder.command})` : "another process";
  return new OutliveError(
    ErrorCode.storeBusy,
    `The start-up of ${who} on ${databasePath} has not ended for ${GIVE_UP_MS / 60_000} minutes.`,
    "If it is frozen, end that process; its lock goes with it. Nothing was changed here.",
    { path: databasePath, ...(holder && { pid: holder.pid }) },
  );
}
