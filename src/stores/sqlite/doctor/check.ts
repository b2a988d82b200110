// SQLite's own check of a file. It runs next to live workers, makes no file and removes none. A check of a whole file runs in the
// child process, under a time limit; one that did not finish is UNFINISHED, never PASSED.
import { readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import type { Emitter } from "../../../job/events.ts";
import type { CheckDepth, Inconsistency, IntegrityCheck } from "../../store-parts.ts";
import { assertExists } from "../address.ts";
import { COUNTED, SUMMED } from "../blocks.ts";
import { corruptRows } from "../checksums.ts";
import { type Database, openBare, probeExclusive } from "../database.ts";
import { keyInconsistencies } from "./key-checks.ts";
import { wrapError, primaryCode, saysDamaged, SQLITE_BUSY, SQLITE_CANTOPEN, SQLITE_NOTADB } from "../errors.ts";
import { sideFolder } from "../lock.ts";
import { type ChildOptions, runInChild } from "./run-in-child.ts";

const MAX_FINDINGS = 100;

/** How long to wait while another process opens the file first or closes it last. */
const BUSY_MS = 5_000;

/**
 * Reads the whole file, at a low priority and never through this process's own connections, and returns what is wrong with it.
 * A check that takes longer than `limitMs` (Infinity: no limit) is killed and UNFINISHED.
 */
export async function checkFile(
  path: string,
  depth: CheckDepth,
  limitMs: number,
  options: Pick<ChildOptions, "signal" | "background"> = {},
): Promise<IntegrityCheck> {
  assertExists(path);
  const started = performance.now();
  const findings = await runInChild({ do: "check", path, depth }, { limitMs, ...options });
  const tookMs = Math.round(performance.now() - started);
  if (findings === null) return { verdict: "UNFINISHED", depth, findings: [], tookMs };
  return { verdict: findings.length === 0 ? "PASSED" : "FAILED", depth, findings, tookMs };
}

export interface BackgroundCheck {
  /** Null: it was stopped before it had a verdict. */
  readonly verdict: Promise<IntegrityCheck | null>;
  stop(): void;
}

/**
 * Continues a check that an open could not finish in time: the whole file, without a limit, at the lowest priority. The child does
 * not keep this process alive, and ends with it.
 */
export function checkInBackground(path: string, events: Emitter): BackgroundCheck {
  const stopping = new AbortController();
  const options = { signal: stopping.signal, background: true };
  const verdict = checkFile(path, "full", Number.POSITIVE_INFINITY, options).then(
    (check) => {
      events.emit("integrity.checked", { ...check, background: true });
      return check;
    },
    () => null,
  );
  return { verdict, stop: () => stopping.abort() };
}

/** The check on an open connection. It blocks its thread, so it is for small files. Returns no finding if the file is sound. */
export function checkOpen(db: Database, depth: CheckDepth): readonly string[] {
  try {
    return findingsOf(db.sql(checkPragma(depth)).all());
  } catch (thrown) {
    // The damage is so early in the file that the check itself fails.
    if (saysDamaged(thrown)) return [(thrown as Error).message];
    throw thrown;
  }
}

/** The check in the child. A file that SQLite can't open or parse is a finding, not an error. */
export function readFindings(path: string, depth: CheckDepth): readonly string[] {
  // Without a log no process has the file open. It is then read without the two files that a connection would create. If another
  // process has opened it in the meantime, the findings may be its half-written pages: the check runs again, with locks.
  if (!hasLog(path)) {
    const found = findings(path, depth, true);
    if (found.length === 0 || !hasLog(path)) return found;
  }
  return findings(path, depth, false);
}

function hasLog(path: string): boolean {
  return ["-wal", "-journal"].some((suffix) => statSync(path + suffix, { throwIfNoEntry: false }) !== undefined);
}

function findings(path: string, depth: CheckDepth, immutable: boolean): readonly string[] {
  try {
    const db = openBare(path, { readOnly: true, immutable, timeout: BUSY_MS });
    try {
      return findingsOf(db.prepare(checkPragma(depth)).all());
    } finally {
      db.close();
    }
  } catch (thrown) {
    const code = primaryCode(thrown);
    if (code === undefined || code === SQLITE_BUSY || code === SQLITE_CANTOPEN)
      throw wrapError(`checking ${path}`, thrown);
    return [
      code === SQLITE_NOTADB
        ? "the file is not a database: its head is damaged, or it is something else"
        : `SQLite can't read the file: ${(thrown as Error).message}`,
    ];
  }
}

function checkPragma(depth: CheckDepth): string {
  return `PRAGMA ${depth === "full" ? "integrity" : "quick"}_check(${MAX_FINDINGS})`;
}

/** Extracts the findings from the pragma's rows. */
function findingsOf(rows: readonly object[]): readonly string[] {
  return rows
    .flatMap((row) => String(Object.values(row)[0]).split("\n"))
    .filter((finding) => finding !== "ok" && !/^\*\*\* in database \S+ \*\*\*$/.test(finding))
    .slice(0, MAX_FINDINGS);
}

// Finds rows that contradict each other. It only reads: recovery, retention and repair fix what it finds.

const MAX_NAMES = 20;

/** How many of the newest rows an open reads: all of them would cost it seconds on a large file. */
const NEWEST = 10_000;

/** `full` reads every row; `open` is bounded by what runs and by the newest rows. */
type ScanDepth = "open" | "full";

/** Counts are complete, names are at most 20 each. `strayLocks`: lock files that no worker's row names. */
export function findInconsistencies(
  db: Database,
  strayLocks: readonly string[],
  depth: ScanDepth = "open",
): Inconsistency[] {
  const found = [
    runningWithoutOwner(db),
    goneWorkerHoldsJobs(db),
    orphans(db, "orphan-steps", "outlive_steps", "step", depth),
    orphans(db, "orphan-history", "outlive_history", "entry of the history", depth),
    orphans(db, "orphan-logs", "outlive_logs", "line of a log", depth),
    depth === "full" ? countersDisagree(db) : null,
    depth === "full" ? corruptContent(db) : null,
    depth === "full" ? blocksWithoutJob(db) : null,
    depth === "full" ? batchesDisagree(db) : null,
    depth === "full" ? collectionsDisagree(db) : null,
    ...(depth === "full" ? keyInconsistencies(db) : []),
    finding("lock-without-worker", strayLocks, strayLocks.length, (n) => `${n} lock file(s) belong to no worker`),
  ];
  return found.filter((one) => one !== null);
}

/** Lock files next to the database that no live worker's row names and no process holds. */
export function findStrayLocks(db: Database): string[] {
  const known = new Set(
    (
      db.sql("SELECT lock_name AS name FROM outlive_workers WHERE state IN ('live', 'recovering')").all() as {
        name: string | null;
      }[]
    ).map(({ name }) => name),
  );
  const folder = sideFolder(db.path);
  return lockFiles(folder).filter((name) => !known.has(name) && probeExclusive(join(folder, name)) !== "held");
}

function lockFiles(folder: string): string[] {
  try {
    return readdirSync(folder).filter((name) => name.endsWith(".lock"));
  } catch {
    return [];
  }
}

function finding(
  what: Inconsistency["what"],
  names: readonly string[],
  count: number,
  detail: (n: number) => string,
): Inconsistency | null {
  return count === 0 ? null : { what, detail: detail(count), names: names.slice(0, MAX_NAMES), count };
}

/** Texts that do not match their checksums. A worker that claims such a job quarantines it. */
function corruptContent(db: Database): Inconsistency | null {
  const rows = corruptRows(db, 1_000);
  return finding(
    "corrupt-content",
    rows.map(({ jobId, what }) => `${jobId}: ${what}`),
    rows.length,
    (n) => `${n === 1_000 ? "at least " : ""}${n} input(s), result(s) or step(s) are not what was stored`,
  );
}

/** By the index of running jobs. */
function runningWithoutOwner(db: Database): Inconsistency | null {
  const ids = db
    .sql(
      "SELECT id FROM outlive_jobs j WHERE j.state = 1 AND NOT EXISTS (SELECT 1 FROM outlive_workers w WHERE w.seq = j.worker) LIMIT 1000",
    )
    .all() as { id: string }[];
  return finding(
    "running-without-owner",
    ids.map(({ id }) => id),
    ids.length,
    (n) => `${n === 1_000 ? "at least " : ""}${n} job(s) are running under a worker that has no row`,
  );
}

/** The next recovery takes these back automatically. */
function goneWorkerHoldsJobs(db: Database): Inconsistency | null {
  const rows = db
    .sql(
      `SELECT w.id, count(*) AS jobs FROM outlive_jobs j JOIN outlive_workers w ON w.seq = j.worker
       WHERE j.state = 1 AND w.state IN ('gone', 'stopped') GROUP BY w.seq`,
    )
    .all() as { id: string; jobs: number }[];
  const jobs = rows.reduce((sum, row) => sum + row.jobs, 0);
  return finding(
    "gone-worker-holds-jobs",
    rows.map(({ id }) => id),
    rows.length,
    (n) => `${n} worker(s) have ended and still hold ${jobs} job(s); the next recovery takes them back`,
  );
}

function orphans(
  db: Database,
  what: Inconsistency["what"],
  table: string,
  one: string,
  depth: ScanDepth,
): Inconsistency | null {
  const scanned = depth === "full" ? table : `(SELECT job FROM ${table} ORDER BY ord DESC LIMIT ${NEWEST})`;
  const rows = db
    .sql(
      `SELECT job, count(*) AS n FROM ${scanned} WHERE NOT EXISTS (SELECT 1 FROM outlive_jobs j WHERE j.seq = job) GROUP BY job ORDER BY job`,
    )
    .all() as { job: number; n: number }[];
  const count = rows.reduce((sum, { n }) => sum + n, 0);
  return finding(
    what,
    rows.map(({ job }) => String(job)),
    count,
    (n) => `${n} ${one}(s) belong to ${rows.length} job(s) that do not exist (named by number)`,
  );
}

/** Nothing runs such a block, and its batch never ends. */
function blocksWithoutJob(db: Database): Inconsistency | null {
  const rows = db
    .sql(
      `SELECT p.id || ':' || b.round || ':' || b.number AS id FROM outlive_blocks b JOIN outlive_batches p ON p.seq = b.batch
       WHERE b.job > 0 AND NOT EXISTS (SELECT 1 FROM outlive_jobs j WHERE j.seq = b.job AND j.extras = 1) LIMIT 1000`,
    )
    .all() as { id: string }[];
  return finding(
    "block-without-job",
    rows.map(({ id }) => id),
    rows.length,
    (n) => `${n === 1_000 ? "at least " : ""}${n} block(s) of batches have no job that runs their rows`,
  );
}

function batchesDisagree(db: Database): Inconsistency | null {
  const wrong = (db.sql(COUNTED).all() as Record<string, number | string>[]).filter((row) =>
    SUMMED.some((name) => row[name] !== row[`own_${name}`]),
  );
  const which = wrong.slice(0, 3).map((row) => {
    const of = SUMMED.filter((name) => row[name] !== row[`own_${name}`]);
    return `${row["id"]}: ${of.map((name) => `${row[name]} ${name} kept, ${row[`own_${name}`]} there`).join(", ")}`;
  });
  return finding(
    "batch-disagrees",
    wrong.map(({ id }) => String(id)),
    wrong.length,
    (n) => `what is kept of ${n} batch(es) is not what their blocks came to (${which.join("; ")})`,
  );
}

/** Open and complete ones: of those that have ended, parts may be on their way out. */
const COLLECTED = `SELECT c.id, s.name, s.have, s.bytes, count(p.ordinal) AS own_have, ifnull(sum(p.bytes), 0) AS own_bytes
  FROM outlive_collections c JOIN outlive_series s ON s.collection = c.seq
  LEFT JOIN outlive_parts p ON p.collection = s.collection AND p.series = s.place
  WHERE c.state <= 2 GROUP BY s.collection, s.place HAVING s.have <> own_have OR s.bytes <> own_bytes`;
/** A page may count too few of its parts, and never too many: what is missing of it would not be reported. */
const OVERCOUNTED = `SELECT c.id, s.name, g.have, g.own FROM (
    SELECT collection, series, have, (SELECT count(*) FROM outlive_parts p WHERE p.collection = g.collection AND p.series = g.series
      AND p.ordinal BETWEEN g.page * 64 + 1 AND g.page * 64 + 64) AS own FROM outlive_part_pages g) g
  JOIN outlive_collections c ON c.seq = g.collection JOIN outlive_series s ON s.collection = g.collection AND s.place = g.series
  WHERE g.have > g.own`;
const PARTS_ALONE =
  "SELECT DISTINCT collection FROM outlive_parts WHERE collection NOT IN (SELECT seq FROM outlive_collections)";

function collectionsDisagree(db: Database): Inconsistency | null {
  const wrong = db.sql(COLLECTED).all() as { id: string; name: string; have: number; own_have: number }[];
  const alone = db.sql(PARTS_ALONE).all() as { collection: number }[];
  const over = db.sql(OVERCOUNTED).all() as { id: string; name: string; have: number; own: number }[];
  const which = [
    ...over.map(({ id, name, have, own }) => `${id}: ${have} parts of a page of ${name} counted, ${own} there`),
    ...wrong.map(({ id, name, have, own_have }) => `${id}: ${have} parts of ${name} kept, ${own_have} there`),
    ...alone.map(({ collection }) => `parts of number ${collection}, which does not exist`),
  ];
  return finding(
    "collection-disagrees",
    [...new Set([...[...over, ...wrong].map(({ id }) => id), ...alone.map(({ collection }) => String(collection))])],
    which.length,
    (n) => `what is kept of ${n} series is not what their parts come to (${which.slice(0, 3).join("; ")})`,
  );
}

function countersDisagree(db: Database): Inconsistency | null {
  const rows = db
    .sql(
      `SELECT k.name, k.jobs AS kept, ifnull(c.n, 0) AS there FROM outlive_kinds k
       LEFT JOIN (SELECT kind, count(*) AS n FROM outlive_jobs GROUP BY kind) c ON c.kind = k.id WHERE k.jobs <> ifnull(c.n, 0)`,
    )
    .all() as { name: string; kept: number; there: number }[];
  const which = rows.map(({ name, kept, there }) => `${name}: ${kept} kept, ${there} there`).slice(0, 3);
  return finding(
    "counter-disagrees",
    rows.map(({ name }) => name),
    rows.length,
    (n) => `the number of jobs kept for ${n} kind(s) is not that of the rows (${which.join("; ")})`,
  );
}
