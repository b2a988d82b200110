// Salvage, in the doctor's child: everything that can still be read of a damaged file, into a new file beside it, which takes its
// place only when it is complete and sound. The damaged file is never written to, and is kept under another name.
import { chmodSync, openSync, readFileSync, statSync } from "node:fs";
import { ErrorCode, OutliveError } from "../../../../core/errors.ts";
import type { Salvage } from "../../../../core/integrity.ts";
import { type DatabaseSync, openBare } from "../../database.ts";
import type { Progress, SalvageAnswer } from "../tasks.ts";
import { inOurWords, primaryCode, SQLITE_BUSY, SQLITE_FULL } from "../../errors.ts";
import { readFindings } from "../findings.ts";
import { inUse } from "../in-place.ts";
import { fileKey } from "../../lock-holder.ts";
import { type Log, Pages, readLog } from "./pages.ts";
import { writeNew } from "./write.ts";
import { holdForRepair, removeSalvage, salvagePath, swapIn } from "../swap.ts";
import { readPlan, type SalvagePlan } from "./plan.ts";

/** Handles that must not be closed: closing one drops locks, or applies the log to the damaged file. */
const kept: DatabaseSync[] = [];

export function salvage(path: string, now: number, tell: (progress: Progress) => void): SalvageAnswer {
  holdForRepair(path);
  const file = openSync(path, "r");
  keepOthersOut(path);
  removeSalvage(path);
  try {
    const { plan, remarks } = bestView(file, readLog(`${path}-wal`));
    const written = writeNew(salvagePath(path), plan, now, tell);
    chmodSync(salvagePath(path), statSync(path).mode & 0o777);
    assertSound(path);
    const keptAs = `${path}.damaged-${new Date(now).toISOString().replaceAll(/[:.]/g, "-")}`;
    swapIn(path, keptAs);
    const salvaged: Salvage = { keptAs, ...written.salvage };
    return { salvage: salvaged, remarks: [...remarks, ...written.remarks] };
  } catch (thrown) {
    removeSalvage(path);
    const code = (thrown as NodeJS.ErrnoException).code;
    if (primaryCode(thrown) === SQLITE_FULL || code === "ENOSPC" || code === "EDQUOT") throw noRoom(path, thrown);
    throw inOurWords(`salvaging ${path}`, thrown);
  }
}

/**
 * SQLite's exclusive lock, in the mode that also shuts out readers. A file that is too damaged for that can't be opened by others
 * either; then the kernel's list of locks is asked.
 */
function keepOthersOut(path: string): void {
  const db = openBare(path);
  kept.push(db);
  try {
    db.exec("PRAGMA locking_mode = EXCLUSIVE; BEGIN IMMEDIATE");
  } catch (thrown) {
    if (primaryCode(thrown) === SQLITE_BUSY || othersHold(path)) throw inUse(path, thrown);
  }
}

function othersHold(path: string): boolean {
  try {
    const { dev, ino } = statSync(path, { bigint: true });
    const key = ` ${fileKey(dev, ino)} `;
    return readFileSync("/proc/locks", "utf8")
      .split("\n")
      .some((line) => line.includes(key) && !line.includes(` ${process.pid} `));
  } catch {
    return false;
  }
}

/**
 * With what the log has committed. Without it, if the file alone is whole and with the log is not, or if with it almost nothing
 * fits together: then the log is another file's.
 */
function bestView(file: number, log: Log | null): { plan: SalvagePlan; remarks: string[] } {
  const plan = readPlan(new Pages(file, log));
  const wrong = plan.survey.anomalies;
  if (!log || wrong === 0) return { plan, remarks: [] };
  const alone = readPlan(new Pages(file, null));
  const wrongAlone = alone.survey.anomalies;
  if (wrongAlone > 0 && wrong < 4 * (wrongAlone + 1)) return { plan, remarks: [] };
  return {
    plan: alone,
    remarks: ["The write-ahead log does not belong to this file and was left out; it is kept beside the damaged file."],
  };
}

function assertSound(path: string): void {
  const findings = readFindings(salvagePath(path), "full");
  if (findings.length === 0) return;
  throw new OutliveError(
    ErrorCode.storeCorrupt,
    `What was salvaged of ${path} is not sound itself: ${findings.slice(0, 3).join("; ")}.`,
    "The damaged file is as it was. Put a backup back (then: outlive recover --restored), and please report this.",
    { path, findings },
  );
}

function noRoom(path: string, cause: unknown): OutliveError {
  return new OutliveError(
    ErrorCode.storeFull,
    `There is not enough room beside ${path} for the salvaged file.`,
    `It needs up to ${statSync(path).size} bytes. Make room and try again; the damaged file is as it was.`,
    { path, bytes: statSync(path).size },
    { cause },
  );
}
