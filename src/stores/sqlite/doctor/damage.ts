// The error of an open that does not go on, because the file is damaged: what was found, what was tried, and the commands to type.
import { ErrorCode, OutliveError } from "../../../core/errors.ts";
import type { IntegrityCheck, Repair } from "../../../core/integrity.ts";

const MOST_TOLD = 3;

export interface Damage {
  readonly check: IntegrityCheck;
  /** What was tried; null: nothing was allowed. */
  readonly repair: Repair | null;
  /** Why something that might help was not tried. */
  readonly because?: string;
}

export function damaged(path: string, { check, repair, because }: Damage): OutliveError {
  const findings = repair && repair.findings.length > 0 ? repair.findings : check.findings;
  const more = findings.length > MOST_TOLD ? `; and ${findings.length - MOST_TOLD} more` : "";
  const steps = repair?.steps.map(({ step, ok }) => `${step} (${ok ? "done" : "not enough"})`) ?? [];
  const tried =
    steps.length > 0
      ? ` Tried: ${steps.join(", ")}.`
      : `${repair ? " Nothing can mend it without a loss." : ""} Nothing was changed.`;
  return new OutliveError(
    ErrorCode.storeDamaged,
    `${path} is damaged: ${findings.slice(0, MOST_TOLD).join("; ")}${more}.${because === undefined ? "" : ` ${because}`}${tried}`,
    [
      `Stop everything that uses it, then: outlive check --repair --store sqlite:${path} (with --yes it may leave behind what can't be read)`,
      `If that is not enough, put a backup in its place (remove ${path}-wal and ${path}-shm, too), then: outlive recover --restored --store sqlite:${path}`,
      `To look at what can be read: outlive status --read-only --store sqlite:${path}, or open(url, { readOnly: true }).`,
    ].join(". "),
    { path, findings, ...(repair && { steps: repair.steps }) },
  );
}
