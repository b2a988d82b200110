// What happens to a file before anything trusts its content: the start lock, the version gate, the integrity check, and the repair.
// Everything here reads through connections that can't write, because a connection that can would apply a log which does not belong
// to the file. Only a repair writes. While workers use the file, none of this is done.
import { existsSync, statSync } from "node:fs";
import { ErrorCode, OutliveError } from "../../../job/errors.ts";
import type { Emitter } from "../../../job/events.ts";
import type { Clock, Random } from "../../../job/time.ts";
import type { StartUpOptions } from "../../backend.ts";
import type { CheckDepth, IntegrityCheck, Repair, RepairStep, Verdict } from "../../store-parts.ts";
import { assertLocalFilesystem, assertOneName, assertPlatform, assertWritable, createPrivately } from "../address.ts";
import { Database, type DatabaseOptions } from "../database.ts";
import { storeIdentity } from "../enqueue.ts";
import { saysDamaged, saysNoDatabase } from "../errors.ts";
import { makeSideFolder, openers, sideFolder } from "../lock.ts";
import { assertSchema, SCHEMA_VERSION, schemaVersion } from "../schema.ts";
import { whenFree } from "../writer.ts";
import { checkFile, checkOpen } from "./check.ts";
import { repairFile } from "./repair.ts";
import { type StartLock, takeStartLock } from "./start-lock.ts";
import { finishSwap } from "./swap.ts";
import { setWalAside, walBytes } from "./wal.ts";

/**
 * How long an open waits for a check: long enough for 150 MB, and work goes on within 2 s of a start whatever the size of the file. A check that takes
 * longer is UNFINISHED, never PASSED, and goes on in the background.
 */
const CHECK_LIMIT_MS = 1_000;
/** Up to this size the check runs in this process: 18 ms quick, 50 ms full, measured at 2.2 and 6.2 ms per MB. */
const CHECK_HERE_BYTES = 8 << 20;
/** How many findings the error of a damaged file names. */
const MAX_NAMED = 3;

const READING = { readOnly: true, asIs: true, mustExist: true } as const;

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

/** Null: a worker uses the file. Rejects if the file is damaged beyond what may be repaired; then nothing is held. */
export async function startUp(
  deps: StartUpDeps,
  options: DatabaseOptions,
  how: StartUpOptions,
): Promise<StartUp | null> {
  const { path } = options;
  await whenFree(deps.clock, deps.random, () => prepareFiles(options));
  const lock = await takeStartLock(path, deps);
  if (!lock) return null;
  try {
    // The previous holder of the lock may have died in the middle of a repair.
    finishSwap(path);
    return { lock, ...(await examine(deps, options, how, lock)) };
  } catch (thrown) {
    lock.drop(null);
    throw thrown;
  }
}

/** The file and the folder next to it. A file that is not a database is refused before that folder is created. */
function prepareFiles(options: DatabaseOptions): void {
  const { path } = options;
  if (!options.allowUnsafeSqlite) assertPlatform(path);
  const file = statSync(path, { throwIfNoEntry: false });
  const bytes = file?.size ?? 0;
  // A directory or a device: the open throws the right error.
  if (file && !file.isFile()) new Database(options).close();
  if (file) assertWritable(path);
  if (file) assertOneName(path);
  if (bytes === 0 && walBytes(path) > 0)
    // SQLite would delete the log of an empty file: the only copy of what was written last.
    throw damaged(path, failed([`the file is ${existsSync(path) ? "empty" : "gone"}, but its write-ahead log is not`]));
  if (bytes === 0) {
    if (!options.allowNetworkFilesystem) assertLocalFilesystem(path);
    createPrivately(path);
  } else if (!existsSync(sideFolder(path))) {
    try {
      new Database({ ...options, ...READING }).close();
    } catch (thrown) {
      // A damaged database is handled under the lock.
      if (!saysDamaged(thrown) || saysNoDatabase(thrown)) throw thrown;
    }
  }
  makeSideFolder(path);
}

async function examine(
  deps: StartUpDeps,
  options: DatabaseOptions,
  how: StartUpOptions,
  { inherited, left }: StartLock,
): Promise<Omit<StartUp, "lock">> {
  await whenFree(deps.clock, deps.random, () => rollBackHotJournal(options));
  const known = inherited === "NOT_CHECKED" ? null : inherited;
  const wanted = how.integrityCheck && known === null;
  const { checkHereBytes = CHECK_HERE_BYTES, checkLimitMs = CHECK_LIMIT_MS } = how;
  const here = { clock: deps.clock, maxBytes: wanted ? checkHereBytes : -1 };
  const first = await whenFree(deps.clock, deps.random, () => inspect(options, left.length > 0, here));
  if (first.check === null && (!wanted || first.bytes === 0))
    return { integrity: how.integrityCheck ? (known ?? "NOT_CHECKED") : "NOT_CHECKED", check: null, repair: null };
  const check = first.check ?? (await checkFile(options.path, first.depth, checkLimitMs));
  deps.events.emit("integrity.checked", { ...check, background: false });
  if (check.verdict !== "FAILED") return { integrity: check.verdict, check, repair: null };
  const repair = await repairOrThrow(deps, options, how, check, first.foreignWal);
  return { integrity: "REPAIRED", check, repair };
}

/** Left by a death under another journal mode. Only a connection that can write can roll it back; until then the file can't be read. */
function rollBackHotJournal(options: DatabaseOptions): void {
  if ((statSync(`${options.path}-journal`, { throwIfNoEntry: false })?.size ?? 0) === 0) return;
  try {
    new Database({ ...options, asIs: true }).close();
  } catch (thrown) {
    if (!saysDamaged(thrown)) throw thrown; // The inspection finds the damage as well.
  }
}

interface Inspection {
  readonly bytes: number;
  /** Full unless the last stop was clean. */
  readonly depth: CheckDepth;
  /** Null: the check is still to be done. FAILED without a check if the file can't be read, or its log is another store's. */
  readonly check: IntegrityCheck | null;
  readonly foreignWal: boolean;
}

/**
 * The version gate, whether the last stop was clean, and the check itself if the file is small. Only a death leaves a
 * lock file that no process holds, a row in state live, or a log that no process has open. `/proc/locks` lists which
 * processes have it open. Where there is no such list, a log counts as left behind by a death, and the check is a full
 * one.
 */
function inspect(
  options: DatabaseOptions,
  leftByWorkers: boolean,
  here: { readonly clock: Clock; readonly maxBytes: number },
): Inspection {
  const { path } = options;
  const wal = walBytes(path);
  // The log of a file that a process has open is in use; otherwise a death left it behind.
  const walLeft = wal > 0 && (openers(path)?.length ?? 0) === 0;
  const own = walLeft ? identityWithoutWal(options) : null;
  let db: Database | undefined;
  try {
    db = new Database({ ...options, ...READING });
    const version = schemaVersion(db);
    if (version > SCHEMA_VERSION) assertSchema(db);
    const { page_count: pages } = db.sql("PRAGMA page_count").get() as { page_count: number };
    const { page_size: size } = db.sql("PRAGMA page_size").get() as { page_size: number };
    const identity = storeIdentity(db);
    const foreignWal = own !== null && identity !== null && own !== identity;
    const bytes = pages * size + wal;
    const depth = walLeft || leftByWorkers || (version > 0 && namesLiveWorkers(db)) ? "full" : "quick";
    const check = foreignWal
      ? failed(["the write-ahead log next to the file belongs to another store"])
      : bytes > 0 && bytes <= here.maxBytes
        ? checkHere(db, depth, here.clock)
        : null;
    return { bytes, depth, check, foreignWal };
  } catch (thrown) {
    if (!saysDamaged(thrown)) throw thrown;
    return { bytes: 0, depth: "full", check: failed([(thrown as Error).message]), foreignWal: false };
  } finally {
    db?.close();
  }
}

/** No lock is held, so every worker whose row is live has died. */
function namesLiveWorkers(db: Database): boolean {
  return db.sql("SELECT 1 FROM outlive_workers WHERE state IN ('live', 'recovering') LIMIT 1").get() !== undefined;
}

/**
 * SQLite applies any log whose checksums are right, also another database's, so the log must not change the identity of the file. A
 * foreign log without that page is mostly found by the full check.
 */
function identityWithoutWal(options: DatabaseOptions): string | null {
  let db: Database | undefined;
  try {
    db = new Database({ ...options, ...READING, withoutWal: true });
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

/** Repairs as far as the options allow. Rejects if the file is not sound after it, which ends the start-up. */
async function repairOrThrow(
  deps: StartUpDeps,
  options: DatabaseOptions,
  how: StartUpOptions,
  check: IntegrityCheck,
  foreignWal: boolean,
): Promise<Repair> {
  const { path } = options;
  if (how.repair === "off") throw damaged(path, check, null, "Repair is off.");
  const aside = withoutBadWal(deps, options, how, check, foreignWal);
  const users = openers(path) ?? [];
  const salvage = how.repair === "auto" && users.length === 0;
  const repair: Repair = aside
    ? { steps: [aside], sound: true, findings: [], salvage: null }
    : await repairFile(path, { salvage }, { clock: deps.clock });
  deps.events.emit("store.repaired", repair);
  if (repair.sound) return repair;
  const because =
    how.repair === "auto" && !salvage
      ? `Salvage needs exclusive access to the file, but ${users.map(({ pid }) => `process ${pid}`).join(", ")} has it open.`
      : undefined;
  throw damaged(path, check, repair, because);
}

/**
 * If the file is sound without its log and damaged with it, the log is another file's or is damaged. Using the file without it loses
 * what was written since the latest checkpoint. That is done only with `repair: "auto"`, and the log is kept next to the file.
 */
function withoutBadWal(
  deps: StartUpDeps,
  options: DatabaseOptions,
  how: StartUpOptions,
  check: IntegrityCheck,
  foreign: boolean,
): RepairStep | null {
  const { path } = options;
  const users = openers(path) ?? [];
  if (walBytes(path) === 0 || users.length > 0 || !isSoundWithoutWal(options)) return null;
  if (how.repair !== "auto") {
    const which = foreign
      ? "The log is another store's"
      : "The file alone is sound, so the log is another file's or damaged";
    const because = `${which}. Move ${path}-wal and ${path}-shm away if that is so: what the log alone holds is then lost.`;
    throw damaged(path, check, null, because);
  }
  const keptAs = setWalAside(path, deps.clock.now());
  const detail = `the write-ahead log did not fit the file and is kept as ${keptAs}; what only it held is not in the store`;
  return { step: "set-wal-aside", ok: true, detail };
}

function isSoundWithoutWal(options: DatabaseOptions): boolean {
  let db: Database | undefined;
  try {
    db = new Database({ ...options, ...READING, withoutWal: true });
    return checkOpen(db, "full").length === 0;
  } catch {
    return false; // The file itself can't be read.
  } finally {
    db?.close();
  }
}

function failed(findings: readonly string[]): IntegrityCheck {
  return { verdict: "FAILED", depth: "quick", findings, tookMs: 0 };
}

/** The error that ends a start-up: what was found, what was tried (null: nothing was allowed), and the commands to type. */
function damaged(path: string, check: IntegrityCheck, repair: Repair | null = null, because?: string): OutliveError {
  const findings = repair && repair.findings.length > 0 ? repair.findings : check.findings;
  const more = findings.length > MAX_NAMED ? `; and ${findings.length - MAX_NAMED} more` : "";
  const steps = repair?.steps.map(({ step, ok }) => `${step} (${ok ? "done" : "not enough"})`) ?? [];
  const tried =
    steps.length > 0
      ? ` Tried: ${steps.join(", ")}.`
      : `${repair ? " It can't be repaired without loss." : ""} Nothing was changed.`;
  return new OutliveError(
    ErrorCode.storeDamaged,
    `${path} is damaged: ${findings.slice(0, MAX_NAMED).join("; ")}${more}.${because === undefined ? "" : ` ${because}`}${tried}`,
    [
      `Stop everything that uses it, then: outlive check --repair --store sqlite:${path} (with --yes it may drop what can't be read)`,
      `If that is not enough, put a backup in its place (remove ${path}-wal and ${path}-shm, too), then: outlive recover --restored --store sqlite:${path}`,
      `To read what can be read: outlive status --read-only --store sqlite:${path}, or open(url, { readOnly: true }).`,
    ].join(". "),
    { path, findings, ...(repair && { steps: repair.steps }) },
  );
}
