// What people read about the store's health: the verdict of a check, what contradicts itself, what a repair did and lost.
import { humanMs } from "../../job/time.ts";
import type { IntegrityReport, Repair, Salvage } from "../../stores/integrity.ts";
import { count, oneLine, stamp, thousands } from "../words.ts";

export interface Finding {
  readonly level: "ok" | "warning" | "error";
  readonly text: string;
}

const MAX_LISTED = 10;
const BACKUP = "Make a backup now: outlive backup FILE.";
const RESTORE = "keep a copy of the file, and restore a backup (then: outlive recover --restored)";
const REPAIR = `Stop all workers, then try: outlive check --repair. Or ${RESTORE}.`;
const ON_A_SERVER =
  "These are rows that contradict each other: each names its job, worker, kind or incident (outlive job ID, outlive workers --all). " +
  "If the server itself is damaged, use its own tools (amcheck, REINDEX) and its backups; after you restored one: outlive recover --restored.";

export function integrityFindings(
  report: IntegrityReport,
  { repairing, repairable }: { readonly repairing: boolean; readonly repairable: boolean },
): Finding[] {
  const { verdict, findings, tookMs, inconsistencies } = report;
  const took = humanMs(tookMs);
  if (verdict === "PASSED")
    return [
      { level: "ok", text: `integrity PASSED in ${took}${repairing ? ": there is nothing to repair" : ""}.` },
      ...inconsistencies.map(({ detail, names }): Finding => ({
        level: "warning",
        text: `${detail}: ${oneLine(names.slice(0, 5).join(", "), 200)}${names.length > 5 ? ", …" : ""}`,
      })),
    ];
  if (verdict === "UNFINISHED")
    return [{ level: "warning", text: `integrity UNFINISHED after ${took}: nothing is known of the rest.` }];
  const next = repairable ? REPAIR : `${repairing ? "--repair changes nothing on a server. " : ""}${ON_A_SERVER}`;
  return [
    { level: "error", text: `integrity FAILED with ${findings.length} finding(s) in ${took}. ${next}` },
    ...listed(findings),
  ];
}

export function repairFindings(before: IntegrityReport, repair: Repair, mightSalvage: boolean): Finding[] {
  const found = `integrity FAILED with ${before.findings.length} finding(s)`;
  if (repair.salvage) return [...salvageFindings(found, repair.salvage), ...listed(repair.findings)];
  if (repair.sound)
    return [
      {
        level: "warning",
        text: `${found}; all were repaired (${repair.steps.map(({ step }) => step).join(", ")}) and nothing is lost. ${BACKUP}`,
      },
    ];
  const next = mightSalvage
    ? `It could not be repaired: ${RESTORE}.`
    : `It can't be repaired in place. What can still be read can be salvaged into a new file, with the damaged one kept: outlive check --repair --yes. Or ${RESTORE}.`;
  return [{ level: "error", text: `${found}. ${next}` }, ...listed(repair.findings)];
}

/** What a person must know after a salvage: up to when rows survived, what is lost, what to check. */
function salvageFindings(found: string, { keptAs, recoveryPointAt, tables, partial, lost }: Salvage): Finding[] {
  const point = recoveryPointAt === null ? "no change of a job survived" : stamp(recoveryPointAt);
  const gone = tables.filter((table) => table.lost !== 0);
  return [
    {
      level: "warning",
      text: `${found}; what could be read is in a new file in its place, and the damaged one is kept as ${keptAs}. ${BACKUP}`,
    },
    { level: "warning", text: `recovery point (the newest change that survived): ${point}` },
    ...gone.map(({ table, rows, lost: n }): Finding => ({
      level: "warning",
      text: `${table}: ${thousands(rows)} rows survived, ${n === null ? "an unknown number is" : `${thousands(n)} ${n === 1 ? "is" : "are"}`} lost`,
    })),
    ...named("lost", lost),
    ...named("partial: a part is missing; check each (outlive job ID)", partial),
  ];
}

function named(what: string, ids: readonly string[]): Finding[] {
  if (ids.length === 0) return [];
  const some = ids.slice(0, MAX_LISTED).join(", ");
  const more = ids.length > MAX_LISTED ? `, and ${thousands(ids.length - MAX_LISTED)} more (--json lists them)` : "";
  return [{ level: "warning", text: `${count(ids.length, "job")} ${what}: ${some}${more}` }];
}

function listed(findings: readonly string[]): Finding[] {
  return findings.slice(0, MAX_LISTED).map((text) => ({ level: "error", text: `  ${text}` }));
}
