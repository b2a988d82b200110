// What to copy from a damaged file: its tables and indexes, by its own schema as far as that can be read and by our
// migrations for the rest, and the pages that belong to each, including those that lost their tree.
import { Database, type DatabaseSync, openBare } from "../../database.ts";
import { migrate } from "../../schema.ts";
import { type Cell, Cursor, type Pages, readCell, type Value } from "./pages.ts";

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

/** The schema in the file. If a part of it is lost, our own tables are still known, without their roots. */
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

// The trees of a damaged file: which pages still belong to which table or index, where the gaps are, and which of the pages without a
// parent fit into them. A page that lost its parent is as good as one that has it, if it fits.

type RowId = number | bigint;

/** Rowids above `from`, up to and including `to`. */
export interface Range {
  readonly from: RowId;
  readonly to: RowId;
}

export const EVERYTHING: Range = { from: -(2n ** 63n) - 1n, to: 2n ** 63n - 1n };

export interface Tree {
  readonly kind: "table" | "index";
  /** The pages with cells, in the order of their keys. */
  readonly pages: { readonly page: number; readonly range: Range }[];
  /** The rowids that could not be reached. */
  readonly gaps: Range[];
  /** Pages that fit into the gaps although no page points to them. */
  readonly found: number[];
  /** Whether a record may belong to this tree. */
  readonly fits: (cell: Cell) => boolean;
}

const TYPES = { table: { inner: 5, leaf: 13 }, index: { inner: 2, leaf: 10 } } as const;

/** More levels than a sound tree can have. */
const MAX_LEVELS = 40;

export class Survey {
  readonly pages: Pages;
  /** Which pages belong to a tree. */
  readonly #claimed = new Set<number>();
  /** Pages on the list of free pages. A tree that points to one is right: the list counts only for pages without a parent. */
  readonly #free = new Set<number>();
  /** True if the list of free pages has its stated length: a page that is neither on it nor in a tree has then lost its tree. */
  #freeIsComplete = false;
  /** How many contradictions were found. */
  anomalies = 0;

  constructor(pages: Pages) {
    this.pages = pages;
    this.#readFree();
  }

  /** Walks a tree from its root. A tree whose root is unknown is one gap. */
  walk(root: number, kind: Tree["kind"], fits: Tree["fits"]): Tree {
    const tree: Tree = { kind, pages: [], gaps: [], found: [], fits };
    if (root < 1) this.#gap(tree, EVERYTHING);
    else this.#visit(tree, root, EVERYTHING, 0);
    return tree;
  }

  #visit(tree: Tree, page: number, range: Range, level: number): void {
    const bytes = this.#claimed.has(page) || level > MAX_LEVELS ? null : this.pages.read(page);
    if (!bytes) return this.#gap(tree, range);
    const { inner, leaf } = TYPES[tree.kind];
    const type = bytes[page === 1 ? 100 : 0];
    if (type === inner && this.#visitInner(tree, page, bytes, range, level)) return;
    // The cells that can still be read count even if the first byte is damaged.
    if (type !== leaf) this.anomalies++;
    const cells = [...this.cells(page, bytes, tree.kind)];
    const own = cells.filter((cell) => cell && within(cell.rowid, range, tree.kind) && tree.fits(cell)) as Cell[];
    this.anomalies += cells.length - own.length;
    if (own.length === 0 && (cells.length > 0 || type !== leaf)) return this.#gap(tree, range);
    this.#claimed.add(page);
    tree.pages.push({ page, range });
    // No other page holds what this page has lost: an empty gap, which no page can fill.
    if (own.length < cells.length || type !== leaf) tree.gaps.push({ from: range.from, to: range.from });
  }

  /** Returns false if nothing on the page points to a child: it is then not an inner page, whatever its first byte says. */
  #visitInner(tree: Tree, page: number, bytes: Buffer, range: Range, level: number): boolean {
    const { children, rightmost, broken } = this.#childrenOf(page, bytes, tree, range);
    if (children.length === 0 && broken) return false;
    this.#claimed.add(page);
    if (tree.kind === "index") tree.pages.push({ page, range });
    let { from } = range;
    for (const child of children) {
      const part = { from, to: child.key };
      this.#visit(tree, child.page, part, level + 1);
      if (tree.kind === "table") from = child.key;
    }
    if (broken) this.#gap(tree, { from, to: range.to });
    else this.#visit(tree, rightmost, { from, to: range.to }, level + 1);
    return true;
  }

  #childrenOf(
    page: number,
    bytes: Buffer,
    tree: Tree,
    range: Range,
  ): { children: { page: number; key: RowId }[]; rightmost: number; broken: boolean } {
    const start = page === 1 ? 100 : 0;
    const rightmost = bytes.readUInt32BE(start + 8);
    const children: { page: number; key: RowId }[] = [];
    let last = range.from;
    let skipped = false;
    for (const at of this.#pointers(page, bytes, 12)) {
      const child = at < 0 ? 0 : bytes.readUInt32BE(at);
      const key = at < 0 || tree.kind === "index" ? range.to : new Cursor(bytes, at + 4).varint();
      const ordered = tree.kind === "index" || (key > last && key <= range.to);
      if (at < 0 || child < 2 || child > this.pages.count || !ordered) {
        // Its rows are between the last valid key and the next one.
        this.anomalies++;
        skipped = true;
        continue;
      }
      if (skipped && tree.kind === "table") tree.gaps.push({ from: last, to: key });
      skipped = false;
      children.push({ page: child, key });
      last = key;
    }
    if (skipped) tree.gaps.push({ from: last, to: range.to });
    return { children, rightmost, broken: rightmost < 2 || rightmost > this.pages.count };
  }

  /** The cells of a page, one by one; null: it contradicts itself. */
  *cells(page: number, bytes: Buffer, kind: Tree["kind"]): Generator<Cell | null> {
    const inner = kind === "index" && bytes[page === 1 ? 100 : 0] === TYPES.index.inner;
    for (const at of this.#pointers(page, bytes, inner ? 12 : 8))
      yield at < 0 ? null : readCell(this.pages, bytes, inner ? at + 4 : at, kind);
  }

  /** Where the cells of a page begin; -1: the pointer is invalid. */
  #pointers(page: number, bytes: Buffer, head: number): number[] {
    const start = (page === 1 ? 100 : 0) + head;
    const { usable } = this.pages.header;
    const stated = bytes.readUInt16BE(start - head + 3);
    // A cell takes at least 4 bytes, and its pointer 2.
    const count = Math.min(stated, Math.floor((usable - start) / 6));
    if (count < stated) this.anomalies++;
    return Array.from({ length: count }, (_, n) => {
      const at = bytes.readUInt16BE(start + 2 * n);
      return at >= start + 2 * count && at <= usable - 4 ? at : -1;
    });
  }

  /**
   * Assigns each leaf page without a parent to the one tree into whose gaps all of its cells fit; or, if it can't be a free page, to
   * the one tree whose records they may be. Returns the leaf pages of tables that fit no tree, or several.
   */
  adopt(trees: readonly Tree[]): number[] {
    const unclaimed: number[] = [];
    for (let page = 2; page <= this.pages.count; page++) {
      if (this.#claimed.has(page) || this.#free.has(page)) continue;
      const bytes = this.pages.read(page);
      const kind = bytes?.[0] === TYPES.table.leaf ? "table" : bytes?.[0] === TYPES.index.leaf ? "index" : null;
      if (!bytes || !kind) continue;
      const cells = [...this.cells(page, bytes, kind)].filter((cell) => cell !== null);
      if (cells.length === 0) continue;
      const fitting = trees.filter((tree) => tree.kind === kind && cells.every(tree.fits));
      const gapped = fitting.filter((tree) => cells.every((cell) => inGap(tree, cell)));
      const candidates = gapped.length > 0 || !this.#freeIsComplete ? gapped : fitting;
      if (candidates.length === 1) candidates[0]!.found.push(page);
      else if (kind === "table") unclaimed.push(page);
    }
    return unclaimed;
  }

  /** All records of a tree: those of its own pages first, in order, then those of the pages that were found. */
  *rows(tree: Tree): Generator<Cell & { readonly found: boolean }> {
    for (const { page, range } of tree.pages) {
      for (const cell of this.#readable(page, tree))
        if (within(cell.rowid, range, tree.kind)) yield { ...cell, found: false };
    }
    for (const page of tree.found) for (const cell of this.#readable(page, tree)) yield { ...cell, found: true };
  }

  *#readable(page: number, tree: Tree): Generator<Cell> {
    const bytes = this.pages.read(page);
    if (bytes) for (const cell of this.cells(page, bytes, tree.kind)) if (cell && tree.fits(cell)) yield cell;
  }

  #gap(tree: Tree, range: Range): void {
    this.anomalies++;
    tree.gaps.push(range);
  }

  /** Reads the list of free pages as far as it is valid. A page on it belongs to no tree, whatever its content is. */
  #readFree(): void {
    const { freelistTrunk, freelistCount, usable, sound } = this.pages.header;
    const max = usable / 4 - 2;
    let listed = 0;
    for (let trunk = freelistTrunk; trunk !== 0;) {
      const bytes = trunk < 2 || this.#free.has(trunk) ? null : this.pages.read(trunk);
      if (!bytes || bytes.readUInt32BE(4) > max) return void this.anomalies++;
      this.#free.add(trunk);
      const leaves = bytes.readUInt32BE(4);
      for (let n = 0; n < leaves; n++) this.#free.add(bytes.readUInt32BE(8 + 4 * n));
      listed += 1 + leaves;
      trunk = bytes.readUInt32BE(0);
    }
    this.#freeIsComplete = sound && listed === freelistCount && this.#free.size === listed;
  }
}

function within(rowid: RowId, { from, to }: Range, kind: Tree["kind"]): boolean {
  return kind === "index" || (rowid > from && rowid <= to);
}

function inGap({ gaps, kind }: Tree, { rowid }: Cell): boolean {
  return gaps.some((gap) => gap.from < gap.to && within(rowid, gap, kind));
}
