// The user's own tables, in the same store as the jobs: accounts, and a ledger with a row for each transfer. Nothing in
// them prevents a transfer from being written twice; only `commit` does. So a duplicate would stay, and the audit would
// find it.
import { setTimeout as pause } from "node:timers/promises";
import { type Duration, type Engine, job, type Run } from "../index.ts";
import type { postgres as Postgres } from "../postgres.ts";
import type { sqlite as Sqlite } from "../sqlite.ts";
import { storeAt } from "../stores/registry.ts";

export const ACCOUNTS = 50;
/** In cents. */
export const OPENING_BALANCE = 100_000;
/** The account that fees go to. */
export const FEES = 0;

export interface Movement {
  readonly jobId: string;
  readonly from: number;
  readonly to: number;
  readonly amount: number;
  readonly fee: number;
  /** Which attempt of the job wrote it. */
  readonly attempt: number;
}

export interface Account {
  readonly id: number;
  readonly balance: number;
}

export interface Tables {
  create(engine: Engine): Promise<void>;
  /** Writes the movement and the job's success in one transaction. What it returns is the job's result where there are no such transactions. */
  commit(run: Run, movement: Movement): Promise<Movement | void>;
  ledger(engine: Engine): Promise<readonly Movement[]>;
  accounts(engine: Engine): Promise<readonly Account[]>;
  /** False: a frozen process holds a lock that others wait for. May wait for that lock itself. */
  isFree(engine: Engine): Promise<boolean>;
}

/**
 * `schema`: where on PostgreSQL; null: the store is a file, or has no tables. A process does not load the code of a store that it does
 * not use.
 */
export async function tablesOf(url: string, schema: string | null): Promise<Tables> {
  if (!storeAt(url).commits) return OF_RESULTS;
  return schema === null
    ? onSqlite((await import("../sqlite.ts")).sqlite)
    : onPostgres((await import("../postgres.ts")).postgres, schema);
}

/**
 * Of a store without transactions of the user's: the accepted results are the ledger, and the accounts are what they come to. A row names the
 * attempt that wrote it, so a settlement of another attempt than the one that owned the job shows.
 */
const OF_RESULTS: Tables = {
  create: async () => {},
  commit: async (_, movement) => movement,
  async ledger(engine) {
    const rows: Movement[] = [];
    for (let after: string | undefined; ;) {
      const page = await engine.list({ state: "succeeded", limit: 1_000, ...(after === undefined ? {} : { after }) });
      const jobs = await Promise.all(page.jobs.map(({ id }) => engine.get(id)));
      rows.push(...jobs.flatMap((found) => (found?.result ? [found.result as Movement] : [])));
      if (page.next === null) return rows;
      after = page.next;
    }
  },
  async accounts(engine) {
    const balances = new Map(Array.from({ length: ACCOUNTS + 1 }, (_, id) => [id, OPENING_BALANCE]));
    const add = (id: number, change: number): void => void balances.set(id, balances.get(id)! + change);
    for (const { from, to, amount, fee } of await this.ledger(engine)) {
      add(from, -(amount + fee));
      add(to, amount);
      add(FEES, fee);
    }
    return [...balances].map(([id, balance]) => ({ id, balance }));
  },
  isFree: async () => true,
};

interface Statement {
  readonly sql: string;
  readonly values?: readonly (string | number)[];
}

const LEDGER = "SELECT job_id, from_account, to_account, amount, fee, attempt FROM ledger";
const BALANCES = "SELECT id, balance FROM accounts ORDER BY id";

function onSqlite(sqlite: typeof Sqlite): Tables {
  const form = ({ sql, values = [] }: Statement): [string, ...(string | number)[]] => [
    sql.replaceAll(/\$\d/g, "?"),
    ...values,
  ];
  return {
    create: (engine) =>
      engine.transaction(sqlite, (tx) => {
        for (const statement of creation()) tx.run(...form(statement));
      }),
    commit: (run, movement) =>
      run.commit(sqlite, (tx) => {
        for (const statement of writes(movement)) tx.run(...form(statement));
      }),
    ledger: (engine) => engine.transaction(sqlite, (tx) => tx.all<LedgerRow>(LEDGER).map(movementOf)),
    accounts: (engine) => engine.transaction(sqlite, (tx) => tx.all<Account>(BALANCES)),
    // A process that is frozen inside a transaction holds the file's write lock.
    isFree: (engine) => engine.transaction(sqlite, (tx) => tx.get("SELECT 1") !== undefined),
  };
}

/** In the schema of the run, so that nothing of the user's is touched. */
function onPostgres(postgres: typeof Postgres, schema: string): Tables {
  const form = ({ sql, values = [] }: Statement): [string, (string | number)[]] => [
    sql.replace(/\b(accounts|ledger)\b/, `"${schema}".$1`),
    [...values],
  ];
  return {
    create: (engine) =>
      engine.transaction(postgres, async (tx) => {
        for (const statement of creation()) await tx.query(...form(statement));
      }),
    commit: (run, movement) =>
      run.commit(postgres, async (tx) => {
        for (const statement of writes(movement)) await tx.query(...form(statement));
      }),
    ledger: (engine) =>
      engine.transaction(postgres, async (tx) => (await tx.query<LedgerRow>(...form({ sql: LEDGER }))).map(movementOf)),
    accounts: (engine) => engine.transaction(postgres, (tx) => tx.query<Account>(...form({ sql: BALANCES }))),
    // Sessions that have been idle in a transaction for a moment: their row locks block others until the lease has
    // expired.
    isFree: (engine) =>
      engine.transaction(postgres, async (tx) => {
        const [row] = await tx.query<{ idle: number }>(
          `SELECT count(*)::integer AS idle FROM pg_stat_activity
           WHERE datname = current_database() AND state LIKE 'idle in transaction%' AND state_change < clock_timestamp() - interval '15 ms'`,
        );
        return row!.idle === 0;
      }),
  };
}

function creation(): Statement[] {
  return [
    { sql: "CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)" },
    {
      sql: `CREATE TABLE ledger (job_id TEXT NOT NULL, from_account INTEGER NOT NULL, to_account INTEGER NOT NULL, amount INTEGER NOT NULL,
              fee INTEGER NOT NULL, attempt INTEGER NOT NULL, pid INTEGER NOT NULL)`,
    },
    ...Array.from({ length: ACCOUNTS + 1 }, (_, id) => ({
      sql: "INSERT INTO accounts VALUES ($1, $2)",
      values: [id, OPENING_BALANCE],
    })),
  ];
}

/** Accounts in the order of their numbers, so two movements never deadlock. */
function writes({ jobId, from, to, amount, fee, attempt }: Movement): Statement[] {
  const changes = [
    { id: from, change: -(amount + fee) },
    { id: to, change: amount },
    ...(fee > 0 ? [{ id: FEES, change: fee }] : []),
  ].toSorted((a, b) => a.id - b.id);
  return [
    ...changes.map(({ id, change }) => ({
      sql: "UPDATE accounts SET balance = balance + $1 WHERE id = $2",
      values: [change, id],
    })),
    {
      sql: "INSERT INTO ledger VALUES ($1, $2, $3, $4, $5, $6, $7)",
      values: [jobId, from, to, amount, fee, attempt, process.pid],
    },
  ];
}

interface LedgerRow {
  readonly job_id: string;
  readonly from_account: number;
  readonly to_account: number;
  readonly amount: number;
  readonly fee: number;
  readonly attempt: number;
}

function movementOf({ job_id, from_account, to_account, amount, fee, attempt }: LedgerRow): Movement {
  return { jobId: job_id, from: from_account, to: to_account, amount, fee, attempt };
}

// The jobs of a run, contracts and handlers: transfers, transfers with steps, and the job that kills its worker.

let tables: Promise<Tables> | undefined;

/** Sets the schema in which the handlers of this process write; null: the store is a file. */
export function writeTo(url: string, schema: string | null): void {
  tables = tablesOf(url, schema);
}

export interface Transfer {
  readonly from: number;
  readonly to: number;
  readonly amount: number;
  /** Simulates what a real job would wait for. */
  readonly workMs: number;
}

/**
 * Moves money from one account to another. Ignores its signal: a stale write must be refused even if the handler never
 * listens.
 */
export const transfer = job<Transfer>("transfer");
transfer.handle(async ({ from, to, amount, workMs }, run) => {
  await pause(workMs);
  return (await tables!).commit(run, { jobId: run.id, from, to, amount, fee: 0, attempt: run.attempt });
});

/** The same in steps: the next attempt does not repeat the steps that a dead attempt finished. */
export const checkedTransfer = job<Transfer>("checked-transfer");
checkedTransfer.handle(async ({ from, to, amount, workMs }, run) => {
  await run.step("screen", () => pause(workMs / 2));
  const fee = await run.step("fee", () => feeOf(amount));
  await pause(workMs / 2, undefined, { signal: run.signal });
  return (await tables!).commit(run, { jobId: run.id, from, to, amount, fee, attempt: run.attempt });
});

function feeOf(amount: number): number {
  return Math.ceil(amount / 100);
}

/** Kills its process whenever it runs, like a handler that runs out of memory or hits a native crash. */
export const poison = job<Record<string, never>>("poison");
poison.handle(() => {
  process.kill(process.pid, "SIGKILL");
});

export const JOBS = [transfer, checkedTransfer, poison] as const;

// What every run has in common: short timings, so that a death is detected while you watch, and few jobs per worker.

export const HEARTBEAT: Duration = "250ms";
export const LEASE: Duration = "2s";
export const LEASE_MS = 2_000;

/** Jobs that one worker runs at once. */
export const CONCURRENCY = 8;

/** The options of `open` that name the schema; null: the store is a file. */
export function storeOptions(schema: string | null): { readonly postgres?: { readonly schema: string } } {
  return schema === null ? {} : { postgres: { schema } };
}
