// What becomes of one row of our own tables that was read from a damaged file: taken as it is, taken without the part that can't
// be read, or left behind. A job whose input can't be read is kept, but must not run.
import { JOB_STATES } from "../../../../core/job.ts";
import { BadText, type Value } from "./records.ts";
import type { Column, StoredTable } from "./schema.ts";
import { LANE, STATE } from "../../../codes.ts";

/** A value that is there. */
export type Kept = Exclude<Value, undefined>;

export interface Judged {
  readonly values: readonly Kept[];
  /** What is missing of a job, in words; empty: nothing. */
  readonly missing: readonly string[];
  /** True: the job must not run with what is left. */
  readonly unfit: boolean;
}

/** Texts that hold JSON: what does not parse is not what was written. */
const JSON_COLUMNS: Readonly<Record<string, readonly string[]>> = {
  outlive_jobs: ["input", "result", "error", "progress"],
  outlive_steps: ["result"],
  outlive_workers: ["kinds", "held"],
  outlive_incident_jobs: ["counters"],
};

const IN_PLACE_OF: Readonly<Record<string, Kept>> = { input: "null", kinds: "[]", held: "[]" };

/** Null: not enough of it is left. */
export function judgeRow(table: StoredTable, values: readonly Value[]): Judged | null {
  const json = JSON_COLUMNS[table.name] ?? [];
  const kept: Kept[] = [];
  const missing: string[] = [];
  let unfit = false;
  for (const [n, column] of table.columns.slice(0, values.length).entries()) {
    const value = readable(column, values[n], json.includes(column.name));
    if (value !== undefined) {
      kept.push(value);
      continue;
    }
    const instead = insteadOf(table.name, column);
    if (instead === undefined) return null;
    kept.push(instead);
    missing.push(column.name);
    // An end that was reached stays; what it came to is shown as missing.
    if (column.name !== "result" && column.name !== "error" && column.name !== "progress") unfit = true;
  }
  if (table.name === "outlive_jobs") return soundJob(table, { values: kept, missing, unfit });
  // A step without its result would be taken for one that had none.
  return table.name === "outlive_steps" && missing.length > 0 ? null : { values: kept, missing, unfit: false };
}

function readable(column: Column, value: Value, json: boolean): Kept | undefined {
  if (value === undefined || value instanceof BadText) return undefined;
  if (value !== null && json && !isJson(value)) return undefined;
  if (column.affinity === "number" && value !== null && typeof value !== "number" && typeof value !== "bigint")
    return undefined;
  return value;
}

function isJson(value: Value): boolean {
  try {
    return typeof value === "string" && (JSON.parse(value), true);
  } catch {
    return false;
  }
}

function insteadOf(table: string, column: Column): Kept | undefined {
  const instead = IN_PLACE_OF[column.name];
  if (instead !== undefined) return instead;
  if (!column.required) return null;
  // Numbers of a job: it is kept, to be looked at. Without its id or kind it is nothing.
  return table === "outlive_jobs" && column.affinity === "number" && column.name !== "kind" ? 0 : undefined;
}

/** Codes that are none make it a job to be looked at. */
function soundJob({ columns }: StoredTable, judged: Judged): Judged {
  const at = (name: string): number => columns.findIndex((column) => column.name === name);
  const state = judged.values[at("state")];
  const lane = judged.values[at("lane")];
  const known = typeof state === "number" && state in JOB_STATES && Object.values(LANE).includes(lane as never);
  if (known) return judged;
  const values = [...judged.values];
  values[at("state")] = STATE.quarantined;
  values[at("lane")] = LANE.open;
  return { values, missing: [...judged.missing, "state"], unfit: true };
}
