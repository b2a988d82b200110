// The user's own tables, in the same database as the jobs: a ledger with a row for each transfer, and nothing in it that would keep a
// transfer from being written twice. One form per store, because the transaction's handle differs.
import type { Engine, Run } from "../../../src/index.ts";
import type { postgres as Postgres } from "../../../src/postgres.ts";
import type { sqlite as Sqlite } from "../../../src/sqlite.ts";

export interface Entry {
  readonly job: string;
  readonly amount: number;
  readonly fence: string;
}

export interface Ledger {
  create(engine: Engine): Promise<void>;
  /** Completes the job in the same transaction as its row. `inside` runs before the transaction ends; a file's transaction can't wait for it. */
  commit(run: Run, entry: Entry, inside: () => Promise<void>): Promise<unknown>;
  entries(engine: Engine): Promise<readonly Entry[]>;
  /** How many jobs there are, by the table's own word. */
  jobCount(engine: Engine): Promise<number>;
  /** The store has no transactions of the user's: what `commit` returns is the job's result, and the accepted results are the ledger. */
  readonly isOfResults?: true;
}

function onSqlite(sqlite: typeof Sqlite): Ledger {
  return {
    create: (engine) =>
      engine.transaction(sqlite, (tx) =>
        tx.exec("CREATE TABLE torture_ledger (job TEXT NOT NULL, amount INTEGER NOT NULL, fence TEXT NOT NULL)"),
      ),
    commit: (run, { job, amount, fence }) =>
      run.commit(sqlite, (tx) => void tx.run("INSERT INTO torture_ledger VALUES (?, ?, ?)", job, amount, fence)),
    entries: (engine) => engine.transaction(sqlite, (tx) => tx.all<Entry>("SELECT * FROM torture_ledger")),
    jobCount: (engine) =>
      engine.transaction(sqlite, (tx) => tx.get<{ n: number }>("SELECT count(*) AS n FROM outlive_jobs")!.n),
  };
}

/** In the schema of the run, so that nothing of anybody else's is touched. */
function onPostgres(postgres: typeof Postgres, schema: string): Ledger {
  const ledger = `"${schema}".torture_ledger`;
  return {
    create: (engine) =>
      engine.transaction(postgres, async (tx) => {
        await tx.query(`CREATE TABLE ${ledger} (job text NOT NULL, amount integer NOT NULL, fence text NOT NULL)`);
      }),
    commit: (run, { job, amount, fence }, inside) =>
      run.commit(postgres, async (tx) => {
        await tx.query(`INSERT INTO ${ledger} VALUES ($1, $2, $3)`, [job, amount, fence]);
        await inside();
      }),
    entries: (engine) => engine.transaction(postgres, (tx) => tx.query<Entry>(`SELECT * FROM ${ledger}`)),
    jobCount: (engine) =>
      engine.transaction(postgres, async (tx) => {
        const [row] = await tx.query<{ n: number }>(`SELECT count(*)::integer AS n FROM "${schema}".jobs`);
        return row!.n;
      }),
  };
}

/** An attempt that was not the last one, and whose result was accepted, shows in the fence that it wrote. */
const OF_RESULTS: Ledger = {
  isOfResults: true,
  create: async () => {},
  async commit(_, entry, inside) {
    await inside();
    return entry;
  },
  async entries(engine) {
    const entries: Entry[] = [];
    for (let after: string | undefined; ;) {
      const filter = { state: "succeeded", kind: "torture.transfer", limit: 1_000 } as const;
      const page = await engine.list({ ...filter, ...(after === undefined ? {} : { after }) });
      const jobs = await Promise.all(page.jobs.map(({ id }) => engine.get(id)));
      entries.push(...jobs.flatMap((found) => (found?.result ? [found.result as Entry] : [])));
      if (page.next === null) return entries;
      after = page.next;
    }
  },
  async jobCount(engine) {
    const counts = await engine.counts();
    return counts.reduce(
      (sum, { ready, delayed, held, running, succeeded, dead, cancelled, quarantined }) =>
        sum + ready + delayed + held + running + succeeded + dead + cancelled + quarantined,
      0,
    );
  },
};

/** Set to "results" where the store has no `commit`. */
export const LEDGER = "OUTLIVE_TORTURE_LEDGER";

/** `schema`: where on PostgreSQL; null: the store is a file. A process starts without the code of the store that it does not use. */
export async function ledgerOf(schema: string | null): Promise<Ledger> {
  if (process.env[LEDGER] === "results") return OF_RESULTS;
  return schema === null
    ? onSqlite((await import("../../../src/sqlite.ts")).sqlite)
    : onPostgres((await import("../../../src/postgres.ts")).postgres, schema);
}
