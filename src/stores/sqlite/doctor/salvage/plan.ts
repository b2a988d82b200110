// What is to be brought over: the tables of a damaged file with the pages that belong to each, those that were found again included.
import { type DatabaseSync, openBare } from "../../database.ts";
import type { Pages } from "./pages.ts";
import {
  fitsTable,
  isOwn,
  ownSchema,
  quoted,
  readSchema,
  type SchemaObject,
  type StoredTable,
  storedTable,
} from "./schema.ts";
import { Survey, type Tree } from "./trees.ts";

export interface SalvagePlan {
  readonly survey: Survey;
  readonly objects: readonly SchemaObject[];
  readonly tables: readonly { readonly table: StoredTable; readonly tree: Tree; readonly sql: string }[];
  readonly sequence: Tree | null;
  /** Leaves of tables that no known table can claim. */
  readonly unclaimed: readonly number[];
  readonly remarks: readonly string[];
}

/** A table without its own tree of rows: its content is in others. */
const isVirtual = (sql: string): boolean => /^CREATE\s+VIRTUAL\s/i.test(sql);

export function readPlan(pages: Pages): SalvagePlan {
  const survey = new Survey(pages);
  const { objects } = readSchema(survey);
  const remarks: string[] = [];
  const forms = openBare(":memory:");
  const tables: { table: StoredTable; tree: Tree; sql: string }[] = [];
  for (const object of objects) {
    const { type, name, root, sql } = object;
    if (type !== "table" || name.startsWith("sqlite_") || sql === null || isVirtual(sql)) continue;
    const made = make(forms, object);
    if (made === null) {
      remarks.push(`The definition of table ${name} can't be read: its rows stay behind.`);
      continue;
    }
    const table = storedTable(forms, name, root);
    tables.push({ table, tree: survey.walk(root, table.hasRowid ? "table" : "index", fitsTable(table)), sql: made });
  }
  forms.close();
  const sequence = objects.find(({ name }) => name === "sqlite_sequence");
  const sequenceTree = sequence ? survey.walk(sequence.root, "table", ({ values }) => values.length === 2) : null;
  // Of the narrow ones a page can't be told from that of an index.
  const adopting = tables.filter(({ table, tree }) => tree.kind === "table" || table.columns.length > 4);
  const unclaimed = survey.adopt(adopting.map(({ tree }) => tree));
  return { survey, objects, tables, sequence: sequenceTree, unclaimed, remarks };
}

/** Makes the table by its own words, or by ours if those are damaged. Answers the words; null: neither will do. */
function make(db: DatabaseSync, { name, sql }: SchemaObject): string | null {
  const ours = isOwn(name) ? ownSchema().find((object) => object.name === name)?.sql : null;
  for (const words of [sql, ours]) {
    try {
      if (words === null || words === undefined) continue;
      db.exec(words);
      db.prepare(`SELECT 1 FROM ${quoted(name)}`);
      return words;
    } catch {
      // The next one.
    }
  }
  return null;
}
