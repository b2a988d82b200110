// What happens to a file before anything trusts its content: the start lock, the version gate, the check of its integrity, and its
// repair. Everything here reads through connections that can't write, so that a log which does not belong to the file is not
// applied by merely looking; only a repair writes. With workers alive beside it, nothing of this is done.
import { existsSync, statSync } from "node:fs";
import type { StartUpOptions } from "../../../core/backend.ts";
import type { Clock, Random } from "../../../core/clock.ts";
import type { Emitter } from "../../../core/events.ts";
import type { CheckDepth, IntegrityCheck, Repair, RepairStep, Verdict } from "../../../core/integrity.ts";
import { checkOpen } from "./check-open.ts";
import { damaged } from "./damage.ts";
import { Database, type DatabaseOptions } from "../database.ts";
import { saysDamaged, saysNoDatabase } from "../errors.ts";
import { assertLocalFilesystem, assertOneName, assertPlatform, assertWritable, createPrivately } from "../file.ts";
import { storeIdentity } from "../identity.ts";
import { checkFile } from "./integrity.ts";
import { openers } from "../lock-holder.ts";
import { makeSideFolder, sideFolder } from "../lock.ts";
import { repairFile } from "./repair.ts";
import { assertSchema, SCHEMA_VERSION, schemaVersion } from "../schema.ts";
import { type StartLock, takeStartLock } from "./start-lock.ts";
import { finishSwap } from "./swap.ts";
import { setWalAside, walBytes } from "./wal.ts";
import { whenFree } from "../when-free.ts";

/** How long an open may wait for a check. What is not finished then is UNFINISHED, never PASSED. */
const CHECK_LIMIT_MS = 10_000;
/** Up to this size the check runs here: 18 ms quick, 50 ms full, measured at 2.2 and 6.2 ms per MB. */
const CHECK_HERE_BYTES = 8 << 20;

export interface StartUp {
  readonly lock: StartLock;
  readonly integrity: Verdict;
  readonly check: IntegrityCheck | null;
  readonly repair: Repair | null;
}

interface StartUpDeps {
  readonly clock: Clock;
  readonly random: Random;
  readonly events: Emitter;
}

/** Null: somebody works on the file. Rejects if the file is damaged beyond what may be mended; then nothing is held. */
export async function startUp(
  deps: StartUpDeps,
  options: DatabaseOptions,
  how: StartUpOptions,
): Promise<StartUp | null> {
  const { path } = options;
  await whenFree(deps.clock, deps.random, () => makeRoom(options));
  const lock = await takeStartLock(path, deps);
  if (!lock) return null;
  try {
    // Whoever held the lock before may have died in the middle of a repair.
    finishSwap(path);
    return { lock, ...(await examine(deps, options, how, lock)) };
  } catch (thrown) {
    lock.drop(null);
    throw thrown;
  }
}

/** The file and the folder beside it. A file that is no database is refused before anything is put beside it. */
function makeRoom(options: DatabaseOptions): void {
  const { path } = options;
  if (!options.allowUnsafeSqlite) assertPlatform(path);
  const file = statSync(path, { throwIfNoEntry: false });
  const bytes = file?.size ?? 0;
  // The open says in its own words what else it is.
  if (file && !file.isFile()) new Database(options).close();
  if (file) assertWritable(path);
  if (file) assertOneName(path);
  if (bytes === 0 && walBytes(path) > 0)
    // SQLite would delete the log of an empty file: the only copy of what was written last.
    throw damaged(path, {
      check: failed([`the file is ${existsSync(path) ? "empty" : "gone"}, but its write-ahead log is not`]),
      repair: null,
    });
  if (bytes === 0) {
    if (!options.allowNetworkFilesystem) assertLocalFilesystem(path);
    createPrivately(path);
  } else if (!existsSync(sideFolder(path))) {
    try {
      new Database({ ...options, ...LOOKING }).close();
    } catch (thrown) {
      // One that is a database, but damaged, is dealt with under the lock.
      if (!saysDamaged(thrown) || saysNoDatabase(thrown)) throw thrown;
    }
  }
  makeSideFolder(path);
}

const LOOKING = { readOnly: true, asIs: true, mustExist: true } as const;

/** What a first look found. */
interface Look {
  readonly bytes: number;
  /** Full if the stop before was no clean one. */
  readonly depth: CheckDepth;
  /** Null: it is still to be checked. FAILED without a check if the file can't be read, or its log is another store's. */
  readonly check: IntegrityCheck | null;
  readonly foreignWal: boolean;
}

async function examine(
  deps: StartUpDeps,
  options: DatabaseOptions,
  how: StartUpOptions,
  { inherited, left }: StartLock,
): Promise<Omit<StartUp, "lock">> {
  await whenFree(deps.clock, deps.random, () => rollBackHotJournal(options));
  const taken = inherited === "NOT_CHECKED" ? null : inherited;
  const wanted = how.integrityCheck && taken === null;
  const { checkHereBytes = CHECK_HERE_BYTES, checkLimitMs = CHECK_LIMIT_MS } = how;
  const here = { clock: deps.clock, upTo: wanted ? checkHereBytes : -1 };
  const look = await whenFree(deps.clock, deps.random, () => lookAt(options, left.length > 0, here));
  if (look.check === null && (!wanted || look.bytes === 0))
    return { integrity: how.integrityCheck ? (taken ?? "NOT_CHECKED") : "NOT_CHECKED", check: null, repair: null };
  const check = look.check ?? (await checkFile(options.path, look.depth, checkLimitMs));
  deps.events.emit("integrity.checked", { ...check, background: false });
  if (check.verdict !== "FAILED") return { integrity: check.verdict, check, repair: null };
  const repair = await mend(deps, options, how, check, look.foreignWal);
  return { integrity: "REPAIRED", check, repair };
}

/** Left by a death under another journal mode. Only a connection that may write can undo it, and until then nobody can read. */
function rollBackHotJournal(options: DatabaseOptions): void {
  if ((statSync(`${options.path}-journal`, { throwIfNoEntry: false })?.size ?? 0) === 0) return;
  try {
    new Database({ ...options, asIs: true }).close();
  } catch (thrown) {
    if (!saysDamaged(thrown)) throw thrown; // The look says so, too.
  }
}

/** The version gate, and what kind of stop was before: a look by SQLite that takes no decision on the content but these. */
function lookAt(
  options: DatabaseOptions,
  leftByWorkers: boolean,
  here: { readonly clock: Clock; readonly upTo: number },
): Look {
  const { path } = options;
  const wal = walBytes(path);
  // A log beside a file that somebody has open is in use; one that nobody has open was left behind by a death.
  const walLeft = wal > 0 && (openers(path)?.length ?? 0) === 0;
  const own = walLeft ? identityWithoutWal(options) : null;
  let db: Database | undefined;
  try {
    db = new Database({ ...options, ...LOOKING });
    const version = schemaVersion(db);
    if (version > SCHEMA_VERSION) assertSchema(db);
    const { page_count: pages } = db.sql("PRAGMA page_count").get() as { page_count: number };
    const { page_size: size } = db.sql("PRAGMA page_size").get() as { page_size: number };
    const identity = storeIdentity(db);
    const foreignWal = own !== null && identity !== null && own !== identity;
    const bytes = pages * size + wal;
    const depth = walLeft || leftByWorkers || (version > 0 && namesTheLiving(db)) ? "full" : "quick";
    if (foreignWal)
      return {
        bytes,
        depth,
        check: failed(["the write-ahead log beside the file belongs to another store"]),
        foreignWal,
      };
    const check = bytes > 0 && bytes <= here.upTo ? checkHere(db, depth, here.clock) : null;
    return { bytes, depth, check, foreignWal };
  } catch (thrown) {
    if (!saysDamaged(thrown)) throw thrown;
    return { bytes: 0, depth: "full", check: failed([(thrown as Error).message]), foreignWal: false };
  } finally {
    db?.close();
  }
}

/** Nobody's lock is held, so whoever the rows call alive died. */
function namesTheLiving(db: Database): boolean {
  return db.sql("SELECT 1 FROM outlive_workers WHERE state IN ('live', 'recovering') LIMIT 1").get() !== undefined;
}

function identityWithoutWal(options: DatabaseOptions): string | null {
  let db: Database | undefined;
  try {
    db = new Database({ ...options, ...LOOKING, withoutWal: true });
    return storeIdentity(db);
  } catch {
    return null;
  } finally {
    db?.close();
  }
}

function checkHere(db: Database, depth: CheckDepth, clock: Clock): IntegrityCheck {
  const started = clock.mono();
  const findings = checkOpen(db, depth);
  const tookMs = Math.max(0, clock.mono() - started);
  return { verdict: findings.length === 0 ? "PASSED" : "FAILED", depth, findings, tookMs };
}

function findingsHere(options: DatabaseOptions, depth: CheckDepth): readonly string[] {
  const db = new Database({ ...options, ...LOOKING });
  try {
    return checkOpen(db, depth);
  } finally {
    db.close();
  }
}

/** Repairs as far as it is allowed. Rejects if the file is not sound after it: start-up ends there. */
async function mend(
  deps: StartUpDeps,
  options: DatabaseOptions,
  how: StartUpOptions,
  check: IntegrityCheck,
  foreignWal: boolean,
): Promise<Repair> {
  const { path } = options;
  if (how.repair === "off") throw damaged(path, { check, repair: null, because: "Repair is off." });
  const aside = await withoutBadWal(deps, options, how, check, foreignWal);
  if (aside) return told(deps, { steps: [aside], sound: true, findings: [], salvage: null });
  const users = openers(path) ?? [];
  const salvage = how.repair === "auto" && users.length === 0;
  const repair = told(deps, await repairFile(path, { salvage }, { clock: deps.clock }));
  if (repair.sound) return repair;
  const because =
    how.repair === "auto" && !salvage
      ? `Salvage needs the file for itself, but ${users.map(({ pid }) => `process ${pid}`).join(", ")} has it open.`
      : undefined;
  throw damaged(path, { check, repair, ...(because !== undefined && { because }) });
}

/**
 * If the file is sound without its log and not with it, the log is not its own, or is damaged. Using the file without it loses what
 * was written since the latest checkpoint, so that is done only with `repair: "auto"`; the log is kept beside it in any case.
 */
async function withoutBadWal(
  deps: StartUpDeps,
  options: DatabaseOptions,
  how: StartUpOptions,
  check: IntegrityCheck,
  foreign: boolean,
): Promise<RepairStep | null> {
  const { path } = options;
  const users = openers(path) ?? [];
  if (walBytes(path) === 0 || users.length > 0) return null;
  let without: readonly string[];
  try {
    without = findingsHere({ ...options, withoutWal: true }, "full");
  } catch {
    return null; // The file itself can't be read: it is not the log alone.
  }
  if (without.length > 0) return null;
  if (how.repair !== "auto") {
    const which = foreign
      ? "The log is another store's"
      : "The file alone is sound, so the log is another file's or damaged";
    const because = `${which}. Move ${path}-wal and ${path}-shm away if that is so: what the log alone holds is then lost.`;
    throw damaged(path, { check, repair: null, because });
  }
  const keptAs = setWalAside(path, deps.clock.now());
  const detail = `the write-ahead log did not fit the file and is kept as ${keptAs}; what only it held is not in the store`;
  return { step: "set-wal-aside", ok: true, detail };
}

function told({ events }: StartUpDeps, repair: Repair): Repair {
  events.emit("store.repaired", repair);
  return repair;
}

function failed(findings: readonly string[]): IntegrityCheck {
  return { verdict: "FAILED", depth: "quick", findings, tookMs: 0 };
}
