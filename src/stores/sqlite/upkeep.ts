// What an open, the maintenance and an operator need from the file itself: the epoch and the mark that outlives the
// file, what opens found, the write-ahead log, checks, in-place repairs and backups.
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { Opening } from "../store-parts.ts";
import type { Upkeep } from "../port.ts";
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
