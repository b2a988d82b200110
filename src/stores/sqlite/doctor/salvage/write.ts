// Writes what was read of a damaged file into a new one: tables, rows, our own rules, then indexes, triggers and views. The new file has
// no journal: one that was not finished is thrown away. What the damaged file's indexes say of lost rows is read on the way.
import type { Salvage } from "../../../../core/integrity.ts";
import { type DatabaseSync, openBare } from "../../database.ts";
import { createPrivately } from "../../file.ts";
import type { Progress } from "../child.ts";
import { type Copied, copyTable } from "./copy.ts";
import type { Header } from "./pages.ts";
import { fitsIndex, isOwn, ownSchema, quoted, type SalvagePlan, type SchemaObject } from "./plan.ts";
import { restoreRules, type Restored, statedJobs } from "./rules.ts";
import type { Survey, Tree } from "./trees.ts";

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
