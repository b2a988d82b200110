// C12: the tasks of maintenance fail for themselves, and none of them delays the detection of a death.
import assert from "node:assert/strict";
import { fork } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { test, type TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import { type Engine, type EngineOptions, open } from "../../src/index.ts";
import { PATIENT } from "../postgres/place.ts";
import { freshSchema } from "../support/postgres.ts";
import { Child, untilState, untilTrue } from "../support/processes.ts";
import { nap } from "./commit-jobs.ts";
import { comes } from "./commit-place.ts";

type Row = Record<string, unknown>;

/** One store with worker processes on it, and SQL behind the back of all of them: `jobs` and `workers` stand for the tables. */
interface Place {
  readonly engine: Engine;
  child(options: EngineOptions): Child;
  readonly sql: (text: string) => Promise<Row[]>;
  /** Makes the deletion of jobs slow. */
  readonly slowly: string;
  /** A table of the user's with a row that refers to one of the old jobs. */
  readonly references: string;
}

const KEEPS = { finished: "7d" } as const;
const PURGES = { finished: "1s" } as const;
const SWEEPS = { ...PATIENT, sweep: "300ms" } as const;

const STORES = {
  async sqlite(t: TestContext): Promise<Place> {
    const folder = mkdtempSync(join(tmpdir(), "outlive-test-"));
    const path = join(folder, "jobs.db");
    const place = await placeOn(t, `sqlite:${path}`, {}, () => rmSync(folder, { recursive: true, force: true }));
    return {
      ...place,
      async sql(text) {
        const db = new DatabaseSync(path, { timeout: 10_000 });
        try {
          const own = text.replaceAll(/\b(jobs|workers)\b/g, "outlive_$1");
          if (own.startsWith("SELECT")) return db.prepare(own).all();
          db.exec(own);
          return [];
        } finally {
          db.close();
        }
      },
      slowly: `CREATE TRIGGER slowly AFTER DELETE ON jobs BEGIN SELECT length(hex(randomblob(1500000))); END`,
      references: `CREATE TABLE invoices (job TEXT REFERENCES jobs (id)); INSERT INTO invoices SELECT id FROM jobs WHERE seq = 7`,
    };
  },
  async postgres(t: TestContext): Promise<Place> {
    const ends: (() => Promise<void>)[] = [];
    t.after(async () => {
      for (const end of ends) await end();
    });
    const { url, schema, query } = await freshSchema(t);
    const place = await placeOn({ after: (end: () => Promise<void>) => ends.push(end) }, url, { postgres: { schema } });
    const real = { jobs: "jobs", workers: "fleet" };
    const sql: Place["sql"] = (text) =>
      query(text.replaceAll(/\b(jobs|workers)\b/g, (table) => `"${schema}".${real[table as keyof typeof real]}`));
    await query(
      `CREATE FUNCTION "${schema}".slowly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END $$`,
    );
    const slowly = `CREATE TRIGGER slowly AFTER DELETE ON jobs EXECUTE FUNCTION "${schema}".slowly()`;
    const references = `CREATE TABLE "${schema}".invoices (job bigint REFERENCES jobs (seq)); INSERT INTO "${schema}".invoices VALUES (7)`;
    return { ...place, sql, slowly, references };
  },
};

async function placeOn(
  t: { after(end: () => Promise<void>): unknown },
  url: string,
  common: EngineOptions,
  cleanUp = (): void => {},
): Promise<Pick<Place, "engine" | "child">> {
  const children: Child[] = [];
  const engines: Engine[] = [];
  t.after(async () => {
    for (const child of children) child.kill("SIGKILL");
    await Promise.all(children.map((child) => child.exited));
    for (const engine of engines) await engine.close();
    cleanUp();
  });
  const engine = await open(url, { jobs: [nap], logger: false, ...common });
  engines.push(engine);
  const child = (options: EngineOptions): Child => {
    const file = fileURLToPath(new URL("./purge-worker.ts", import.meta.url));
    const born = new Child(
      fork(file, [url, JSON.stringify({ ...common, ...options })], {
        execArgv: ["--disable-warning=ExperimentalWarning"],
        stdio: ["ignore", "inherit", "pipe", "ipc"],
      }),
    );
    children.push(born);
    return born;
  };
  return { engine, child };
}

/** So many jobs that have finished long ago. */
async function finishedJobs({ engine, sql }: Place, count: number): Promise<void> {
  const each = () => ({ delay: "1h" }) as const;
  await engine.enqueueMany(nap, Array(count).fill({ ms: 0 }), { each });
  await sql(
    "UPDATE jobs SET state = 2, lane = 1, outcome = 0, run_at = NULL, created_at = 1, started_at = 1, finished_at = 1",
  );
}

async function countOld({ sql }: Place): Promise<number> {
  return Number((await sql("SELECT count(*) AS n FROM jobs WHERE finished_at = 1"))[0]!["n"]);
}

/** A job that a finished worker still holds: what is left when a recovery could not deal with it. */
async function plantLeftBehind({ engine, sql }: Place, like: string): Promise<string> {
  const { id } = await engine.enqueue(nap, { ms: 0 }, { delay: "1h" });
  const [row] = await sql(`SELECT * FROM workers WHERE id = '${like}'`);
  const columns = Object.keys(row!).filter((name) => name !== "seq");
  const values = columns.map((name) => (name === "id" ? "'left-behind'" : name === "state" ? "'gone'" : name));
  await sql(
    `INSERT INTO workers (${columns.join(", ")}) SELECT ${values.join(", ")} FROM workers WHERE id = '${like}'`,
  );
  await sql(`UPDATE jobs SET state = 1, lane = 1, run_at = NULL, fence = 1, started_at = 2, deadline_at = NULL,
    worker = (SELECT seq FROM workers WHERE id = 'left-behind') WHERE id = '${id}'`);
  return id;
}

for (const store of ["sqlite", "postgres"] as const) {
  test(`C12: a job that a row of the user's refers to stops neither the purge of others nor the recovery of jobs left behind, on ${store}`, async (t) => {
    const place = await STORES[store](t);
    const { engine, sql } = place;
    await finishedJobs(place, 20);
    await engine.enqueue(nap, { ms: 0 }, { delay: "1h" });
    await sql(place.references);
    const worker = place.child({ heartbeat: SWEEPS, retention: PURGES });
    const working = await worker.untilFact("working");
    const id = await plantLeftBehind(place, String(working["worker"]));
    assert.ok(await comes(10_000, untilState(engine, id, "succeeded")), "it is found and runs again");
    const purged = untilTrue(
      () => countOld(place),
      (left) => left === 1,
      "all others are purged",
    );
    assert.ok(await comes(10_000, purged), "all old jobs but that one are purged");
    const failed = await worker.until(
      ({ event }) => /retention/.test(String((event as { doing?: string } | undefined)?.doing)),
      "it is reported",
    );
    assert.match(JSON.stringify(failed), /foreign key/i);
  });

  test(`C12: a worker that is killed during a purge is found before the purge has ended, on ${store}`, async (t) => {
    const place = await STORES[store](t);
    const { engine } = place;
    await finishedJobs(place, 3_000);
    await place.sql(place.slowly);
    const killed = place.child({ heartbeat: PATIENT, retention: KEEPS });
    await killed.untilFact("working");
    const { id } = await engine.enqueue(nap, { ms: 600_000 });
    await killed.untilFact("started", { id });
    const other = place.child({ heartbeat: SWEEPS, retention: PURGES });
    await other.untilFact("working");
    await untilTrue(
      () => countOld(place),
      (left) => left < 3_000,
      "the purge has begun",
    );
    killed.kill();
    const killedAt = performance.now();
    await other.untilFact("started", { id, attempt: 2 });
    const tookMs = performance.now() - killedAt;
    t.diagnostic(`it ran again after ${Math.round(tookMs)} ms`);
    const left = await countOld(place);
    assert.ok(left > 1, `the purge goes on, ${left} old jobs are left`);
    assert.ok(tookMs < 1_000, `it ran again after ${Math.round(tookMs)} ms`);
  });
}
