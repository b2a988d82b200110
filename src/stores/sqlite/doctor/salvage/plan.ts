// What to bring over from a damaged file: its tables and indexes, by its own schema as far as that can be read and by our migrations
// for the rest, and the pages that belong to each, including those that lost their tree.
import { Database, type DatabaseSync, openBare } from "../../database.ts";
import { migrate } from "../../schema.ts";
import type { Pages } from "./pages.ts";
import type { Cell, Value } from "./records.ts";
import { Survey, type Tree } from "./trees.ts";

export interface SchemaObject {
  readonly type: "table" | "index" | "view" | "trigger";
  readonly name: string;
  readonly table: string;
  /** 0: unknown, or it has none. */
  readonly root: number;
  readonly sql: string | null;
}

export interface Column {
  readonly name: string;
  readonly affinity: "number" | "text" | "any";
  readonly required: boolean;
  readonly generated: boolean;
  /** A record may end before this column, because it was added later. */
  readonly optional: boolean;
}

export interface StoredTable {
  readonly name: string;
  readonly root: number;
  readonly own: boolean;
  readonly hasRowid: boolean;
  /** In the order in which records hold them. */
  readonly columns: readonly Column[];
  /** Which column is another name of the rowid; -1: none. */
  readonly alias: number;
}

export interface SalvagePlan {
  readonly survey: Survey;
  readonly objects: readonly SchemaObject[];
  readonly tables: readonly { readonly table: StoredTable; readonly tree: Tree; readonly sql: string }[];
  readonly sequence: Tree | null;
  /** Leaf pages of tables that fit no known table. */
  readonly unclaimed: readonly number[];
  readonly remarks: readonly string[];
}

/** A table without a tree of its own: its content is in other tables. */
const isVirtual = (sql: string): boolean => /^CREATE\s+VIRTUAL\s/i.test(sql);

export function readPlan(pages: Pages): SalvagePlan {
  const survey = new Survey(pages);
  const objects = readSchema(survey);
  const remarks: string[] = [];
  const empty = openBare(":memory:");
  const tables: { table: StoredTable; tree: Tree; sql: string }[] = [];
  for (const object of objects) {
    const { type, name, root, sql } = object;
    if (type !== "table" || name.startsWith("sqlite_") || sql === null || isVirtual(sql)) continue;
    const created = create(empty, object);
    if (created === null) {
      remarks.push(`The definition of table ${name} can't be read: its rows are not copied.`);
      continue;
    }
    const table = storedTable(empty, name, root);
    tables.push({ table, tree: survey.walk(root, table.hasRowid ? "table" : "index", fitsTable(table)), sql: created });
  }
  empty.close();
  const sequence = objects.find(({ name }) => name === "sqlite_sequence");
  const sequenceTree = sequence ? survey.walk(sequence.root, "table", ({ values }) => values.length === 2) : null;
  // A page of a narrow table without rowids can't be distinguished from that of an index.
  const adopting = tables.filter(({ table, tree }) => tree.kind === "table" || table.columns.length > 4);
  const unclaimed = survey.adopt(adopting.map(({ tree }) => tree));
  return { survey, objects, tables, sequence: sequenceTree, unclaimed, remarks };
}

/** Creates the table by its own SQL, or by ours if that is damaged. Returns the SQL; null: neither works. */
function create(db: DatabaseSync, { name, sql }: SchemaObject): string | null {
  const ours = isOwn(name) ? ownSchema().find((object) => object.name === name)?.sql : null;
  for (const text of [sql, ours]) {
    try {
      if (text === null || text === undefined) continue;
      db.exec(text);
      db.prepare(`SELECT 1 FROM ${quoted(name)}`);
      return text;
    } catch {
      // Try the next one.
    }
  }
  return null;
}

export const isOwn = (name: string): boolean => name.startsWith("outlive_");

/** The schema in the file. If a part of it is lost, our own tables are known all the same, without their roots. */
function readSchema(survey: Survey): readonly SchemaObject[] {
  const tree = survey.walk(1, "table", isSchemaRow);
  if (tree.gaps.length > 0) survey.adopt([tree]);
  const objects = [...survey.rows(tree)].map(({ values: [type, name, table, root, sql] }) => ({
    type: type as SchemaObject["type"],
    name: name as string,
    table: table as string,
    root: typeof root === "number" ? root : 0,
    sql: typeof sql === "string" ? sql : null,
  }));
  const known = new Set(objects.map(({ name }) => name));
  const lost = tree.gaps.length === 0 ? [] : ownSchema().filter(({ name }) => !known.has(name));
  return [...objects, ...lost];
}

/** The schema of a new file. */
export function ownSchema(): readonly SchemaObject[] {
  const db = new Database({ path: ":memory:" });
  migrate(db);
  const rows = db.sql("SELECT type, name, tbl_name AS 'table', 0 AS root, sql FROM sqlite_schema").all();
  db.close();
  return rows as unknown as SchemaObject[];
}

function isSchemaRow({ values }: Cell): boolean {
  const [type, name, table, root, sql] = values;
  return (
    values.length === 5 &&
    (type === "table" || type === "index" || type === "view" || type === "trigger") &&
    typeof name === "string" &&
    typeof table === "string" &&
    typeof root === "number" &&
    (sql === null || (typeof sql === "string" && /^CREATE /i.test(sql)))
  );
}

/** How a table that exists in `db` is stored. */
function storedTable(db: DatabaseSync, name: string, root: number): StoredTable {
  const { wr } = db.prepare("SELECT wr FROM pragma_table_list WHERE schema = 'main' AND name = ?").get(name) as {
    wr: number;
  };
  const infos = db.prepare(`PRAGMA table_xinfo(${quoted(name)})`).all() as unknown as ColumnInfo[];
  const stored = infos.filter(({ hidden }) => hidden !== 2);
  const columns = (wr === 1 ? inKeyOrder(db, name, stored) : stored).map(columnOf);
  const key = stored.filter(({ pk }) => pk > 0);
  const alias = wr === 0 && key.length === 1 && /^INTEGER$/i.test(key[0]!.type) ? stored.indexOf(key[0]!) : -1;
  return { name, root, own: isOwn(name), hasRowid: wr === 0, columns, alias };
}

interface ColumnInfo {
  readonly name: string;
  readonly type: string;
  readonly notnull: number;
  readonly dflt_value: string | null;
  readonly pk: number;
  readonly hidden: number;
}

/** Without a rowid a record begins with the primary key. */
function inKeyOrder(db: DatabaseSync, table: string, stored: readonly ColumnInfo[]): ColumnInfo[] {
  const { name } = db.prepare("SELECT name FROM pragma_index_list(?) WHERE origin = 'pk'").get(table) as {
    name: string;
  };
  const order = db.prepare(`PRAGMA index_xinfo(${quoted(name)})`).all() as { name: string }[];
  return order.flatMap((column) => stored.filter((one) => one.name === column.name));
}

function columnOf({ name, type, notnull, dflt_value, pk, hidden }: ColumnInfo): Column {
  const affinity = /INT|REAL|FLOA|DOUB/i.test(type) ? "number" : /CHAR|CLOB|TEXT/i.test(type) ? "text" : "any";
  const required = notnull === 1;
  const optional = pk === 0 && (!required || dflt_value !== null);
  return { name, affinity, required, optional, generated: hidden === 3 };
}

/** Whether a record may belong to this table: as many values as columns, of the types that SQLite would store there. */
function fitsTable({ columns, alias, own }: StoredTable): (cell: Cell) => boolean {
  return ({ values }) =>
    values.length <= columns.length &&
    columns.every((column, n) =>
      n >= values.length ? column.optional : n === alias ? values[n] === null : fitsColumn(column, values[n], own),
    );
}

function fitsColumn({ affinity, required }: Column, value: Value, own: boolean): boolean {
  if (value === undefined) return true;
  if (value === null) return !required;
  const isNumber = typeof value === "number" || typeof value === "bigint";
  if (affinity === "text") return !isNumber;
  return affinity === "any" || !own || isNumber;
}

/** Entries of an index end with the rowid. */
export const fitsIndex =
  (columnCount: number): ((cell: Cell) => boolean) =>
  ({ values }) =>
    values.length === columnCount + 1 &&
    (typeof values[columnCount] === "number" || typeof values[columnCount] === "bigint");

export function quoted(name: string): string {
  return `"${name.replaceAll('"', '""')}"`;
}
