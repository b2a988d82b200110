// What an open, the maintenance and an operator need from the file itself: the epoch and the mark that outlives the
// file, what opens found, the write-ahead log, checks, in-place repairs and backups.
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { Opening } from "../store-parts.ts";
import type { Pending, Upkeep } from "../port.ts";
import type { Database } from "./database.ts";
import {
  backupFile,
  checkFile,
  checkOpen,
  findInconsistencies,
  findStrayLocks,
  tendWal,
  walNews,
  walNotes,
} from "./doctor/index.ts";
import { latestOpening, noteOpening } from "./enqueue.ts";
import { type FilePlace, type MarkFile, whyRestored, type Workers } from "./workers.ts";
import type { FileAccess } from "./writer.ts";

interface UpkeepDeps {
  readonly workers: Workers;
  readonly mark: MarkFile;
  /** The id of this boot. Undefined: this connection can't notice a restore. */
  readonly bootId: string | undefined;
}

export function upkeep({ db, now, write, read }: FileAccess, { workers, mark: markFile, bootId }: UpkeepDeps): Upkeep {
  const memory = db.path === ":memory:";
  const news = walNews();
  const mark = (epoch: number): void => {
    const place = placeOf(db, bootId);
    if (place !== null) markFile.write({ ...place, epoch });
  };
  // Runs in a separate process, so that this process's loop keeps running. An in-memory database has only this one.
  const integrity = async (): Promise<readonly string[]> =>
    memory ? read(() => checkOpen(db, "full")) : (await checkFile(db.path, "full", Number.POSITIVE_INFINITY)).findings;
  return {
    // The mark is written after the commit: the next open corrects a mark that is too low, and a mark never names an
    // epoch that was not issued.
    async raiseEpoch() {
      const above = db.file === null ? 0 : (markFile.read()?.epoch ?? 0);
      const epoch = await write(() => workers.raiseEpoch(now(), above));
      mark(epoch);
      return epoch;
    },

    async noticeRestore() {
      const place = placeOf(db, bootId);
      if (place === null) return null;
      const known = markFile.read();
      const epoch = await read(() => workers.epoch());
      if (whyRestored(known, place, epoch) === null) {
        if (known?.boot !== place.boot || epoch > known.epoch) mark(epoch);
        return null;
      }
      // Checked again inside a transaction: another process may have noticed it in the meantime.
      const found = await write(() => workers.noticeRestore(known!, place, now()));
      mark(found.epoch);
      return found.why;
    },

    latestOpening: () => read(() => inPresentForm(latestOpening(db))),
    noteOpening: (opening) => write(() => noteOpening(db, opening)),
    untilWritable: () => write(() => {}),
    pending: (kinds) => read(() => pending(db, kinds, now())),
    tend: () => read(() => news(tendWal(db))),
    integrity,

    // Rebuilds the indexes from their tables. Worse damage needs exclusive use of the file: `outlive check --repair`
    // (doctor/repair.ts).
    async repair() {
      await read(() => db.exec("REINDEX"));
      return integrity();
    },

    inconsistencies: () => read(() => findInconsistencies(db, memory ? [] : findStrayLocks(db), "full")),

    async backup(file, options = {}) {
      if (!memory) return backupFile(db.path, file, options);
      throw new OutliveError(
        ErrorCode.wrongState,
        "A database in memory dies with its process and can't be backed up.",
        "Use a file: sqlite:./jobs.db.",
      );
    },
  };
}

/** What a worker's turn would act on, claim, or wait for (turn.ts). */
function pending(db: Database, kinds: readonly string[], now: number): Pending {
  const isNow = db.sql(PENDING).get(JSON.stringify(kinds), now) !== undefined;
  const { at } = db.sql(NEXT).get() as { at: number | null };
  const nextInMs = at === null ? null : Math.max(0, at - now);
  return { now: isNow || nextInMs === 0, nextInMs };
}

const PENDING = `SELECT 1 WHERE EXISTS (
    SELECT 1 FROM outlive_kinds k WHERE k.name IN (SELECT value FROM json_each(?1)) AND NOT (k.paused = 1 AND coalesce(k.paused_until > ?2, 1))
    AND (EXISTS (SELECT 1 FROM outlive_jobs j INDEXED BY outlive_jobs_ready WHERE j.kind = k.id AND j.state = 0 AND j.lane = 1)
      OR EXISTS (SELECT 1 FROM outlive_jobs j INDEXED BY outlive_jobs_suspect WHERE j.kind = k.id AND j.state = 0 AND j.lane = 2)))
  OR EXISTS (SELECT 1 FROM outlive_wakes) OR EXISTS (SELECT 1 FROM outlive_key_wakes) OR EXISTS (SELECT 1 FROM outlive_cancels)
  OR EXISTS (SELECT 1 FROM outlive_family_cancels WHERE due = 1) OR EXISTS (SELECT 1 FROM outlive_doors WHERE door < 0)`;
// `min` ignores those that are null.
const NEXT = `SELECT min(at) AS at FROM (
  SELECT (SELECT run_at FROM outlive_jobs WHERE state = 0 AND lane = 0 ORDER BY run_at LIMIT 1) AS at
  UNION ALL SELECT (SELECT expires_at FROM outlive_extras WHERE expires_at IS NOT NULL ORDER BY expires_at LIMIT 1)
  UNION ALL SELECT (SELECT min(due_at) FROM outlive_keys WHERE due_at IS NOT NULL))`;

function placeOf(db: Database, boot: string | undefined): FilePlace | null {
  return db.file === null || boot === undefined ? null : { boot, inode: db.file.split(":").at(-1)! };
}

/** Version 0.1.0 stored its notes about the log as members of the findings. */
interface EarlierFindings {
  readonly walFrames?: number;
  readonly walHeldBack?: string | null;
  readonly journalWas?: string | null;
}

function inPresentForm(opening: Opening | null): Opening | null {
  if (opening === null) return null;
  const {
    walFrames,
    walHeldBack = null,
    journalWas = null,
    ...findings
  } = opening.findings as Opening["findings"] & EarlierFindings;
  if (walFrames === undefined) return opening;
  return { ...opening, findings: { ...findings, ...walNotes(walFrames, walHeldBack, journalWas) } };
}
