// The user's own tables, in the same database as the batches, with nothing in them that would keep a row from being written twice. Where a store has no
// transactions, rows write to the history of their process instead, and may do so more than once.
import type { BlockRun, Engine, Row, Run } from "../../../src/index.ts";
import { type Line, readHistories, say } from "./history.ts";
import type { Input } from "./plan.ts";

/** A row, by the key of its batch and its number. */
export type Paid = readonly [batch: string, n: number];
/** A round of a batch whose `done` has run. */
export type Done = readonly [id: string, round: number];

export interface Tables {
  /** Whether what is written is part of the store's transactions. False: it happens at least once. */
  readonly exactlyOnce: boolean;
  create(engine: Engine): Promise<void>;
  commitRow(row: Row<Input>, paid: Paid): Promise<void>;
  commitBlock(run: BlockRun<Input>, paid: readonly Paid[]): Promise<void>;
  commitDone(run: Pick<Run, "commit">, done: Done): Promise<void>;
  paid(engine: Engine): Promise<readonly Paid[]>;
  done(engine: Engine): Promise<readonly Done[]>;
}

const CREATE = [
  "CREATE TABLE torture_paid (batch TEXT NOT NULL, n INTEGER NOT NULL)",
  "CREATE TABLE torture_done (id TEXT NOT NULL, round INTEGER NOT NULL)",
];
const READ = { paid: "SELECT batch, n FROM torture_paid", done: "SELECT id, round FROM torture_done" };

/** A process starts without the code of the store that it does not use. */
export async function tablesOf(url: string): Promise<Tables> {
  if (url.startsWith("redis:")) return inHistories();
  return url.startsWith("sqlite:") ? onSqlite() : onPostgres();
}

function inHistories(): Tables {
  const lines = (): Line[] => readHistories(process.env["OUTLIVE_BATCH_HISTORIES"]!);
  const pay = ([key, n]: Paid): void => say({ what: "paid", key, n });
  return {
    exactlyOnce: false,
    create: async () => {},
    commitRow: async (_, paid) => pay(paid),
    commitBlock: async (_, paid) => paid.forEach(pay),
    commitDone: async (_, [id, round]) => say({ what: "done", id, round }),
    paid: async () => lines().flatMap((line) => (line.what === "paid" ? [[line.key, line.n] as const] : [])),
    done: async () => lines().flatMap((line) => (line.what === "done" ? [[line.id, line.round] as const] : [])),
  };
}

async function onSqlite(): Promise<Tables> {
  const { sqlite } = await import("../../../src/sqlite.ts");
  const pay = (tx: { run(sql: string, ...values: (string | number)[]): unknown }, [batch, n]: Paid): void => {
    tx.run("INSERT INTO torture_paid VALUES (?, ?)", batch, n);
  };
  return {
    exactlyOnce: true,
    create: (engine) =>
      engine.transaction(sqlite, (tx) => {
        for (const statement of CREATE) tx.exec(statement);
      }),
    commitRow: (row, paid) => row.commit(sqlite, (tx) => pay(tx, paid)),
    commitBlock: (run, paid) =>
      run.commit(sqlite, (tx) => {
        for (const one of paid) pay(tx, one);
      }),
    commitDone: (run, [id, round]) =>
      run.commit(sqlite, (tx) => void tx.run("INSERT INTO torture_done VALUES (?, ?)", id, round)),
    paid: (engine) =>
      engine.transaction(sqlite, (tx) =>
        tx.all<{ batch: string; n: number }>(READ.paid).map(({ batch, n }) => [batch, n] as const),
      ),
    done: (engine) =>
      engine.transaction(sqlite, (tx) =>
        tx.all<{ id: string; round: number }>(READ.done).map(({ id, round }) => [id, round] as const),
      ),
  };
}

async function onPostgres(): Promise<Tables> {
  const { postgres } = await import("../../../src/postgres.ts");
  const pay = "INSERT INTO torture_paid SELECT * FROM unnest($1::text[], $2::integer[])";
  const values = (paid: readonly Paid[]): [string[], number[]] => [
    paid.map(([batch]) => batch),
    paid.map(([, n]) => n),
  ];
  return {
    exactlyOnce: true,
    create: (engine) =>
      engine.transaction(postgres, async (tx) => {
        for (const statement of CREATE) await tx.query(statement);
      }),
    commitRow: (row, paid) =>
      row.commit(postgres, async (tx) => {
        await tx.query(pay, values([paid]));
      }),
    commitBlock: (run, paid) =>
      run.commit(postgres, async (tx) => {
        await tx.query(pay, values(paid));
      }),
    commitDone: (run, done) =>
      run.commit(postgres, async (tx) => {
        await tx.query("INSERT INTO torture_done VALUES ($1, $2)", [...done]);
      }),
    paid: (engine) =>
      engine.transaction(postgres, async (tx) =>
        (await tx.query<{ batch: string; n: number }>(READ.paid)).map(({ batch, n }) => [batch, n] as const),
      ),
    done: (engine) =>
      engine.transaction(postgres, async (tx) =>
        (await tx.query<{ id: string; round: number }>(READ.done)).map(({ id, round }) => [id, round] as const),
      ),
  };
}
