// Writes what was read of a damaged file into a new one: tables, rows, our own rules, then indexes, triggers and views. The new file has
// no journal: one that was not finished is thrown away. What the damaged file's indexes say of lost rows is read on the way.
import { JOB_STATES } from "../../../../job/job.ts";
import type { Salvage } from "../../../store-parts.ts";
import { LANE, STATE } from "../../../rows.ts";
import { createPrivately } from "../../address.ts";
import { type DatabaseSync, openBare, type SQLInputValue } from "../../database.ts";
import type { Progress } from "../child.ts";
import { BadText, type Cell, type Header, type Value } from "./pages.ts";
import {
  type Column,
  fitsIndex,
  isOwn,
  ownSchema,
  quoted,
  type SalvagePlan,
  type SchemaObject,
  type StoredTable,
  type Survey,
  type Tree,
} from "./plan.ts";
import { type Restored, restoreRules, statedJobs } from "./rules.ts";

export interface Written {
  readonly salvage: Omit<Salvage, "keptAs">;
  readonly remarks: readonly string[];
}

export function writeNew(
  path: string,
  plan: SalvagePlan,
  now: number,
  onProgress: (progress: Progress) => void,
): Written {
  createPrivately(path);
  const db = openBare(path);
  try {
    const { header } = plan.survey.pages;
    begin(db, header);
    for (const { sql } of plan.tables) db.exec(sql);
    const known = readIndexes(db, plan);
    const indexIsSound = known.has("outlive_jobs");
    const copied = plan.tables.map(({ table, tree }, n) => {
      onProgress({ done: n, total: plan.tables.length, what: table.name });
      return copyTable(db, plan.survey, table, tree, (rows) =>
        onProgress({ done: n, total: plan.tables.length, what: `${table.name}, ${rows} rows` }),
      );
    });
    copySequence(db, plan);
    const ours = copied.some(({ table }) => table.name === "outlive_jobs");
    if (ours && !indexIsSound) known.set("outlive_jobs", statedJobs(db));
    const own = restoreOwn(db, copied, indexIsSound, now);
    const remarks = [...plan.remarks, ...createRest(db, plan.objects)];
    db.exec("COMMIT");
    if (header.wal) db.exec("PRAGMA journal_mode = WAL");
    return { salvage: { ...own, tables: tally(copied, known, plan) }, remarks };
  } finally {
    db.close();
  }
}

function begin(db: DatabaseSync, header: Header): void {
  const encoding = { utf8: "UTF-8", utf16le: "UTF-16le", utf16be: "UTF-16be" }[header.encoding];
  db.exec(`
    PRAGMA page_size = ${header.pageSize};
    PRAGMA encoding = '${encoding}';
    PRAGMA auto_vacuum = ${header.sound ? header.autoVacuum : 0};
    PRAGMA journal_mode = OFF;
    PRAGMA synchronous = OFF;
    PRAGMA foreign_keys = OFF;
    PRAGMA ignore_check_constraints = ON;
    PRAGMA user_version = ${header.sound ? header.userVersion : 0};
    PRAGMA application_id = ${header.sound ? header.applicationId : 0};
    BEGIN`);
}

/** Those of our indexes that name rows: the temporary table for each, and its columns before the row number. */
const NAMING_INDEXES = {
  outlive_jobs_id: { as: "indexed_jobs", columns: ["id"] },
  outlive_steps_name: { as: "indexed_steps", columns: ["job", "name"] },
  outlive_history_job: { as: "indexed_history", columns: ["job"] },
  sqlite_autoindex_outlive_kinds_1: { as: "indexed_kinds", columns: ["name"] },
  sqlite_autoindex_outlive_workers_1: { as: "indexed_workers", columns: ["id"] },
} as const;

/**
 * Copies what the indexes say about rows that may be lost into temporary tables of `db`, whose own tables are still empty. Returns
 * how many rows a sound index lists, by table.
 */
function readIndexes(db: DatabaseSync, { survey, objects, tables }: SalvagePlan): Map<string, number> {
  for (const { as, columns } of Object.values(NAMING_INDEXES))
    db.exec(`CREATE TEMP TABLE ${as} (seq INTEGER PRIMARY KEY, ${columns.join(", ")})`);
  const counts = new Map<string, number>();
  for (const { name, hasRowid } of tables.map(({ table }) => table)) {
    if (!hasRowid) continue;
    for (const index of objects.filter(({ type, table, root }) => type === "index" && table === name && root > 0)) {
      const columnCount = plainColumns(db, index);
      if (columnCount === null) continue;
      const naming = NAMING_INDEXES[index.name as keyof typeof NAMING_INDEXES];
      if (!naming && counts.has(name)) continue;
      const tree = survey.walk(index.root, "index", fitsIndex(columnCount));
      const entries = naming ? copyEntries(db, survey, tree, naming.as, columnCount) : count(survey, tree);
      if (tree.gaps.length === 0) counts.set(name, Math.max(entries, counts.get(name) ?? 0));
    }
  }
  return counts;
}

/** How many columns an index has; null: it does not list every row of its table, or can't be created. */
function plainColumns(db: DatabaseSync, { name, sql }: SchemaObject): number | null {
  if (sql !== null && /\bWHERE\b/i.test(sql)) return null;
  try {
    if (sql !== null && !exists(db, name)) db.exec(sql);
    const { n } = db.prepare("SELECT count(*) AS n FROM pragma_index_info(?)").get(name) as { n: number };
    return n === 0 ? null : n;
  } catch {
    return null;
  } finally {
    if (sql !== null && exists(db, name)) db.exec(`DROP INDEX ${quoted(name)}`);
  }
}

function exists(db: DatabaseSync, name: string): boolean {
  return db.prepare("SELECT 1 FROM sqlite_schema WHERE name = ?").get(name) !== undefined;
}

function count(survey: Survey, tree: Tree): number {
  let entries = 0;
  for (const cell of survey.rows(tree)) entries += cell ? 1 : 0;
  return entries;
}

function copyEntries(db: DatabaseSync, survey: Survey, tree: Tree, as: string, columnCount: number): number {
  const places = ", ?".repeat(columnCount);
  const insert = db.prepare(`INSERT OR IGNORE INTO temp.${as} VALUES (?${places})`);
  let entries = 0;
  for (const { values } of survey.rows(tree)) {
    const given = values.slice(0, columnCount);
    if (!given.every((value) => typeof value === "string" || typeof value === "number")) continue;
    insert.run(values[columnCount] as number, ...given);
    entries++;
  }
  return entries;
}

/** Row numbers that must not be used again. */
function copySequence(db: DatabaseSync, { survey, sequence }: SalvagePlan): void {
  if (!sequence || db.prepare("SELECT 1 FROM sqlite_schema WHERE name = 'sqlite_sequence'").get() === undefined) return;
  for (const { values } of survey.rows(sequence)) {
    const [name, seq] = values;
    if (typeof name !== "string" || typeof seq !== "number") continue;
    db.prepare("DELETE FROM sqlite_sequence WHERE name = ? AND seq < ?").run(name, seq);
    db.prepare(
      "INSERT INTO sqlite_sequence (name, seq) SELECT ?1, ?2 WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = ?1)",
    ).run(name, seq);
  }
}

/** A file may hold none of our tables. */
function restoreOwn(db: DatabaseSync, copied: readonly Copied[], indexIsSound: boolean, now: number): Restored {
  const jobs = copied.find(({ table }) => table.name === "outlive_jobs");
  return jobs ? restoreRules(db, jobs.partial, indexIsSound, now) : { partial: [], lost: [], recoveryPointAt: null };
}

/** Indexes, triggers and views. Returns remarks about those that could not be created. */
function createRest(db: DatabaseSync, objects: readonly SchemaObject[]): string[] {
  const remarks: string[] = [];
  const rank = ({ type }: SchemaObject): number => (type === "index" ? 0 : type === "view" ? 1 : 2);
  const rest = objects.filter(({ type, sql }) => sql !== null && type !== "table");
  for (const object of rest.toSorted((a, b) => rank(a) - rank(b))) {
    try {
      createAgain(db, object);
    } catch (thrown) {
      remarks.push(`The ${object.type} ${object.name} could not be created again: ${(thrown as Error).message}.`);
    }
  }
  const virtual = objects.filter(({ type, sql }) => type === "table" && /^CREATE\s+VIRTUAL\s/i.test(sql ?? ""));
  if (virtual.length === 0) return remarks;
  // Their content is in tables that were copied: only their definitions are entered, as VACUUM does.
  db.exec("PRAGMA writable_schema = ON");
  for (const { name, table, sql } of virtual)
    db.prepare("INSERT INTO sqlite_schema (type, name, tbl_name, rootpage, sql) VALUES ('table', ?, ?, 0, ?)").run(
      name,
      table,
      sql,
    );
  db.exec("PRAGMA writable_schema = OFF");
  return remarks;
}

function createAgain(db: DatabaseSync, { type, name, table, sql }: SchemaObject): void {
  try {
    db.exec(sql!);
  } catch (thrown) {
    const ours = isOwn(name) ? ownSchema().find((object) => object.name === name)?.sql : undefined;
    if (ours) return db.exec(ours);
    if (type !== "index" || !/UNIQUE constraint/i.test((thrown as Error).message)) throw thrown;
    // Only damage can have caused these rows: of those with one key the first stays.
    const columns = /\((.*)\)/s.exec(sql!)![1]!;
    db.exec(
      `DELETE FROM ${quoted(table)} WHERE rowid NOT IN (SELECT min(rowid) FROM ${quoted(table)} GROUP BY ${columns})`,
    );
    db.exec(sql!);
  }
}

/** What is known to be lost: by a sound index; without one nothing is, if the tree of the table is sound. */
function tally(
  copied: readonly Copied[],
  known: ReadonlyMap<string, number>,
  { unclaimed }: SalvagePlan,
): Salvage["tables"] {
  const tables = copied.map(({ table: { name }, rows, refused, sound }) => {
    const before = known.get(name);
    const lost = before !== undefined ? Math.max(refused, before - rows) : sound ? refused : null;
    return { table: name, rows, lost };
  });
  return unclaimed.length === 0
    ? tables
    : [...tables, { table: `(${unclaimed.length} pages of no known table)`, rows: 0, lost: null }];
}

// Copies the rows of a damaged file into a new one, table by table. What is on a sound page comes first and wins; what was found on
// pages that lost their tree fills the gaps.

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
type ReadableValue = Exclude<Value, undefined>;

interface UsableRow {
  readonly values: readonly ReadableValue[];
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

const SUBSTITUTES: Readonly<Record<string, ReadableValue>> = { input: "null", kinds: "[]", held: "[]" };

/**
 * A row of our own tables: as it is, or without the part that can't be read. Null: not enough of it is left. A job whose input can't
 * be read is kept, but must not run.
 */
function usableRow(table: StoredTable, values: readonly Value[]): UsableRow | null {
  const json = JSON_COLUMNS[table.name] ?? [];
  const kept: ReadableValue[] = [];
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

function readable(column: Column, value: Value, json: boolean): ReadableValue | undefined {
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

function substituteFor(table: string, column: Column): ReadableValue | undefined {
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
