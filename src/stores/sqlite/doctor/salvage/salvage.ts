// Salvage, in the child process: writes everything that can still be read of a damaged file into a new file next to it, which replaces
// it only when it is complete and sound. The damaged file is never written to, and is kept under another name.
// It reads the pages itself: SQL can't reach what is below a damaged inner page, and follows wrong pointers. Page by page, only the rows
// of the damaged page are lost.
import { chmodSync, openSync, readFileSync, statSync } from "node:fs";
import { ErrorCode, OutliveError } from "../../../../job/errors.ts";
import type { Salvage } from "../../../store-parts.ts";
import { type DatabaseSync, fileAt, openBare } from "../../database.ts";
import { wrapError, primaryCode, SQLITE_BUSY, SQLITE_FULL } from "../../errors.ts";
import { readFindings } from "../check.ts";
import type { Progress } from "../child.ts";
import { inUse } from "../repair.ts";
import { holdForRepair, removeSalvage, salvagePath, swapIn } from "../swap.ts";
import { type Log, Pages, readLog } from "./pages.ts";
import { readPlan, type SalvagePlan } from "./plan.ts";
import { writeNew } from "./write.ts";

/** Handles that must not be closed: closing one drops locks, or applies the log to the damaged file. */
const keptOpen: DatabaseSync[] = [];

export interface Salvaged {
  readonly salvage: Salvage;
  /** For people: a log that was not used, tables that were not copied. */
  readonly remarks: readonly string[];
}

export function salvage(path: string, now: number, onProgress: (progress: Progress) => void): Salvaged {
  holdForRepair(path);
  const file = openSync(path, "r");
  keepOthersOut(path);
  removeSalvage(path);
  try {
    const { plan, remarks } = bestView(file, readLog(`${path}-wal`));
    const written = writeNew(salvagePath(path), plan, now, onProgress);
    chmodSync(salvagePath(path), statSync(path).mode & 0o777);
    assertSound(path);
    const keptAs = `${path}.damaged-${new Date(now).toISOString().replaceAll(/[:.]/g, "-")}`;
    swapIn(path, keptAs);
    return { salvage: { keptAs, ...written.salvage }, remarks: [...remarks, ...written.remarks] };
  } catch (thrown) {
    removeSalvage(path);
    const code = (thrown as NodeJS.ErrnoException).code;
    if (primaryCode(thrown) === SQLITE_FULL || code === "ENOSPC" || code === "EDQUOT") throw noRoom(path, thrown);
    throw wrapError(`salvaging ${path}`, thrown);
  }
}

/**
 * SQLite's exclusive lock, in the mode that also excludes readers. Other processes can't open a file that is too damaged for that
 * either; the kernel's list of locks then shows whether one has it open.
 */
function keepOthersOut(path: string): void {
  const db = openBare(path);
  keptOpen.push(db);
  try {
    db.exec("PRAGMA locking_mode = EXCLUSIVE; BEGIN IMMEDIATE");
  } catch (thrown) {
    if (primaryCode(thrown) === SQLITE_BUSY || othersHold(path)) throw inUse(path, thrown);
  }
}

function othersHold(path: string): boolean {
  try {
    const key = ` ${fileAt(path)} `;
    return readFileSync("/proc/locks", "utf8")
      .split("\n")
      .some((line) => line.includes(key) && !line.includes(` ${process.pid} `));
  } catch {
    return false;
  }
}

/**
 * With what the log has committed. Without it if the file alone is sound and with the log is not, or if with it almost nothing fits
 * together: the log is then another file's.
 */
function bestView(file: number, log: Log | null): { plan: SalvagePlan; remarks: string[] } {
  const plan = readPlan(new Pages(file, log));
  const anomalies = plan.survey.anomalies;
  if (!log || anomalies === 0) return { plan, remarks: [] };
  const alone = readPlan(new Pages(file, null));
  const anomaliesAlone = alone.survey.anomalies;
  if (anomaliesAlone > 0 && anomalies < 4 * (anomaliesAlone + 1)) return { plan, remarks: [] };
  return {
    plan: alone,
    remarks: [
      "The write-ahead log does not belong to this file and was not used; it is kept next to the damaged file.",
    ],
  };
}

function assertSound(path: string): void {
  const findings = readFindings(salvagePath(path), "full");
  if (findings.length === 0) return;
  throw new OutliveError(
    ErrorCode.storeCorrupt,
    `What was salvaged of ${path} is not sound itself: ${findings.slice(0, 3).join("; ")}.`,
    "The damaged file is as it was. Restore a backup (then: outlive recover --restored), and please report this.",
    { path, findings },
  );
}

function noRoom(path: string, cause: unknown): OutliveError {
  return new OutliveError(
    ErrorCode.storeFull,
    `There is not enough room next to ${path} for the salvaged file.`,
    `It needs up to ${statSync(path).size} bytes. Free disk space and try again; the damaged file was not changed.`,
    { path, bytes: statSync(path).size },
    { cause },
  );
}
