// Copies the rows of a damaged file into a new one, table by table. What is on a sound page comes first and wins; what was found
// on pages that had lost their tree fills the gaps.
import type { DatabaseSync, SQLInputValue } from "../../database.ts";
import { BadText, type Cell, type Value } from "./records.ts";
import { judgeRow } from "./rows.ts";
import { quoted, type StoredTable } from "./schema.ts";
import type { Survey, Tree } from "./trees.ts";

export interface Copied {
  readonly table: StoredTable;
  readonly rows: number;
  /** Rows that were seen and could not be taken. */
  readonly refused: number;
  readonly sound: boolean;
  /** Jobs of which a part is missing: their row's number, what, and whether they must not run. */
  readonly partial: readonly PartialJob[];
}

export interface PartialJob {
  readonly seq: number;
  readonly missing: readonly string[];
  readonly unfit: boolean;
}

export function copyTable(
  db: DatabaseSync,
  survey: Survey,
  table: StoredTable,
  tree: Tree,
  tell: (rows: number) => void,
): Copied {
  const insert = new Insert(db, table);
  const partial = new Map<number, PartialJob>();
  let rows = 0;
  let refused = 0;
  for (const cell of survey.rows(tree)) {
    const judged = table.own ? judgeRow(table, cell.values) : theirRow(cell);
    if (!judged) {
      refused++;
      continue;
    }
    if (cell.found && table.name === "outlive_jobs") removeOlder(db, table, cell.rowid, judged.values);
    if (!insert.run(cell.rowid, judged.values)) {
      refused += cell.found ? 0 : 1;
      continue;
    }
    if (++rows % 10_000 === 0) tell(rows);
    if (table.name !== "outlive_jobs" || judged.missing.length === 0) continue;
    partial.set(Number(cell.rowid), {
      seq: Number(cell.rowid),
      missing: judged.missing,
      unfit: judged.unfit,
    });
  }
  const { n } = db.prepare(`SELECT count(*) AS n FROM ${quoted(table.name)}`).get() as { n: number };
  return { table, rows: n, refused, sound: tree.gaps.length === 0, partial: [...partial.values()] };
}

/** A user's row is taken whole or not at all: nobody can say what a part of it would mean. */
function theirRow({
  values,
  complete,
}: Cell): { values: readonly Value[]; missing: readonly string[]; unfit: boolean } | null {
  return complete ? { values, missing: [], unfit: false } : null;
}

/** Of two versions of one job, both on pages without a tree, the one of the later attempt is the newer. */
function removeOlder(db: DatabaseSync, table: StoredTable, rowid: number | bigint, values: readonly Value[]): void {
  const at = (name: string): Value => values[table.columns.findIndex((column) => column.name === name)];
  db.prepare("DELETE FROM outlive_jobs WHERE seq = ? AND (fence, state) < (?, ?)").run(
    rowid,
    at("fence") as number,
    at("state") as number,
  );
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

  /** Answers false if a row with that key is there already, or a constraint refuses it. */
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
