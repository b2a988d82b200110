// What c04 and c10 share: one engine on each store, with jobs that end when the test says so, and a way to make a job a suspect.
import { DatabaseSync } from "node:sqlite";
import type { TestContext } from "node:test";
import { type Engine, type EngineOptions, job, open } from "../../src/index.ts";
import { freshSchema } from "../support/postgres.ts";
import { Place } from "../support/processes.ts";

export interface SuspectFixture {
  readonly engine: Engine;
  /** Makes queued jobs ready and suspect, as two deaths would have. */
  readonly accuse: (...ids: readonly string[]) => Promise<void>;
  /** The ids of the jobs whose handlers were called, in order. */
  readonly started: string[];
  /** Enqueues a job whose handler waits until `release`. */
  readonly enqueueHeld: (options?: { readonly priority?: number; readonly suspect?: true }) => Promise<string>;
  readonly release: (id: string) => void;
  readonly enqueueQuick: (priority?: number) => Promise<string>;
}

type OpenFixture = (
  t: TestContext,
  jobs: EngineOptions["jobs"],
) => Promise<{ engine: Engine; sql: (text: string, id: string) => Promise<void> }>;

const HEARTBEAT = { interval: "500ms", lease: "60s", probe: "100ms", sweep: "1s" } as const;

const OPEN: Readonly<Record<string, OpenFixture>> = {
  async SQLite(t, jobs = []) {
    const place = new Place(t);
    const engine = await place.engine({ jobs, heartbeat: HEARTBEAT });
    const db = new DatabaseSync(place.path, { timeout: 10_000 });
    t.after(() => db.close());
    return { engine, sql: async (text, id) => void db.prepare(text.replace("JOBS", "outlive_jobs")).run(id) };
  },
  async PostgreSQL(t, jobs = []) {
    const { url, schema, query } = await freshSchema(t);
    const engine = await open(url, { jobs, logger: false, heartbeat: HEARTBEAT, postgres: { schema } });
    t.after(() => engine.close({ grace: "0ms" }));
    const named = (text: string): string => text.replace("JOBS", `"${schema}".jobs`).replace("?", "$1");
    return { engine, sql: async (text, id) => void (await query(named(text), [id])) };
  },
};

export const STORES = Object.keys(OPEN);

export async function suspectFixture(t: TestContext, store: string): Promise<SuspectFixture> {
  const started: string[] = [];
  const ends = new Map<string, () => void>();
  const held = job<null>("held", { timeout: "none", grace: "100ms" });
  held.handle((_input, run) => {
    started.push(run.id);
    return new Promise<void>((resolve) => {
      ends.set(run.id, resolve);
      run.signal.addEventListener("abort", () => resolve());
    });
  });
  const quick = job<null>("quick");
  quick.handle((_input, run) => void started.push(run.id));
  const { engine, sql } = await OPEN[store]!(t, [held, quick]);
  const accuse = async (...ids: readonly string[]): Promise<void> => {
    for (const id of ids)
      await sql("UPDATE JOBS SET crashes = 2, lane = 2, run_at = NULL WHERE id = ? AND state = 0", id);
  };
  return {
    engine,
    accuse,
    started,
    async enqueueHeld({ priority = 0, suspect = false } = {}) {
      const { id } = await engine.enqueue(held, null, { priority, ...(suspect ? { delay: "1h" } : {}) });
      if (suspect) await accuse(id);
      return id;
    },
    release: (id) => ends.get(id)!(),
    enqueueQuick: async (priority = 0) => (await engine.enqueue(quick, null, { priority })).id,
  };
}

/** What was seen when `is` held, or at the end of the limit. The caller asserts. */
export async function seenWithin<T>(ms: number, look: () => Promise<T> | T, is: (seen: T) => boolean): Promise<T> {
  const until = performance.now() + ms;
  for (;;) {
    const seen = await look();
    if (is(seen) || performance.now() > until) return seen;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
