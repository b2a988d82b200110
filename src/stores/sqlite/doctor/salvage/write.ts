// Writes what was read of a damaged file into a new one: tables, rows, our rules, then indexes, triggers and views. It has no
// journal: a file that was not finished is thrown away.
import type { Salvage } from "../../../../core/integrity.ts";
import { type DatabaseSync, openBare } from "../../database.ts";
import type { Progress } from "../tasks.ts";
import { createPrivately } from "../../file.ts";
import type { Header } from "./pages.ts";
import { type Copied, copyTable } from "./copy.ts";
import { gatherEvidence } from "./evidence.ts";
import { mend, type Mended, statedJobs } from "./rules.ts";
import type { SalvagePlan } from "./plan.ts";
import { isOwn, ownSchema, quoted, type SchemaObject } from "./schema.ts";

export interface Written {
  readonly salvage: Omit<Salvage, "keptAs">;
  readonly remarks: readonly string[];
}

export function writeNew(path: string, plan: SalvagePlan, now: number, tell: (progress: Progress) => void): Written {
  createPrivately(path);
  const db = openBare(path);
  try {
    const { header } = plan.survey.pages;
    begin(db, header);
    for (const { sql } of plan.tables) db.exec(sql);
    const known = new Map(
      gatherEvidence(
        db,
        plan.survey,
        plan.objects,
        plan.tables.map(({ table }) => table),
      ),
    );
    const indexIsSound = known.has("outlive_jobs");
    const copied = plan.tables.map(({ table, tree }, n) => {
      tell({ done: n, total: plan.tables.length, what: table.name });
      return copyTable(db, plan.survey, table, tree, (rows) =>
        tell({ done: n, total: plan.tables.length, what: `${table.name}, ${rows} rows` }),
      );
    });
    copySequence(db, plan);
    const ours = copied.some(({ table }) => table.name === "outlive_jobs");
    if (ours && !indexIsSound) known.set("outlive_jobs", statedJobs(db));
    const mended = mendOwn(db, copied, indexIsSound, now);
    const remarks = [...plan.remarks, ...finish(db, plan.objects)];
    db.exec("COMMIT");
    if (header.wal) db.exec("PRAGMA journal_mode = WAL");
    return { salvage: { ...mended, tables: tally(copied, known, plan) }, remarks };
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

/** Numbers that must not be given again. */
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

/** A file may also hold nothing of ours: then there is nothing to mend. */
function mendOwn(db: DatabaseSync, copied: readonly Copied[], indexIsSound: boolean, now: number): Mended {
  const jobs = copied.find(({ table }) => table.name === "outlive_jobs");
  return jobs ? mend(db, jobs.partial, indexIsSound, now) : { partial: [], lost: [], recoveryPointAt: null };
}

/** Indexes, triggers and views; answers remarks about those that could not be made. */
function finish(db: DatabaseSync, objects: readonly SchemaObject[]): string[] {
  const remarks: string[] = [];
  const rank = ({ type }: SchemaObject): number => (type === "index" ? 0 : type === "view" ? 1 : 2);
  const rest = objects.filter(({ type, sql }) => sql !== null && type !== "table");
  for (const object of rest.toSorted((a, b) => rank(a) - rank(b))) {
    try {
      makeAgain(db, object);
    } catch (thrown) {
      remarks.push(`The ${object.type} ${object.name} could not be made again: ${(thrown as Error).message}.`);
    }
  }
  const virtual = objects.filter(({ type, sql }) => type === "table" && /^CREATE\s+VIRTUAL\s/i.test(sql ?? ""));
  if (virtual.length === 0) return remarks;
  // Their content is in tables that were copied: only their names are entered, as VACUUM does.
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

function makeAgain(db: DatabaseSync, { type, name, table, sql }: SchemaObject): void {
  try {
    db.exec(sql!);
  } catch (thrown) {
    const ours = isOwn(name) ? ownSchema().find((object) => object.name === name)?.sql : undefined;
    if (ours) return db.exec(ours);
    if (type !== "index" || !/UNIQUE constraint/i.test((thrown as Error).message)) throw thrown;
    // Rows that only damage can have made: of those with one key the first stays.
    const columns = /\((.*)\)/s.exec(sql!)![1]!;
    db.exec(
      `DELETE FROM ${quoted(table)} WHERE rowid NOT IN (SELECT min(rowid) FROM ${quoted(table)} GROUP BY ${columns})`,
    );
    db.exec(sql!);
  }
}

/** What is known to be lost: by an index that is whole; else nothing is, if the tree of the table is whole. */
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
