// Copies the rows of a damaged file into a new one, table by table. What is on a sound page comes first and wins; what was found on
// pages that lost their tree fills the gaps.
import { JOB_STATES } from "../../../../core/job.ts";
import { LANE, STATE } from "../../../codes.ts";
import type { DatabaseSync, SQLInputValue } from "../../database.ts";
import { type Column, quoted, type StoredTable } from "./plan.ts";
import { BadText, type Cell, type Value } from "./records.ts";
import type { Survey, Tree } from "./trees.ts";

export interface Copied {
  readonly table: StoredTable;
  readonly rows: number;
  /** Rows that were read and could not be copied. */
  readonly refused: number;
  readonly sound: boolean;
  /** Jobs of which a part is missing. */
  readonly partial: readonly PartialJob[];
}

export interface PartialJob {
  readonly seq: number;
  /** The columns that could not be read. */
  readonly missing: readonly string[];
  /** True: it must not run with what is left. */
  readonly unfit: boolean;
}

export function copyTable(
  db: DatabaseSync,
  survey: Survey,
  table: StoredTable,
  tree: Tree,
  onRows: (rows: number) => void,
): Copied {
  const insert = new Insert(db, table);
  const partial = new Map<number, PartialJob>();
  let rows = 0;
  let refused = 0;
  for (const cell of survey.rows(tree)) {
    const usable = table.own ? usableRow(table, cell.values) : wholeRow(cell);
    if (!usable) {
      refused++;
      continue;
    }
    if (cell.found && table.name === "outlive_jobs") removeOlder(db, table, cell.rowid, usable.values);
    if (!insert.run(cell.rowid, usable.values)) {
      refused += cell.found ? 0 : 1;
      continue;
    }
    if (++rows % 10_000 === 0) onRows(rows);
    if (table.name !== "outlive_jobs" || usable.missing.length === 0) continue;
    const seq = Number(cell.rowid);
    partial.set(seq, { seq, missing: usable.missing, unfit: usable.unfit });
  }
  const { n } = db.prepare(`SELECT count(*) AS n FROM ${quoted(table.name)}`).get() as { n: number };
  return { table, rows: n, refused, sound: tree.gaps.length === 0, partial: [...partial.values()] };
}

/** A user's row is copied whole or not at all: what a part of it means is unknown. */
function wholeRow({
  values,
  complete,
}: Cell): { values: readonly Value[]; missing: readonly string[]; unfit: boolean } | null {
  return complete ? { values, missing: [], unfit: false } : null;
}

/** Of two versions of one job, both on pages without a tree, the one of the later attempt is newer. */
function removeOlder(db: DatabaseSync, table: StoredTable, rowid: number | bigint, values: readonly Value[]): void {
  const at = (name: string): Value => values[table.columns.findIndex((column) => column.name === name)];
  db.prepare("DELETE FROM outlive_jobs WHERE seq = ? AND (fence, state) < (?, ?)").run(
    rowid,
    at("fence") as number,
    at("state") as number,
  );
}

/** A value that could be read. */
type Kept = Exclude<Value, undefined>;

interface UsableRow {
  readonly values: readonly Kept[];
  /** The columns that could not be read. */
  readonly missing: readonly string[];
  /** True: the job must not run with what is left. */
  readonly unfit: boolean;
}

/** Columns that hold JSON: a text that does not parse is not what was written. */
const JSON_COLUMNS: Readonly<Record<string, readonly string[]>> = {
  outlive_jobs: ["input", "result", "error", "progress"],
  outlive_steps: ["result"],
  outlive_workers: ["kinds", "held"],
  outlive_incident_jobs: ["counters"],
};

const SUBSTITUTES: Readonly<Record<string, Kept>> = { input: "null", kinds: "[]", held: "[]" };

/**
 * A row of our own tables: as it is, or without the part that can't be read. Null: not enough of it is left. A job whose input can't
 * be read is kept, but must not run.
 */
function usableRow(table: StoredTable, values: readonly Value[]): UsableRow | null {
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
    const substitute = substituteFor(table.name, column);
    if (substitute === undefined) return null;
    kept.push(substitute);
    missing.push(column.name);
    // A job that has ended stays so; its result is shown as missing.
    if (column.name !== "result" && column.name !== "error" && column.name !== "progress") unfit = true;
  }
  if (table.name === "outlive_jobs") return withKnownState(table, { values: kept, missing, unfit });
  // A step without its result would look like one that returned nothing.
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

function substituteFor(table: string, column: Column): Kept | undefined {
  const substitute = SUBSTITUTES[column.name];
  if (substitute !== undefined) return substitute;
  if (!column.required) return null;
  // A job without one of its numbers is kept for a person to check. Without its id or kind it is of no use.
  return table === "outlive_jobs" && column.affinity === "number" && column.name !== "kind" ? 0 : undefined;
}

/** A job with an unknown state or lane is quarantined, for a person to check. */
function withKnownState({ columns }: StoredTable, job: UsableRow): UsableRow {
  const at = (name: string): number => columns.findIndex((column) => column.name === name);
  const state = job.values[at("state")];
  const lane = job.values[at("lane")];
  const known = typeof state === "number" && state in JOB_STATES && Object.values(LANE).includes(lane as never);
  if (known) return job;
  const values = [...job.values];
  values[at("state")] = STATE.quarantined;
  values[at("lane")] = LANE.open;
  return { values, missing: [...job.missing, "state"], unfit: true };
}

/** One statement for each shape of a row. */
class Insert {
  readonly #db: DatabaseSync;
  readonly #table: StoredTable;
  readonly #shapes = new Map<string, ReturnType<DatabaseSync["prepare"]>>();
  readonly #rowidName: string | null;

  constructor(db: DatabaseSync, table: StoredTable) {
    this.#db = db;
    this.#table = table;
    const names = new Set(table.columns.map(({ name }) => name.toLowerCase()));
    const free = ["rowid", "_rowid_", "oid"].find((name) => !names.has(name));
    this.#rowidName = table.hasRowid && table.alias < 0 ? (free ?? null) : null;
  }

  /** Returns false if a row with that key exists already, or a constraint refuses it. */
  run(rowid: number | bigint, values: readonly Value[]): boolean {
    const { alias } = this.#table;
    const given: SQLInputValue[] = this.#rowidName === null ? [] : [rowid];
    for (const [n, value] of values.entries()) {
      if (this.#table.columns[n]!.generated) continue;
      if (n === alias) given.push(rowid);
      else given.push(value instanceof BadText ? value.bytes : (value as SQLInputValue));
    }
    return this.#statement(values).run(...given).changes === 1;
  }

  #statement(values: readonly Value[]): ReturnType<DatabaseSync["prepare"]> {
    const texts = values.flatMap((value, n) => (value instanceof BadText ? [n] : []));
    const shape = `${values.length} ${texts.join(" ")}`;
    let statement = this.#shapes.get(shape);
    if (statement) return statement;
    const columns = this.#table.columns.slice(0, values.length);
    const places = columns.flatMap(({ generated }, n) =>
      generated ? [] : [texts.includes(n) ? "CAST(? AS TEXT)" : "?"],
    );
    const names = columns.filter(({ generated }) => !generated).map(({ name }) => quoted(name));
    if (this.#rowidName !== null) {
      names.unshift(this.#rowidName);
      places.unshift("?");
    }
    statement = this.#db.prepare(
      `INSERT OR IGNORE INTO ${quoted(this.#table.name)} (${names.join(", ")}) VALUES (${places.join(", ")})`,
    );
    this.#shapes.set(shape, statement);
    return statement;
  }
}
