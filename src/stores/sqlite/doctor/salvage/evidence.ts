// What a damaged file's indexes still say about rows that are gone: how many there were, and whose.
import type { DatabaseSync } from "../../database.ts";
import { fitsIndex, quoted, type SchemaObject, type StoredTable } from "./schema.ts";
import type { Survey, Tree } from "./trees.ts";

/** The indexes of ours that name rows: the columns kept of each, before the number of the row. */
const WITNESSES = {
  outlive_jobs_id: { as: "witness_jobs", columns: ["id"] },
  outlive_steps_name: { as: "witness_steps", columns: ["job", "name"] },
  outlive_history_job: { as: "witness_history", columns: ["job"] },
  sqlite_autoindex_outlive_kinds_1: { as: "witness_kinds", columns: ["name"] },
  sqlite_autoindex_outlive_workers_1: { as: "witness_workers", columns: ["id"] },
} as const;

/**
 * Writes what the indexes say into temporary tables of `db`, all of which are there afterwards. Answers how many rows a sound
 * index knows, by table. `db` has the tables, still empty.
 */
export function gatherEvidence(
  db: DatabaseSync,
  survey: Survey,
  objects: readonly SchemaObject[],
  tables: readonly StoredTable[],
): ReadonlyMap<string, number> {
  for (const { as, columns } of Object.values(WITNESSES))
    db.exec(`CREATE TEMP TABLE ${as} (seq INTEGER PRIMARY KEY, ${columns.join(", ")})`);
  const counts = new Map<string, number>();
  for (const { name } of tables.filter(({ hasRowid }) => hasRowid)) {
    for (const index of objects.filter(({ type, table, root }) => type === "index" && table === name && root > 0)) {
      const columnCount = plainColumns(db, index);
      if (columnCount === null) continue;
      const witness = WITNESSES[index.name as keyof typeof WITNESSES];
      if (!witness && counts.has(name)) continue;
      const tree = survey.walk(index.root, "index", fitsIndex(columnCount));
      const entries = witness ? record(db, survey, tree, witness.as, columnCount) : count(survey, tree);
      if (tree.gaps.length === 0) counts.set(name, Math.max(entries, counts.get(name) ?? 0));
    }
  }
  return counts;
}

/** How many columns an index has that holds every row of its table; null: it is partial, or can't be made. */
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

function record(db: DatabaseSync, survey: Survey, tree: Tree, as: string, columnCount: number): number {
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
