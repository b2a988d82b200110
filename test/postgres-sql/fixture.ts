// A store of PostgreSQL without any Node worker: a schema whose clock the test sets, workers and claims written by hand, and psql
// itself as the only program that asks.
import assert from "node:assert/strict";
import pg from "pg";
import { execFile } from "node:child_process";
import type { TestContext } from "node:test";
import { JOB_STATES, type KindSettings } from "../../src/job/job.ts";
import { LossJudge } from "../../src/recovery/losses.ts";
import { virtualClock } from "../../src/testing/virtual-clock.ts";
import { openStore } from "../conformance/postgres-stores.ts";
import { toStored } from "../../src/stores/rows.ts";
import { freshSchema } from "../support/postgres.ts";

export const MINUTE = 60_000;

export interface Fixture {
  readonly url: string;
  readonly schema: string;
  /** Statements name everything as `outlive.x`; it is replaced by the name of this test's schema. */
  readonly sql: Ask;
  /** What psql prints, without headers and with | between columns. */
  readonly psql: (text: string, heard?: (notices: string) => void) => Promise<string>;
  /** Writes the settings of kinds as a worker does at its start. */
  readonly declare: (kinds: readonly Settled[]) => Promise<void>;
  /** Moves the clock of the store. */
  readonly pass: (ms: number) => Promise<void>;
  readonly worker: (id: string, options?: { readonly leaseMs?: number }) => Promise<void>;
  /** A worker whose death is proved: its row says so, and it still holds its jobs. */
  readonly die: (id: string) => Promise<void>;
  /** The heartbeat of a worker. */
  readonly beat: (id: string) => Promise<void>;
  /** Claims as a worker does: owner, fence, start and deadline in one statement. Returns the fence. */
  readonly claim: (worker: string, job: string) => Promise<number>;
  readonly job: (id: string) => Promise<JobRow>;
  /** Another session, ended with the test. */
  readonly session: () => Promise<{ readonly sql: Ask }>;
}

export type Ask = <Row = Record<string, never>>(text: string, values?: unknown[]) => Promise<Row[]>;

/** A contract. */
export interface Settled {
  readonly settings: KindSettings;
}

export interface JobRow {
  readonly state: (typeof JOB_STATES)[number];
  readonly lane: number;
  readonly errors: number;
  readonly crashes: number;
  readonly blamed: number;
  readonly timeouts: number;
  readonly losses: number;
  readonly fence: number;
  readonly error: { readonly name: string; readonly message: string } | null;
  /** How long from now, in ms; null: it need not wait. */
  readonly waitsMs: number | null;
}

/** Starts at a fixed instant, and time passes only by `pass`. */
export async function fixture(t: TestContext): Promise<Fixture> {
  // Before the schema is dropped: a session in a transaction would keep it.
  const sessions: pg.Client[] = [];
  t.after(() => Promise.all(sessions.map((client) => client.end())));
  const { url, schema } = await freshSchema(t);
  const named = (text: string): string => text.replaceAll("outlive.", `${schema}.`);
  const session = async () => {
    const client = new pg.Client({ connectionString: url });
    client.on("error", () => {});
    await client.connect();
    sessions.push(client);
    const sql = async <Row>(text: string, values?: unknown[]) =>
      (await client.query(named(text), values)).rows as Row[];
    return { sql };
  };
  const { sql } = await session();
  await sql("CREATE TABLE outlive.test_clock (now bigint NOT NULL)");
  await sql("INSERT INTO outlive.test_clock VALUES (1800000000000)");
  await sql(
    "CREATE OR REPLACE FUNCTION outlive.now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS 'SELECT now FROM outlive.test_clock'",
  );
  return {
    url,
    schema,
    sql,
    session,
    psql: (text, heard) => psql(url, named(text), [], heard),
    async declare(kinds) {
      for (const { settings } of kinds) {
        const { name, timeoutMs, graceMs, limits, onCrash } = settings;
        await sql(
          `INSERT INTO outlive.kinds (name, timeout_ms, grace_ms, max_errors, max_timeouts, max_crashes, on_crash) VALUES ($1, $2, $3, $4, $5, $6, $7)`,
          [name, timeoutMs, graceMs, limits.errors, limits.timeouts, limits.crashes, toStored(onCrash)],
        );
      }
    },
    pass: async (ms) => void (await sql("UPDATE outlive.test_clock SET now = now + $1", [ms])),
    async worker(id, { leaseMs = 30_000 } = {}) {
      await sql(
        `INSERT INTO outlive.fleet (id, state, host, boot_id, pid, version, epoch, lease_ms, concurrency, kinds, started_at, heartbeat_at)
         VALUES ($1, 'live', 'host', 'boot', 7, '0', 1, $2, 10, '[]', outlive.now_ms(), outlive.now_ms())`,
        [id, leaseMs],
      );
    },
    async die(id) {
      await sql("UPDATE outlive.fleet SET state = 'gone' WHERE id = $1", [id]);
    },
    async beat(id) {
      await sql("UPDATE outlive.fleet SET beats = beats + 1, heartbeat_at = outlive.now_ms() WHERE id = $1", [id]);
    },
    async claim(worker, job) {
      const [row] = await sql<{ fence: number }>(
        `UPDATE outlive.jobs j SET state = 1, worker = f.seq, epoch = 1, fence = fence + 1, started_at = outlive.now_ms(),
           deadline_at = outlive.now_ms() + k.timeout_ms
         FROM outlive.fleet f, outlive.kinds k WHERE f.id = $1 AND j.id = $2 AND k.id = j.kind AND j.state = 0 RETURNING fence`,
        [worker, job],
      );
      assert.ok(row, `${job} is queued`);
      return row.fence;
    },
    async job(id) {
      const [row] = await sql<Omit<JobRow, "state" | "error"> & { state: number; error: string | null }>(
        `SELECT state, lane, errors, crashes, blamed, timeouts, losses, fence, error, (run_at - outlive.now_ms())::float8 AS "waitsMs"
         FROM outlive.jobs WHERE id = $1`,
        [id],
      );
      assert.ok(row, `there is a job ${id}`);
      const error = row.error === null ? null : (JSON.parse(row.error) as JobRow["error"]);
      return { ...row, state: JOB_STATES[row.state]!, error };
    },
  };
}

/** One pass of core over the losses of contact, as the maintenance of any worker does it. SQL judges none. */
export async function judgeLosses(store: Pick<Fixture, "url" | "schema">): Promise<void> {
  const opened = await openStore(store);
  try {
    const liveness = { probe: async () => "unknown" } as unknown as ConstructorParameters<
      typeof LossJudge
    >[0]["liveness"];
    const deps = { store: opened, liveness, processState: () => "unknown" as const, clock: virtualClock() };
    await new LossJudge({ ...deps, events: { emit() {} } as never }).pass(1_000);
  } finally {
    await opened.close();
  }
}

/** Rejects with what psql said if one of the statements fails. `heard` gets the notices and warnings on the side. */
export function psql(
  url: string,
  text: string,
  options: readonly string[] = [],
  heard: (notices: string) => void = () => {},
): Promise<string> {
  return new Promise((resolve, reject) => {
    const child = execFile(
      "psql",
      [url, "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", ...options],
      { env: { PATH: process.env["PATH"], PGOPTIONS: "-c client_min_messages=warning" } },
      (error, stdout, stderr) => {
        if (error) reject(new Error(stderr || error.message));
        else {
          heard(stderr);
          resolve(stdout.trimEnd());
        }
      },
    );
    // A psql that stops at an error does not read the rest of a long script: how it ended is in its exit code.
    child.stdin!.on("error", () => {}).end(text);
  });
}
